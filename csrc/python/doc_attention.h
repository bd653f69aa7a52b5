/* The docstring of pyattn.attention. Its first line is the signature that inspect.signature reads. */
#define DOC_ATTENTION \
    "attention($module, query, key, value, *, attn_mask=None, is_causal=False, align=None, scale=None, score='dot', score_weight=None, window=None, key_lengths=None, query_lengths=None, dropout_p=0.0, rng=None, keep_mask=None, enable_gqa=False, need_weights=False, need_lse=False, empty_rows='zero', layout='bhsd', num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "attention:                    True = attend\n" \
    "MultiheadAttention, as torch: True = blocked\n" \
    "\n" \
    "Compute attention, ``softmax(scale * query @ key.T + mask) @ value``.\n" \
    "\n" \
    "Leading axes broadcast. When an array has four axes or more, heads are an axis of their own, and query heads may be a\n" \
    "multiple of key and value heads. A row that sees no key gives 0. Masked keys and values never affect the result,\n" \
    "even if they are NaN. `score` selects other scores than the dot product.\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "query : array_like, (..., heads, L, head_dim)\n" \
    "    float16, bfloat16, float32 or float64. Bools, integers and lists of Python's numbers become float64; dtypes that\n" \
    "    differ are promoted, but float16 with bfloat16 is refused. Halves are computed in float32, and output and\n" \
    "    weights are rounded to them; lse is float32.\n" \
    "    Arrays with any strides, torch CPU tensors, and other DLPack or buffer objects are read in place.\n" \
    "key : array_like, (..., heads, S, head_dim)\n" \
    "    Keys, which are compared with the queries.\n" \
    "value : array_like, (..., heads, S, v_dim)\n" \
    "    Values, which are averaged; they may have another size than keys.\n" \
    "attn_mask : array_like or pyattn.masks.Mask, optional\n" \
    "    Broadcasts to (..., heads, L, S) in every layout. bool: True = attend (`torch.nn.MultiheadAttention` means the\n" \
    "    opposite). Any float dtype: added to the scaled scores, in natural-log units. Read in place, never expanded.\n" \
    "is_causal : bool, default False\n" \
    "    Query i sees no key after its own position. Combined with `attn_mask`.\n" \
    "align : {'upper_left', 'lower_right'} or int, optional\n" \
    "    Position of query 0 for causal masks and windows; required if L != S. 'upper_left': at key 0 (torch, JAX).\n" \
    "    'lower_right': the last query is at the last key (FlashAttention; decoding with a cache); with `key_lengths` or\n" \
    "    `query_lengths`, separately for each batch entry. An int: query 0 is at that key, which may be negative.\n" \
    "scale : float, optional\n" \
    "    Factor of the scores. Default: see `score`.\n" \
    "score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}, default 'dot'\n" \
    "    Score of a query and a key, before the mask::\n" \
    "\n" \
    "        dot       scale * q . k                        scale 1 / sqrt(head_dim)\n" \
    "        cosine    scale * q . k / (|q| |k|)            1; a vector of zeros scores 0\n" \
    "        distance  -scale * |q - k|^2                   1 / (2 * sqrt(head_dim))\n" \
    "        bilinear  scale * q . score_weight . k         1; score_weight (query's features, key's features)\n" \
    "        additive  scale * score_weight . tanh(q + k)   1; score_weight (head_dim,)\n" \
    "\n" \
    "    Bilinear is Luong's \"general\" score; additive is Bahdanau's without its projections (see `additive_attention`).\n" \
    "score_weight : array_like, optional\n" \
    "    Weight of a bilinear or additive score, which require it; promoted with query, key and value. Default: None.\n" \
    "window : int or (int or None, int or None), optional\n" \
    "    (left, right): each query sees that many keys before and after its own position. One int is for both,\n" \
    "    None is unbounded.\n" \
    "key_lengths : array_like of int, optional\n" \
    "    Number of keys, 0 <= n <= S, of each batch entry; broadcasts to the batch axes.\n" \
    "query_lengths : array_like of int, optional\n" \
    "    Number of queries, 0 <= n <= L, of each batch entry, as `key_lengths`; rows after them see no key.\n" \
    "dropout_p : float, default 0.0\n" \
    "    Probability that a weight becomes 0, after the softmax; the others are divided by ``1 - dropout_p``.\n" \
    "rng : None, int, SeedSequence or Generator, optional\n" \
    "    Source of dropout's random numbers, as for `numpy.random.default_rng`; an int makes it reproducible.\n" \
    "    The mask is the same for any number of threads and is never stored; `dropout_keep_mask` returns it.\n" \
    "keep_mask : array_like of bool, optional\n" \
    "    Broadcasts to (..., heads, L, S) in every layout: True = kept. Replaces random numbers from `rng`.\n" \
    "enable_gqa : bool, default False\n" \
    "    In arrays with three axes too, axis -3 ('bshd': -2) holds heads.\n" \
    "need_weights, need_lse : bool, default False\n" \
    "    Return an `AttentionResult` with the weights (..., heads, L, S), or the logsumexp of the scores (..., heads, L),\n" \
    "    a natural logarithm, -inf for a row that sees no key. Dropout affects the weights but not the logsumexp.\n" \
    "empty_rows : {'zero', 'nan'}, default 'zero'\n" \
    "    The output of a row that sees no key. Its weights are 0, its lse is -inf.\n" \
    "layout : {'bhsd', 'bshd'}, default 'bhsd'\n" \
    "    'bshd': query, key, value and the output are (..., length, heads, dim): four axes or more, or three\n" \
    "    with `enable_gqa`. Arrays without a heads axis have only one layout, 'bhsd'.\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; at most 1024 are used. The result is bit-identical for any number.\n" \
    "out : ndarray, optional\n" \
    "    Array for the output, of its shape and dtype. It may overlap an input, but its elements must not overlap.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., heads, L, v_dim)\n" \
    "    With need_weights or need_lse: an `AttentionResult`, a tuple of the output and what was requested.\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    Shapes disagree, `align` is missing, lengths are out of range, scale is not finite, `score` lacks its\n" \
    "    `score_weight` or has one that it does not take, or `out` has another shape or dtype than the output.\n" \
    "TypeError\n" \
    "    An array is complex, of objects or strings, masked, a matrix, sparse, or a tensor that requires grad or is not on\n" \
    "    the CPU; or attn_mask is of integers. The message says what to pass instead.\n" \
    "\n" \
    "Warns\n" \
    "-----\n" \
    "MaskWarning\n" \
    "    A float mask holds zeros and ones only, which masks nothing; or a bool mask (L, S), or (1, ..., L, S), hides\n" \
    "    every key, or shows each query only later keys: probably True was meant as blocked.\n" \
    "ShapeWarning\n" \
    "    The heads and length axes look swapped: more than 512 heads, and few queries and keys.\n" \
    "\n" \
    "Notes\n" \
    "-----\n" \
    "The formula is from Vaswani et al., \"Attention Is All You Need\" (2017), section 3.2.1. Extra memory is O(L + S).\n" \
    "\n" \
    "``query * scale`` is computed in float32 or float64, in which denormals count as 0. Pass float64 if elements of this\n" \
    "product are outside 1e-38 to 1e38 in float32. Scores and masks are multiplied by log2(e) inside; a finite mask that\n" \
    "would overflow becomes the dtype's largest number of its sign, so it never hides a key by accident.\n" \
    "\n" \
    "'distance' sums squared differences, so a large offset shared by all queries and keys, such as a time, costs no\n" \
    "accuracy. The squares must not overflow. Pairs with ``scale * (|q|^2 + |k|^2)`` below 22 use the faster\n" \
    "``2 q . k - |q|^2 - |k|^2``, whose error is at most about 40 roundings of 1. 'cosine' accepts numbers of any size.\n" \
    "'bilinear' allocates memory for ``query @ score_weight``.\n" \
    "\n" \
    "Examples\n" \
    "--------\n" \
    ">>> import numpy as np, pyattn\n" \
    ">>> x = np.array([[1., 0., 1.], [0., 2., 1.]])\n" \
    ">>> pyattn.attention(x, x, x, scale=1.0).round(4)\n" \
    "array([[0.7311, 0.5379, 1.    ],\n" \
    "       [0.018 , 1.964 , 1.    ]])\n" \
    ">>> pyattn.attention(x, x, x, is_causal=True, need_weights=True).weights.round(4)\n" \
    "array([[1.    , 0.    ],\n" \
    "       [0.0903, 0.9097]])\n"

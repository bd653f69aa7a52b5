/* The docstring of pyattn.attention. Its first line is the signature that inspect.signature reads. */
#define DOC_ATTENTION \
    "attention($module, query, key, value, *, attn_mask=None, is_causal=False, align=None, scale=None, score='dot', score_weight=None, window=None, key_lengths=None, query_lengths=None, dropout_p=0.0, rng=None, keep_mask=None, enable_gqa=False, need_weights=False, need_lse=False, empty_rows='zero', layout='bhsd', num_threads=None, out=None)\n" \
    "--\n" \
    "\n" \
    "attention:                    True = attend\n" \
    "MultiheadAttention, as torch: True = blocked\n" \
    "\n" \
    "Attention, ``softmax(scale * query @ key.T + mask) @ value``; with `score`, for other scores than the dot product.\n" \
    "\n" \
    "Leading axes broadcast. When an array has four axes or more, heads are an axis of their own, and query heads may be a\n" \
    "multiple of key and value heads. A row with nothing to attend to gives 0; what a mask rules out is never touched, even\n" \
    "where it holds NaN.\n" \
    "\n" \
    "Parameters\n" \
    "----------\n" \
    "query : array_like, (..., heads, L, head_dim)\n" \
    "    float32 or float64. Bools, integers and lists of Python's numbers become float64; dtypes that differ are promoted.\n" \
    "    Anything NumPy can view is taken as it is, with any strides: torch CPU tensors, other DLPack or buffer objects.\n" \
    "key : array_like, (..., heads, S, head_dim)\n" \
    "    What queries are compared with.\n" \
    "value : array_like, (..., heads, S, v_dim)\n" \
    "    What is averaged, with v_dim features of its own.\n" \
    "attn_mask : array_like or pyattn.masks.Mask, optional\n" \
    "    Broadcasts to (..., heads, L, S) in every layout. bool: True = attend (`torch.nn.MultiheadAttention` means the\n" \
    "    opposite). Any float dtype: added to the scaled scores, in natural-log units. Read in place, never expanded.\n" \
    "is_causal : bool, default False\n" \
    "    Query i sees no key after its own position. Combined with `attn_mask`.\n" \
    "align : {'upper_left', 'lower_right'} or int, optional\n" \
    "    Position of query 0 for causal masks and windows; needed when L != S. 'upper_left': key 0 (torch, JAX).\n" \
    "    'lower_right': the last query stands at the last key (FlashAttention; decoding with a cache); with `key_lengths` or\n" \
    "    `query_lengths`, at each batch entry's own last ones. An int: that key, which may be negative.\n" \
    "scale : float, optional\n" \
    "    What scores are multiplied with. Default: see `score`.\n" \
    "score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}, default 'dot'\n" \
    "    How a query and a key score, before the mask::\n" \
    "\n" \
    "        dot       scale * q . k                        scale 1 / sqrt(head_dim)\n" \
    "        cosine    scale * q . k / (|q| |k|)            1; a vector of zeros scores 0\n" \
    "        distance  -scale * |q - k|^2                   1 / (2 * sqrt(head_dim))\n" \
    "        bilinear  scale * q . score_weight . k         1; score_weight (query's features, key's features)\n" \
    "        additive  scale * score_weight . tanh(q + k)   1; score_weight (head_dim,)\n" \
    "\n" \
    "    Bilinear is Luong's \"general\" score; additive is Bahdanau's, after its projections, which `additive_attention` has.\n" \
    "score_weight : array_like, optional\n" \
    "    Of a bilinear or additive score, which need it; promoted with query, key and value. Default: None.\n" \
    "window : int or (int or None, int or None), optional\n" \
    "    How many keys to the left and right of its own position a query sees, both ends included; one int means both sides,\n" \
    "    None is unbounded.\n" \
    "key_lengths : array_like of int, optional\n" \
    "    Number of keys, 0 <= n <= S, of each batch entry; broadcasts to the batch axes.\n" \
    "query_lengths : array_like of int, optional\n" \
    "    Number of queries, 0 <= n <= L, likewise; later rows have nothing to attend to.\n" \
    "dropout_p : float, default 0.0\n" \
    "    Probability that a weight becomes 0, after the softmax; the others are divided by ``1 - dropout_p``.\n" \
    "rng : None, int, SeedSequence or Generator, optional\n" \
    "    Where dropout's numbers come from, as `numpy.random.default_rng` takes it; an int gives the same keeps each time.\n" \
    "    `dropout_keep_mask` tells which. They depend neither on threads nor on the order of the work, and take no memory.\n" \
    "keep_mask : array_like of bool, optional\n" \
    "    Broadcasts to (..., heads, L, S) in every layout: True = kept. In place of numbers drawn from `rng`.\n" \
    "enable_gqa : bool, default False\n" \
    "    Axis -3 (with 'bshd' -2) of arrays with three axes is heads, too.\n" \
    "need_weights, need_lse : bool, default False\n" \
    "    Return an `AttentionResult` with the weights (..., heads, L, S), or the logsumexp of the scores (..., heads, L),\n" \
    "    a natural logarithm, -inf for a row with nothing to attend to. Dropout is in the weights and not in the lse.\n" \
    "empty_rows : {'zero', 'nan'}, default 'zero'\n" \
    "    The output of a row with nothing to attend to. Its weights are 0, its lse is -inf.\n" \
    "layout : {'bhsd', 'bshd'}, default 'bhsd'\n" \
    "    'bshd': query, key, value and the output are (..., length, heads, dim): four axes or more, or three\n" \
    "    with `enable_gqa`. Without heads there is no other layout.\n" \
    "num_threads : int, optional\n" \
    "    Default: `get_num_threads`; above 1024 it is 1024. The result does not depend on it, to the last bit.\n" \
    "out : ndarray, optional\n" \
    "    Array for the output, of its shape and dtype. It may overlap an input, but not itself.\n" \
    "\n" \
    "Returns\n" \
    "-------\n" \
    "ndarray, (..., heads, L, v_dim)\n" \
    "    Or, with need_weights or need_lse, ``AttentionResult(output, weights, lse)``, None for what was not asked for.\n" \
    "\n" \
    "Raises\n" \
    "------\n" \
    "ValueError\n" \
    "    Shapes that disagree; a missing `align`; lengths out of range; a scale that is not finite; a `score`\n" \
    "    without its `score_weight`, or the reverse; an `out` that does not fit.\n" \
    "TypeError\n" \
    "    Complex, object, string or integer-mask dtypes; masked arrays, matrices, sparse arrays, tensors that are not on the\n" \
    "    CPU or require grad. The message says what to pass instead.\n" \
    "\n" \
    "Warns\n" \
    "-----\n" \
    "MaskWarning\n" \
    "    A float mask holds zeros and ones only, which masks nothing.\n" \
    "ShapeWarning\n" \
    "    The heads and length axes look swapped: hundreds of heads, and few queries and keys.\n" \
    "\n" \
    "Notes\n" \
    "-----\n" \
    "The formula is that of Vaswani et al., \"Attention Is All You Need\" (2017), section 3.2.1. Extra memory is O(L + S).\n" \
    "\n" \
    "``query * scale`` is formed in the arrays' dtype, with denormals taken as 0: where its elements leave the range from\n" \
    "1e-38 to 1e38 (float32), pass float64. A finite mask stays finite: what log2(e) times it would overflow is the dtype's\n" \
    "largest number.\n" \
    "\n" \
    "Distances are sums of squared differences: an offset that queries and keys share, as times and positions do, costs\n" \
    "no digits. A pair near 0, where ``scale * (|q|^2 + |k|^2)`` is below 22, takes ``2 q . k - |q|^2 - |k|^2``, which is\n" \
    "faster, and off by some 40 roundings of 1 at most. Squares of differences have to stay in the dtype's range; cosines\n" \
    "take numbers of any size. A bilinear score takes memory for ``query @ score_weight``.\n" \
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

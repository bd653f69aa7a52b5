/* attn.h: attention on strided arrays. The only public header of the C core, which knows neither Python nor NumPy.
 *
 *     output = softmax(score(query, key) + mask) . value        per batch entry and head
 *
 * Arrays are tensors: up to ATTN_MAX_AXES axes of any strides (in bytes: negative, zero and broadcast ones too).
 * Elements must be aligned and in native byte order.
 *
 * The real arrays of a call are float64 throughout, or each is float32 or one kind of half precision, ATTN_F16 or
 * ATTN_BF16. Halves are storage: they are computed in float32, as if they had been converted before, and a result that
 * is stored as a half is rounded once, to nearest, ties to even. A logsumexp is float32 then.
 *
 * A call that returns ATTN_INVALID writes nothing. After ATTN_INTERRUPTED or ATTN_FORKED, some rows of the output may
 * be unfinished. After ATTN_NO_MEMORY nothing is written, except by attn_multihead, attn_feed_forward and attn_layer:
 * they process large inputs in parts and may have finished some.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_API __attribute__((visibility("default")))

enum { ATTN_MAX_AXES = 8 };

/* ATTN_FORKED comes back in a child that was forked while the call worked on several threads, which a child does not
 * have: call again, unless the output is also an input, which is partly overwritten then. */
typedef enum { ATTN_OK, ATTN_INVALID, ATTN_NO_MEMORY, ATTN_INTERRUPTED, ATTN_FORKED } attn_status;

/* Why a call returned ATTN_INVALID or ATTN_NO_MEMORY, as one sentence. */
typedef struct {
    char message[512];
} attn_error;

typedef enum { ATTN_BOOL, ATTN_F16, ATTN_BF16, ATTN_F32, ATTN_F64, ATTN_LONG_DOUBLE, ATTN_I64 } attn_dtype;

/* A strided array, passed by value; only the elements are borrowed. data == NULL: not given. */
typedef struct {
    void *data;
    attn_dtype dtype;
    int ndim;
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
} attn_tensor;

/* The corner from which a causal mask's diagonal, or a window's centre, starts when q_len != kv_len. */
typedef enum { ATTN_ALIGN_UNSAID, ATTN_ALIGN_UPPER_LEFT, ATTN_ALIGN_LOWER_RIGHT, ATTN_ALIGN_OFFSET } attn_align;

/* Axes of query, key, value and output: (..., heads, length, dim) or (..., length, heads, dim). */
typedef enum { ATTN_LAYOUT_BHSD, ATTN_LAYOUT_BSHD } attn_layout;

/* The score of a query and a key, before the mask:
 *
 *     ATTN_SCORE_DOT        scale * q . k                        scale 1 / sqrt(head_dim) unless has_scale
 *     ATTN_SCORE_COSINE     scale * q . k / (|q| |k|)            1; a vector of zeros scores 0
 *     ATTN_SCORE_DISTANCE   -scale * |q - k|^2                   1 / (2 sqrt(head_dim))
 *     ATTN_SCORE_ADDITIVE   scale * score_weight . tanh(q + k)   1
 */
typedef enum { ATTN_SCORE_DOT, ATTN_SCORE_COSINE, ATTN_SCORE_DISTANCE, ATTN_SCORE_ADDITIVE } attn_score;

enum { ATTN_UNBOUNDED = -1 };

/* A paged KV cache. Each page holds ATTN_PAGE_KEYS positions, which are read and written in place: keys (kv_heads,
 * ATTN_PAGE_KEYS, head_dim), directly followed by values (kv_heads, ATTN_PAGE_KEYS, v_dim), both contiguous and aligned
 * to their elements. Position j of batch entry b is row j % ATTN_PAGE_KEYS of pages[b][j / ATTN_PAGE_KEYS]. Batch
 * entries may share pages. Rows after a batch entry's last position are never read. */
enum { ATTN_PAGE_KEYS = 64 };
typedef struct {
    attn_dtype dtype;            /* of keys and values, which are real */
    void *const *const *pages;   /* (batches): page tables */
    const ptrdiff_t *page_count; /* (batches): pages per table */
    ptrdiff_t batches, kv_heads, head_dim, v_dim;
    ptrdiff_t length; /* positions of the longest batch entry: the length of key and value */
} attn_cache;

/* Arguments of attention. Zero-initialise, then set query, key, value, and window_left = window_right = ATTN_UNBOUNDED.
 *
 * Leading axes broadcast. Heads are an axis when an array has four axes or more, or with enable_gqa (one of which
 * ATTN_LAYOUT_BSHD needs); query heads may then be a multiple of key and value heads. Masks broadcast to (..., heads,
 * q_len, kv_len). mask and padding_mask are bool (nonzero = attend, or the opposite with mask_blocked or
 * padding_blocked) or a float type, added after scaling. A pair must pass both. Key j is visible to query i when
 *
 *     0 <= j < key_length,  i < query_length,  i + offset - window_left <= j <= i + offset + window_right,
 *     and  key_limits[i][0] <= j < key_limits[i][1]
 *
 * where is_causal means a window_right of 0, and offset = query_start - key_start, plus key_length - query_length for
 * ATTN_ALIGN_LOWER_RIGHT. query_start and key_start (a multiple of 64) place the call as a part of a longer problem;
 * its rows are then bit-identical to those of the whole. A cache replaces arrays (batches, kv_heads, length, dim).
 *
 * Calls over the parts of the keys, from left to right, hand on each row's softmax: with `unfinished`, output is a state
 * (..., v_dim + 2) in the dtype of the arithmetic, sum_j 2^(s_j - m) value_j, then m, the largest score s_j in units of
 * log2, and sum_j 2^(s_j - m). The next call takes it as `state`; the last one is not unfinished, and its results are
 * bit-identical to those of one call. Parts begin at multiples of 512. One rule is weaker: finite values whose sum
 * overflows before it is divided give infinities.
 *
 * Dropout comes after the softmax; it affects the weights but not the logsumexp. A weight is dropped (set to 0) or
 * divided by 1 - dropout_p; with dropout_p = 1 all are dropped. keep_mask (bool, nonzero = kept) chooses which; without
 * it, attn_dropout_keep does, for query query_start + i and key key_start + j, and the unit that `units` gives or, without
 * it, the number of batch entry and head, counted from 0. With a cache and ATTN_ALIGN_LOWER_RIGHT,
 * the query counts by its position in the cache, query_start + i + key_length - query_length.
 */
typedef struct {
    attn_tensor query, key, value; /* real */
    const attn_cache *cache;       /* not NULL: keys and values are read from it; key and value are ignored */
    attn_tensor mask, padding_mask;
    ptrdiff_t extra_keys; /* number of last keys that every row sees: no mask, limit, window or length covers them */
    int mask_blocked, padding_blocked; /* nonzero of a bool mask means blocked, as in torch.nn.MultiheadAttention */
    attn_tensor key_limits; /* ATTN_I64, (..., heads, q_len, 2), whose last axis does not broadcast; the call's first
                             * key counts as 0 */
    attn_tensor key_lengths, query_lengths; /* ATTN_I64, broadcast to the batch axes */
    int has_scale;
    double scale;
    attn_score score;
    attn_tensor score_weight; /* (head_dim), contiguous: ATTN_SCORE_ADDITIVE alone */
    int is_causal;
    attn_align align;
    ptrdiff_t align_offset;              /* ATTN_ALIGN_OFFSET: the key that query 0 stands at; may be negative */
    ptrdiff_t window_left, window_right; /* inclusive */
    ptrdiff_t query_start, key_start;
    attn_tensor state; /* of the calls over earlier keys */
    int unfinished;
    attn_layout layout;
    int enable_gqa;
    double dropout_p; /* 0 <= dropout_p <= 1 */
    uint64_t dropout_seed;
    attn_tensor units; /* ATTN_I64, broadcast to (..., heads) */
    attn_tensor keep_mask;
    double empty;        /* output of a row that sees no key: 0 or NaN */
    int average_weights; /* return the mean of the weights over heads: (..., q_len, kv_len) */
    int num_threads;     /* 0: as set by attn_set_num_threads */
} attn_args;

/* Shapes of the results, and likely mistakes that a caller may warn about. */
typedef struct {
    int ndim, weights_ndim, lse_ndim;
    ptrdiff_t output[ATTN_MAX_AXES], weights[ATTN_MAX_AXES], lse[ATTN_MAX_AXES];
    int mask_looks_like_ones, padding_looks_like_ones; /* a float mask of zeros and ones, probably meant as bool */
    int heads_look_like_length;
    ptrdiff_t heads, q_len;
    size_t work; /* approximate multiply-adds, to decide whether to release a lock */
} attn_shapes;

/* Checks every rule and gives the shapes of the results; computes nothing. */
ATTN_API attn_status attn_attention_shapes(const attn_args *args, attn_shapes *shapes, attn_error *error);

/* Computes attention. output must have the shape that attn_attention_shapes gives and a contiguous last axis; so must
 * weights and lse (natural logarithm), which may be left out (data == NULL). */
ATTN_API attn_status attn_attention(const attn_args *args, attn_tensor output, attn_tensor weights, attn_tensor lse,
                                    attn_error *error);

/* Gradients of attention. The forward call had the arguments `attention`, without a cache, and gave output and lse; a
 * dropout_seed, or keep_mask, is that of the forward call. grad_output has output's shape, grad_lse lse's; grad_lse may
 * be left out. */
typedef struct {
    attn_args attention;
    attn_tensor grad_output, output, lse, grad_lse;
} attn_backward_args;

/* Where the gradients go that are wanted; the others are left out. query, key, value, mask and score_weight have the
 * shapes of the arguments, summed over the axes that these broadcast; mask is float, and only additive scores have a
 * score_weight. All are float64 for float64, else float32, with a contiguous last axis. */
typedef struct {
    attn_tensor query, key, value, mask, score_weight;
    double *scale;
} attn_gradients;

/* Checks every rule; computes nothing. */
ATTN_API attn_status attn_check_backward(const attn_backward_args *args, const attn_gradients *gradients,
                                         attn_error *error);

/* Computes the gradients, bit-identical for any number of threads. A hidden pair adds nothing, even if it holds NaN. */
ATTN_API attn_status attn_attention_backward(const attn_backward_args *args, const attn_gradients *gradients,
                                             attn_error *error);

/* Forward mode. The forward call had the arguments `attention`, without a cache, and gave output and lse; both are float64
 * for float64, else float32, also where query is half. query, key, value and mask, which is float, are tangents with the
 * shapes of the arguments; those left out are 0. */
typedef struct {
    attn_args attention;
    attn_tensor output, lse;
    attn_tensor query, key, value, mask;
} attn_jvp_args;

/* Checks every rule on the inputs; computes nothing. */
ATTN_API attn_status attn_check_jvp(const attn_jvp_args *args, attn_error *error);

/* Computes the tangent of output, of the same shape and dtype and with a contiguous last axis: bit-identical for any
 * number of threads. A hidden pair adds nothing, even if it holds NaN. */
ATTN_API attn_status attn_attention_jvp(const attn_jvp_args *args, attn_tensor tangent_output, attn_error *error);

/* Writes the first count[b] rows of key and value (count == NULL: all) to positions first[b], first[b] + 1 ... of batch
 * entry b. key is (batches, kv_heads, new, head_dim), value (batches, kv_heads, new, v_dim), or in the other layout.
 * The pages must exist; cache->length is ignored. */
ATTN_API attn_status attn_cache_append(const attn_cache *cache, const ptrdiff_t *first, const ptrdiff_t *count,
                                       attn_tensor key, attn_tensor value, attn_layout layout, attn_error *error);

/* The weights that a call with this dropout_p and seed keeps, as bytes 0 and 1: keep (units, q_len, kv_len), where
 * units is batch entries times heads. Each byte depends only on seed, unit, and the absolute query and key position. */
ATTN_API attn_status attn_dropout_keep(double dropout_p, uint64_t seed, ptrdiff_t units, ptrdiff_t q_len,
                                       ptrdiff_t kv_len, unsigned char *keep, int num_threads, attn_error *error);

/* Dropout of rows: y[row, feature] = x[row, feature] / (1 - dropout_p) where kept, else 0, even for a NaN. Kept are
 * those that attn_dropout_keep keeps for unit row >> 32, query row & 0xffffffff and key `feature`. x and y (rows,
 * features) are contiguous; y may be x. */
ATTN_API attn_status attn_drop_rows(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t features, const void *x, void *y,
                                    double dropout_p, uint64_t seed, int num_threads, attn_error *error);

/* Combines attention computed over disjoint chunks of keys, through their logsumexps (natural logarithm):
 *     lse = log(sum_n exp(lse_n)),  output = sum_n exp(lse_n - lse) * output_n
 * A part with lse = -inf is never read. outputs (parts, rows, dim), of `dtype`, and lses (parts, rows) are
 * contiguous. */
ATTN_API attn_status attn_merge_states(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t rows, ptrdiff_t dim,
                                       const void *const *outputs, const void *const *lses, void *output, void *lse,
                                       attn_error *error);

/* Activations, in this order: x, max(x, 0), x Phi(x), the same with tanh in Phi's place, x sigmoid(x), tanh(x). */
typedef enum { ATTN_IDENTITY, ATTN_RELU, ATTN_GELU, ATTN_GELU_TANH, ATTN_SILU, ATTN_TANH } attn_activation;

/* Arguments of a linear layer, y = activation(x . weight^T + bias) * gate + residual. Zero-initialise what is left
 * out. */
typedef struct {
    attn_tensor x;              /* (..., inner) */
    attn_tensor weight;         /* (features, inner), read in place in either memory order */
    attn_tensor bias;           /* (features) */
    attn_tensor gate, residual; /* (..., features), with a contiguous last axis */
    attn_activation activation;
    int num_threads;
} attn_linear_args;

/* Computes a linear layer. y (..., features) has a contiguous last axis, and may be gate or residual. */
ATTN_API attn_status attn_linear(const attn_linear_args *args, attn_tensor y, attn_error *error);

/* Layer normalisation, (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis, or RMS normalisation,
 * the same with 0 for the mean. Zero-initialise what is left out. */
typedef enum { ATTN_NORM_LAYER, ATTN_NORM_RMS } attn_norm;
typedef struct {
    attn_norm kind;
    attn_tensor x, residual;  /* (..., features), with a contiguous last axis; x + residual is normalised */
    attn_tensor weight, bias; /* (features), contiguous */
    double epsilon;
    int num_threads;
} attn_norm_args;

/* Computes a normalisation. sum receives x + residual and may be left out; it is only written with a residual. sum and
 * y (..., features) have a contiguous last axis, and may be x or residual. */
ATTN_API attn_status attn_normalize(const attn_norm_args *args, attn_tensor sum, attn_tensor y, attn_error *error);

/* Gradients of a normalisation without a residual, for which nothing but x is saved. Zero-initialise what is left out.
 */
typedef struct {
    attn_norm kind;
    attn_tensor grad_output, x; /* (..., features), with a contiguous last axis */
    attn_tensor weight;         /* (features), contiguous */
    double epsilon;
    int num_threads;
} attn_norm_backward_args;

/* Where the gradients go. x (..., features) has x's dtype and a contiguous last axis, and may be x. weight and bias
 * (features), contiguous, are sums over all rows, float64 for float64, else float32; each may be left out. */
typedef struct {
    attn_tensor x, weight, bias;
} attn_norm_gradients;

/* Computes the gradients, bit-identical for any number of threads. Without a weight, its gradient is that of ones. */
ATTN_API attn_status attn_normalize_backward(const attn_norm_backward_args *args, const attn_norm_gradients *gradients,
                                             attn_error *error);

/* Arguments of an embedding, y[..., :] = scale * weight[ids[...], :] + residual[..., :]. Zero-initialise what is left
 * out, but not scale. */
typedef struct {
    attn_tensor ids;      /* (...), ATTN_I64, each a row of weight */
    attn_tensor weight;   /* (num_embeddings, dim), read in place */
    attn_tensor residual; /* broadcast to (..., dim), read in place */
    double scale;
    int num_threads;
} attn_embedding_args;

/* Checks every rule on the arguments, every id among them; computes nothing. */
ATTN_API attn_status attn_check_embedding(const attn_embedding_args *args, attn_error *error);

/* Computes an embedding. y (..., dim) has a contiguous last axis, and may be residual. With scale 1 and without a
 * residual, rows are copied bit for bit to a y of weight's dtype. */
ATTN_API attn_status attn_embedding(const attn_embedding_args *args, attn_tensor y, attn_error *error);

/* Arguments of the gradient of an embedding's weight, scale * the sum of grad_output's rows over the places where ids
 * name a row of it. Zero-initialise what is left out, but not scale. */
typedef struct {
    attn_tensor grad_output; /* (..., dim), with a contiguous last axis */
    attn_tensor ids;         /* (...), ATTN_I64, each a row of grad_weight */
    int has_padding;
    ptrdiff_t padding_idx; /* a row whose gradient is 0 */
    double scale;
    int num_threads;
} attn_embedding_backward_args;

/* Computes the gradient, bit-identical for any number of threads. grad_weight (num_embeddings, dim) has a contiguous
 * last axis; it is float64 for float64, else float32. */
ATTN_API attn_status attn_embedding_backward(const attn_embedding_backward_args *args, attn_tensor grad_weight,
                                             attn_error *error);

/* Arguments of rotary position embedding: pairs (a, b) of a row's features become
 *
 *     (a cos t - b sin t,  b cos t + a sin t)        t = position * inv_freq[pair], cos and sin times `scale`
 *
 * Pair n is the features (n, n + pairs), or (2n, 2n + 1) where `interleaved`; features after the first 2 * pairs stay
 * as they are. Zero-initialise what is left out. */
typedef struct {
    attn_tensor x;            /* (..., heads, length, dim), or (..., length, heads, dim), with a
                               * contiguous last axis. Heads are an axis of four axes or more, or in ATTN_LAYOUT_BSHD */
    attn_tensor inv_freq;     /* (pairs), ATTN_F64, contiguous */
    double scale;             /* 1, except for models that also scale the attention's temperature, such as YaRN */
    ptrdiff_t offset;         /* the position of the first row; each next row is one further */
    attn_tensor position_ids; /* ATTN_I64, in place of offset; broadcasts to (..., length), without heads */
    int interleaved;
    attn_layout layout;
    int num_threads;
} attn_rotary_args;

/* Checks every rule on the arguments; computes nothing. */
ATTN_API attn_status attn_check_rotary(const attn_rotary_args *args, attn_error *error);

/* Applies RoPE. y has x's shape and dtype and a contiguous last axis; it is x itself (the same data and strides), or
 * shares no memory with it. */
ATTN_API attn_status attn_rotary(const attn_rotary_args *args, attn_tensor y, attn_error *error);

/* Arguments of multi-head attention: projections, attention of every head, and a projection of the heads side by side.
 *
 *     q, k, v = query . q_weight^T + q_bias, ...      heads = attention(rope(q), rope(k), v)
 *     output = heads . out_weight^T + out_bias + residual
 *
 * Zero-initialise what is left out.
 *
 * With attention.cache, query (batches, length, inner) attends to the cache. First k and v are appended to it, as by
 * attn_cache_append with cache_first and cache_count. If key is left out, nothing is appended, and value, k_weight and
 * v_weight are ignored.
 */
typedef struct {
    attn_tensor query, key, value; /* (..., length, inner), of the same leading axes */
    attn_tensor q_weight;          /* (heads * head_dim, inner), read in place, as all weights */
    attn_tensor k_weight;          /* (kv_heads * head_dim, inner) */
    attn_tensor v_weight;          /* (kv_heads * v_head_dim, inner) */
    attn_tensor q_bias, k_bias, v_bias;
    attn_tensor extra_key, extra_value; /* (kv_heads * head_dim), (kv_heads * v_head_dim): a pair after all others */
    int add_zero;                       /* a pair of zeros after that */
    attn_tensor out_weight, out_bias;   /* (out_dim, heads * v_head_dim); left out: output is the heads side by side */
    attn_tensor residual;               /* (..., q_len, out_dim), added last; needs out_weight */
    ptrdiff_t heads, kv_heads;
    attn_rotary_args rotary; /* applied to q and k if inv_freq is set; its x, layout and num_threads are ignored */
    const ptrdiff_t *cache_first, *cache_count; /* (batches); cache_count NULL: all rows */
    attn_args attention; /* everything else; its query, key, value, layout and enable_gqa are ignored */
} attn_multihead_args;

/* Checks every rule and gives the shapes of the results; computes nothing. */
ATTN_API attn_status attn_multihead_shapes(const attn_multihead_args *args, attn_shapes *shapes, attn_error *error);

/* Computes multi-head attention. output is (..., q_len, out_dim), and contiguous without out_weight. It may be
 * residual; with out_weight it may be query (the same data and strides), even if query is also key and value. weights
 * are as in attn_attention, and may be left out. */
ATTN_API attn_status attn_multihead(const attn_multihead_args *args, attn_tensor output, attn_tensor weights,
                                    attn_error *error);

/* softmax, or its natural logarithm, of each of `rows` contiguous rows of n elements; y may be x. */
ATTN_API attn_status attn_softmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, void *y, int logarithm,
                                  int num_threads, attn_error *error);

/* Gradients of attn_softmax, from the gradient of its result y, and y itself; grad_x may be either. */
ATTN_API attn_status attn_softmax_backward(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *grad_output,
                                           const void *y, void *grad_x, int logarithm, int num_threads,
                                           attn_error *error);

/* The index of the largest element of each of `rows` contiguous rows of float32 or float64; the k largest elements of
 * each and their indices, both (rows, k), largest first. NaN is larger than any number; equal elements are in order of
 * their indices. */
ATTN_API attn_status attn_argmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, int64_t *indices,
                                 int num_threads, attn_error *error);
ATTN_API attn_status attn_top_k(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, ptrdiff_t k, void *values,
                                int64_t *indices, int num_threads, attn_error *error);

/* The feed-forward part of a Transformer's layer, in two products or three:
 *
 *     hidden = activation(x . in_weight^T + in_bias)
 *     hidden = activation(x . gate_weight^T + gate_bias) * (x . in_weight^T + in_bias)      with a gate, as in SwiGLU
 *     output = hidden . out_weight^T + out_bias + residual
 *
 * Zero-initialise what is left out.
 */
typedef struct {
    attn_tensor x;                      /* (..., inner) */
    attn_tensor in_weight, in_bias;     /* (hidden, inner), read in place, as all weights; (hidden) */
    attn_tensor gate_weight, gate_bias; /* the same */
    attn_tensor out_weight, out_bias;   /* (features, hidden), (features) */
    attn_tensor residual;               /* (..., features), with a contiguous last axis */
    attn_activation activation;
    int num_threads;
} attn_feed_forward_args;

/* Computes the feed-forward part. y (..., features) has a contiguous last axis, and may be x or residual (the same data
 * and strides). */
ATTN_API attn_status attn_feed_forward(const attn_feed_forward_args *args, attn_tensor y, attn_error *error);

/* A layer of a Transformer: self-attention, attention to `memory` if given (in a decoder), and the feed-forward part.
 * Each part is added to its input and the sum normalised; with norm_first, the input is normalised instead. */
typedef struct {
    attn_norm kind;
    attn_tensor weight, bias; /* (features), contiguous; may be left out */
    double epsilon;
} attn_norm_weights;

typedef struct {
    attn_tensor x;                   /* (..., length, features), float32 or float64, with a contiguous last axis */
    attn_tensor memory;              /* (..., memory length, memory features). data == NULL: no cross attention, unless
                                      * cross.attention.cache already holds the keys and values of memory */
    attn_multihead_args self, cross; /* their query, key, value and residual are ignored */
    attn_feed_forward_args feed;     /* its x and residual are ignored */
    attn_norm_weights norms[3];      /* of self, cross, feed; without memory the second is ignored */
    int norm_first;
} attn_layer_args;

/* Checks the rules on all inputs, and gives the shapes of both attentions' weights; computes nothing. Without memory,
 * `cross` is not written. self->work is the work of the whole layer. */
ATTN_API attn_status attn_layer_shapes(const attn_layer_args *args, attn_shapes *self, attn_shapes *cross,
                                       attn_error *error);

/* Computes the layer. y has x's shape and a contiguous last axis, and must not be x. The weights may be left out. */
ATTN_API attn_status attn_layer(const attn_layer_args *args, attn_tensor y, attn_tensor self_weights,
                                attn_tensor cross_weights, attn_error *error);

/* y = activation(x), over n contiguous elements; y may be x. */
ATTN_API attn_status attn_activate(attn_dtype dtype, attn_activation activation, ptrdiff_t n, const void *x, void *y,
                                   int num_threads, attn_error *error);

/* Arguments of the cross entropy of softmax(x): the loss of a row is
 *
 *     sum over classes c of -weight[c] * t[c] * log(softmax(x)[c])
 *     t = (1 - label_smoothing) * target + label_smoothing / classes
 *
 * with target 1 for the class ids[row], else 0, or the probabilities of target. A row whose id is ignore_index has the
 * loss 0 and the gradient 0. The mean of the losses divides by the weights of their ids, or by the rows where target is
 * given. Zero-initialise what is left out, but not ignore_index: -1 ignores no id. */
typedef enum { ATTN_REDUCE_MEAN, ATTN_REDUCE_SUM, ATTN_REDUCE_NONE } attn_reduction;
typedef struct {
    attn_tensor x;      /* (..., classes), with a contiguous last axis */
    attn_tensor ids;    /* (...), ATTN_I64, contiguous */
    attn_tensor target; /* (..., classes), with a contiguous last axis, in place of ids */
    attn_tensor weight; /* (classes), contiguous */
    int64_t ignore_index;
    attn_reduction reduction;
    double label_smoothing;
    int num_threads;
} attn_cross_entropy_args;

/* Computes the losses (...), contiguous, which may be left out; the gradient (..., classes) of their mean or sum, which
 * may be x if it has its dtype; and *loss, which is the mean or the sum. Losses and gradient are float64 where x is,
 * else float32. Sums over rows are in their order and in double. */
ATTN_API attn_status attn_cross_entropy(const attn_cross_entropy_args *args, attn_tensor losses, attn_tensor gradient,
                                        double *loss, attn_error *error);

/* A step of Adam, or with `decoupled` of AdamW, in torch's order of operations: on n contiguous elements of a parameter
 * of `dtype`, in place. The gradient and the moments mean, square and max_square (AMSGrad; NULL: without) are float64
 * where the parameter is, else float32. `step` counts from 1. Denormal results are 0. */
typedef struct {
    double lr, beta1, beta2, epsilon, weight_decay, step;
    int decoupled, maximize;
    int num_threads;
} attn_adam_args;
ATTN_API attn_status attn_adam(const attn_adam_args *args, attn_dtype dtype, ptrdiff_t n, void *parameter,
                               const void *gradient, void *mean, void *square, void *max_square, attn_error *error);

/* The same of SGD, with a momentum buffer or NULL; `begins`: the buffer holds nothing yet. */
typedef struct {
    double lr, momentum, dampening, weight_decay;
    int nesterov, maximize, begins;
    int num_threads;
} attn_sgd_args;
ATTN_API attn_status attn_sgd(const attn_sgd_args *args, attn_dtype dtype, ptrdiff_t n, void *parameter,
                              const void *gradient, void *momentum, attn_error *error);

/* The sum of the squares of n contiguous elements of float32 or float64, in double and in a fixed order. */
ATTN_API attn_status attn_sum_squares(attn_dtype dtype, ptrdiff_t n, const void *x, double *sum, int num_threads,
                                      attn_error *error);

/* Gradients of y = activation(x) * gate, over n contiguous elements: grad_x = grad_output * gate * activation'(x), and
 * grad_gate = grad_output * activation(x). gate may be NULL, for 1; grad_gate is NULL then. At 0, relu' is 0. Either
 * result may be one of the inputs. */
ATTN_API attn_status attn_activate_backward(attn_dtype dtype, attn_activation activation, ptrdiff_t n,
                                            const void *grad_output, const void *x, const void *gate, void *grad_x,
                                            void *grad_gate, int num_threads, attn_error *error);

/* The number of threads for calls with num_threads = 0. 0 sets the default: PYATTN_NUM_THREADS, else OMP_NUM_THREADS,
 * else the CPUs that affinity and cgroup allow. */
ATTN_API void attn_set_num_threads(int num_threads);
ATTN_API int attn_get_num_threads(void);
/* A host's threads: GOMP_parallel of GCC's OpenMP, or a function that does the same. It calls work(data) on up to
 * `threads` threads at once, always on the calling one, and returns when all calls have. */
typedef void (*attn_team)(void (*work)(void *data), void *data, unsigned threads, unsigned flags);
/* Which threads compute what this thread calls: their number where neither attn_set_num_threads nor PYATTN_NUM_THREADS
 * has set one (0: none is suggested), and a team that takes the place of the library's own threads where no more are to
 * compute (NULL: none). Threads keep a processor busy for a while after their work, so that two pools wait for each
 * other: a host that has a pool lends it. Returns the suggestion before, to be put back. */
typedef struct {
    int num_threads;
    attn_team team;
} attn_suggestion;
ATTN_API attn_suggestion attn_suggest_threads(attn_suggestion suggestion);
/* NULL, or a message about an invalid PYATTN_NUM_THREADS. The environment is read once, by the first call of this or by
 * the first computation. A program that changes its environment while other threads run must call this before. */
ATTN_API const char *attn_threads_complaint(void);

/* Instruction-set levels. attn_isa is the level in use: at first the best one, or the one that PYATTN_ISA names.
 * attn_isa_name(0), (1) ... are the levels of this machine, best first, then NULL; attn_isa_compiled lists all compiled
 * levels in the same way. attn_set_isa accepts the former, and returns ATTN_INVALID for any other name.
 * attn_isa_complaint is NULL, or a message about an invalid PYATTN_ISA. */
ATTN_API const char *attn_isa(void);
ATTN_API const char *attn_isa_name(int index);
ATTN_API const char *attn_isa_compiled(int index);
ATTN_API attn_status attn_set_isa(const char *name, attn_error *error);
ATTN_API const char *attn_isa_complaint(void);

/* For benchmarks: fma throughput of one thread in FLOP/s (float32, measured for about `seconds`), and the speed of
 * reading an array of floats in bytes/s. */
ATTN_API double attn_measure_fma(double seconds);
ATTN_API double attn_measure_read(const float *data, ptrdiff_t count, int num_threads);

/* Hooks into the host program. NULL members keep the defaults: malloc, free, never interrupted. `interrupted` is polled
 * by the calling thread only; nonzero stops the call with ATTN_INTERRUPTED. It may fork: see ATTN_FORKED. */
typedef struct {
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory);
    int (*interrupted)(void);
} attn_hooks;
ATTN_API void attn_set_hooks(const attn_hooks *hooks);

#ifdef __cplusplus
}
#endif
#endif

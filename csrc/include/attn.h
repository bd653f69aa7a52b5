/* attn.h: attention on strided arrays. The only public header of the C core, which knows neither Python nor NumPy.
 *
 *     output = softmax(score(query, key) + mask) . value        per batch entry and head
 *
 * Arrays are views: any number of axes, any strides (in bytes: negative, zero and broadcast ones too). Elements must be
 * aligned and in native byte order. Nothing is written unless a call returns ATTN_OK, or ATTN_INTERRUPTED, after which
 * the output holds rows that are finished and rows that are not; and so after ATTN_NO_MEMORY of attn_multihead,
 * attn_feed_forward and attn_layer, which do what is large in parts.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_API __attribute__((visibility("default")))

enum { ATTN_MAX_AXES = 64 };

typedef enum { ATTN_OK, ATTN_INVALID, ATTN_NO_MEMORY, ATTN_INTERRUPTED } attn_status;

/* Why a call did not return ATTN_OK, as one sentence. */
typedef struct {
    char message[512];
} attn_error;

typedef enum { ATTN_BOOL, ATTN_F16, ATTN_F32, ATTN_F64, ATTN_LONG_DOUBLE, ATTN_I64 } attn_dtype;

/* data == NULL: not given. */
typedef struct {
    void *data;
    attn_dtype dtype;
    int axes;
    const ptrdiff_t *shape, *strides;
} attn_view;

/* Which corner the diagonal of a causal mask, or the centre of a window, starts from when q_len != kv_len. */
typedef enum { ATTN_ALIGN_UNSAID, ATTN_ALIGN_UPPER_LEFT, ATTN_ALIGN_LOWER_RIGHT, ATTN_ALIGN_OFFSET } attn_align;

/* Axes of query, key, value and output: (..., heads, length, dim) or (..., length, heads, dim). */
typedef enum { ATTN_LAYOUT_BHSD, ATTN_LAYOUT_BSHD } attn_layout;

/* What a query and a key score, before the mask:
 *
 *     ATTN_SCORE_DOT        scale * q . k                        scale 1 / sqrt(head_dim) unless has_scale
 *     ATTN_SCORE_COSINE     scale * q . k / (|q| |k|)            1; a vector of zeros scores 0
 *     ATTN_SCORE_DISTANCE   -scale * |q - k|^2                   1 / (2 sqrt(head_dim))
 *     ATTN_SCORE_ADDITIVE   scale * score_weight . tanh(q + k)   1
 */
typedef enum { ATTN_SCORE_DOT, ATTN_SCORE_COSINE, ATTN_SCORE_DISTANCE, ATTN_SCORE_ADDITIVE } attn_score;

enum { ATTN_UNBOUNDED = -1 };

/* Keys and values in pages of ATTN_PAGE_KEYS positions, which are read and written in place. A page is aligned to its
 * elements and holds keys (kv_heads, ATTN_PAGE_KEYS, head_dim) and, right behind them, values (kv_heads, ATTN_PAGE_KEYS,
 * v_dim), both contiguous. Position j of batch entry b is row j % ATTN_PAGE_KEYS of pages[b][j / ATTN_PAGE_KEYS]. Pages
 * may be shared; what lies behind a batch entry's last position is never looked at. */
enum { ATTN_PAGE_KEYS = 64 };
typedef struct {
    attn_dtype dtype;            /* ATTN_F32 or ATTN_F64 */
    void *const *const *pages;   /* (batches): each batch entry's */
    const ptrdiff_t *page_count; /* (batches): how many those are */
    ptrdiff_t batches, kv_heads, head_dim, v_dim;
    ptrdiff_t length; /* positions of the longest batch entry: the length of key and value */
} attn_cache;

/* Arguments of attention. Zero-initialise, then set query, key, value, and window_left = window_right = ATTN_UNBOUNDED.
 *
 * Leading axes broadcast. Heads are an axis when an array has four axes or more, or with enable_gqa (one of which
 * ATTN_LAYOUT_BSHD needs); query heads may then be a multiple of key and value heads. Masks broadcast to
 * (..., heads, q_len, kv_len). mask and padding_mask: bool (nonzero = attend, or the opposite where `blocked` says so) or
 * a float type (added after scaling); what either hides is hidden. Key j is visible to query i when
 *
 *     0 <= j < key_length,  i < query_length,  and  i + offset - window_left <= j <= i + offset + window_right
 *
 * where is_causal means a window_right of 0, and offset = query_start - key_start, plus key_length - query_length for
 * ATTN_ALIGN_LOWER_RIGHT. query_start and key_start (a multiple of 64) place a part of a longer problem: its rows then
 * get the bits of the whole. A cache takes the place of arrays with axes (batches, kv_heads, length, dim).
 *
 * Dropout comes after the softmax, and is in the weights but not in the logsumexp: a weight becomes 0, or is divided by
 * 1 - dropout_p (and is 0 where that is 0). Kept is what keep_mask (bool, nonzero = kept) says; without it, what
 * attn_dropout_keep does, of query query_start + i and key key_start + j; with a cache and ATTN_ALIGN_LOWER_RIGHT, of the
 * position that the query stands at, query_start + i + key_length - query_length.
 */
typedef struct {
    attn_view query, key, value; /* all ATTN_F32 or all ATTN_F64 */
    const attn_cache *cache;     /* NULL, or what key and value are read from; those two are not looked at then */
    attn_view mask, padding_mask;
    ptrdiff_t extra_keys; /* so many at the end, which every row sees: all that hides, and its sizes, ends before */
    int mask_blocked, padding_blocked;    /* nonzero of a bool mask means blocked, as in torch.nn.MultiheadAttention */
    attn_view key_lengths, query_lengths; /* ATTN_I64, broadcast to the batch axes */
    int has_scale;
    double scale;
    attn_score score;
    attn_view score_weight; /* (head_dim), contiguous, of query's dtype: ATTN_SCORE_ADDITIVE alone */
    int is_causal;
    attn_align align;
    ptrdiff_t align_offset; /* ATTN_ALIGN_OFFSET: the key that query 0 stands at; may be negative */
    ptrdiff_t window_left, window_right; /* inclusive */
    ptrdiff_t query_start, key_start;
    attn_layout layout;
    int enable_gqa;
    double dropout_p; /* 0 <= dropout_p <= 1 */
    uint64_t dropout_seed;
    attn_view keep_mask;
    double empty;        /* what a row with nothing to attend to gives: 0, or NaN */
    int average_weights; /* weights, if asked for, are their mean over heads: (..., q_len, kv_len) */
    int num_threads;     /* 0: as attn_set_num_threads says */
} attn_args;

/* What the results look like, and what a caller may want to warn about. */
typedef struct {
    int axes, weights_axes, lse_axes;
    ptrdiff_t output[ATTN_MAX_AXES], weights[ATTN_MAX_AXES], lse[ATTN_MAX_AXES];
    int mask_looks_like_ones,
        padding_looks_like_ones; /* float masks of zeros and ones: added, but probably meant as 0/1 */
    int heads_look_like_length;
    ptrdiff_t heads, q_len;
    size_t work; /* multiply-adds, about: whether to let go of a lock for it */
} attn_shapes;

/* Checks every rule and gives the shapes of the results; computes nothing. */
ATTN_API attn_status attn_attention_shapes(const attn_args *args, attn_shapes *shapes, attn_error *error);

/* Computes. output must have the shape that attn_attention_shapes gives, the dtype of query, and a contiguous last
 * axis; so must weights and lse (natural logarithm), which may be left out (data == NULL). */
ATTN_API attn_status attn_attention(const attn_args *args, attn_view output, attn_view weights, attn_view lse,
                                    attn_error *error);

/* Writes rows of key and value into the cache: `count`[b] of them (NULL: all) to positions first[b], first[b] + 1 ... of
 * batch entry b. key (batches, kv_heads, new, head_dim) and value (batches, kv_heads, new, v_dim), or as layout says. Its
 * pages must be there; cache->length is not looked at. */
ATTN_API attn_status attn_cache_append(const attn_cache *cache, const ptrdiff_t *first, const ptrdiff_t *count,
                                       attn_view key, attn_view value, attn_layout layout, attn_error *error);

/* Which weights a call with this dropout_p and seed keeps: keep (units, q_len, kv_len) bytes of 0 and 1, where units are
 * batch entries times heads. A function of (seed, unit, query, key) alone, the last two from their absolute 0. */
ATTN_API attn_status attn_dropout_keep(double dropout_p, uint64_t seed, ptrdiff_t units, ptrdiff_t q_len,
                                       ptrdiff_t kv_len, unsigned char *keep, int num_threads, attn_error *error);

/* Dropout of rows: y[row, feature] = x[row, feature] / (1 - dropout_p) where kept, else 0 (everywhere where dropout_p is 1;
 * what is dropped is not looked at). Kept is what attn_dropout_keep says of unit row >> 32, query row & 0xffffffff and key
 * feature: of up to 2^32 rows, its keeps for one unit. x and y (rows, features) are contiguous; y may be x. */
ATTN_API attn_status attn_drop_rows(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t features, const void *x, void *y,
                                    double dropout_p, uint64_t seed, int num_threads, attn_error *error);

/* Partial attentions over disjoint parts of the keys, merged into one through their logsumexps (natural logarithm):
 *     lse = log(sum_n exp(lse_n)),  output = sum_n exp(lse_n - lse) * output_n
 * A part with lse = -inf is not touched. outputs (parts, rows, dim) and lses (parts, rows) are contiguous. */
ATTN_API attn_status attn_merge_states(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t rows, ptrdiff_t dim,
                                       const void *const *outputs, const void *const *lses, void *output, void *lse,
                                       attn_error *error);

/* What a neuron makes of its sum: x, max(x, 0), x Phi(x), the same with tanh in Phi's place, x sigmoid(x), tanh(x). */
typedef enum { ATTN_IDENTITY, ATTN_RELU, ATTN_GELU, ATTN_GELU_TANH, ATTN_SILU, ATTN_TANH } attn_activation;

/* Arguments of a linear layer, y = activation(x . weight^T + bias) * gate + residual. All arrays have one dtype, ATTN_F32 or
 * ATTN_F64; zero-initialise what is left out. */
typedef struct {
    attn_view x;              /* (..., inner) */
    attn_view weight;         /* (features, inner), read in place */
    attn_view bias;           /* (features) */
    attn_view gate, residual; /* (..., features), with a contiguous last axis */
    attn_activation activation;
    int num_threads;
} attn_linear_args;

/* Checks every rule on the arguments; computes nothing. */
ATTN_API attn_status attn_check_linear(const attn_linear_args *args, attn_error *error);

/* Computes. y (..., features) has a contiguous last axis, and may be gate or residual. */
ATTN_API attn_status attn_linear(const attn_linear_args *args, attn_view y, attn_error *error);

/* Layer normalisation, (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis, or RMS normalisation, the
 * same with 0 for the mean. All arrays have one dtype, ATTN_F32 or ATTN_F64; zero-initialise what is left out. */
typedef enum { ATTN_NORM_LAYER, ATTN_NORM_RMS } attn_norm;
typedef struct {
    attn_norm kind;
    attn_view x, residual;  /* (..., features), with a contiguous last axis; x + residual is what is normalised */
    attn_view weight, bias; /* (features), contiguous */
    double epsilon;
    int num_threads;
} attn_norm_args;

/* Computes. sum = x + residual, where there is a residual, may be left out; sum and y (..., features) have a contiguous
 * last axis, and may be x or residual. */
ATTN_API attn_status attn_normalize(const attn_norm_args *args, attn_view sum, attn_view y, attn_error *error);

/* Arguments of an embedding, y[..., :] = scale * weight[ids[...], :] + residual[..., :]. Zero-initialise what is left out,
 * but not scale. */
typedef struct {
    attn_view ids;      /* (...), ATTN_I64, each a row of weight */
    attn_view weight;   /* (num_embeddings, dim), ATTN_F32 or ATTN_F64, read in place */
    attn_view residual; /* broadcast to (..., dim), of weight's dtype, read in place */
    double scale;
    int num_threads;
} attn_embedding_args;

/* Checks every rule on the arguments, every id among them; computes nothing. */
ATTN_API attn_status attn_check_embedding(const attn_embedding_args *args, attn_error *error);

/* Computes. y (..., dim), of weight's dtype, has a contiguous last axis, and may be residual. With a scale of 1 and without
 * a residual the numbers are copied. */
ATTN_API attn_status attn_embedding(const attn_embedding_args *args, attn_view y, attn_error *error);

/* Arguments of rotary position embedding: pairs (a, b) of a row's features become
 *
 *     (a cos t - b sin t,  b cos t + a sin t)        t = position * inv_freq[pair], cos and sin times `scale`
 *
 * Pair n is the features (n, n + pairs), or (2n, 2n + 1) where `interleaved`; features after the first 2 * pairs stay as
 * they are. Zero-initialise what is left out. */
typedef struct {
    attn_view x;            /* (..., heads, length, dim), or (..., length, heads, dim); ATTN_F32 or ATTN_F64, with a
                             * contiguous last axis. Heads are an axis of four axes or more, or in ATTN_LAYOUT_BSHD */
    attn_view inv_freq;     /* (pairs), ATTN_F64, contiguous */
    double scale;           /* 1, but for models whose attention has another temperature */
    ptrdiff_t offset;       /* the position of the first row; the next are one more each */
    attn_view position_ids; /* ATTN_I64, in place of offset; broadcasts to (..., length), without heads */
    int interleaved;
    attn_layout layout;
    int num_threads;
} attn_rotary_args;

/* Checks every rule on the arguments; computes nothing. */
ATTN_API attn_status attn_check_rotary(const attn_rotary_args *args, attn_error *error);

/* Computes. y has x's shape and dtype and a contiguous last axis; it is x itself (the same data and strides), or shares
 * no memory with it. */
ATTN_API attn_status attn_rotary(const attn_rotary_args *args, attn_view y, attn_error *error);

/* Arguments of multi-head attention: projections, attention of every head, and a projection of the heads side by side.
 *
 *     q, k, v = query . q_weight^T + q_bias, ...      heads = attention(turned(q), turned(k), v)
 *     output = heads . out_weight^T + out_bias + residual
 *
 * All arrays but the masks and the lengths have one dtype, ATTN_F32 or ATTN_F64; zero-initialise what is left out.
 *
 * With attention.cache, query (batches, length, inner) attends to what the cache holds. Before that k and v go into it, as
 * attn_cache_append has it with cache_first and cache_count, unless key is left out: then neither value nor their weights
 * are looked at.
 */
typedef struct {
    attn_view query, key, value; /* (..., length, inner), of the same leading axes */
    attn_view q_weight;          /* (heads * head_dim, inner), read in place, as all weights */
    attn_view k_weight;          /* (kv_heads * head_dim, inner) */
    attn_view v_weight;          /* (kv_heads * v_head_dim, inner) */
    attn_view q_bias, k_bias, v_bias;
    attn_view extra_key, extra_value; /* (kv_heads * head_dim), (kv_heads * v_head_dim): a pair behind all others */
    int add_zero;                     /* a pair of zeros behind that */
    attn_view out_weight, out_bias; /* (out_dim, heads * v_head_dim); left out: the heads side by side are the output */
    attn_view residual;             /* (..., q_len, out_dim), added last; with out_weight alone */
    ptrdiff_t heads, kv_heads;
    attn_rotary_args
        rotary; /* of q and k; its x, layout and num_threads are not looked at. Without inv_freq: not turned */
    const ptrdiff_t *cache_first, *cache_count; /* (batches); cache_count NULL: all rows */
    attn_args attention; /* everything else; its query, key, value, layout and enable_gqa are not looked at */
} attn_multihead_args;

/* Checks every rule and gives the shapes of the results; computes nothing. */
ATTN_API attn_status attn_multihead_shapes(const attn_multihead_args *args, attn_shapes *shapes, attn_error *error);

/* Computes. output (..., q_len, out_dim), contiguous where out_weight is left out, may be residual, and with out_weight
 * query, though that be key and value, too (the same data and strides); weights are as attn_attention's, and may be left
 * out. */
ATTN_API attn_status attn_multihead(const attn_multihead_args *args, attn_view output, attn_view weights,
                                    attn_error *error);

/* softmax, or its natural logarithm, of each of `rows` contiguous rows of n elements; y may be x. */
ATTN_API attn_status attn_softmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, void *y, int logarithm,
                                  int num_threads, attn_error *error);

/* The place of the largest element of each of `rows` contiguous rows, and the k largest of each (rows, k), the largest first,
 * with their places. NaN is larger than any number; of equals the one of the lower index comes first. */
ATTN_API attn_status attn_argmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, int64_t *indices,
                                 int num_threads, attn_error *error);
ATTN_API attn_status attn_top_k(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, ptrdiff_t k, void *values,
                                int64_t *indices, int num_threads, attn_error *error);

/* The feed-forward part of a Transformer's layer, in two products or three:
 *
 *     hidden = activation(x . in_weight^T + in_bias)
 *     hidden = activation(x . gate_weight^T + gate_bias) * (x . in_weight^T + in_bias)      with a gate: SwiGLU and its like
 *     output = hidden . out_weight^T + out_bias + residual
 *
 * All arrays have one dtype, ATTN_F32 or ATTN_F64; zero-initialise what is left out.
 */
typedef struct {
    attn_view x;                      /* (..., inner) */
    attn_view in_weight, in_bias;     /* (hidden, inner), read in place, as all weights; (hidden) */
    attn_view gate_weight, gate_bias; /* the same */
    attn_view out_weight, out_bias;   /* (features, hidden), (features) */
    attn_view residual;               /* (..., features), with a contiguous last axis */
    attn_activation activation;
    int num_threads;
} attn_feed_forward_args;

/* Computes. y (..., features) has a contiguous last axis, and may be x or residual (the same data and strides). */
ATTN_API attn_status attn_feed_forward(const attn_feed_forward_args *args, attn_view y, attn_error *error);

/* A layer of a Transformer: self-attention, attention to `memory` where there is one (a decoder's), and the feed-forward
 * part. Each is added to what it works on, and normalised: after that, or before with norm_first. */
typedef struct {
    attn_norm kind;
    attn_view weight, bias; /* (features), contiguous; may be left out */
    double epsilon;
} attn_norm_weights;

typedef struct {
    attn_view x;                     /* (..., length, features), with a contiguous last axis */
    attn_view memory;                /* (..., memory length, memory features); data == NULL: no attention to it, unless
                                      * there is cross.attention.cache, which holds its keys and values already */
    attn_multihead_args self, cross; /* their query, key, value and residual are not looked at */
    attn_feed_forward_args feed;     /* nor are its x and residual */
    attn_norm_weights norms[3];      /* of self, cross, feed; without memory the second is not looked at */
    int norm_first;
} attn_layer_args;

/* Checks the rules on all inputs, and tells how the weights of both attentions look; computes nothing. `cross` is not
 * written to without memory; self->work is that of the whole layer. */
ATTN_API attn_status attn_layer_shapes(const attn_layer_args *args, attn_shapes *self, attn_shapes *cross,
                                       attn_error *error);

/* Computes. y has x's shape and a contiguous last axis, and is not x. The weights may be left out. */
ATTN_API attn_status attn_layer(const attn_layer_args *args, attn_view y, attn_view self_weights,
                                attn_view cross_weights, attn_error *error);

/* y = activation(x), over n contiguous elements; y may be x. */
ATTN_API attn_status attn_activate(attn_dtype dtype, attn_activation activation, ptrdiff_t n, const void *x, void *y,
                                   int num_threads, attn_error *error);

/* Threads used when a call does not say. 0 asks for the default: PYATTN_NUM_THREADS, else OMP_NUM_THREADS, else what
 * affinity and cgroup allow. */
ATTN_API void attn_set_num_threads(int num_threads);
ATTN_API int attn_get_num_threads(void);
/* NULL, or what is wrong with PYATTN_NUM_THREADS. The first call reads the environment, once; without it, the first
 * computation does. A program that changes its environment while other threads run calls this before they start. */
ATTN_API const char *attn_threads_complaint(void);

/* The instruction-set level in use. attn_set_isa takes a name out of attn_isa_name(0), (1) ..., best first, NULL after
 * the last that this machine has; it returns ATTN_INVALID for any other. attn_isa_compiled names those that are compiled
 * in, in the same way, whether this machine has them or not. Levels are first chosen at first use: the best, or the one
 * PYATTN_ISA names. attn_isa_complaint is NULL, or what was wrong with PYATTN_ISA. */
ATTN_API const char *attn_isa(void);
ATTN_API const char *attn_isa_name(int index);
ATTN_API const char *attn_isa_compiled(int index);
ATTN_API attn_status attn_set_isa(const char *name, attn_error *error);
ATTN_API const char *attn_isa_complaint(void);

/* For benchmarks: floating-point operations a second of fma on one thread (float32, measured for about `seconds`), and
 * bytes a second of a pure read of an array of floats. */
ATTN_API double attn_measure_fma(double seconds);
ATTN_API double attn_measure_read(const float *data, ptrdiff_t count, int num_threads);

/* What the core asks of its host. NULL members keep the defaults: malloc, free, never interrupted. `interrupted` is
 * called now and then by the calling thread alone; nonzero stops the call with ATTN_INTERRUPTED. It may fork: the child
 * begins the call anew, which comes out right unless the call writes into its own input. */
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

/* The kernels: everything that is compiled once per instruction set.
 *
 * Kernels work on tiles: no allocation, no threads, no Python, no errors. Float arrays have the dtype of their table,
 * `real` below, unless an attn_element names another; strides count elements unless their name says bytes. The result
 * of a row depends neither on other rows nor on the vector width: all tables are bit-identical (except `scalar`, which
 * lacks fused multiply-add).
 *
 * Vocabulary: a *query block* is up to `width` rows of queries that walk the keys together; a *key block* is up to
 * ATTN_BLOCK_KEYS keys that begin at a fixed multiple of it; a *chunk* is ATTN_CHUNK_KEYS keys. Scores are in units of
 * log2: exp(s) is written 2^(s * log2(e)), and log2(e) is already in the packed queries.
 *
 * Two layouts of a block of scores. Prefill: (keys, lanes), a query in each lane. Decode, for a few rows only: (rows,
 * ATTN_BLOCK_KEYS), a key in each lane.
 */
#ifndef ATTN_KERNELS_H
#define ATTN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "gather.h"

enum {
    ATTN_BLOCK_KEYS = 64,
    ATTN_CHUNK_KEYS = 512,
    ATTN_FOLD_FEATURES = 128, /* dot products are summed in parts of this length */
    ATTN_TILE_FEATURES = 128, /* features of a packed tile of a weight */
    ATTN_PRODUCT_LIMIT = 32,  /* distances: pairs with larger norms take the direct form (distance.inc.h) */
    ATTN_VECTORS = 3,         /* vectors of queries in a full query block */
    ATTN_MAX_WIDTH = 48,      /* lanes of a full query block, at most */
    ATTN_DECODE_ROWS = 8,     /* most rows in the decode layout */
    ATTN_ROWS_AHEAD = 24      /* prefetches of keys and values, which may be past the end of an array */
};

/* Whether rows `stride` bytes apart fall into the same few sets of the L1 cache. */
static inline int attn_aliases(ptrdiff_t stride) { return stride != 0 && stride % 2048 == 0; }

/* The elements of an array. A nonzero byte of a mask means attend (BOOL) or the opposite (BLOCKED). */
typedef enum {
    ATTN_ELEMENT_BOOL,
    ATTN_ELEMENT_F16,
    ATTN_ELEMENT_BF16,
    ATTN_ELEMENT_F32,
    ATTN_ELEMENT_F64,
    ATTN_ELEMENT_LONG,
    ATTN_ELEMENT_BLOCKED = 16 /* those before are attn_dtype's */
} attn_element;

static inline int attn_is_bool(attn_element element)
{
    return element == ATTN_ELEMENT_BOOL || element == ATTN_ELEMENT_BLOCKED;
}

/* bias_tile's result: no pair of the tile is masked, all are, or the bias decides. */
typedef enum { ATTN_TILE_FREE, ATTN_TILE_MASKED, ATTN_TILE_MIXED } attn_tile_kind;

/* Drops those weights, or features, whose 32-bit random number is at most `most`. */
typedef struct {
    uint32_t seed[2], most;
} attn_dropout;

/* Activations: activation.inc.h. */
typedef enum {
    ATTN_KIND_IDENTITY,
    ATTN_KIND_RELU,
    ATTN_KIND_GELU,
    ATTN_KIND_GELU_TANH,
    ATTN_KIND_SILU,
    ATTN_KIND_TANH
} attn_activation_kind;

/* Whether a row is normalised by its variance or by the mean of its squares. */
typedef enum { ATTN_NORM_KIND_LAYER, ATTN_NORM_KIND_RMS } attn_norm_kind;

/* The epilogue of a matrix product: y[row] = activation(product + bias) * gate[row] + residual[row]. All but the
 * activation may be NULL. */
typedef struct {
    const void *bias;
    attn_activation_kind activation;
    const void *const *gate, *const *residual;
} attn_epilogue;

/* Changes to a tile of scores before its softmax. The bias has the layout of the scores, and hides a pair where it
 * is -inf; row i sees the keys [first[i], last[i]), counted from the tile's first. bias may be NULL; so may first where
 * every row sees all keys, but not for decode_softmax. */
typedef struct {
    const void *bias;
    const int32_t *first, *last;
} attn_score_epilogue;

static const attn_score_epilogue attn_no_epilogue = {.bias = NULL};

/* What softmax_backward needs of its rows: weight = factor * 2^(score - shift); the sum of weight * upstream gradient. */
typedef struct {
    const void *shift, *factor, *delta;
} attn_softmax_rows;

/* The target of a row's cross entropy, which gives class j the share (on * target[j] + off) * weight[j]. Without
 * `target` it is 1 for `label`, else 0; weight may be NULL. Gradients are multiplied by `scale`. */
typedef struct {
    const void *target, *weight;
    ptrdiff_t label;
    double on, off, scale;
} attn_target_row;

/* A step of Adam, or of AdamW: optimizer.inc.h. All are rounded to reals. */
typedef struct {
    double sign;         /* of the gradient: -1 to maximise */
    double weight_decay; /* added to the gradient, times the parameter; Adam */
    double shrink;       /* factor of the parameter; AdamW */
    double beta1, beta2, epsilon;
    double first_share, second_share; /* 1 - beta1, 1 - beta2, of the gradient and of its square */
    double second_scale;              /* of the square root of the second moment */
    double step_size;
} attn_adam_step;

/* A step of SGD. */
typedef struct {
    double sign, weight_decay;  /* as above */
    double momentum, dampening; /* factor of the buffer; what the gradient in it lacks */
    double step_size;
    int begins, nesterov; /* begins: the buffer held nothing before */
} attn_sgd_step;

/* A tile of a weight that lies as (inner, features), and where its packed copy goes: ATTN_FOLD_FEATURES *
 * ATTN_TILE_FEATURES reals at most. */
typedef struct {
    const void *weight;
    attn_element element;
    ptrdiff_t stride;
    int inner, features;
    void *packed;
} attn_tile;

/* Running softmax of some rows: maximum (log2 units), sum of weights, unnormalised output (rows, out_stride). */
typedef struct {
    void *maximum, *sum, *out;
} attn_state;

/* How keys or a weight are prefetched. */
enum {
    ATTN_FROM_MEMORY = 1, /* they probably come from memory, not from a cache */
    ATTN_TO_L1 = 2        /* into the L1 cache, not L2 */
};

typedef struct {
    int lanes;       /* reals in a vector */
    int width;       /* lanes * ATTN_VECTORS */
    int size;        /* bytes of a real */
    int decode_rows; /* most rows for which the decode layout is faster */
    int gemv_rows;   /* most rows for which gemv is faster than gemm, on a weight from memory */

    /* to (rows, padded) = a block of elements of any dtype and strides, in bytes; columns past `columns` become 0,
     * those of bools any number. */
    void (*load_block)(attn_element element, int rows, ptrdiff_t columns, const char *from, ptrdiff_t row_step,
                       ptrdiff_t column_step, ptrdiff_t padded, void *to);

    /* Rounds contiguous reals to float16 or bfloat16: float kernels alone. */
    void (*store_row)(attn_element element, ptrdiff_t count, const void *from, void *to);

    /* packed (head_dim, vectors * lanes) = query[i][d] * factor, transposed; lanes past `rows` are zero. */
    void (*pack_queries)(int rows, int vectors, ptrdiff_t head_dim, const void *const *query, double factor,
                         void *packed);

    /* scores (keys, lanes) = key . query + bias, and -inf where a pair is hidden. maximum (lanes) is in and out. With
     * `adds`, the scores already hold those of earlier features, a multiple of ATTN_FOLD_FEATURES; limits must then be
     * left out. */
    void (*score_block)(int vectors, int keys, ptrdiff_t head_dim, const void *packed, const void *key,
                        ptrdiff_t key_stride, const attn_score_epilogue *epilogue, int adds, void *scores,
                        void *maximum);

    /* The same for additive scores, factor * weight . tanh(query + key). */
    void (*additive_block)(int vectors, int keys, ptrdiff_t features, const void *packed, const void *key,
                           ptrdiff_t key_stride, const void *weight, double factor, const attn_score_epilogue *epilogue,
                           void *scores, void *maximum);

    /* data (rows, dim), in and out: scales rows to norm 1, except rows of zeros. */
    void (*normalise_rows)(int rows, ptrdiff_t dim, ptrdiff_t stride, void *data);

    /* gradient (rows, dim), in and out: from that of normalised rows to that of the rows `data`. Both have this stride.
     * A row of zeros has a gradient of 0; one that is not finite keeps its gradient. */
    void (*normalise_rows_backward)(int rows, ptrdiff_t dim, ptrdiff_t stride, const void *data, void *gradient);

    /* Distances. Appends features to scaled (rows, dim + 2), out, and to key (keys, dim + 2), so that score_block's sum
     * over dim + 2 features is -factor |query - key|^2; appends -factor |query|^2 to query (rows, dim + 1). Both return
     * the largest factor |row|^2, or NaN if one is NaN. */
    double (*distance_queries)(int rows, ptrdiff_t dim, ptrdiff_t stride, double factor, void *query, void *scaled);
    double (*distance_keys)(int keys, ptrdiff_t dim, ptrdiff_t stride, double factor, void *key);

    /* Corrects score_block's scores, computed without epilogue: pairs whose norms add up to ATTN_PRODUCT_LIMIT or are
     * not finite get the sum of squared differences instead. packed (features + 1, vectors * lanes) and row (rows,
     * features + 1) end with -factor |x|^2. Either may be the queries. */
    void (*distance_block)(int vectors, int rows, ptrdiff_t features, const void *packed, const void *row,
                           ptrdiff_t row_stride, double factor, const attn_score_epilogue *epilogue, void *scores,
                           void *maximum);

    /* scores -> weights 2^(score - maximum); folds the block's sums into state.sum, sets state.maximum = maximum and
     * correction = the factor for earlier sums and outputs. */
    void (*softmax_block)(int vectors, int keys, void *scores, const void *maximum, attn_state *state,
                          void *correction);

    /* From scores without epilogue and the gradient `upstream` of their weights, both (keys, lanes): the weights, times
     * `kept` or dropped, and the gradients of the scores; 0 where a pair is hidden. `kept` divides by 1 - dropout_p.
     * bias, drop_mask and the results have rows of `stride` reals, as these are parts of wider tiles. */
    void (*softmax_backward)(int vectors, int keys, const void *scores, const void *upstream,
                             const attn_score_epilogue *epilogue, const void *drop_mask, const attn_softmax_rows *rows,
                             double kept, ptrdiff_t stride, void *weights, void *gradients);

    /* Sums over the gradients that softmax_backward has stored, added to what they hold: score_backward.inc.h. Rows are
     * `vectors` whole vectors.
     *
     * score_sums (vectors * lanes): each query's sum of gradient * score, for one part of a tile.
     * difference_block (rows, ..): sum[i] += sum over j of weight(i, j) * (row[i] - other[j]), where weight(i, j) =
     * weights[i * row_stride + j * other_stride].
     * additive_backward: gradient * (1 - tanh^2) for query (queries, ..) and key (keys, ..), gradient * tanh for the
     * weight; tanh is that of query + key. */
    void (*score_sums)(int vectors, int keys, const void *scores, const void *gradients, ptrdiff_t stride, void *sums);
    void (*difference_block)(int rows, int others, int vectors, const void *weights, ptrdiff_t row_stride,
                             ptrdiff_t other_stride, const void *row, const void *other, void *sum);
    void (*additive_backward)(int queries, int keys, int vectors, const void *gradients, ptrdiff_t stride,
                              const void *query, const void *key, void *query_sum, void *key_sum, void *weight_sum);

    /* Tangents of scores without masks, from those of queries (features, vectors * lanes) and keys (keys, stride): of
     * factor * |query - key|^2 / 2, without weight, and of factor * weight . tanh(query + key). */
    void (*distance_tangent)(int vectors, int keys, ptrdiff_t features, const void *packed, const void *of_packed,
                             const void *key, const void *of_key, ptrdiff_t stride, const void *weight, double factor,
                             void *scores);
    void (*additive_tangent)(int vectors, int keys, ptrdiff_t features, const void *packed, const void *of_packed,
                             const void *key, const void *of_key, ptrdiff_t stride, const void *weight, double factor,
                             void *scores);

    /* out (rows, out_stride) = correction * out + weights . value, over vectors * lanes columns of value.
     * weight(i, j) = weights[i * row_stride + j * key_stride], which is 0 outside [first, last) of its row unless first
     * is NULL. `begins`: out held nothing before. value holds reals or, in the kernels of float, halves; so do the keys
     * of decode_scores and the weight of gemv. */
    void (*value_block)(attn_element element, int rows, int keys, int vectors, const void *weights,
                        ptrdiff_t row_stride, ptrdiff_t key_stride, const int32_t *first, const int32_t *last,
                        const void *value, ptrdiff_t value_stride, const void *correction, int begins, void *out,
                        ptrdiff_t out_stride);

    /* copy (keys, vectors * lanes) = value * factor, with a zero of the same sign in
     * place of NaN and infinities. Returns a bit for each key that has some. copy may be value. */
    uint64_t (*finite_values)(int keys, int vectors, const void *value, ptrdiff_t value_stride, double factor,
                              void *copy);

    /* The decode layout: queries (rows, head_dim), scores (rows, ATTN_BLOCK_KEYS), 1 <= rows <= ATTN_DECODE_ROWS.
     * `next` is the block to prefetch; `prefetch`: ATTN_FROM_MEMORY, ATTN_TO_L1. */
    void (*decode_scores)(attn_element element, int rows, int keys, ptrdiff_t head_dim, const void *queries,
                          ptrdiff_t query_stride, const void *key, ptrdiff_t key_stride, const void *next, int prefetch,
                          void *scores);
    void (*decode_softmax)(int rows, int keys, const attn_score_epilogue *epilogue, void *scores, attn_state *state,
                           void *correction);

    /* Reads a mask tile, times `times`, log2(e) or 1. Row i and key j go to bias[j * key_out + i * row_out]. */
    attn_tile_kind (*bias_tile)(attn_element dtype, int rows, int keys, const char *const *mask,
                                ptrdiff_t key_stride_bytes, double times, void *bias, ptrdiff_t row_out,
                                ptrdiff_t key_out);

    /* bias = (bias + other) * times, over n reals (whole vectors); -inf exactly where either input is -inf. */
    void (*join_bias)(ptrdiff_t n, double times, const void *other, void *bias);

    /* drop_mask = -inf where a weight is dropped, else 0, in the layout of a bias. query (rows) and head (rows) are the
     * rows' counters; 4 * first is the absolute position of the first key. `keys` may be rounded up to a multiple of
     * 4. */
    void (*drop_mask_tile)(const attn_dropout *dropout, int rows, int keys, const uint32_t *query, const uint32_t *head,
                           uint32_t first, void *drop_mask, ptrdiff_t row_out, ptrdiff_t key_out);

    /* weights = 0 where drop_mask is -inf, over n reals (whole vectors). */
    void (*drop_weights)(ptrdiff_t n, const void *drop_mask, void *weights);

    /* y = x * factor where kept, else 0, for features [first, first + features) of a row; first is a multiple of 4. The
     * halves of `row` are the head and query of drop_mask_tile; features are its keys. y may be x. */
    void (*drop_features)(const attn_dropout *dropout, uint64_t row, ptrdiff_t first, ptrdiff_t features, double factor,
                          const void *x, void *y);

    /* total = total + part, where columns is a multiple of lanes. An empty state has maximum -inf, sum 0, out 0. */
    void (*fold_state)(int rows, ptrdiff_t columns, const attn_state *part, const attn_state *total);

    /* output row = state.out / state.sum / factor, `empty` where nothing was attended to; no row where output is NULL.
     * Where `is_mean`, a finite sum gives a finite output: rounding alone takes the mean of the largest reals past
     * them. Returns a bit for each row that is not empty and to which a NaN or an infinity was written. */
    uint64_t (*finish_rows)(int rows, ptrdiff_t v_dim, const attn_state *state, ptrdiff_t out_stride, double factor,
                            int is_mean, double empty, void *const *output);

    /* output row [key] = weights * 2^(seen - state.maximum) / state.sum / factor; `seen` (rows) is the maximum that the
     * weights of this block were computed with. Prefill layout, and decode layout. */
    void (*weights_block)(int vectors, int rows, int keys, const void *weights, const void *seen,
                          const attn_state *state, double factor, void *const *output);
    void (*decode_weights)(int rows, int keys, const void *weights, const void *seen, const attn_state *state,
                           double factor, void *const *output);

    /* y = x * share if `begins`, else y + x * share: one head's share of the mean over heads. */
    void (*share_row)(ptrdiff_t n, const void *x, double share, int begins, void *y);

    /* Applies the epilogue to a product of `features` columns and stores it in y. The product has score_block's layout
     * (features, vectors * lanes), or is (rows, product_stride). */
    void (*linear_block)(int vectors, int rows, int features, const void *product, const attn_epilogue *epilogue,
                         void *const *y);
    void (*linear_rows)(int rows, ptrdiff_t features, const void *product, ptrdiff_t product_stride,
                        const attn_epilogue *epilogue, void *const *y);

    /* Products with part of a weight that lies as (inner, features), inner <= ATTN_FOLD_FEATURES: out (rows, features)
     * = x . weight, added to what out holds unless `begins`. Rows of out have room for whole vectors.
     *
     * gemv reads the weight in place, in memory's order; `prefetch`: ATTN_FROM_MEMORY, ATTN_TO_L1. `part` is scratch
     * memory of out's size.
     * gemm reads a tile that pack_tile copied, and packs the next one meanwhile, unless it is NULL. */
    void (*gemv)(attn_element element, int rows, int inner, ptrdiff_t features, const void *x, ptrdiff_t x_stride,
                 const void *weight, ptrdiff_t weight_stride, int prefetch, int begins, void *part, void *out,
                 ptrdiff_t out_stride);
    void (*pack_tile)(const attn_tile *tile);
    void (*gemm)(int rows, const attn_tile *tile, const void *x, ptrdiff_t x_stride, const attn_tile *next, int begins,
                 void *out, ptrdiff_t out_stride);

    /* y = x + residual, normalised, over n contiguous elements; sum receives x + residual and may be y. residual,
     * weight and bias may be NULL. */
    void (*norm_row)(attn_norm_kind kind, ptrdiff_t n, const void *x, const void *residual, const void *weight,
                     const void *bias, double epsilon, void *sum, void *y);

    /* Gradients of norm_row without a residual, from that of y. grad_x may be x. The row's shares are added to
     * grad_weight and grad_bias; both, and weight, may be NULL. */
    void (*norm_backward_row)(attn_norm_kind kind, ptrdiff_t n, const void *upstream, const void *x, const void *weight,
                              double epsilon, void *grad_x, void *grad_weight, void *grad_bias);

    /* y = x * scale + residual, over n reals. residual may be NULL. y may be residual or x. */
    void (*scale_row)(ptrdiff_t n, const void *x, double scale, const void *residual, void *y);

    /* Writes the cosines, then the sines, of the angles base + step, which are each given as (2, pairs): cosines,
     * sines. Interleaved, each value is repeated, and the first of two sines is negated. */
    void (*rotary_table)(int interleaved, ptrdiff_t pairs, const double *base, const double *step, double scale,
                         void *table);

    /* y = x with its pairs rotated by the angles in a table, one table row for each row (table_stride 0: one for all).
     * The last dim - 2 * pairs reals are copied. y may be x. */
    void (*rotary_rows)(int interleaved, ptrdiff_t rows, ptrdiff_t pairs, ptrdiff_t dim, const void *table,
                        ptrdiff_t table_stride, const void *x, ptrdiff_t x_stride, void *y, ptrdiff_t y_stride);

    /* y = softmax(x), or its natural logarithm, over n contiguous elements; y may be x. */
    void (*softmax_row)(ptrdiff_t n, const void *x, void *y, int logarithm);

    /* The cross entropy of softmax(x), n contiguous elements, with a target, and its gradient, which may be x. */
    double (*cross_entropy_row)(const attn_target_row *target, ptrdiff_t n, const void *x, void *gradient);

    /* The sum of n products, in double. */
    double (*sum_products)(ptrdiff_t n, const void *x, const void *y);

    /* A step of an optimiser for n contiguous elements. max_square, AMSGrad's, and SGD's momentum may be NULL. */
    void (*adam)(const attn_adam_step *step, ptrdiff_t n, void *parameter, const void *gradient, void *mean,
                 void *square, void *max_square);
    void (*sgd)(const attn_sgd_step *step, ptrdiff_t n, void *parameter, const void *gradient, void *momentum);
    /* The gradient of x, from that of y and y. grad_x may be either. */
    void (*softmax_row_backward)(ptrdiff_t n, const void *upstream, const void *y, void *grad_x, int logarithm);

    /* The k largest elements of a row, a part at a time. topk adds elements [from, to) to the heap. At the end,
     * topk_order reduces a heap of `from` elements to `to`, with the removed ones in order after it. */
    void (*topk)(ptrdiff_t from, ptrdiff_t to, const void *x, ptrdiff_t k, void *values, int64_t *indices);
    void (*topk_order)(ptrdiff_t from, ptrdiff_t to, void *values, int64_t *indices);

    /* y = 2^x for x <= 0: at most 2 ULP, denormal results are 0. Every softmax above uses it; exported for tests. */
    void (*exp2_array)(ptrdiff_t n, const void *x, void *y);

    /* y = activation(x), over n contiguous elements; y may be x. tanh: at most 4 ULP, odd; additive scores use it,
     * too. GELU: at most 7 ULP; SILU: 4; GELU_TANH: 4, and 4 times its exponent, 2u, more where x is negative. */
    void (*activate)(attn_activation_kind kind, ptrdiff_t n, const void *x, void *y);

    /* grad_x = upstream * gate * activation'(x), grad_gate = upstream * activation(x), over n contiguous elements. gate
     * may be NULL, for 1 and no grad_gate. Each result may be any of the inputs. */
    void (*activate_backward)(attn_activation_kind kind, ptrdiff_t n, const void *upstream, const void *x,
                              const void *gate, void *grad_x, void *grad_gate);

    /* For benchmarks: fma at full speed (returns operations done), and a pure read of n reals. sink: one vector. */
    double (*fma_rounds)(ptrdiff_t rounds, void *sink);
    void (*read_array)(ptrdiff_t n, const void *x, void *sink);
} attn_kernels;

/* The reals that kernels compute with. */
static inline attn_element attn_reals(const attn_kernels *k)
{
    return k->size == 4 ? ATTN_ELEMENT_F32 : ATTN_ELEMENT_F64;
}

typedef struct {
    const char *name;
    const attn_kernels *f32, *f64;
} attn_kernel_table;

/* Best first. Each stub exports attn_table_<name>; levels that the compiler cannot build are left out. */
#if defined(__x86_64__)
#define ATTN_ISA_LIST(X) X(avx512) X(avx2) X(scalar)
#elif defined(__aarch64__)
#define ATTN_ISA_LIST(X) X(neon) X(scalar)
#else
#define ATTN_ISA_LIST(X) X(scalar)
#endif

#define ATTN_DECLARE_TABLE(isa) extern const attn_kernel_table attn_table_##isa;
ATTN_ISA_LIST(ATTN_DECLARE_TABLE)
#undef ATTN_DECLARE_TABLE

#endif

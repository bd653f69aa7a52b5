/* The kernels: everything that is compiled once per instruction set.
 *
 * A kernel knows tiles and nothing else: no allocation, no threads, no Python, no errors. All float arrays of one table
 * have its dtype, `real` below, and are passed as void *; strides count elements unless they say bytes. What a kernel
 * computes for a row depends neither on the rows beside it nor on the vector width: every table gives the same bits
 * (except `scalar`, which has no fused multiply-add).
 *
 * Vocabulary: a *query block* is up to `width` rows of queries that walk the keys together; a *key block* is up to
 * ATTN_BLOCK_KEYS keys that begin at a fixed multiple of it; a *chunk* is ATTN_CHUNK_KEYS keys. Scores are in units of
 * log2: exp(s) is written 2^(s * log2(e)), and log2(e) is already in the packed queries.
 *
 * Two layouts of a block of scores. Prefill: (keys, lanes), a query in each lane. Decode, for a few rows only:
 * (rows, ATTN_BLOCK_KEYS), a key in each lane.
 */
#ifndef ATTN_KERNELS_H
#define ATTN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum {
    ATTN_BLOCK_KEYS = 64,
    ATTN_CHUNK_KEYS = 512,
    ATTN_FOLD_FEATURES = 128, /* longer dot products are folded this often */
    ATTN_PRODUCT_LIMIT = 32,  /* distances: the sum of sizes from which a pair is taken directly (distance.inc.h) */
    ATTN_VECTORS = 3,         /* vectors of queries in a full query block */
    ATTN_MAX_WIDTH = 48,      /* lanes of a full query block, at most */
    ATTN_DECODE_ROWS = 8      /* rows the decode layout takes at most */
};

/* Rows so many bytes apart fall into the same few sets of the first-level cache. */
static inline int attn_aliases(ptrdiff_t stride) { return stride != 0 && stride % 2048 == 0; }

/* Storage of a mask, as the kernels read it. A nonzero byte means attend (BOOL) or the opposite (BLOCKED). */
typedef enum {
    ATTN_MASK_BOOL,
    ATTN_MASK_F16,
    ATTN_MASK_F32,
    ATTN_MASK_F64,
    ATTN_MASK_LONG,
    ATTN_MASK_BLOCKED
} attn_mask_dtype;

/* What bias_tile found. */
typedef enum { ATTN_TILE_FREE, ATTN_TILE_DEAD, ATTN_TILE_MIXED } attn_tile_kind;

/* Which weights, or features, are dropped: those whose random number, of 32 bits, is `most` or less. */
typedef struct {
    uint32_t seed[2], most;
} attn_dropout;

/* What a neuron makes of its sum: activation.inc.h. */
typedef enum {
    ATTN_KIND_IDENTITY,
    ATTN_KIND_RELU,
    ATTN_KIND_GELU,
    ATTN_KIND_GELU_TANH,
    ATTN_KIND_SILU,
    ATTN_KIND_TANH
} attn_activation_kind;

/* What a row is normalised by: its variance, or the mean of its squares. */
typedef enum { ATTN_NORM_KIND_LAYER, ATTN_NORM_KIND_RMS } attn_norm_kind;

/* What happens to a matrix product on its way out: y[row] = activation(product + bias) * gate[row] + residual[row]. All
 * but the activation may be NULL. */
typedef struct {
    const void *bias;
    attn_activation_kind activation;
    const void *const *gate, *const *residual;
} attn_way_out;

/* Running softmax of some rows: maximum (log2 units), sum of weights, unnormalised output (rows, out_stride). */
typedef struct {
    void *maximum, *sum, *out;
} attn_state;

typedef struct {
    int lanes;       /* reals in a vector */
    int width;       /* lanes * ATTN_VECTORS */
    int size;        /* bytes of a real */
    int decode_rows; /* up to so many rows the decode layout is the faster */
    int copy_bytes;  /* of scratch memory that decode_scores takes */

    /* packed (head_dim, vectors * lanes) = query[i][d] * factor, transposed; lanes past `rows` are zero. */
    void (*pack_queries)(int rows, int vectors, ptrdiff_t head_dim, const void *const *query, double factor,
                         void *packed);

    /* scores (keys, lanes) = key . query + bias, and -inf where the bias is (same layout, may be NULL); maximum (lanes)
     * in and out. `adds`: to scores of features before these, of which there was a multiple of ATTN_FOLD_FEATURES. */
    void (*score_block)(int vectors, int keys, ptrdiff_t head_dim, const void *packed, const void *key,
                        ptrdiff_t key_stride, const void *bias, int adds, void *scores, void *maximum);

    /* The same for additive scores, factor * weight . tanh(query + key). */
    void (*additive_block)(int vectors, int keys, ptrdiff_t features, const void *packed, const void *key,
                           ptrdiff_t key_stride, const void *weight, double factor, const void *bias, void *scores,
                           void *maximum);

    /* data (rows, dim), in and out: rows get norm 1, those of zeros stay. */
    void (*normalise_rows)(int rows, ptrdiff_t dim, ptrdiff_t stride, void *data);

    /* Distances. scaled (rows, dim + 2), out, and key (keys, dim + 2) have behind their features what makes
     * score_block's sum over dim + 2 features -factor |query - key|^2; query (rows, dim + 1) gets its size behind,
     * which is -factor |query|^2. Both return the largest size, without sign, or NaN where one is. */
    double (*distance_queries)(int rows, ptrdiff_t dim, ptrdiff_t stride, double factor, void *query, void *scaled);
    double (*distance_keys)(int keys, ptrdiff_t dim, ptrdiff_t stride, double factor, void *key);

    /* score_block's scores without a bias, in: where a pair's sizes add up to ATTN_PRODUCT_LIMIT, or are not finite,
     * the sum of squares takes their place; bias and maximum as there. packed (features + 1, vectors * lanes) and row
     * (rows, features + 1) have their sizes behind; which of them are queries makes no difference. */
    void (*distance_block)(int vectors, int rows, ptrdiff_t features, const void *packed, const void *row,
                           ptrdiff_t row_stride, double factor, const void *bias, void *scores, void *maximum);

    /* -inf to scores whose key is outside [first, last) of its lane, counted from the block's first key; maximum (lanes)
     * in and out. */
    void (*mask_block)(int vectors, int keys, const int32_t *first, const int32_t *last, void *scores, void *maximum);

    /* scores -> weights 2^(score - maximum); folds the block's sums into state.sum, sets state.maximum = maximum and
     * correction = what the earlier sums and outputs have to be multiplied with. */
    void (*softmax_block)(int vectors, int keys, void *scores, const void *maximum, attn_state *state,
                          void *correction);

    /* out (rows, out_stride) = correction * out + weights . value, over vectors * lanes columns of value.
     * weight(i, j) = weights[i * row_stride + j * key_stride]. `begins`: out held nothing before. */
    void (*value_block)(int rows, int keys, int vectors, const void *weights, ptrdiff_t row_stride,
                        ptrdiff_t key_stride, const void *value, ptrdiff_t value_stride, const void *correction,
                        int begins, void *out, ptrdiff_t out_stride);

    /* The same where dead[i * row_stride + j * key_stride] pairs are not touched: 0 * NaN stays out. Values count
     * `factor` times, a power of two: a small one keeps sums of the largest from overflowing. */
    void (*value_block_careful)(int rows, int keys, int vectors, const void *weights, const unsigned char *dead,
                                ptrdiff_t row_stride, ptrdiff_t key_stride, const void *value, ptrdiff_t value_stride,
                                double factor, const void *correction, int begins, void *out, ptrdiff_t out_stride);

    /* The decode layout: queries (rows, head_dim), scores (rows, ATTN_BLOCK_KEYS), rows <= ATTN_DECODE_ROWS. `copy`
     * is scratch memory of copy_bytes. */
    void (*decode_scores)(int rows, int keys, ptrdiff_t head_dim, const void *queries, const void *key,
                          ptrdiff_t key_stride, const void *next, void *copy, void *scores);
    void (*decode_softmax)(int rows, int keys, const int32_t *first, const int32_t *last, const void *bias,
                           void *scores, attn_state *state, void *correction);

    /* Reads the mask of some rows and keys, times log2(e), or times 1. bias lies at bias[j * key_out + i * row_out]. */
    attn_tile_kind (*bias_tile)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask,
                                ptrdiff_t key_stride_bytes, double times, void *bias, ptrdiff_t row_out,
                                ptrdiff_t key_out);

    /* bias = (bias + other) * times, over n reals (whole vectors); -inf where either is, and nowhere else. */
    void (*join_bias)(ptrdiff_t n, double times, const void *other, void *bias);

    /* keep = -inf where a weight is dropped, else 0, laid out as a bias. query (rows) and head (rows) name the rows,
     * 4 * first is the first key, counted from absolute key 0. `keys` may be rounded up to a multiple of 4. */
    void (*keep_tile)(const attn_dropout *dropout, int rows, int keys, const uint32_t *query, const uint32_t *head,
                      uint32_t first, void *keep, ptrdiff_t row_out, ptrdiff_t key_out);

    /* weights = 0 where keep is -inf, over n reals (whole vectors). */
    void (*drop_weights)(ptrdiff_t n, const void *keep, void *weights);

    /* y = x * factor where kept, else 0, for features [first, first + features) of a row; first is a multiple of 4. The
     * row's halves are keep_tile's head and query, its features the keys. y may be x. */
    void (*drop_features)(const attn_dropout *dropout, uint64_t row, ptrdiff_t first, ptrdiff_t features, double factor,
                          const void *x, void *y);

    /* total = total + part, where columns is a multiple of lanes. An empty state has maximum -inf, sum 0, out 0. */
    void (*fold_state)(int rows, ptrdiff_t columns, const attn_state *part, const attn_state *total);

    /* output row = state.out / state.sum / factor, `empty` where nothing was attended to; no row where output is NULL.
     * Returns a bit for each row that is not empty and to which a NaN or an infinity was written. */
    uint64_t (*finish_rows)(int rows, ptrdiff_t v_dim, const attn_state *state, ptrdiff_t out_stride, double factor,
                            double empty, void *const *output);

    /* output row [key] = weights * 2^(seen - state.maximum) / state.sum / factor; `seen` (rows) is the maximum that the
     * weights of this block were computed with. Prefill layout, and decode layout. */
    void (*weights_block)(int vectors, int rows, int keys, const void *weights, const void *seen,
                          const attn_state *state, double factor, void *const *output);
    void (*decode_weights)(int rows, int keys, const void *weights, const void *seen, const attn_state *state,
                           double factor, void *const *output);

    /* y = x * share, or y + x * share unless it begins: a row's part of the mean over heads. */
    void (*share_row)(ptrdiff_t n, const void *x, double share, int begins, void *y);

    /* A product's way out, over `features` reals. It has score_block's layout (features, vectors * lanes), or
     * decode_scores's (rows, ATTN_BLOCK_KEYS). */
    void (*linear_block)(int vectors, int rows, int features, const void *product, const attn_way_out *way,
                         void *const *y);
    void (*linear_rows)(int rows, int features, const void *product, const attn_way_out *way, void *const *y);

    /* y = (x + residual), normalised, over n contiguous elements: sum is where x + residual goes, and may be y. residual,
     * weight and bias may be NULL. */
    void (*norm_row)(attn_norm_kind kind, ptrdiff_t n, const void *x, const void *residual, const void *weight,
                     const void *bias, double epsilon, void *sum, void *y);

    /* y = x * scale + residual, over n reals whose neighbours in x and residual are so many reals apart; residual may be
     * NULL, and y may be residual, or x where those of x are one apart. */
    void (*scale_row)(ptrdiff_t n, const void *x, ptrdiff_t x_step, double scale, const void *residual,
                      ptrdiff_t residual_step, void *y);

    /* A row of cosines, then one of sines, of the angles base + step; both are given as (2, pairs): cosines, sines.
     * Interleaved, each stands twice, and the first sine of the two is negative. */
    void (*rotary_table)(int interleaved, ptrdiff_t pairs, const double *base, const double *step, double scale,
                         void *table);

    /* y = x with its pairs turned by the angles of a table, each row by those of its own (table_stride, 0: one for all).
     * dim - 2 * pairs reals are copied. y may be x. */
    void (*rotary_rows)(int interleaved, ptrdiff_t rows, ptrdiff_t pairs, ptrdiff_t dim, const void *table,
                        ptrdiff_t table_stride, const void *x, ptrdiff_t x_stride, void *y, ptrdiff_t y_stride);

    /* y = softmax(x), or its natural logarithm, over n contiguous elements; y may be x. */
    void (*softmax_row)(ptrdiff_t n, const void *x, void *y, int logarithm);

    /* The k largest of a row, a part of it at a time: elements [from, to) join the heap of those before them, and in the end
     * a heap of `from` becomes one of the first `to`, with the others behind it in order. */
    void (*choose)(ptrdiff_t from, ptrdiff_t to, const void *x, ptrdiff_t k, void *values, int64_t *indices);
    void (*order_chosen)(ptrdiff_t from, ptrdiff_t to, void *values, int64_t *indices);

    /* y = 2^x for x <= 0: at most 2 ULP, denormal results are 0. Used by every softmax above; here for its tests. */
    void (*exp2_array)(ptrdiff_t n, const void *x, void *y);

    /* y = activation(x), over n contiguous elements; y may be x. tanh: at most 4 ULP, odd; it serves additive scores,
     * too. GELU: at most 7 ULP; SILU: 4; GELU_TANH: 4, and 4 times its exponent, 2u, more where x is negative. */
    void (*activate)(attn_activation_kind kind, ptrdiff_t n, const void *x, void *y);

    /* For benchmarks: fma at full speed (returns operations done), and a pure read of n reals. sink: one vector. */
    double (*fma_rounds)(ptrdiff_t rounds, void *sink);
    void (*read_array)(ptrdiff_t n, const void *x, void *sink);
} attn_kernels;

typedef struct {
    const char *name;
    const attn_kernels *f32, *f64;
} attn_kernel_table;

/* Best first. Each stub exports attn_table_<name>; what this machine's compiler cannot build is left out. */
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

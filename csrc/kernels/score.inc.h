/* Packs queries, and computes scores of one key block against one query block. Scores are transposed, with keys along
 * rows and queries along lanes, so that the softmax over keys needs no horizontal step.
 */

/*   query   (rows) pointers to head_dim contiguous reals
 *   packed  (head_dim, vectors * LANES)   out
 */
static void K(pack_queries)(int rows, int vectors, ptrdiff_t head_dim, const void *const *query, double factor,
                            void *packed)
{
    const real scale = (real)factor;
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    for (int j = 0; j < vectors; j++) {
        real *out = (real *)packed + j * LANES;
        const void *const *lane = query + j * LANES;
        int lanes = rows - j * LANES < LANES ? rows - j * LANES : LANES;

        for (ptrdiff_t d = 0; d < head_dim; d += LANES) {
            int features = head_dim - d < LANES ? (int)(head_dim - d) : LANES;
            vec r[LANES];
            for (int i = 0; i < LANES; i++) {
                if (i >= lanes) r[i] = V(splat)(0);
                else if (features == LANES) r[i] = V(load)((const real *)lane[i] + d);
                else r[i] = V(load_first)((const real *)lane[i] + d, features);
            }
            K(transpose)(r);
            for (int i = 0; i < features; i++) V(store)(out + (d + i) * width, V(mul)(r[i], V(splat)(scale)));
        }
    }
}

/* The keys that each lane sees, [first, last), counted from the first one of the block. */
typedef struct {
    vec first, last;
} K(lane_limits);

/* Sets the limits of a vector of lanes, and those of all its lanes together. */
static inline K(lane_limits) K(limits_of)(const int32_t *first, const int32_t *last, int *from, int *to)
{
    real low[LANES], high[LANES];
    *from = first[0], *to = last[0];
    for (int i = 0; i < LANES; i++) {
        low[i] = (real)first[i];
        high[i] = (real)last[i];
        if (first[i] < *from) *from = first[i];
        if (last[i] > *to) *to = last[i];
    }
    return (K(lane_limits)){V(load)(low), V(load)(high)};
}

/* Adds the bias to the scores of key n, and hides it from lanes whose bias is -inf or whose limits leave it out. -inf
 * is selected, not added, because the score of a hidden key may be NaN. */
ATTN_TEMPLATE vec K(hide_key)(vec s, const real *bias, const K(lane_limits) * limits, int n)
{
    const vec masked = V(splat)(-INFINITY);
    if (bias) {
        const vec b = V(load)(bias);
        s = V(select)(V(eq)(b, masked), masked, V(add)(s, b));
    }
    if (limits) {
        const vec at = V(splat)((real)n);
        s = V(select)(V(lt)(at, limits->first), masked, V(select)(V(lt)(at, limits->last), s, masked));
    }
    return s;
}

/* Hides a key from a vector of lanes that do not see it. */
ATTN_TEMPLATE void K(hide_all)(real *scores) { V(store)(scores, V(splat)(-INFINITY)); }

enum { K(tile_keys) = VEC_ACCUMULATORS / ATTN_VECTORS < 8 ? VEC_ACCUMULATORS / ATTN_VECTORS : 8 };

/* The register tile: R keys x J vectors of queries over some features. One chain of fma per score.
 *
 *   packed  (features, J * LANES)    row stride width
 *   key     (R, features)            row stride key_stride, read in place
 *   bias    (R, J * LANES)           row stride width; may be NULL
 *   limits  (J)                      for the block, whose key number `from` is `key`; may be NULL
 *   scores  (R, J * LANES)           row stride width; in when `adds`, out
 *   best    (J)                      running maximum, raised when `last`
 */
ATTN_TEMPLATE void K(score_tile)(const int R, const int J, ptrdiff_t features, int adds, int last, ptrdiff_t width,
                                 const real *packed, const real *key, ptrdiff_t key_stride, const real *bias,
                                 const K(lane_limits) * limits, int from, real *scores, vec *best)
{
    K(prefetch_cursor) cursor =
        K(rows_from)((const char *)(key + ATTN_ROWS_AHEAD * key_stride), key_stride * (ptrdiff_t)sizeof(real),
                     features * (ptrdiff_t)sizeof(real));
    vec acc[8][ATTN_VECTORS];

    ATTN_UNROLL for (int r = 0; r < R; r++)
        ATTN_UNROLL for (int j = 0; j < J; j++) acc[r][j] = V(splat)(0);

    ATTN_UNROLL_SOME for (ptrdiff_t d = 0; d < features; d++) {
        vec q[ATTN_VECTORS];
        if (d % K(line) == 0) K(fetch_lines)(&cursor, 0, R);
        ATTN_UNROLL for (int j = 0; j < J; j++) q[j] = V(load)(packed + d * width + j * LANES);
        ATTN_UNROLL for (int r = 0; r < R; r++) {
            vec k = V(splat)(key[r * key_stride + d]);
            ATTN_UNROLL for (int j = 0; j < J; j++) acc[r][j] = V(fma)(k, q[j], acc[r][j]);
        }
    }

    ATTN_UNROLL for (int r = 0; r < R; r++)
        ATTN_UNROLL for (int j = 0; j < J; j++) {
            real *out = scores + r * width + j * LANES;
            vec s = adds ? V(add)(V(load)(out), acc[r][j]) : acc[r][j];
            s = K(hide_key)(s, bias ? bias + r * width + j * LANES : NULL, limits ? limits + j : NULL, from + r);
            V(store)(out, s);
            if (last) best[j] = V(max)(s, best[j]);
        }
}

/* All keys of a block: R rows at a time, then the rest. */
ATTN_TEMPLATE void K(score_rows)(const int J, int keys, ptrdiff_t features, int adds, int last, const real *packed,
                                 const real *key, ptrdiff_t key_stride, const real *bias, real *scores, real *maximum)
{
    enum { R = K(tile_keys) };
    const ptrdiff_t width = (ptrdiff_t)J * LANES;
    vec best[ATTN_VECTORS];
    int n = 0;

    ATTN_UNROLL for (int j = 0; j < J; j++) best[j] = V(load)(maximum + j * LANES);
#define TILE(N)                                                                                                     \
    K(score_tile)((N), J, features, adds, last, width, packed, key + n * key_stride, key_stride,                    \
                  bias ? bias + n * width : NULL, NULL, 0, scores + n * width, best)
    for (; n + R <= keys; n += R) TILE(R);
    for (; n + 2 <= keys; n += 2) TILE(2);
    for (; n < keys; n++) TILE(1);
#undef TILE
    ATTN_UNROLL for (int j = 0; j < J; j++) V(store)(maximum + j * LANES, best[j]);
}

/* R keys against J of a block's vectors, over all features. */
ATTN_TEMPLATE void K(score_some)(const int R, const int J, ptrdiff_t head_dim, ptrdiff_t width, const real *packed,
                                 const real *key, ptrdiff_t key_stride, const real *bias,
                                 const K(lane_limits) * limits, int from, real *scores, vec *best)
{
    int adds = 0;
    for (; head_dim > ATTN_FOLD_FEATURES; head_dim -= ATTN_FOLD_FEATURES, adds = 1) {
        K(score_tile)(R, J, ATTN_FOLD_FEATURES, adds, 0, width, packed, key, key_stride, NULL, NULL, 0, scores, best);
        packed += ATTN_FOLD_FEATURES * width;
        key += ATTN_FOLD_FEATURES;
    }
    K(score_tile)(R, J, head_dim, adds, 1, width, packed, key, key_stride, bias, limits, from, scores, best);
}

/* R keys at a time, against those vectors, a to b, that see some of them. */
static void K(score_limited)(int vectors, int keys, ptrdiff_t head_dim, const void *packed, const void *key,
                             ptrdiff_t key_stride, const attn_score_epilogue *epilogue, void *scores, void *maximum)
{
    enum { R = K(tile_keys) };
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const real *bias = epilogue->bias;
    K(lane_limits) limits[ATTN_VECTORS];
    vec best[ATTN_VECTORS];
    int from[ATTN_VECTORS], to[ATTN_VECTORS];
    for (int j = 0; j < vectors; j++) {
        limits[j] = K(limits_of)(epilogue->first + j * LANES, epilogue->last + j * LANES, &from[j], &to[j]);
        best[j] = V(load)((const real *)maximum + j * LANES);
    }
    for (int n = 0, some; n < keys; n += some) {
        some = keys - n >= R ? R : keys - n >= 2 ? 2 : 1;
        int a = 0, b = vectors;
        while (a < b && (from[a] >= n + some || to[a] <= n)) a++;
        while (a < b && (from[b - 1] >= n + some || to[b - 1] <= n)) b--;
        real *out = (real *)scores + n * width;
        for (int r = 0; r < some; r++)
            for (int j = 0; j < vectors; j++)
                if (j < a || j >= b) K(hide_all)(out + r * width + j * LANES);
#define SOME(N, J)                                                                                                  \
    K(score_some)((N), (J), head_dim, width, (const real *)packed + a * LANES, (const real *)key + n * key_stride,  \
                  key_stride, bias ? bias + n * width + a * LANES : NULL, limits + a, n,                            \
                  out + a * LANES, best + a)
#define KEYS(N) (b - a == 1 ? SOME(N, 1) : b - a == 2 ? SOME(N, 2) : b - a == 3 ? SOME(N, 3) : (void)0)
        some == R ? KEYS(R) : some == 2 ? KEYS(2) : KEYS(1);
#undef KEYS
#undef SOME
    }
    for (int j = 0; j < vectors; j++) V(store)((real *)maximum + j * LANES, best[j]);
}

static void K(score_block)(int vectors, int keys, ptrdiff_t head_dim, const void *packed, const void *key,
                           ptrdiff_t key_stride, const attn_score_epilogue *epilogue, int adds, void *scores,
                           void *maximum)
{
    const real *q = packed, *k = key;
    if (epilogue->first) {
        K(score_limited)(vectors, keys, head_dim, packed, key, key_stride, epilogue, scores, maximum);
        return;
    }
    do { /* runs once even for head_dim 0, as scores are then 0 */
        const int last = head_dim <= ATTN_FOLD_FEATURES;
        const ptrdiff_t features = last ? head_dim : ATTN_FOLD_FEATURES;
        const void *add = last ? epilogue->bias : NULL;
        switch (vectors) {
        case 1: K(score_rows)(1, keys, features, adds, last, q, k, key_stride, add, scores, maximum); break;
        case 2: K(score_rows)(2, keys, features, adds, last, q, k, key_stride, add, scores, maximum); break;
        default: K(score_rows)(3, keys, features, adds, last, q, k, key_stride, add, scores, maximum); break;
        }
        q += features * vectors * LANES;
        k += features;
        head_dim -= features;
        adds = 1;
    } while (head_dim > 0);
}

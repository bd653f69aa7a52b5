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

/* The register tile: R keys x J vectors of queries over some features. One chain of fma per score.
 *
 *   packed  (features, J * LANES)
 *   key     (R, features)            row stride key_stride, read in place
 *   bias    (R, J * LANES)           may be NULL
 *   scores  (R, J * LANES)           in when `adds`, out
 *   best    (J)                      running maximum, raised when `last`
 */
ATTN_TEMPLATE void K(score_tile)(const int R, const int J, ptrdiff_t features, int adds, int last,
                                 const real *packed, const real *key, ptrdiff_t key_stride, const real *bias,
                                 real *scores, vec *best)
{
    const ptrdiff_t width = (ptrdiff_t)J * LANES;
    const vec masked = V(splat)(-INFINITY);
    K(prefetch_cursor) cursor = K(rows_from)(key + K(rows_ahead) * key_stride, key_stride, features);
    vec acc[8][ATTN_VECTORS];

    ATTN_UNROLL for (int r = 0; r < R; r++)
        ATTN_UNROLL for (int j = 0; j < J; j++) acc[r][j] = V(splat)(0);

    ATTN_UNROLL_SOME for (ptrdiff_t d = 0; d < features; d++) {
        vec q[ATTN_VECTORS];
        if (d % K(line) == 0) K(fetch_lines)(&cursor, R);
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
            if (bias) { /* selected, not added: the score of a masked key may be NaN */
                const vec b = V(load)(bias + r * width + j * LANES);
                s = V(select)(V(eq)(b, masked), masked, V(add)(s, b));
            }
            V(store)(out, s);
            if (last) best[j] = V(max)(s, best[j]);
        }
}

/* All keys of a block: R rows at a time, then the rest. */
ATTN_TEMPLATE void K(score_rows)(const int J, int keys, ptrdiff_t features, int adds, int last, const real *packed,
                                 const real *key, ptrdiff_t key_stride, const real *bias, real *scores, real *maximum)
{
    enum { R = VEC_ACCUMULATORS / ATTN_VECTORS < 8 ? VEC_ACCUMULATORS / ATTN_VECTORS : 8 };
    const ptrdiff_t width = (ptrdiff_t)J * LANES;
    vec best[ATTN_VECTORS];
    int n = 0;

    ATTN_UNROLL for (int j = 0; j < J; j++) best[j] = V(load)(maximum + j * LANES);
#define TILE(N)                                                                                                     \
    K(score_tile)((N), J, features, adds, last, packed, key + n * key_stride, key_stride,                           \
                  bias ? bias + n * width : NULL, scores + n * width, best)
    for (; n + R <= keys; n += R) TILE(R);
    for (; n + 2 <= keys; n += 2) TILE(2);
    for (; n < keys; n++) TILE(1);
#undef TILE
    ATTN_UNROLL for (int j = 0; j < J; j++) V(store)(maximum + j * LANES, best[j]);
}

static void K(score_block)(int vectors, int keys, ptrdiff_t head_dim, const void *packed, const void *key,
                           ptrdiff_t key_stride, const void *bias, int adds, void *scores, void *maximum)
{
    const real *q = packed, *k = key;
    do { /* runs once even for head_dim 0, as scores are then 0 */
        const int last = head_dim <= ATTN_FOLD_FEATURES;
        const ptrdiff_t features = last ? head_dim : ATTN_FOLD_FEATURES;
        const void *add = last ? bias : NULL;
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

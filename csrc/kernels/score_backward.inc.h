/* Gradients of the scores: sums over tiles of their gradients dS, which are 0 where a pair is hidden. A tile has key n of
 * query r at n * stride + r. Rows of queries and of keys, and the sums over them, are whole vectors. Each sum of a tile
 * begins at zero, in one chain, and is then added.
 */

/* Adds to `sums` (vectors * LANES) each query's sum of dS times the score.
 *
 *   scores     (keys, vectors * LANES)
 *   gradients  (keys, stride), of a wider tile
 */
static void K(score_sums)(int vectors, int keys, const void *scores, const void *gradients, ptrdiff_t stride, void *sums)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const vec zero = V(splat)(0);
    for (int j = 0; j < vectors; j++) {
        const real *s = (const real *)scores + j * LANES, *ds = (const real *)gradients + j * LANES;
        real *sum = (real *)sums + j * LANES;
        vec acc = zero;
        for (int n = 0; n < keys; n++) {
            const vec g = V(load)(ds + n * stride);
            acc = V(fma)(g, V(select)(V(eq)(g, zero), zero, V(load)(s + n * width)), acc); /* a hidden score may be NaN */
        }
        V(store)(sum, V(add)(V(load)(sum), acc));
    }
}

/* Distances: R rows and one vector of features. */
ATTN_TEMPLATE void K(difference_rows)(const int R, int others, ptrdiff_t width, const real *weights,
                                      ptrdiff_t row_stride, ptrdiff_t other_stride, const real *row, const real *other,
                                      real *sum)
{
    vec x[R], acc[R];
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        x[r] = V(load)(row + r * width);
        acc[r] = V(splat)(0);
    }
    for (int n = 0; n < others; n++) {
        const vec y = V(load)(other + n * width);
        ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] =
            V(fma)(V(splat)(weights[r * row_stride + n * other_stride]), V(sub)(x[r], y), acc[r]);
    }
    ATTN_UNROLL for (int r = 0; r < R; r++) V(store)(sum + r * width, V(add)(V(load)(sum + r * width), acc[r]));
}

static void K(difference_block)(int rows, int others, int vectors, const void *weights, ptrdiff_t row_stride,
                                ptrdiff_t other_stride, const void *row, const void *other, void *sum)
{
    enum { R = VEC_ACCUMULATORS / 2 < 8 ? VEC_ACCUMULATORS / 2 : 8 };
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    for (int j = 0; j < vectors; j++) {
        int i = 0;
#define ROWS(N)                                                                                                        \
    K(difference_rows)((N), others, width, (const real *)weights + i * row_stride, row_stride, other_stride,           \
                       (const real *)row + i * width + j * LANES, (const real *)other + j * LANES,                     \
                       (real *)sum + i * width + j * LANES)
        for (; i + R <= rows; i += R) ROWS(R);
        for (; i < rows; i++) ROWS(1);
#undef ROWS
    }
}

/* Additive scores, in sums of dS (1 - tanh^2) for queries and keys, and of dS tanh for the weight. Pairs without a
 * gradient are left out: that saves their tanh, and their query or key may hold NaN. */
static void K(additive_backward)(int queries, int keys, int vectors, const void *gradients, ptrdiff_t stride,
                                 const void *query, const void *key, void *query_sum, void *key_sum, void *weight_sum)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const vec zero = V(splat)(0);
    for (ptrdiff_t at = 0; at < width; at += LANES) {
        vec of_key[ATTN_BLOCK_KEYS], of_weight = zero;
        for (int n = 0; n < keys; n++) of_key[n] = zero;
        for (int r = 0; r < queries; r++) {
            const vec q = V(load)((const real *)query + r * width + at);
            vec of_query = zero, of_tanh = zero;
            for (int n = 0; n < keys; n++) {
                const real ds = ((const real *)gradients)[n * stride + r];
                if (ds == 0) continue;
                vec slope;
                const vec t = K(tanh_and_slope)(V(add)(q, V(load)((const real *)key + n * width + at)), &slope);
                of_query = V(fma)(V(splat)(ds), slope, of_query);
                of_key[n] = V(fma)(V(splat)(ds), slope, of_key[n]);
                of_tanh = V(fma)(V(splat)(ds), t, of_tanh);
            }
            real *sum = (real *)query_sum + r * width + at;
            V(store)(sum, V(add)(V(load)(sum), of_query));
            of_weight = V(add)(of_weight, of_tanh);
        }
        for (int n = 0; n < keys; n++) {
            real *sum = (real *)key_sum + n * width + at;
            V(store)(sum, V(add)(V(load)(sum), of_key[n]));
        }
        real *sum = (real *)weight_sum + at;
        V(store)(sum, V(add)(V(load)(sum), of_weight));
    }
}

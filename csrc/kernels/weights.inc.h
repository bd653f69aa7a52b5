/* Final attention weights: a block's weights used the maximum so far; here they get the row's final maximum and sum. */

/* A weight of exactly 0 stays 0, so that masked pairs have weight 0 even in a row of NaN. */
static inline vec K(final_weight)(vec weight, vec factor)
{
    const vec none = V(splat)(0);
    return V(select)(V(eq)(weight, none), none, V(mul)(weight, factor));
}

/* factor (rows) = 2^(seen - maximum) / sum / by, and 0 for a row that sees no key. */
static inline void K(weight_factors)(int rows, const real *seen, const attn_state *state, double by, real *factor)
{
    const vec times = V(splat)((real)(1 / by));
    for (int i = 0; i < rows; i += LANES) {
        int lanes = rows - i < LANES ? rows - i : LANES;
        vec sum = V(max)(V(splat)(REAL_MIN), V(load_first)((const real *)state->sum + i, lanes)); /* avoids 0 / 0 */
        vec top = K(finite_maximum)(V(load_first)((const real *)state->maximum + i, lanes));
        vec scale = K(exp2)(V(sub)(V(load_first)(seen + i, lanes), top));
        V(store_first)(factor + i, lanes, V(mul)(V(div)(scale, sum), times));
    }
}

/* One square: LANES rows of `count` keys. */
ATTN_TEMPLATE void K(weights_square)(const int whole, int lanes, int count, const real *weights, ptrdiff_t width,
                                     const real *factor, void *const *output, ptrdiff_t at)
{
    vec r[LANES];
    K(transpose_square)(whole, count, weights, width, r);
    if (whole) {
        ATTN_UNROLL for (int l = 0; l < LANES; l++)
            V(store)((real *)output[l] + at, K(final_weight)(r[l], V(splat)(factor[l])));
    } else {
        for (int l = 0; l < lanes; l++)
            V(store_first)((real *)output[l] + at, count, K(final_weight)(r[l], V(splat)(factor[l])));
    }
}

/* LANES rows of a whole block, for rows a multiple of 4 KB apart. They share a set of the L1 cache, which is too small
 * for a line of each, so each row is assembled elsewhere and then stored whole. On Zen 5 with 1,024 keys, need_weights
 * then takes 1.24 instead of 1.37 times as long as a plain call. For other strides this would be slower. */
static void K(weights_apart)(const real *weights, ptrdiff_t width, const real *factor, void *const *output)
{
    real rows[LANES][ATTN_BLOCK_KEYS] __attribute__((aligned(64)));
    void *row[LANES];
    for (int l = 0; l < LANES; l++) row[l] = rows[l];
    for (int n = 0; n < ATTN_BLOCK_KEYS; n += LANES)
        K(weights_square)(1, LANES, LANES, weights + n * width, width, factor, row, n);
    for (int l = 0; l < LANES; l++)
        ATTN_UNROLL for (int n = 0; n < ATTN_BLOCK_KEYS; n += LANES)
            V(store)((real *)output[l] + n, V(load)(rows[l] + n));
}

/*   weights  (keys, vectors * LANES)
 *   output   (rows) pointers to `keys` contiguous reals   out
 */
static void K(weights_block)(int vectors, int rows, int keys, const void *weights, const void *seen,
                             const attn_state *state, double by, void *const *output)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    real factor[ATTN_MAX_WIDTH];
    K(weight_factors)(rows, seen, state, by, factor);

    for (int i = 0; i < rows; i += LANES) {
        const int lanes = rows - i < LANES ? rows - i : LANES;
        const real *from = (const real *)weights + i;
        int n = 0;
        if (lanes == LANES && keys == ATTN_BLOCK_KEYS && ((char *)output[i + 1] - (char *)output[i]) % 4096 == 0) {
            K(weights_apart)(from, width, factor + i, output + i);
            continue;
        }
        if (lanes == LANES)
            for (; n + LANES <= keys; n += LANES)
                K(weights_square)(1, LANES, LANES, from + n * width, width, factor + i, output + i, n);
        for (; n < keys; n += LANES)
            K(weights_square)
            (0, lanes, keys - n < LANES ? keys - n : LANES, from + n * width, width, factor + i, output + i, n);
    }
}

static void K(decode_weights)(int rows, int keys, const void *weights, const void *seen, const attn_state *state,
                              double by, void *const *output)
{
    real factor[ATTN_DECODE_ROWS];
    K(weight_factors)(rows, seen, state, by, factor);
    for (int i = 0; i < rows; i++) {
        const real *from = (const real *)weights + i * ATTN_BLOCK_KEYS;
        real *into = output[i];
        for (int n = 0; n < keys; n += LANES) {
            int count = keys - n < LANES ? keys - n : LANES;
            V(store_first)(into + n, count, K(final_weight)(V(load_first)(from + n, count), V(splat)(factor[i])));
        }
    }
}

static void K(share_row)(ptrdiff_t n, const void *x, double share, int begins, void *y)
{
    const vec by = V(splat)((real)share), none = V(splat)(0);
    const real *from = x;
    real *into = y;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES)
        V(store)(into + i, V(fma)(V(load)(from + i), by, begins ? none : V(load)(into + i)));
    if (i < n) {
        const int count = (int)(n - i);
        const vec before = begins ? none : V(load_first)(into + i, count);
        V(store_first)(into + i, count, V(fma)(V(load_first)(from + i, count), by, before));
    }
}

/* Attention weights leave a block with the maximum of its time; here they get the row's last maximum and its sum. */

/* A weight of exactly 0 stays 0: a masked pair of a row that a NaN has spoilt is still masked. */
static inline vec K(final_weight)(vec weight, vec factor)
{
    const vec none = V(splat)(0);
    return V(select)(V(eq)(weight, none), none, V(mul)(weight, factor));
}

/* factor (rows) = 2^(seen - maximum) / sum, and 0 for a row with nothing to attend to. */
static inline void K(weight_factors)(int rows, const real *seen, const attn_state *state, real *factor)
{
    for (int i = 0; i < rows; i += LANES) {
        int lanes = rows - i < LANES ? rows - i : LANES;
        vec sum = V(max)(V(splat)(REAL_MIN), V(load_first)((const real *)state->sum + i, lanes)); /* never 0 / 0 */
        vec top = K(finite_maximum)(V(load_first)((const real *)state->maximum + i, lanes));
        vec scale = K(exp2)(V(sub)(V(load_first)(seen + i, lanes), top));
        V(store_first)(factor + i, lanes, V(div)(scale, sum));
    }
}

/*   weights  (keys, vectors * LANES)
 *   output   (rows) pointers to `keys` contiguous reals   out
 */
static void K(weights_block)(int vectors, int rows, int keys, const void *weights, const void *seen,
                             const attn_state *state, void *const *output)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    real factor[ATTN_MAX_WIDTH];
    K(weight_factors)(rows, seen, state, factor);

    for (int i = 0; i < rows; i += LANES) {
        int lanes = rows - i < LANES ? rows - i : LANES;
        vec by = V(load_first)(factor + i, lanes);
        for (int n = 0; n < keys; n += LANES) {
            int count = keys - n < LANES ? keys - n : LANES;
            vec r[LANES];
            for (int c = 0; c < LANES; c++)
                r[c] = c < count ? K(final_weight)(V(load)((const real *)weights + (n + c) * width + i), by) : V(splat)(0);
            V(transpose)(r);
            for (int l = 0; l < lanes; l++) {
                if (count == LANES) V(store)((real *)output[i + l] + n, r[l]);
                else V(store_first)((real *)output[i + l] + n, count, r[l]);
            }
        }
    }
}

static void K(decode_weights)(int rows, int keys, const void *weights, const void *seen, const attn_state *state,
                              void *const *output)
{
    real factor[ATTN_DECODE_ROWS];
    K(weight_factors)(rows, seen, state, factor);
    for (int i = 0; i < rows; i++) {
        const real *from = (const real *)weights + i * ATTN_BLOCK_KEYS;
        real *into = output[i];
        for (int n = 0; n < keys; n += LANES) {
            int count = keys - n < LANES ? keys - n : LANES;
            V(store_first)(into + n, count, K(final_weight)(V(load_first)(from + n, count), V(splat)(factor[i])));
        }
    }
}

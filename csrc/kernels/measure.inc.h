/* References for the benchmarks: peak fma throughput, and a pure read. */

/* Runs `rounds` rounds of independent fma chains; returns the floating-point operations done. */
static double K(fma_rounds)(ptrdiff_t rounds, void *sink)
{
    enum { CHAINS = VEC_ACCUMULATORS };
    const vec a = V(splat)((real)0.999999), b = V(splat)((real)1e-9);
    vec acc[CHAINS];
    ATTN_UNROLL for (int c = 0; c < CHAINS; c++) acc[c] = V(splat)((real)c);
    for (ptrdiff_t n = 0; n < rounds; n++)
        ATTN_UNROLL for (int c = 0; c < CHAINS; c++) acc[c] = V(fma)(acc[c], a, b);
    for (int c = 1; c < CHAINS; c++) acc[0] = V(add)(acc[0], acc[c]);
    V(store)(sink, acc[0]);
    return 2.0 * LANES * CHAINS * (double)rounds;
}

/* Adds up n reals, n rounded down to whole groups of four vectors; prefetches as the decode kernels do. */
static void K(read_array)(ptrdiff_t n, const void *x, void *sink)
{
    const real *at = x;
    vec acc[4] = {V(splat)(0), V(splat)(0), V(splat)(0), V(splat)(0)};
    for (ptrdiff_t i = 0; i + 4 * LANES <= n; i += 4 * LANES)
        ATTN_UNROLL for (int c = 0; c < 4; c++) {
            __builtin_prefetch((const char *)(at + i + c * LANES) + (12 << 10));
            acc[c] = V(add)(acc[c], V(load)(at + i + c * LANES));
        }
    V(store)(sink, V(add)(V(add)(acc[0], acc[1]), V(add)(acc[2], acc[3])));
}

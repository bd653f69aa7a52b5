/* A scaled row of a table plus another row, with one rounding. */

static void K(scale_row)(ptrdiff_t n, const void *x, double scale, const void *residual, void *y)
{
    const real *in = x, *other = residual;
    const vec factor = V(splat)((real)scale);
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vec a = V(load)(in + i);
        V(store)((real *)y + i, other ? V(fma)(a, factor, V(load)(other + i)) : V(mul)(a, factor));
    }
    if (i < n) {
        const int count = (int)(n - i);
        const vec a = V(load_first)(in + i, count);
        V(store_first)
        ((real *)y + i, count, other ? V(fma)(a, factor, V(load_first)(other + i, count)) : V(mul)(a, factor));
    }
}

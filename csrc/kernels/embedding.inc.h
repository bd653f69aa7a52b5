/* A scaled row of a table plus another row, with one rounding. Both may have any strides. */

static inline vec K(load_apart)(const real *x, ptrdiff_t step, int count)
{
    real lanes[LANES];
    if (step == 1) return count == LANES ? V(load)(x) : V(load_first)(x, count);
    for (int l = 0; l < count; l++) lanes[l] = x[l * step];
    return V(load_first)(lanes, count);
}

static void K(scale_row)(ptrdiff_t n, const void *x, ptrdiff_t x_step, double scale, const void *residual,
                         ptrdiff_t residual_step, void *y)
{
    const real *in = x, *other = residual;
    const vec factor = V(splat)((real)scale);
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        vec a = K(load_apart)(in + i * x_step, x_step, count);
        a = other ? V(fma)(a, factor, K(load_apart)(other + i * residual_step, residual_step, count))
                  : V(mul)(a, factor);
        if (count == LANES)
            V(store)((real *)y + i, a);
        else
            V(store_first)((real *)y + i, count, a);
    }
}

/* The sum of products, in double: 16 interleaved partial sums, folded in a fixed order, bit-identical at every level. */

#if REAL_F32
static inline vf64 K(load_wide)(const real *x) { return vf64_widen(x); }
#else
static inline vf64 K(load_wide)(const real *x) { return vf64_load(x); }
#endif

static double K(sum_products)(ptrdiff_t n, const void *x, const void *y)
{
    enum { PARTS = 16, VECTORS = PARTS / VF64_LANES };
    const real *a = x, *b = y;
    double lanes[PARTS];
    vf64 part[VECTORS];
    ptrdiff_t i = 0;
    for (int c = 0; c < VECTORS; c++) part[c] = vf64_splat(0);
    for (; i + PARTS <= n; i += PARTS)
        ATTN_UNROLL for (int c = 0; c < VECTORS; c++) part[c] =
            vf64_add(part[c], vf64_mul(K(load_wide)(a + i + c * VF64_LANES), K(load_wide)(b + i + c * VF64_LANES)));
    for (int c = 0; c < VECTORS; c++) vf64_store(lanes + c * VF64_LANES, part[c]);
    for (int c = 0; i + c < n; c++) lanes[c] += (double)a[i + c] * (double)b[i + c];
    for (int width = PARTS / 2; width > 0; width /= 2)
        for (int c = 0; c < width; c++) lanes[c] += lanes[c + width];
    return lanes[0];
}

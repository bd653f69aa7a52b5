/* Rotary position embedding (RoPE): rotates pairs of a row's features, each by its own angle.
 *
 * Both pairings do the same arithmetic, y = fma(x, cos, other * (-sin or sin)), so the same pairs give bit-identical
 * results. The table is computed in double and rounded once.
 */

/*   base, step  (2, pairs)   cosines and sines of two angles, which are added
 *   table       (2, pairs)   cosines, sines; interleaved (2, 2 * pairs): c0 c0 c1 c1 ..., -s0 s0 -s1 s1 ...
 */
static void K(rotary_table)(int interleaved, ptrdiff_t pairs, const double *base, const double *step, double scale,
                            void *table)
{
    real *restrict cosine = table, *restrict sine = cosine + (interleaved ? 2 * pairs : pairs);
    for (ptrdiff_t n = 0; n < pairs; n++) {
        const double c = scale * (base[n] * step[n] - base[pairs + n] * step[pairs + n]);
        const double s = scale * (base[pairs + n] * step[n] + base[n] * step[pairs + n]);
        if (interleaved) {
            cosine[2 * n] = cosine[2 * n + 1] = (real)c;
            sine[2 * n] = (real)(0 - s); /* +0 for 0, as in rotate_halves */
            sine[2 * n + 1] = (real)s;
        } else {
            cosine[n] = (real)c;
            sine[n] = (real)s;
        }
    }
}

/* Rotates n lanes of `a`, the first half of the features, with n of `b`, the second. */
ATTN_TEMPLATE void K(rotate_halves)(const int whole, int n, const real *cosine, const real *sine, const real *a,
                                    const real *b, real *to_a, real *to_b)
{
    const vec c = K(load_part)(whole, n, cosine), s = K(load_part)(whole, n, sine);
    const vec x = K(load_part)(whole, n, a), y = K(load_part)(whole, n, b);
    const vec rotated_y = V(fma)(y, c, V(mul)(x, s));
    K(store_part)(whole, n, to_a, V(fma)(x, c, V(mul)(y, V(sub)(V(splat)(0), s))));
    K(store_part)(whole, n, to_b, rotated_y);
}

/* Rotates n lanes, an even number, as pairs of neighbours. */
ATTN_TEMPLATE void K(rotate_neighbours)(const int whole, int n, const real *cosine, const real *sine, const real *from,
                                        real *to)
{
    const vec c = K(load_part)(whole, n, cosine), s = K(load_part)(whole, n, sine), x = K(load_part)(whole, n, from);
    K(store_part)(whole, n, to, V(fma)(x, c, V(mul)(V(swap_pairs)(x), s)));
}

static void K(rotary_row)(int interleaved, ptrdiff_t pairs, const real *table, const real *from, real *to)
{
    const ptrdiff_t n = interleaved ? 2 * pairs : pairs;
    const real *cosine = table, *sine = table + n;
    ptrdiff_t d = 0;
    if (interleaved) {
        for (; d + LANES <= n; d += LANES) K(rotate_neighbours)(1, LANES, cosine + d, sine + d, from + d, to + d);
        if (d < n) K(rotate_neighbours)(0, (int)(n - d), cosine + d, sine + d, from + d, to + d);
    } else {
        for (; d + LANES <= n; d += LANES)
            K(rotate_halves)(1, LANES, cosine + d, sine + d, from + d, from + n + d, to + d, to + n + d);
        if (d < n) K(rotate_halves)(0, (int)(n - d), cosine + d, sine + d, from + d, from + n + d, to + d, to + n + d);
    }
}

/*   table  (rows, 2, pairs or 2 * pairs)   rotary_table's, row stride table_stride
 *   x, y   (rows, dim)
 */
static void K(rotary_rows)(int interleaved, ptrdiff_t rows, ptrdiff_t pairs, ptrdiff_t dim, const void *table,
                           ptrdiff_t table_stride, const void *x, ptrdiff_t x_stride, void *y, ptrdiff_t y_stride)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const real *from = (const real *)x + i * x_stride;
        real *to = (real *)y + i * y_stride;
        K(rotary_row)(interleaved, pairs, (const real *)table + i * table_stride, from, to);
        if (to != from) memcpy(to + 2 * pairs, from + 2 * pairs, (size_t)(dim - 2 * pairs) * sizeof(real));
    }
}

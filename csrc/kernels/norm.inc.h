/* Layer normalisation, (x - mean) / sqrt(variance + epsilon) * weight + bias, of a row; and RMS normalisation, the same
 * with 0 for the mean and without a bias.
 *
 * Sums are 16 interleaved partial sums over 4,096 elements at a time, as in rowwise.inc.h: bit-identical at every
 * level. The variance is computed from x - mean in a second pass, to avoid cancellation.
 */

/* Sum of x, or of (x - shift)^2, over at most row_block elements. */
ATTN_TEMPLATE real K(sum_block)(const int squares, ptrdiff_t n, const real *x, vec shift)
{
    real lanes[LANES];
    vec part[16];
    ptrdiff_t i = 0;
    for (int c = 0; c < K(row_vectors); c++) part[c] = V(splat)(0);
    for (; i + K(row_parts) <= n; i += K(row_parts)) ATTN_UNROLL for (int c = 0; c < K(row_vectors); c++)
        {
            const vec a = V(sub)(V(load)(x + i + c * LANES), shift);
            part[c] = squares ? V(fma)(a, a, part[c]) : V(add)(part[c], a);
        }
    for (int c = 0; i < n; c++, i += LANES) {
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        V(store)(lanes, V(sub)(V(load_first)(x + i, count), shift));
        const vec a = V(load_first)(lanes, count); /* zeros past the end */
        part[c] = squares ? V(fma)(a, a, part[c]) : V(add)(part[c], a);
    }
    return K(add_parts)(part);
}

ATTN_TEMPLATE real K(mean_of)(const int squares, ptrdiff_t n, const real *x, real shift)
{
    real sum = 0;
    for (ptrdiff_t i = 0; i < n; i += K(row_block))
        sum += K(sum_block)(squares, n - i < K(row_block) ? n - i : K(row_block), x + i, V(splat)(shift));
    return sum / (real)n;
}

ATTN_TEMPLATE void K(norm_part)(const int whole, int count, const real *x, vec mean, vec by, const real *weight,
                                const real *bias, real *y)
{
    vec a = V(mul)(V(sub)(K(load_part)(whole, count, x), mean), by);
    if (weight) a = V(mul)(a, K(load_part)(whole, count, weight));
    if (bias) a = V(add)(a, K(load_part)(whole, count, bias));
    K(store_part)(whole, count, y, a);
}

/* What normalises a row: (x - mean) * by. Where the squares overflow, x is the row times `factor`, else that is 1. */
typedef struct {
    const real *x;
    real mean, by;
    double factor;
} K(row_norm);

/* `scaled` receives the row times `factor`, if need be; it may be the row itself. */
static K(row_norm) K(norm_of_row)(attn_norm_kind kind, ptrdiff_t n, const real *x, double epsilon, real *scaled)
{
    const int centred = kind == ATTN_NORM_KIND_LAYER;
    double factor = 1;
    real mean = centred ? K(mean_of)(0, n, x, 0) : 0, variance = K(mean_of)(1, n, x, mean);
    if (!(variance <= REAL_MAX)) { /* overflow: repeat with x scaled down */
        factor = REAL_F32 ? 0x1p-80 : 0x1p-600;
        K(scale_row)(n, x, factor, NULL, scaled);
        x = scaled;
        mean = centred ? K(mean_of)(0, n, x, 0) : 0;
        variance = K(mean_of)(1, n, x, mean);
        epsilon *= factor * factor;
    }
    return (K(row_norm)){x, mean, (real)(1 / sqrt((double)variance + epsilon)), factor};
}

/* sum receives x + residual, if there is a residual; it may be y. */
static void K(norm_row)(attn_norm_kind kind, ptrdiff_t n, const void *x, const void *residual, const void *weight,
                        const void *bias, double epsilon, void *sum, void *y)
{
    const real *in = x, *other = residual, *w = weight, *b = bias;
    ptrdiff_t i;

    /* Pass 1: x + residual */
    if (other) {
        real *total = sum;
        for (i = 0; i + LANES <= n; i += LANES) V(store)(total + i, V(add)(V(load)(in + i), V(load)(other + i)));
        if (i < n)
            V(store_first)
            (total + i, (int)(n - i),
             V(add)(V(load_first)(in + i, (int)(n - i)), V(load_first)(other + i, (int)(n - i))));
        in = total;
    }

    /* Passes 2 and 3: mean and variance */
    const K(row_norm) norm = K(norm_of_row)(kind, n, in, epsilon, y);

    /* Pass 4: the result */
    const vec shift = V(splat)(norm.mean), by = V(splat)(norm.by);
    real *out = y;
    in = norm.x;
    for (i = 0; i + LANES <= n; i += LANES)
        K(norm_part)(1, LANES, in + i, shift, by, w ? w + i : NULL, b ? b + i : NULL, out + i);
    if (i < n) K(norm_part)(0, (int)(n - i), in + i, shift, by, w ? w + i : NULL, b ? b + i : NULL, out + i);
}

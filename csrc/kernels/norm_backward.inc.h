/* Gradients of layer and RMS normalisation of a row, from x: mean and variance are computed again.
 *
 *     n = (x - mean) r,  r = 1 / sqrt(variance + epsilon)        RMS: 0 for the mean
 *     g = upstream * weight
 *     grad_x = r (g - mean(g) - n mean(g n))                     RMS: 0 for mean(g)
 *     grad_weight += upstream * n,  grad_bias += upstream
 *
 * Sums are those of norm.inc.h.
 */

ATTN_TEMPLATE vec K(upstream_part)(const int whole, int count, const real *upstream, const real *weight)
{
    const vec up = K(load_part)(whole, count, upstream);
    return weight ? V(mul)(up, K(load_part)(whole, count, weight)) : up;
}

/* Adds the sums of g and of g n, over at most row_block elements, to sums[0] and sums[1]. */
static void K(gradient_sums)(ptrdiff_t n, const real *x, const real *upstream, const real *weight, vec mean, vec by,
                             real *sums)
{
    vec part[16], product[16];
    ptrdiff_t i = 0;
    for (int c = 0; c < K(row_vectors); c++) part[c] = product[c] = V(splat)(0);
    for (; i + K(row_parts) <= n; i += K(row_parts)) ATTN_UNROLL for (int c = 0; c < K(row_vectors); c++)
        {
            const ptrdiff_t at = i + c * LANES;
            const vec g = K(upstream_part)(1, LANES, upstream + at, weight ? weight + at : NULL);
            part[c] = V(add)(part[c], g);
            product[c] = V(fma)(g, V(mul)(V(sub)(V(load)(x + at), mean), by), product[c]);
        }
    for (int c = 0; i < n; c++, i += LANES) { /* zeros past the end, whatever the mean */
        real lanes[LANES];
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        const vec g = K(upstream_part)(0, count, upstream + i, weight ? weight + i : NULL);
        part[c] = V(add)(part[c], g);
        V(store)(lanes, V(mul)(V(sub)(V(load_first)(x + i, count), mean), by));
        product[c] = V(fma)(g, V(load_first)(lanes, count), product[c]);
    }
    sums[0] += K(add_parts)(part);
    sums[1] += K(add_parts)(product);
}

/* Splats of a row: its norm, and what its gradient takes. */
typedef struct {
    vec mean, by, factor, mean_g, minus_mean_gn;
} K(row_gradient);

ATTN_TEMPLATE void K(norm_backward_part)(const int whole, int count, const real *x, const real *upstream,
                                         const real *weight, const K(row_gradient) * row, real *grad_x,
                                         real *grad_weight, real *grad_bias)
{
    const vec up = K(load_part)(whole, count, upstream), g = K(upstream_part)(whole, count, upstream, weight);
    const vec normal = V(mul)(V(sub)(K(load_part)(whole, count, x), row->mean), row->by);
    const vec rest = V(fma)(row->minus_mean_gn, normal, V(sub)(g, row->mean_g));
    K(store_part)(whole, count, grad_x, V(mul)(V(mul)(rest, row->by), row->factor));
    if (grad_weight)
        K(store_part)(whole, count, grad_weight, V(fma)(up, normal, K(load_part)(whole, count, grad_weight)));
    if (grad_bias) K(store_part)(whole, count, grad_bias, V(add)(up, K(load_part)(whole, count, grad_bias)));
}

static void K(norm_backward_row)(attn_norm_kind kind, ptrdiff_t n, const void *upstream, const void *x,
                                 const void *weight, double epsilon, void *grad_x, void *grad_weight, void *grad_bias)
{
    const real *up = upstream, *w = weight;
    real *out = grad_x, *of_weight = grad_weight, *of_bias = grad_bias, sums[2] = {0, 0};
    const K(row_norm) norm = K(norm_of_row)(kind, n, x, epsilon, out);
    K(row_gradient) row = {.mean = V(splat)(norm.mean), .by = V(splat)(norm.by), .factor = V(splat)((real)norm.factor)};
    ptrdiff_t i;

    /* Pass 1: sums */
    for (i = 0; i < n; i += K(row_block))
        K(gradient_sums)
        (n - i < K(row_block) ? n - i : K(row_block), norm.x + i, up + i, w ? w + i : NULL, row.mean, row.by, sums);
    row.mean_g = V(splat)(kind == ATTN_NORM_KIND_LAYER ? sums[0] / (real)n : 0);
    row.minus_mean_gn = V(splat)(-(sums[1] / (real)n));

    /* Pass 2: results */
#define PART(WHOLE, COUNT)                                                                                             \
    K(norm_backward_part)                                                                                              \
    (WHOLE, COUNT, norm.x + i, up + i, w ? w + i : NULL, &row, out + i, of_weight ? of_weight + i : NULL,              \
     of_bias ? of_bias + i : NULL)
    for (i = 0; i + LANES <= n; i += LANES) PART(1, LANES);
    if (i < n) PART(0, (int)(n - i));
#undef PART
}

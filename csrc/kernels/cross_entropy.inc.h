/* Cross entropy of softmax(x) with a target t, and its gradient:
 *
 *     loss = sum over j of t_j (log(sum of exp(x - max)) - (x_j - max))
 *     gradient_j = scale ((sum of t) softmax(x)_j - t_j)
 *
 * Both terms of the loss have one sign where t has, so nothing cancels. Sums are 16 interleaved partial sums, as in
 * rowwise.inc.h, of short blocks that are added in double.
 */
enum { K(target_block) = 256 };

/* Elements i and on of a target, except what its label adds. */
ATTN_TEMPLATE vec K(target_part)(const int whole, int count, const attn_target_row *target, ptrdiff_t i)
{
    const real *given = target->target, *weight = target->weight;
    vec share = V(splat)((real)target->off);
    if (given) share = V(add)(V(mul)(K(load_part)(whole, count, given + i), V(splat)((real)target->on)), share);
    return weight ? V(mul)(share, K(load_part)(whole, count, weight + i)) : share;
}

/* Adds the sum of t (x - shift) to *product, and that of t to *total, over elements [from, to). */
static void K(target_sums)(const attn_target_row *target, ptrdiff_t from, ptrdiff_t to, const real *x, vec shift,
                           double *product, double *total)
{
    real lanes[LANES];
    vec products[16], totals[16];
    ptrdiff_t i = from;
    for (int c = 0; c < K(row_vectors); c++) products[c] = totals[c] = V(splat)(0);
    for (; i + K(row_parts) <= to; i += K(row_parts))
        ATTN_UNROLL for (int c = 0; c < K(row_vectors); c++) {
            const ptrdiff_t at = i + c * LANES;
            const vec share = K(target_part)(1, LANES, target, at);
            products[c] = V(add)(products[c], V(mul)(share, V(sub)(V(load)(x + at), shift)));
            totals[c] = V(add)(totals[c], share);
        }
    for (int c = 0; i < to; c++, i += LANES) {
        const int count = to - i < LANES ? (int)(to - i) : LANES;
        const vec share = K(target_part)(0, count, target, i);
        V(store)(lanes, V(mul)(share, V(sub)(V(load_first)(x + i, count), shift)));
        products[c] = V(add)(products[c], V(load_first)(lanes, count)); /* zeros past the end */
        V(store)(lanes, share);
        totals[c] = V(add)(totals[c], V(load_first)(lanes, count));
    }
    *product += (double)K(add_parts)(products);
    *total += (double)K(add_parts)(totals);
}

/* Elements i and on of the gradient, which were exponentials; target NULL: without its share. */
ATTN_TEMPLATE void K(gradient_part)(const int whole, int count, const attn_target_row *target, ptrdiff_t i, vec factor,
                                    vec scale, real *out)
{
    vec y = V(mul)(K(load_part)(whole, count, out + i), factor);
    if (target) y = V(sub)(y, V(mul)(K(target_part)(whole, count, target, i), scale));
    K(store_part)(whole, count, out + i, y);
}

static double K(cross_entropy_row)(const attn_target_row *target, ptrdiff_t n, const void *x, void *gradient)
{
    const real *in = x, *weight = target->weight;
    const int has_label = target->target == NULL, is_spread = !has_label || target->off != 0;
    const double hit = !has_label ? 0 : weight ? target->on * (double)weight[target->label] : target->on;
    double product = 0, total = 0;
    real *out = gradient;

    /* Pass 1: maximum. It skips NaN, which pass 3 propagates through exp. */
    const real top = K(row_maximum)(n, in, -INFINITY);
    const double at_label = has_label ? (double)in[target->label] - (double)top : 0;

    /* Pass 2: sums over the target, before the gradient takes the place of x */
    for (ptrdiff_t i = 0; is_spread && i < n; i += K(target_block))
        K(target_sums)
        (target, i, n - i < K(target_block) ? n : i + K(target_block), in, V(splat)(top), &product, &total);

    /* Pass 3: exponentials and their sum */
    const double sum = (double)K(exp_row)(n, in, top, out);

    /* Pass 4: the gradient */
    const vec factor = V(splat)((real)((hit + total) * target->scale / sum)), scale = V(splat)((real)target->scale);
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) K(gradient_part)(1, LANES, is_spread ? target : NULL, i, factor, scale, out);
    if (i < n) K(gradient_part)(0, (int)(n - i), is_spread ? target : NULL, i, factor, scale, out);
    if (has_label) out[target->label] -= (real)(hit * target->scale);

    const double log_sum = log(sum), spread = is_spread ? total * log_sum - product : 0;
    return has_label ? hit * (log_sum - at_label) + spread : spread;
}

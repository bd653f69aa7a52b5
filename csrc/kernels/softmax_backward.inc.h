/* Softmax backwards, of a block of scores (keys, vectors * LANES) with a query in each lane: from the upstream gradient
 * dP of its weights P, the gradient of the scores, P (dP - sum of P dP over a row's keys). The row's sum is known before:
 * it is the product of its output and the output's gradient.
 */

/*   scores, upstream    (keys, vectors * LANES)
 *   bias, drop_mask     (keys, stride), of a wider tile; may be NULL
 *   weights, gradients  (keys, stride)   out
 */
static void K(softmax_backward)(int vectors, int keys, const void *scores, const void *upstream,
                                const attn_score_epilogue *epilogue, const void *drop_mask,
                                const attn_softmax_rows *rows, double kept, ptrdiff_t stride, void *weights,
                                void *gradients)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const vec zero = V(splat)(0), masked = V(splat)(-INFINITY), most = V(splat)(64), times = V(splat)((real)kept);

    for (int j = 0; j < vectors; j++) {
        const ptrdiff_t lane = (ptrdiff_t)j * LANES;
        const real *s = (const real *)scores + lane, *up = (const real *)upstream + lane;
        const real *bias = epilogue->bias ? (const real *)epilogue->bias + lane : NULL;
        const real *drop = drop_mask ? (const real *)drop_mask + lane : NULL;
        const vec shift = V(load)((const real *)rows->shift + lane),
                  factor = V(load)((const real *)rows->factor + lane);
        const vec delta = V(load)((const real *)rows->delta + lane);
        K(lane_limits) limits;
        int from, to;
        if (epilogue->first) limits = K(limits_of)(epilogue->first + lane, epilogue->last + lane, &from, &to);

        for (int n = 0; n < keys; n++) {
            const vec score = K(hide_key)(V(load)(s + n * width), bias ? bias + n * stride : NULL,
                                          epilogue->first ? &limits : NULL, n);
            vec x = V(sub)(score, shift);
            x = V(select)(V(lt)(most, x), most, x); /* rounding may make it positive; keeps NaN */
            vec p = V(mul)(K(exp2)(x), factor), dp = V(mul)(V(load)(up + n * width), times);
            vec w = V(mul)(p, times);
            if (drop) {
                const vec mask = V(load)(drop + n * stride);
                w = V(select)(V(eq)(mask, masked), zero, w);
                dp = V(select)(V(eq)(mask, masked), zero, dp);
            }
            const vec ds = V(mul)(p, V(sub)(dp, delta));
            V(store)((real *)weights + n * stride + lane, V(select)(V(eq)(score, masked), zero, w));
            V(store)((real *)gradients + n * stride + lane, V(select)(V(eq)(score, masked), zero, ds));
        }
    }
}

/* Steps of optimisers, in place: one pass over memory.
 *
 *     Adam   g += weight_decay * p;  AdamW  p *= shrink
 *            mean = mean + (1 - beta1) (g - mean);  square = beta2 * square + (1 - beta2) g^2
 *            p -= step_size * mean / (sqrt(square) / second_scale + epsilon)      Kingma and Ba 2014
 *     SGD    g += weight_decay * p;  buffer = momentum * buffer + (1 - dampening) * g;  p -= step_size * buffer
 *
 * The order of operations is that of torch's loop over tensors, without fused multiply-adds: every level has the same
 * bits, `scalar` too. A branch on an option costs nothing next to memory.
 */

/* The gradient with its sign and, unless weight_decay is 0, with that much of the parameter. */
ATTN_TEMPLATE vec K(decayed)(vec gradient, vec parameter, double sign, double weight_decay)
{
    if (sign < 0) gradient = V(mul)(gradient, V(splat)(-1));
    if (weight_decay == 0) return gradient;
    return V(add)(gradient, V(mul)(parameter, V(splat)((real)weight_decay)));
}

ATTN_TEMPLATE void K(adam_part)(const int whole, int count, const attn_adam_step *step, real *parameter,
                                const real *gradient, real *mean, real *square, real *max_square)
{
    vec p = K(load_part)(whole, count, parameter);
    const vec g = K(decayed)(K(load_part)(whole, count, gradient), p, step->sign, step->weight_decay);
    if (step->shrink != 1) p = V(mul)(p, V(splat)((real)step->shrink));

    /* From the nearer of both ends, as torch's lerp */
    vec m = K(load_part)(whole, count, mean);
    const vec way = V(sub)(g, m);
    if (step->first_share < 0.5)
        m = V(add)(m, V(mul)(V(splat)((real)step->first_share), way));
    else
        m = V(sub)(g, V(mul)(way, V(splat)((real)1 - (real)step->first_share)));
    K(store_part)(whole, count, mean, m);

    const vec squared = V(mul)(V(mul)(g, V(splat)((real)step->second_share)), g);
    vec v = V(add)(V(mul)(K(load_part)(whole, count, square), V(splat)((real)step->beta2)), squared);
    K(store_part)(whole, count, square, v);
    if (max_square) {
        v = V(max)(K(load_part)(whole, count, max_square), v); /* in this order, to keep NaN */
        K(store_part)(whole, count, max_square, v);
    }
    const vec root = V(div)(V(sqrt)(v), V(splat)((real)step->second_scale));
    const vec moved = V(mul)(m, V(splat)((real)-step->step_size));
    K(store_part)(whole, count, parameter, V(add)(p, V(div)(moved, V(add)(root, V(splat)((real)step->epsilon)))));
}

static void K(adam)(const attn_adam_step *step, ptrdiff_t n, void *parameter, const void *gradient, void *mean,
                    void *square, void *max_square)
{
    const attn_adam_step own = *step; /* nothing stored below can change it */
    const real *g = gradient;
    real *p = parameter, *m = mean, *v = square, *most = max_square;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) K(adam_part)(1, LANES, &own, p + i, g + i, m + i, v + i, most ? most + i : NULL);
    if (i < n) K(adam_part)(0, (int)(n - i), &own, p + i, g + i, m + i, v + i, most ? most + i : NULL);
}

ATTN_TEMPLATE void K(sgd_part)(const int whole, int count, const attn_sgd_step *step, real *parameter,
                               const real *gradient, real *momentum)
{
    const vec p = K(load_part)(whole, count, parameter), factor = V(splat)((real)step->momentum);
    vec g = K(decayed)(K(load_part)(whole, count, gradient), p, step->sign, step->weight_decay);
    if (momentum) {
        vec buffer = g;
        if (!step->begins) {
            buffer = V(mul)(K(load_part)(whole, count, momentum), factor);
            buffer = V(add)(buffer, V(mul)(g, V(splat)((real)(1 - step->dampening))));
        }
        K(store_part)(whole, count, momentum, buffer);
        g = step->nesterov ? V(add)(g, V(mul)(buffer, factor)) : buffer;
    }
    K(store_part)(whole, count, parameter, V(add)(p, V(mul)(g, V(splat)((real)-step->step_size))));
}

static void K(sgd)(const attn_sgd_step *step, ptrdiff_t n, void *parameter, const void *gradient, void *momentum)
{
    const attn_sgd_step own = *step;
    const real *g = gradient;
    real *p = parameter, *buffer = momentum;
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) K(sgd_part)(1, LANES, &own, p + i, g + i, buffer ? buffer + i : NULL);
    if (i < n) K(sgd_part)(0, (int)(n - i), &own, p + i, g + i, buffer ? buffer + i : NULL);
}

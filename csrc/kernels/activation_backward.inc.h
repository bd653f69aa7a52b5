/* Gradients of the activations: the upstream gradient times the slope.
 *
 *     RELU       x > 0
 *     GELU       Phi(x) + x phi(x), phi the normal density
 *     GELU_TANH  s + x 2u' s (1 - s), s = 1 / (1 + exp(-2u))
 *     SILU       s + x s (1 - s), s = 1 / (1 + exp(-x))
 *     TANH       4 e / (1 + e)^2, e = exp(-2|x|)
 *
 * e = exp(-|z|) is never subtracted from 1, so slopes keep their digits at both ends, where 1 - s and 1 - tanh^2 would
 * lose all. GELU and the sigmoids have slopes that cross 0 once: there, the error is small beside the terms of the sum.
 * Measured over many floats: tests/c/test_activation_backward.c.
 */

/* s + w s (1 - s), with w = x z' of x's sign and e = exp(-|z|). */
static inline vec K(sigmoid_slope)(vec x, vec w, vec e)
{
    const vec one = V(splat)(1), rest = V(add)(one, e), more = V(add)(one, w);
    const vec below = V(mul)(e, V(add)(more, e)), above = V(fma)(e, more, one);
    return V(div)(V(select)(V(lt)(x, V(splat)(0)), below, above), V(mul)(rest, rest));
}

static inline vec K(silu_backward)(vec x, vec *value)
{
    const vec none = V(splat)(0);
    vec e;
    const vec a = K(silu_parts)(x, &e);
    if (value) *value = K(sigmoid_share)(x, a, e);
    return K(sigmoid_slope)(x, V(select)(V(lt)(x, none), V(sub)(none, a), a), e);
}

static inline vec K(gelu_tanh_backward)(vec x, vec *value)
{
    const real root = (real)1.5957691216057308; /* 2 sqrt(2 / pi) */
    const vec none = V(splat)(0);
    vec e;
    const vec a = K(gelu_tanh_parts)(x, &e);
    if (value) *value = K(sigmoid_share)(x, a, e);
    const vec cubic = V(fma)(V(splat)((real)0.134145), V(mul)(a, a), V(splat)(1)); /* 1 + 3 * 0.044715 a^2 */
    const vec w = V(mul)(V(mul)(V(splat)(root), a), cubic);
    return K(sigmoid_slope)(x, V(select)(V(lt)(x, none), V(sub)(none, w), w), e);
}

static inline vec K(gelu_backward)(vec x, vec *value)
{
    const real root = (real)-0.3989422804014327; /* -1 / sqrt(2 pi) */
    vec a, e;
    const vec tail = K(gelu_tail)(x, &a, &e);
    if (value) *value = K(gelu_of_tail)(x, a, e, tail);
    const vec below = V(mul)(e, V(fma)(a, V(splat)(root), tail)); /* Phi(-a) - a phi(a) */
    return V(select)(V(lt)(x, V(splat)(0)), below, V(sub)(V(splat)(1), below));
}

static inline vec K(tanh_slope)(vec x)
{
    const vec none = V(splat)(0), size = V(max)(V(sub)(none, x), x); /* in this order, to keep NaN */
    const vec e = K(exp_negative)(V(mul)(V(splat)(-2), size), none), rest = V(add)(V(splat)(1), e);
    return V(div)(V(mul)(V(splat)(4), e), V(mul)(rest, rest));
}

/* Returns upstream times the slope at x; *value = activation(x), unless NULL, has the bits of the forward kernel. */
static __attribute__((noinline)) vec K(activation_backward)(attn_activation_kind kind, vec upstream, vec x, vec *value)
{
    const vec none = V(splat)(0);
    switch (kind) {
    case ATTN_KIND_RELU: /* as torch: 0 at 0, and NaN passes the gradient on */
        if (value) *value = V(max)(none, x);
        return V(select)(V(lt)(x, none), none, V(select)(V(eq)(x, none), none, upstream));
    case ATTN_KIND_GELU: return V(mul)(upstream, K(gelu_backward)(x, value));
    case ATTN_KIND_GELU_TANH: return V(mul)(upstream, K(gelu_tanh_backward)(x, value));
    case ATTN_KIND_SILU: return V(mul)(upstream, K(silu_backward)(x, value));
    case ATTN_KIND_TANH:
        if (value) *value = K(tanh)(x);
        return V(mul)(upstream, K(tanh_slope)(x));
    case ATTN_KIND_IDENTITY: break;
    }
    if (value) *value = x;
    return upstream;
}

/* grad_x = upstream * gate * slope(x) and grad_gate = upstream * activation(x); without a gate, it is 1. */
static void K(activate_backward)(attn_activation_kind kind, ptrdiff_t n, const void *upstream, const void *x,
                                 const void *gate, void *grad_x, void *grad_gate)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        const int lanes = n - i < LANES ? (int)(n - i) : LANES;
        const vec up = V(load_first)((const real *)upstream + i, lanes), in = V(load_first)((const real *)x + i, lanes);
        vec value = in;
        const vec gated = gate ? V(mul)(up, V(load_first)((const real *)gate + i, lanes)) : up;
        const vec result = K(activation_backward)(kind, gated, in, gate ? &value : NULL);
        V(store_first)((real *)grad_x + i, lanes, result);
        if (gate) V(store_first)((real *)grad_gate + i, lanes, V(mul)(up, value));
    }
}

/* Activation functions.
 *
 *     RELU       max(x, 0)
 *     GELU       x Phi(x), Phi the normal distribution's: Hendrycks and Gimpel 2016
 *     GELU_TANH  x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3): their approximation, 0.5 x (1 + tanh(u))
 *     SILU       x / (1 + exp(-x))
 *     TANH       tanh.inc.h
 *
 * The formulas avoid cancellation: GELU computes the tail -a Phi(-a) directly and adds it to x where x is positive, so
 * a large negative x keeps its digits where 1 + erf(x) would lose all. Results below the smallest normal number are 0.
 * Measured over every float: tests/c/test_activation.c.
 */

/* Phi(-a) exp(a^2 / 2) = t P(1 - 2t), t = 1 / (1 + a / GELU_SPREAD): a minimax polynomial for 0 <= a <= GELU_MOST
 * (Remez, relative error 2^-30.0 for float, 2^-62.2 for double), beyond which Phi(-a) is below the smallest number. */
#if REAL_F32
#define GELU_SPREAD 3
#define GELU_MOST   14.5f
#define GELU_GRID   0x1p-8f /* multiples of it have exact squares */
#define GELU_DEGREE 10
static const float K(gelu_terms)[GELU_DEGREE + 1] = {
    0x1.f1b89cp-3f,  -0x1.5bb438p-3f,  0x1.3a0d04p-4f,   -0x1.021e06p-6f, -0x1.c91d4ap-9f, 0x1.307e5ap-9f,
    0x1.662f74p-12f, -0x1.68e5bap-12f, -0x1.562ed0p-14f, 0x1.6f1050p-15f, 0x1.309470p-16f,
};
#else
#define GELU_SPREAD 5
#define GELU_MOST   38.5
#define GELU_GRID   0x1p-20
#define GELU_DEGREE 24
static const double K(gelu_terms)[GELU_DEGREE + 1] = {
    0x1.3b0fbcb4c77bep-3,   -0x1.108a698eca1adp-3, 0x1.95c11dc6c593ap-4,   -0x1.00d8ab2d2add6p-4,
    0x1.0e5e8ee59afb8p-5,   -0x1.c4f9d5476ccd2p-7, 0x1.1090aa5d3bd29p-8,   -0x1.39e0d879d6aadp-11,
    -0x1.4ea692c6e1152p-13, 0x1.c9182afd6e869p-14, -0x1.8e76dbc80ddf5p-17, -0x1.4df34229a0639p-17,
    0x1.bfcb4f4ad33aap-19,  0x1.ab547e0ff2583p-21, -0x1.2980532fccdefp-21, -0x1.1f6b734c78db7p-24,
    0x1.76b9faff85126p-24,  0x1.143a5c85e0977p-27, -0x1.e1870d7c5b181p-27, -0x1.d5cf1771fbdddp-30,
    0x1.277158c668b15p-29,  0x1.e2dfe323334a6p-32, -0x1.f997dcca8a4ccp-33, -0x1.45297c8132bafp-34,
    0x1.27b68be13e1c1p-41,
};
#endif

/* min(|x|, most); keeps NaN. */
static inline vec K(size_up_to)(vec x, real most)
{
    const vec none = V(splat)(0);
    const vec negative = V(sub)(none, V(max)(V(sub)(none, x), x));
    return V(sub)(none, V(max)(V(splat)(-most), negative));
}

/* a = min(|x|, GELU_MOST) and e = exp(-a^2 / 2); returns Phi(-a) / e. */
static inline vec K(gelu_tail)(vec x, vec *a, vec *e)
{
    const vec one = V(splat)(1), half = V(splat)((real)-0.5), grid = V(splat)(GELU_GRID);
    *a = K(size_up_to)(x, GELU_MOST);
    const vec near = V(mul)(V(round)(V(mul)(*a, V(splat)(1 / GELU_GRID))), grid);
    const vec rest = V(mul)(V(mul)(V(sub)(*a, near), half), V(add)(*a, near)); /* (near^2 - a^2) / 2 */
    *e = K(exp_negative)(V(mul)(V(mul)(near, near), half), rest);
    const vec t = V(div)(V(splat)(GELU_SPREAD), V(add)(*a, V(splat)(GELU_SPREAD))), s = V(fma)(t, V(splat)(-2), one);
    vec p = V(splat)(K(gelu_terms)[GELU_DEGREE]);
    ATTN_UNROLL for (int k = GELU_DEGREE - 1; k >= 0; k--) p = V(fma)(p, s, V(splat)(K(gelu_terms)[k]));
    return V(mul)(p, t);
}

static inline vec K(gelu_of_tail)(vec x, vec a, vec e, vec tail)
{
    const vec none = V(splat)(0), below = V(mul)(V(mul)(V(sub)(none, a), tail), e); /* -a Phi(-a) */
    return V(select)(V(lt)(x, none), below, V(add)(x, below));
}

static inline vec K(gelu)(vec x)
{
    vec a, e;
    const vec tail = K(gelu_tail)(x, &a, &e);
    return K(gelu_of_tail)(x, a, e, tail);
}

/* x / (1 + exp(-z)), with z of x's sign, e = exp(-|z|), and a = |x|, which may be clamped where e is 0. */
static inline vec K(sigmoid_share)(vec x, vec a, vec e)
{
    const vec none = V(splat)(0), part = V(select)(V(lt)(x, none), V(sub)(none, V(mul)(a, e)), x);
    return V(div)(part, V(add)(V(splat)(1), e));
}

/* |x| as far as exp(-|x|), or exp(-2|u|), is not 0, and that. */
static inline vec K(silu_parts)(vec x, vec *e)
{
    const vec none = V(splat)(0), a = K(size_up_to)(x, REAL_F32 ? 120 : 1000);
    *e = K(exp_negative)(V(sub)(none, a), none);
    return a;
}

static inline vec K(gelu_tanh_parts)(vec x, vec *e)
{
    const real root = (real)-1.5957691216057308; /* -2 sqrt(2 / pi) */
    const vec a = K(size_up_to)(x, REAL_F32 ? 20 : 40), cubic = V(mul)(V(splat)((real)0.044715), V(mul)(a, a));
    *e = K(exp_negative)(V(mul)(V(mul)(V(splat)(root), a), V(add)(V(splat)(1), cubic)), V(splat)(0));
    return a;
}

static inline vec K(silu)(vec x)
{
    vec e;
    const vec a = K(silu_parts)(x, &e);
    return K(sigmoid_share)(x, a, e);
}

static inline vec K(gelu_tanh)(vec x)
{
    vec e;
    const vec a = K(gelu_tanh_parts)(x, &e);
    return K(sigmoid_share)(x, a, e);
}

/* Branches on `kind` at run time, which costs nothing next to the arithmetic. */
static __attribute__((noinline)) vec K(activation)(attn_activation_kind kind, vec x)
{
    switch (kind) {
    case ATTN_KIND_RELU: return V(max)(V(splat)(0), x); /* keeps NaN */
    case ATTN_KIND_GELU: return K(gelu)(x);
    case ATTN_KIND_GELU_TANH: return K(gelu_tanh)(x);
    case ATTN_KIND_SILU: return K(silu)(x);
    case ATTN_KIND_TANH: return K(tanh)(x);
    case ATTN_KIND_IDENTITY: break;
    }
    return x;
}

static void K(activate)(attn_activation_kind kind, ptrdiff_t n, const void *x, void *y)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        const int lanes = n - i < LANES ? (int)(n - i) : LANES;
        V(store_first)((real *)y + i, lanes, K(activation)(kind, V(load_first)((const real *)x + i, lanes)));
    }
}

#undef GELU_SPREAD
#undef GELU_MOST
#undef GELU_GRID
#undef GELU_DEGREE

/* tanh.
 *
 * tanh(x) = -t / (t + 2) with t = exp(-2|x|) - 1 = 2^n * (2^f - 1) + (2^n - 1), n + f = -2|x| log2(e): this avoids
 * cancellation, so a small x keeps its digits. (2^f - 1) / f is a polynomial fitted on |f| <= 1/2 (relative error
 * 2^-26.1 for float, 2^-54.3 for double) whose constant term is log(2) to the last bit; exp2's has its error where t is
 * small. Measured over every float in [2^-126, 16]: tests/c/test_tanh.c.
 */
#if REAL_F32
#define TANH_DEGREE 5
static const float K(tanh_terms)[TANH_DEGREE + 1] = {
    0x1.62e430p-1f, 0x1.ebfbdep-3f, 0x1.c6af9ep-5f, 0x1.3b2c60p-7f, 0x1.5ef4a2p-10f, 0x1.426feep-13f,
};
#define TANH_LOWEST -126.0f
#else
#define TANH_DEGREE 10
static const double K(tanh_terms)[TANH_DEGREE + 1] = {
    0x1.62e42fefa39efp-1,  0x1.ebfbdff82c598p-3,  0x1.c6b08d704a1aap-5,  0x1.3b2ab6fba1ee7p-7,
    0x1.5d87fe7880e73p-10, 0x1.4309130938c61p-13, 0x1.ffcbfcfd8d733p-17, 0x1.62bfd50251d8dp-20,
    0x1.b523e5a6f5aacp-24, 0x1.e605519c56a8cp-28, 0x1.eb4b8fc721d16p-32,
};
#define TANH_LOWEST -1022.0
#endif

/* Returns exp(-2|x|), at least the smallest normal number; *t = exp(-2|x|) - 1. */
static inline vec K(exp_of_tanh)(vec x, vec *t)
{
    const vec one = V(splat)(1), none = V(splat)(0);
    const vec size = V(max)(V(sub)(none, x), x); /* in this order, here and below, to keep NaN */
    const vec y = V(max)(V(splat)(TANH_LOWEST), V(mul)(size, V(splat)((real)-2.8853900817779268)));
    const vec n = V(round)(y), f = V(sub)(y, n), power = V(scale2)(one, n);
    vec p = V(splat)(K(tanh_terms)[TANH_DEGREE]);
    ATTN_UNROLL for (int k = TANH_DEGREE - 1; k >= 0; k--) p = V(fma)(p, f, V(splat)(K(tanh_terms)[k]));
    const vec part = V(mul)(p, f); /* 2^f - 1 */
    *t = V(fma)(power, part, V(sub)(power, one));
    return V(fma)(power, part, power);
}

static inline vec K(tanh)(vec x)
{
    const vec none = V(splat)(0);
    vec t;
    (void)K(exp_of_tanh)(x, &t);
    const vec result = V(div)(V(sub)(none, t), V(add)(t, V(splat)(2)));
    return V(select)(V(lt)(x, none), V(sub)(none, result), result);
}

/* tanh(x), and its slope 1 - tanh(x)^2 = 4 exp(-2|x|) / (t + 2)^2, which keeps its digits where tanh is near 1. */
static inline vec K(tanh_and_slope)(vec x, vec *slope)
{
    const vec none = V(splat)(0);
    vec t;
    const vec e = K(exp_of_tanh)(x, &t), inverse = V(div)(V(splat)(1), V(add)(t, V(splat)(2)));
    *slope = V(mul)(V(mul)(V(mul)(V(splat)(4), e), inverse), inverse);
    const vec result = V(mul)(V(sub)(none, t), inverse);
    return V(select)(V(lt)(x, none), V(sub)(none, result), result);
}

#undef TANH_DEGREE
#undef TANH_LOWEST

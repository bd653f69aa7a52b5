/* 2^x for x <= 0.
 *
 * x = n + f with n integral and |f| <= 1/2; 2^f is a minimax polynomial with constant term exactly 1 (relative error
 * 2^-28.5 for float, 2^-55.6 for double, Remez), so 2^0 = 1. Results below the smallest normal number are 0: x is
 * clamped to a value whose 2^x is flushed. Measured over every float in [-150, 0]: tests/c/test_exp2.c.
 */
#if REAL_F32
#define EXP2_DEGREE 6
static const float K(exp2_terms)[EXP2_DEGREE + 1] = {
    0x1p0f,          0x1.62e432p-1f,  0x1.ebfbe2p-3f, 0x1.c6ae72p-5f,
    0x1.3b270ep-7f,  0x1.5f7276p-10f, 0x1.470b4ap-13f,
};
#define EXP2_LOWEST -127.0f
#else
#define EXP2_DEGREE 11
static const double K(exp2_terms)[EXP2_DEGREE + 1] = {
    0x1p0,
    0x1.62e42fefa39f3p-1,
    0x1.ebfbdff82c598p-3,
    0x1.c6b08d7048f31p-5,
    0x1.3b2ab6fba1e1cp-7,
    0x1.5d87fe7bbbe07p-10,
    0x1.4309130961163p-13,
    0x1.ffcbee3b0af8cp-17,
    0x1.62bfd49ed0adfp-20,
    0x1.b54167a0b9061p-24,
    0x1.e605f979c7a5dp-28,
    0x1.c0638527edf34p-32,
};
#define EXP2_LOWEST -1023.0
#endif

/* 2^(n + f), n integral in [EXP2_LOWEST, 0] and |f| <= 1/2 (a little more does no harm). */
static inline vec K(exp2_split)(vec n, vec f)
{
    vec p = V(splat)(K(exp2_terms)[EXP2_DEGREE]);
    ATTN_UNROLL for (int k = EXP2_DEGREE - 1; k >= 0; k--) p = V(fma)(p, f, V(splat)(K(exp2_terms)[k]));
    return V(scale2)(p, n);
}

static inline vec K(exp2)(vec x)
{
    x = V(max)(V(splat)(EXP2_LOWEST), x); /* in this order, to keep NaN */
    vec n = V(round)(x);
    return K(exp2_split)(n, V(sub)(x, n));
}

static void K(exp2_array)(ptrdiff_t n, const void *x, void *y)
{
    const real *in = x;
    real *out = y;
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        int lanes = n - i < LANES ? (int)(n - i) : LANES;
        V(store_first)(out + i, lanes, K(exp2)(V(load_first)(in + i, lanes)));
    }
}

/* The shift to subtract from scores: the maximum, or 0 if it is -inf, as -inf - -inf would be NaN. */
static inline vec K(finite_maximum)(vec maximum)
{
    return V(select)(V(eq)(maximum, V(splat)(-INFINITY)), V(splat)(0), maximum);
}

#undef EXP2_DEGREE
#undef EXP2_LOWEST

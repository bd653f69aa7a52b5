/* softmax and log_softmax of a contiguous row, and their gradients.
 *
 * exp(t) = 2^n exp(t - n log(2)), with log(2) split in two. The high part is so short that n times it is exact, with or
 * without fma, so the error does not grow with |t|. Sums are 16 interleaved partial sums over blocks of 4,096 elements,
 * folded in a fixed order; block sums are added with compensation. The result is bit-identical at every level, and as
 * accurate for 10^8 elements as for ten.
 */
#if REAL_F32
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f
#define ROW_LOWEST -127.0f
#define ROW_LOG logf
#else
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define ROW_LOWEST -1023.0
#define ROW_LOG log
#endif
enum { K(row_parts) = 16, K(row_vectors) = 16 / (REAL_F32 ? VF32_LANES : VF64_LANES), K(row_block) = 4096 };

/* exp(t + little), t <= 0 and |little| < 0.2. */
static inline vec K(exp_negative)(vec t, vec little)
{
    const vec high = V(splat)(-LN2_HIGH), low = V(splat)(-LN2_LOW), lowest = V(splat)(ROW_LOWEST);
    const vec log2e = V(splat)((real)1.4426950408889634), y = V(mul)(t, log2e);
    const vec n = V(round)(V(max)(lowest, y));
    vec f = V(mul)(V(add)(V(fma)(n, low, V(fma)(n, high, t)), little), log2e);
    f = V(select)(V(lt)(y, lowest), V(splat)(0), f); /* far below: 2^n is 0, f may be -inf */
    return K(exp2_split)(n, f);
}

/* The maximum of n reals and `before`; the order does not matter. Skips NaN. */
static inline real K(row_maximum)(ptrdiff_t n, const real *x, real before)
{
    real lanes[LANES];
    vec top = V(splat)(before);
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) top = V(max)(V(load)(x + i), top);
    V(store)(lanes, top);
    for (int c = 0; c < LANES; c++) before = lanes[c] > before ? lanes[c] : before;
    for (; i < n; i++) before = x[i] > before ? x[i] : before;
    return before;
}

/* The 16 partial sums of a block, folded in a fixed order. */
static real K(add_parts)(const vec *part)
{
    real lanes[16];
    for (int c = 0; c < K(row_vectors); c++) V(store)(lanes + c * LANES, part[c]);
    for (int width = 8; width > 0; width /= 2)
        for (int c = 0; c < width; c++) lanes[c] += lanes[c + width];
    return lanes[0];
}

/* y = exp(x - shift) of n elements, stored unless y is NULL; returns their sum. */
static real K(exp_block)(ptrdiff_t n, const real *x, vec shift, real *y)
{
    const vec none = V(splat)(0);
    real lanes[16];
    vec part[16];
    ptrdiff_t i = 0;
    for (int c = 0; c < K(row_vectors); c++) part[c] = none;
    for (; i + K(row_parts) <= n; i += K(row_parts))
        ATTN_UNROLL for (int c = 0; c < K(row_vectors); c++) {
            const vec e = K(exp_negative)(V(sub)(V(load)(x + i + c * LANES), shift), none);
            part[c] = V(add)(part[c], e);
            if (y) V(store)(y + i + c * LANES, e);
        }
    for (int c = 0; i < n; c++, i += LANES) {
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        V(store)(lanes, K(exp_negative)(V(sub)(V(load_first)(x + i, count), shift), none));
        const vec e = V(load_first)(lanes, count); /* zeros past the end */
        part[c] = V(add)(part[c], e);
        if (y) V(store_first)(y + i, count, e);
    }
    return K(add_parts)(part);
}

/* The same of a whole row. */
static real K(exp_row)(ptrdiff_t n, const real *x, real shift, real *y)
{
    real sum = 0, lost = 0;
    for (ptrdiff_t i = 0; i < n; i += K(row_block)) {
        const ptrdiff_t count = n - i < K(row_block) ? n - i : K(row_block);
        const real block = K(exp_block)(count, x + i, V(splat)(shift), y ? y + i : NULL);
        const real total = sum + block, share = total - sum; /* Knuth's two-sum */
        lost += (sum - (total - share)) + (block - share);
        sum = total;
    }
    return sum + lost;
}

static void K(softmax_row)(ptrdiff_t n, const void *x, void *y, int logarithm)
{
    const real *in = x;
    real *out = y;

    /* Pass 1: maximum. It skips NaN, which pass 2 propagates through exp. */
    const real top = K(row_maximum)(n, in, -INFINITY);

    /* Pass 2: exponentials and their sum; the log form needs the sum alone. */
    const real sum = K(exp_row)(n, in, top, logarithm ? NULL : out);

    /* Pass 3: the result */
    if (logarithm) {
        const real log_sum = ROW_LOG(sum);
        for (ptrdiff_t i = 0; i < n; i++) out[i] = (in[i] - top) - log_sum;
    } else {
        for (ptrdiff_t i = 0; i < n; i++) out[i] /= sum;
    }
}

/* Gradients, from that of the output. softmax y: y (upstream - sum of y upstream). Its logarithm: upstream - exp(y) sum
 * of upstream. */

/* Sum of upstream, or of y * upstream, over at most row_block elements. */
ATTN_TEMPLATE real K(sum_upstream)(const int logarithm, ptrdiff_t n, const real *upstream, const real *y)
{
    vec part[16];
    ptrdiff_t i = 0;
    for (int c = 0; c < K(row_vectors); c++) part[c] = V(splat)(0);
    for (; i + K(row_parts) <= n; i += K(row_parts)) ATTN_UNROLL for (int c = 0; c < K(row_vectors); c++)
        {
            const vec up = V(load)(upstream + i + c * LANES);
            part[c] = logarithm ? V(add)(part[c], up) : V(fma)(up, V(load)(y + i + c * LANES), part[c]);
        }
    for (int c = 0; i < n; c++, i += LANES) { /* zeros past the end */
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        const vec up = V(load_first)(upstream + i, count);
        part[c] = logarithm ? V(add)(part[c], up) : V(fma)(up, V(load_first)(y + i, count), part[c]);
    }
    return K(add_parts)(part);
}

ATTN_TEMPLATE void K(softmax_row_gradient)(const int logarithm, ptrdiff_t n, const real *upstream, const real *y,
                                           real *grad_x)
{
    real sum = 0, lost = 0;
    for (ptrdiff_t i = 0; i < n; i += K(row_block)) {
        const ptrdiff_t count = n - i < K(row_block) ? n - i : K(row_block);
        const real block = K(sum_upstream)(logarithm, count, upstream + i, y + i);
        const real total = sum + block, share = total - sum; /* Knuth's two-sum */
        lost += (sum - (total - share)) + (block - share);
        sum = total;
    }
    sum = isfinite(lost) ? sum + lost : sum; /* the two-sum of an infinity is NaN */
    const vec all = V(splat)(sum), none = V(splat)(0);
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        const vec up = V(load_first)(upstream + i, count), out = V(load_first)(y + i, count);
        const vec result =
            logarithm ? V(sub)(up, V(mul)(K(exp_negative)(out, none), all)) : V(mul)(out, V(sub)(up, all));
        V(store_first)(grad_x + i, count, result);
    }
}

static void K(softmax_row_backward)(ptrdiff_t n, const void *upstream, const void *y, void *grad_x, int logarithm)
{
    if (logarithm)
        K(softmax_row_gradient)(1, n, upstream, y, grad_x);
    else
        K(softmax_row_gradient)(0, n, upstream, y, grad_x);
}

#undef LN2_HIGH
#undef LN2_LOW
#undef ROW_LOWEST
#undef ROW_LOG

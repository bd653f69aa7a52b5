/* softmax and log_softmax of a contiguous row.
 *
 * exp(x - m) = 2^((x - m) * log2(e)), with log2(e) in two parts so that the product's rounding does not grow with
 * |x - m|. Sums are 16 interleaved partial sums over 4,096 elements at a time, folded in a fixed order, and then
 * added up with what each addition loses: the same bits at every level, and as exact for 10^8 elements as for ten.
 */
#if REAL_F32
#define LOG2E_HIGH 0x1.715476p0f
#define LOG2E_LOW 0x1.4ae0cp-26f
#define ROW_LOWEST -127.0f
#define ROW_LOG logf
#else
#define LOG2E_HIGH 0x1.71547652b82fep0
#define LOG2E_LOW 0x1.777d0ffda0d24p-56
#define ROW_LOWEST -1023.0
#define ROW_LOG log
#endif
enum { K(row_parts) = 16, K(row_vectors) = 16 / (REAL_F32 ? VF32_LANES : VF64_LANES), K(row_block) = 4096 };

/* exp(t), t <= 0. */
static inline vec K(exp_negative)(vec t)
{
    const vec high = V(splat)(LOG2E_HIGH), low = V(splat)(LOG2E_LOW), lowest = V(splat)(ROW_LOWEST);
    vec y = V(mul)(t, high);
    vec n = V(round)(V(max)(lowest, y));
    vec f = V(fma)(t, low, V(fma)(t, high, V(sub)(V(splat)(0), n)));
    f = V(select)(V(lt)(y, lowest), V(splat)(0), f); /* far below: 2^n is 0, f may be -inf */
    return K(exp2_split)(n, f);
}

/* The largest of n reals and of `before`, in any order: it is exact. A NaN is passed over. */
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

/* e = exp(x - shift) of n elements, stored unless y is NULL; returns their sum. */
static real K(exp_block)(ptrdiff_t n, const real *x, vec shift, real *y)
{
    real lanes[16];
    vec part[16];
    ptrdiff_t i = 0;
    for (int c = 0; c < K(row_vectors); c++) part[c] = V(splat)(0);
    for (; i + K(row_parts) <= n; i += K(row_parts))
        ATTN_UNROLL for (int c = 0; c < K(row_vectors); c++) {
            const vec e = K(exp_negative)(V(sub)(V(load)(x + i + c * LANES), shift));
            part[c] = V(add)(part[c], e);
            if (y) V(store)(y + i + c * LANES, e);
        }
    for (int c = 0; i < n; c++, i += LANES) {
        const int count = n - i < LANES ? (int)(n - i) : LANES;
        V(store)(lanes, K(exp_negative)(V(sub)(V(load_first)(x + i, count), shift)));
        const vec e = V(load_first)(lanes, count); /* lanes past the end add nothing */
        part[c] = V(add)(part[c], e);
        if (y) V(store_first)(y + i, count, e);
    }
    for (int c = 0; c < K(row_vectors); c++) V(store)(lanes + c * LANES, part[c]);
    for (int width = 8; width > 0; width /= 2)
        for (int c = 0; c < width; c++) lanes[c] += lanes[c + width];
    return lanes[0];
}

static void K(softmax_row)(ptrdiff_t n, const void *x, void *y, int logarithm)
{
    const real *in = x;
    real *out = y, top = -INFINITY, sum = 0, lost = 0;

    /* Pass 1: maximum. A NaN must not be lost: it comes back through exp. */
    top = K(row_maximum)(n, in, top);

    /* Pass 2: exponentials and their sum; the log form needs the sum alone. */
    for (ptrdiff_t i = 0; i < n; i += K(row_block)) {
        const ptrdiff_t count = n - i < K(row_block) ? n - i : K(row_block);
        const real block = K(exp_block)(count, in + i, V(splat)(top), logarithm ? NULL : out + i);
        const real total = sum + block, share = total - sum; /* Knuth's two-sum */
        lost += (sum - (total - share)) + (block - share);
        sum = total;
    }
    sum += lost;

    /* Pass 3 */
    if (logarithm) {
        const real log_sum = ROW_LOG(sum);
        for (ptrdiff_t i = 0; i < n; i++) out[i] = (in[i] - top) - log_sum;
    } else {
        for (ptrdiff_t i = 0; i < n; i++) out[i] /= sum;
    }
}

#undef LOG2E_HIGH
#undef LOG2E_LOW
#undef ROW_LOWEST
#undef ROW_LOG

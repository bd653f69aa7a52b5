/* Reads a tile of a mask through its strides. bool becomes 0 or -inf; a float mask is multiplied by log2(e) or by 1. A
 * finite bias stays finite: finfo.min * log2(e) would become -inf, and a row of finfo.min would see no key. */

static inline real K(bias_of_bool)(const char *p) { return *p ? 0 : -INFINITY; }
static inline real K(bias_of_blocked)(const char *p) { return *p ? -INFINITY : 0; }

static inline real K(bias_of_double)(double x, double times)
{
    double y = x * times;
    if (y < -(double)REAL_MAX && x > (double)-INFINITY) y = -(double)REAL_MAX;
    if (y > (double)REAL_MAX && x < (double)INFINITY) y = (double)REAL_MAX;
    return (real)y;
}

static inline real K(bias_of_f16)(const char *p, double times)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double x = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent == 0 ? fraction * 0x1p-24
                               : (double)(1024 + fraction) * (double)(1u << exponent) * 0x1p-25;
    return K(bias_of_double)(half & 0x8000 ? -x : x, times);
}

/* A mask of the kernel's own dtype: one rounding in that dtype, as in bias_squares. */
static inline real K(bias_of_real)(real x, real times)
{
    real y = x * times;
    if (y == -INFINITY && x != -INFINITY) y = -REAL_MAX;
    if (y == INFINITY && x != INFINITY) y = REAL_MAX;
    return y;
}

static inline real K(bias_of_f32)(const char *p, double times)
{
    float x;
    memcpy(&x, p, sizeof x);
    return REAL_F32 ? K(bias_of_real)((real)x, (real)times) : K(bias_of_double)(x, times);
}

static inline real K(bias_of_f64)(const char *p, double times)
{
    double x;
    memcpy(&x, p, sizeof x);
    return REAL_F32 ? K(bias_of_double)(x, times) : K(bias_of_real)((real)x, (real)times);
}

static inline real K(bias_of_long)(const char *p, double times)
{
    long double x;
    memcpy(&x, p, sizeof x);
    double y = (double)x; /* may overflow to inf for a finite x */
    if (isinf(y) && !isinf(x)) y = y < 0 ? -DBL_MAX : DBL_MAX;
    return K(bias_of_double)(y, times);
}

/* One row of any dtype. Every caller passes dtype as a constant. */
ATTN_TEMPLATE void K(bias_row)(attn_mask_dtype dtype, int keys, const char *mask, ptrdiff_t step, double times,
                               real *bias, ptrdiff_t key_out)
{
    for (int n = 0; n < keys; n++) {
        const char *at = mask + n * step;
        bias[n * key_out] = dtype == ATTN_MASK_BOOL      ? K(bias_of_bool)(at)
                            : dtype == ATTN_MASK_BLOCKED ? K(bias_of_blocked)(at)
                            : dtype == ATTN_MASK_F16     ? K(bias_of_f16)(at, times)
                            : dtype == ATTN_MASK_F32     ? K(bias_of_f32)(at, times)
                            : dtype == ATTN_MASK_F64     ? K(bias_of_f64)(at, times)
                                                         : K(bias_of_long)(at, times);
    }
}

static void K(bias_rows)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask, ptrdiff_t step,
                         double times, real *bias, ptrdiff_t row_out, ptrdiff_t key_out)
{
    for (int i = 0; i < rows; i++) {
        real *out = bias + i * row_out;
        switch (dtype) {
        case ATTN_MASK_BOOL: K(bias_row)(ATTN_MASK_BOOL, keys, mask[i], step, times, out, key_out); break;
        case ATTN_MASK_BLOCKED: K(bias_row)(ATTN_MASK_BLOCKED, keys, mask[i], step, times, out, key_out); break;
        case ATTN_MASK_F16: K(bias_row)(ATTN_MASK_F16, keys, mask[i], step, times, out, key_out); break;
        case ATTN_MASK_F32: K(bias_row)(ATTN_MASK_F32, keys, mask[i], step, times, out, key_out); break;
        case ATTN_MASK_F64: K(bias_row)(ATTN_MASK_F64, keys, mask[i], step, times, out, key_out); break;
        case ATTN_MASK_LONG: K(bias_row)(ATTN_MASK_LONG, keys, mask[i], step, times, out, key_out); break;
        }
    }
}

/* bias_of_real for LANES at a time: corrects y = x * log2(e) where a finite x overflowed. */
static inline vec K(bias_at_the_edge)(vec x, vec y)
{
    const vec least = V(splat)(-INFINITY), most = V(splat)(INFINITY);
    y = V(select)(V(eq)(y, least), V(select)(V(eq)(x, least), least, V(splat)(-REAL_MAX)), y);
    return V(select)(V(eq)(y, most), V(select)(V(eq)(x, most), most, V(splat)(REAL_MAX)), y);
}

/* A block of contiguous rows, bool or of the kernel's own dtype, transposed in registers into the prefill layout. keys
 * is a multiple of LANES. The rows are far apart, so the elements of the next key block are prefetched here. */
ATTN_TEMPLATE void K(bias_squares)(const attn_mask_dtype dtype, int rows, int keys, const char *const *mask,
                                   double times, real *bias, ptrdiff_t key_out)
{
    const int is_bool = dtype == ATTN_MASK_BOOL || dtype == ATTN_MASK_BLOCKED;
    const ptrdiff_t size = is_bool ? 1 : (ptrdiff_t)sizeof(real);
    const vec none = V(splat)(0), masked = V(splat)(-INFINITY);
    for (int i = 0; i < rows; i += LANES) {
        const char *lane[LANES];
        for (int l = 0; l < LANES; l++) lane[l] = mask[i + l < rows ? i + l : rows - 1];
        for (int n = 0; n < keys; n += LANES) {
            vec r[LANES], check = V(splat)(0);
            ATTN_UNROLL for (int l = 0; l < LANES; l++)
            {
                const char *at = lane[l] + n * size;
                __builtin_prefetch(at + ATTN_BLOCK_KEYS * size);
                if (is_bool) {
                    r[l] = V(load_bool)(at);
                    if (dtype == ATTN_MASK_BLOCKED) r[l] = V(select)(V(eq)(r[l], none), masked, none);
                } else {
                    r[l] = V(mul)(V(load)((const real *)(const void *)at), V(splat)((real)times));
                    check = V(fma)(r[l], V(splat)(0), check);
                }
            }
            if (!is_bool && V(has_nan)(check))
                for (int l = 0; l < LANES; l++)
                    r[l] = K(bias_at_the_edge)(V(load)((const real *)(const void *)(lane[l] + n * size)), r[l]);
            K(transpose)(r);
            for (int c = 0; c < LANES; c++) V(store)(bias + (n + c) * key_out + i, r[c]);
        }
    }
}

/* One row that all queries share: read once. */
static void K(bias_broadcast)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask, ptrdiff_t step,
                              double times, real *bias, ptrdiff_t row_out, ptrdiff_t key_out)
{
    real row[ATTN_BLOCK_KEYS];
    K(bias_rows)(dtype, 1, keys, mask, step, times, row, 0, 1);
    if (row_out == 1) /* prefill: lanes past `rows` may be written */
        for (int n = 0; n < keys; n++)
            for (int i = 0; i < rows; i += LANES) V(store)(bias + n * key_out + i, V(splat)(row[n]));
    else
        for (int i = 0; i < rows; i++) memcpy(bias + i * row_out, row, (size_t)keys * sizeof(real));
}

/* For contiguous bool rows, tests eight keys at a time whether all pairs are visible, or none. */
static attn_tile_kind K(bool_kind)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t differs = 0, any = 0;
    for (int i = 0; i < rows && (differs == 0 || any == 0); i++) {
        if (i > 0 && mask[i] == mask[i - 1]) continue; /* a broadcast row */
        int n = 0;
        for (; n + 8 <= keys; n += 8) {
            uint64_t eight;
            memcpy(&eight, mask[i] + n, sizeof eight);
            differs |= eight ^ ones;
            any |= eight;
        }
        for (; n < keys; n++) {
            differs |= mask[i][n] == 0;
            any |= mask[i][n] != 0;
        }
    }
    if (differs != 0 && any != 0) return ATTN_TILE_MIXED;
    return (any != 0) == (dtype == ATTN_MASK_BOOL) ? ATTN_TILE_FREE : ATTN_TILE_MASKED;
}

static attn_tile_kind K(bias_tile)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask,
                                   ptrdiff_t key_stride_bytes, double times, void *bias, ptrdiff_t row_out,
                                   ptrdiff_t key_out)
{
    const int is_bool = dtype == ATTN_MASK_BOOL || dtype == ATTN_MASK_BLOCKED;
    const int own = dtype == (REAL_F32 ? ATTN_MASK_F32 : ATTN_MASK_F64);
    int done = 0, same = rows > 1;

    if (is_bool && key_stride_bytes == 1) {
        attn_tile_kind kind = K(bool_kind)(dtype, rows, keys, mask);
        if (kind != ATTN_TILE_MIXED) return kind;
    }
    for (int i = 1; same && i < rows; i++) same = mask[i] == mask[0];
    if (same) {
        K(bias_broadcast)(dtype, rows, keys, mask, key_stride_bytes, times, bias, row_out, key_out);
        return ATTN_TILE_MIXED;
    }
    if (row_out == 1 && key_stride_bytes == (is_bool ? 1 : (ptrdiff_t)sizeof(real))) {
        done = is_bool || own ? keys / LANES * LANES : 0;
        if (dtype == ATTN_MASK_BOOL)
            K(bias_squares)(ATTN_MASK_BOOL, rows, done, mask, times, bias, key_out);
        else if (is_bool)
            K(bias_squares)(ATTN_MASK_BLOCKED, rows, done, mask, times, bias, key_out);
        else if (own)
            K(bias_squares)(REAL_F32 ? ATTN_MASK_F32 : ATTN_MASK_F64, rows, done, mask, times, bias, key_out);
    }
    if (done < keys) {
        const char *rest[ATTN_MAX_WIDTH];
        for (int i = 0; i < rows; i++) rest[i] = mask[i] + done * key_stride_bytes;
        K(bias_rows)(dtype, rows, keys - done, rest, key_stride_bytes, times, (real *)bias + done * key_out, row_out,
                     key_out);
    }
    return ATTN_TILE_MIXED;
}

/* Selects -inf instead of adding it: -inf wins over +inf and NaN, and finite biases never add up to -inf. */
static void K(join_bias)(ptrdiff_t n, double times, const void *other, void *bias)
{
    const vec neg_inf = V(splat)(-INFINITY), endless = V(splat)(INFINITY), most = V(splat)(REAL_MAX);
    const vec least = V(splat)(-REAL_MAX), factor = V(splat)((real)times);
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        const vec a = V(load)((const real *)other + i), b = V(load)((const real *)bias + i);
        vec x = V(add)(a, b);
        x = V(select)(V(eq)(x, neg_inf), least, V(select)(V(eq)(x, endless), most, x));
        x = V(select)(V(eq)(a, endless), a, V(select)(V(eq)(b, endless), b, x));
        const vec y = K(bias_at_the_edge)(x, V(mul)(x, factor));
        V(store)((real *)bias + i, V(select)(V(eq)(a, neg_inf), neg_inf, V(select)(V(eq)(b, neg_inf), neg_inf, y)));
    }
}

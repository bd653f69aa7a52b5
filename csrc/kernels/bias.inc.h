/* Reads a tile of a mask through its strides. bool becomes 0 or -inf; a float mask is multiplied by log2(e) or by 1. A
 * finite bias stays finite: finfo.min * log2(e) would become -inf, and a row of finfo.min would see no key.
 *
 * Rows of any dtype are converted one after another into contiguous reals; these loops have no branches, so that the
 * compiler makes vectors of them. */

static inline real K(bias_of_bool)(const char *p) { return *p ? 0 : -INFINITY; }
static inline real K(bias_of_blocked)(const char *p) { return *p ? -INFINITY : 0; }

static inline real K(bias_of_double)(double x, double times)
{
    const double most = (double)REAL_MAX, y = x * times, low = y < -most ? -most : y, near = low > most ? most : low;
    return (real)(fabs(x) > DBL_MAX ? y : near);
}

/* float16: a whole number times a power of two, both exact. */
static inline real K(bias_of_f16)(const char *p, double times)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    const uint32_t exponent = half >> 10 & 31, fraction = half & 1023, normal = exponent != 0;
    const uint64_t bits = (uint64_t)(998 + exponent + !normal) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    const double finite = (double)(int32_t)(1024 * normal + fraction) * power;
    const double special = fraction != 0 ? (double)NAN : (double)INFINITY, sign = half & 0x8000 ? -1 : 1;
    return K(bias_of_double)(sign * (exponent == 31 ? special : finite), times);
}

/* A mask of the kernel's own dtype: one rounding in that dtype, as in bias_squares. */
static inline real K(bias_of_real)(real x, real times)
{
    const real y = x * times, low = y < -REAL_MAX ? -REAL_MAX : y, near = low > REAL_MAX ? REAL_MAX : low;
    return fabs((double)x) > (double)REAL_MAX ? y : near;
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

/* Elements `step` bytes apart, as contiguous reals. Every caller passes dtype as a constant. */
ATTN_TEMPLATE void K(bias_elements)(const attn_mask_dtype dtype, int count, const char *restrict mask, ptrdiff_t step,
                                    double times, real *restrict bias)
{
    for (int n = 0; n < count; n++) {
        const char *at = mask + n * step;
        bias[n] = dtype == ATTN_MASK_BOOL      ? K(bias_of_bool)(at)
                  : dtype == ATTN_MASK_BLOCKED ? K(bias_of_blocked)(at)
                  : dtype == ATTN_MASK_F16     ? K(bias_of_f16)(at, times)
                  : dtype == ATTN_MASK_F32     ? K(bias_of_f32)(at, times)
                  : dtype == ATTN_MASK_F64     ? K(bias_of_f64)(at, times)
                                               : K(bias_of_long)(at, times);
    }
}

static inline ptrdiff_t K(mask_size)(attn_mask_dtype dtype)
{
    switch (dtype) {
    case ATTN_MASK_BOOL:
    case ATTN_MASK_BLOCKED: return 1;
    case ATTN_MASK_F16: return 2;
    case ATTN_MASK_F32: return 4;
    case ATTN_MASK_F64: return 8;
    case ATTN_MASK_LONG: break;
    }
    return (ptrdiff_t)sizeof(long double);
}

#define ELEMENTS(dtype)                                                                                                \
    case dtype:                                                                                                        \
        if (step == K(mask_size)(dtype))                                                                               \
            K(bias_elements)(dtype, count, mask, K(mask_size)(dtype), times, bias);                                    \
        else                                                                                                           \
            K(bias_elements)(dtype, count, mask, step, times, bias);                                                   \
        break;

/* A row of a mask, or a column of one, of any dtype; at most ATTN_BLOCK_KEYS elements. */
static void K(bias_line)(attn_mask_dtype dtype, int count, const char *mask, ptrdiff_t step, double times, real *bias)
{
    char bytes[ATTN_BLOCK_KEYS];
    if (K(mask_size)(dtype) == 1 && step != 1) { /* bools are gathered first: bytes are moved faster than converted */
        for (int n = 0; n < count; n++) bytes[n] = mask[n * step];
        mask = bytes;
        step = 1;
    }
    switch (dtype) {
        ELEMENTS(ATTN_MASK_BOOL)
        ELEMENTS(ATTN_MASK_BLOCKED)
        ELEMENTS(ATTN_MASK_F16)
        ELEMENTS(ATTN_MASK_F32)
        ELEMENTS(ATTN_MASK_F64)
        ELEMENTS(ATTN_MASK_LONG)
    }
}
#undef ELEMENTS

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

/* A transposed mask: the rows of a column follow one another, as in the prefill layout. */
static void K(bias_columns)(attn_mask_dtype dtype, int rows, int keys, const char *mask, ptrdiff_t step, double times,
                            real *bias, ptrdiff_t key_out)
{
    const int whole = dtype == ATTN_MASK_BOOL ? rows / LANES * LANES : 0;
    for (int n = 0; n < keys; n++) {
        const char *column = mask + n * step;
        for (int i = 0; i < whole; i += LANES) V(store)(bias + n * key_out + i, V(load_bool)(column + i));
        K(bias_line)(dtype, rows - whole, column + whole * K(mask_size)(dtype), K(mask_size)(dtype), times,
                     bias + n * key_out + whole);
    }
}

/* Rows of any strides into the prefill layout, LANES of them at a time: as lines, then transposed in registers. */
static void K(bias_lines)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask, ptrdiff_t step,
                          double times, real *bias, ptrdiff_t key_out)
{
    for (int i = 0; i < rows; i += LANES) {
        real line[LANES][ATTN_BLOCK_KEYS];
        const int lanes = rows - i < LANES ? rows - i : LANES;
        for (int l = 0; l < lanes; l++) K(bias_line)(dtype, keys, mask[i + l], step, times, line[l]);
        for (int n = 0; n < keys; n += LANES) {
            vec r[LANES];
            for (int l = 0; l < LANES; l++) r[l] = l < lanes ? V(load)(line[l] + n) : V(splat)(0);
            K(transpose)(r);
            for (int c = 0; c < LANES && n + c < keys; c++) V(store)(bias + (n + c) * key_out + i, r[c]);
        }
    }
}

/* One row that all queries share: read once. */
static void K(bias_broadcast)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask, ptrdiff_t step,
                              double times, real *bias, ptrdiff_t row_out, ptrdiff_t key_out)
{
    real row[ATTN_BLOCK_KEYS];
    K(bias_line)(dtype, keys, mask[0], step, times, row);
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

/* The bytes from row to row, if they are the same for all rows, else 0. */
static ptrdiff_t K(row_step)(int rows, const char *const *mask)
{
    const ptrdiff_t step = rows > 1 ? mask[1] - mask[0] : 0;
    for (int i = 2; i < rows; i++)
        if (mask[i] - mask[i - 1] != step) return 0;
    return step;
}

static attn_tile_kind K(bias_tile)(attn_mask_dtype dtype, int rows, int keys, const char *const *mask,
                                   ptrdiff_t key_stride_bytes, double times, void *bias, ptrdiff_t row_out,
                                   ptrdiff_t key_out)
{
    const int is_bool = dtype == ATTN_MASK_BOOL || dtype == ATTN_MASK_BLOCKED, prefill = row_out == 1;
    const int own = dtype == (REAL_F32 ? ATTN_MASK_F32 : ATTN_MASK_F64);
    const ptrdiff_t size = K(mask_size)(dtype);
    const int contiguous = key_stride_bytes == size, transposed = !contiguous && K(row_step)(rows, mask) == size;
    int done = 0, same = rows > 1;

    if (is_bool && (contiguous || transposed)) {
        const char *column[ATTN_BLOCK_KEYS];
        for (int n = 0; transposed && n < keys; n++) column[n] = mask[0] + n * key_stride_bytes;
        const attn_tile_kind kind =
            transposed ? K(bool_kind)(dtype, keys, rows, column) : K(bool_kind)(dtype, rows, keys, mask);
        if (kind != ATTN_TILE_MIXED) return kind;
    }
    for (int i = 1; same && i < rows; i++) same = mask[i] == mask[0];
    if (same) {
        K(bias_broadcast)(dtype, rows, keys, mask, key_stride_bytes, times, bias, row_out, key_out);
    } else if (!prefill) {
        for (int i = 0; i < rows; i++)
            K(bias_line)(dtype, keys, mask[i], key_stride_bytes, times, (real *)bias + i * row_out);
    } else if (transposed) {
        K(bias_columns)(dtype, rows, keys, mask[0], key_stride_bytes, times, bias, key_out);
    } else {
        done = contiguous && (is_bool || own) ? keys / LANES * LANES : 0;
        if (dtype == ATTN_MASK_BOOL)
            K(bias_squares)(ATTN_MASK_BOOL, rows, done, mask, times, bias, key_out);
        else if (is_bool)
            K(bias_squares)(ATTN_MASK_BLOCKED, rows, done, mask, times, bias, key_out);
        else if (own)
            K(bias_squares)(REAL_F32 ? ATTN_MASK_F32 : ATTN_MASK_F64, rows, done, mask, times, bias, key_out);
        const int left = keys - done;
        const char *rest[ATTN_MAX_WIDTH];
        for (int i = 0; left > 0 && i < rows; i++) rest[i] = mask[i] + done * key_stride_bytes;
        if (left > 0)
            K(bias_lines)(dtype, rows, left, rest, key_stride_bytes, times, (real *)bias + done * key_out, key_out);
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

/* Elements of any dtype and strides become contiguous reals, and reals become elements.
 *
 * Reading is exact but for float64 read as float32, which is rounded while finite numbers stay finite. Writing rounds
 * to nearest, ties to even, and overflows to infinity as IEEE 754 says.
 */

#if REAL_F32
static inline vec K(load_f32)(const char *p) { return V(load)((const real *)(const void *)p); }
static inline vf64 K(clamp_finite)(vf64 x)
{
    const vf64 least = vf64_splat(-(double)FLT_MAX), most = vf64_splat((double)FLT_MAX);
    const vf64 low = vf64_splat(-(double)INFINITY), high = vf64_splat((double)INFINITY);
    const vf64 y = vf64_select(vf64_lt(x, least), least, vf64_select(vf64_lt(most, x), most, x));
    return vf64_select(vf64_eq(x, low), low, vf64_select(vf64_eq(x, high), high, y));
}
static inline vec K(load_f64)(const char *p)
{
    const double *at = (const double *)(const void *)p;
    return vf32_narrow(K(clamp_finite)(vf64_load(at)), K(clamp_finite)(vf64_load(at + VF64_LANES)));
}
#else
static inline vec K(load_f32)(const char *p) { return vf64_widen((const float *)(const void *)p); }
static inline vec K(load_f64)(const char *p) { return V(load)((const real *)(const void *)p); }
#endif

static inline double K(double_of_long)(const char *p)
{
    long double x;
    memcpy(&x, p, sizeof x);
    const double y = (double)x; /* may overflow to inf for a finite x */
    return isinf(y) && !isinf(x) ? (y < 0 ? -DBL_MAX : DBL_MAX) : y;
}

static inline ptrdiff_t K(element_size)(attn_element element)
{
    switch (element) {
    case ATTN_ELEMENT_BOOL:
    case ATTN_ELEMENT_BLOCKED: return 1;
    case ATTN_ELEMENT_F16:
    case ATTN_ELEMENT_BF16: return 2;
    case ATTN_ELEMENT_F32: return 4;
    case ATTN_ELEMENT_F64: return 8;
    case ATTN_ELEMENT_LONG: break;
    }
    return (ptrdiff_t)sizeof(long double);
}

/* The place in a table that EACH_STORED has made. */
static inline int K(stored)(attn_element element) { return element == OWN ? 0 : element == ATTN_ELEMENT_F16 ? 1 : 2; }

/* LANES contiguous elements; bools as 0 where a pair attends, and -inf elsewhere. Every caller passes
 * `element` as a constant. */
ATTN_TEMPLATE vec K(load_elements)(const attn_element element, const char *at)
{
    const vec none = V(splat)(0), masked = V(splat)(-INFINITY);
    switch (element) {
    case ATTN_ELEMENT_BOOL: return V(load_bool)(at);
    case ATTN_ELEMENT_BLOCKED: return V(select)(V(eq)(V(load_bool)(at), none), masked, none);
    case ATTN_ELEMENT_F16: return V(load_f16)(at);
    case ATTN_ELEMENT_BF16: return V(load_bf16)(at);
    case ATTN_ELEMENT_F32: return K(load_f32)(at);
    default: return K(load_f64)(at);
    }
}

/* The first `count` of them, zero bytes after these. */
ATTN_TEMPLATE vec K(load_first_elements)(const attn_element element, const char *at, ptrdiff_t count)
{
    char some[LANES * sizeof(double)] = {0};
    if (element == OWN) return V(load_first)((const real *)(const void *)at, (int)count);
    memcpy(some, at, (size_t)(count * K(element_size)(element)));
    return K(load_elements)(element, some);
}

/* Rows of contiguous elements, each followed by zeros up to `padded` reals; bools are not padded. */
ATTN_TEMPLATE void K(load_contiguous)(const attn_element element, int rows, ptrdiff_t columns, const char *from,
                                      ptrdiff_t row_step, ptrdiff_t padded, real *to)
{
    const ptrdiff_t size = K(element_size)(element);
    for (int i = 0; i < rows; i++, from += row_step, to += padded) {
        ptrdiff_t n = 0;
        for (; n + LANES <= columns; n += LANES) V(store)(to + n, K(load_elements)(element, from + n * size));
        if (n < columns) {
            const vec last = K(load_first_elements)(element, from + n * size, columns - n);
            const int fits = n + LANES <= padded;
            V(store_first)(to + n, fits ? LANES : (int)(columns - n), last);
            n = fits ? n + LANES : columns;
        }
        if (n < padded) memset(to + n, 0, (size_t)(padded - n) * sizeof(real));
    }
}

/* The same for elements `step` bytes apart. */
static void K(load_rows)(attn_element element, int rows, ptrdiff_t columns, const char *from, ptrdiff_t row_step,
                         ptrdiff_t step, ptrdiff_t padded, real *to)
{
    enum { PART = 64 };
    const ptrdiff_t size = K(element_size)(element);
    double copy[PART];
    if (element != ATTN_ELEMENT_LONG && (step == size || columns <= 1)) {
#define ROWS(ELEMENT) K(load_contiguous)(ELEMENT, rows, columns, from, row_step, padded, to)
        switch (element) {
        case ATTN_ELEMENT_BOOL: ROWS(ATTN_ELEMENT_BOOL); return;
        case ATTN_ELEMENT_BLOCKED: ROWS(ATTN_ELEMENT_BLOCKED); return;
        case ATTN_ELEMENT_F16: ROWS(ATTN_ELEMENT_F16); return;
        case ATTN_ELEMENT_BF16: ROWS(ATTN_ELEMENT_BF16); return;
        case ATTN_ELEMENT_F32: ROWS(ATTN_ELEMENT_F32); return;
        default: ROWS(ATTN_ELEMENT_F64); return;
        }
#undef ROWS
    }
    for (int i = 0; i < rows; i++, from += row_step, to += padded) {
        memset(to + columns, 0, (size_t)(padded - columns) * sizeof(real));
        if (element == OWN) {
            attn_gather(size, columns, from, step, (char *)to);
            continue;
        }
        for (ptrdiff_t at = 0; at < columns; at += PART) { /* gathered first: bytes are moved faster than converted */
            const ptrdiff_t part = columns - at < PART ? columns - at : PART;
            const char *first = from + at * step;
            const attn_element gathered = element == ATTN_ELEMENT_LONG ? ATTN_ELEMENT_F64 : element;
            if (element == ATTN_ELEMENT_LONG)
                for (ptrdiff_t n = 0; n < part; n++) copy[n] = K(double_of_long)(first + n * step);
            else
                attn_gather(size, part, first, step, (char *)copy);
            K(load_rows)(gathered, 1, part, (const char *)copy, 0, K(element_size)(gathered), part, to + at);
        }
    }
}

/* Squares of a block whose columns are contiguous, transposed in registers. */
ATTN_TEMPLATE void K(load_columns)(const attn_element element, int rows, ptrdiff_t columns, const char *from,
                                   ptrdiff_t column_step, ptrdiff_t padded, real *to)
{
    const ptrdiff_t size = K(element_size)(element);
    for (int i = 0; i + LANES <= rows; i += LANES)
        for (ptrdiff_t d = 0; d + LANES <= columns; d += LANES) {
            vec r[LANES];
            for (int l = 0; l < LANES; l++) r[l] = K(load_elements)(element, from + i * size + (d + l) * column_step);
            K(transpose)(r);
            for (int l = 0; l < LANES; l++) V(store)(to + (i + l) * padded + d, r[l]);
        }
}

ATTN_SEPARATE void K(load_any)(attn_element element, int rows, ptrdiff_t columns, const char *from,
                                     ptrdiff_t row_step, ptrdiff_t column_step, ptrdiff_t padded, void *to)
{
    const ptrdiff_t size = K(element_size)(element);
    ptrdiff_t done = 0; /* columns of the first whole rows */
    int whole = 0;
    const int is_real = element >= ATTN_ELEMENT_F16 && element <= ATTN_ELEMENT_F64;
    if (is_real && row_step == size && column_step != size && rows >= LANES && columns >= LANES) {
        whole = rows / LANES * LANES;
        done = columns / LANES * LANES;
        switch (element) {
        case ATTN_ELEMENT_F16: K(load_columns)(ATTN_ELEMENT_F16, rows, columns, from, column_step, padded, to); break;
        case ATTN_ELEMENT_BF16: K(load_columns)(ATTN_ELEMENT_BF16, rows, columns, from, column_step, padded, to); break;
        case ATTN_ELEMENT_F32: K(load_columns)(ATTN_ELEMENT_F32, rows, columns, from, column_step, padded, to); break;
        default: K(load_columns)(ATTN_ELEMENT_F64, rows, columns, from, column_step, padded, to); break;
        }
    }
    for (int i = 0; i < whole; i++)
        K(load_rows)(element, 1, columns - done, from + i * row_step + done * column_step, row_step, column_step,
                     padded - done, (real *)to + i * padded + done);
    K(load_rows)(element, rows - whole, columns, from + whole * row_step, row_step, column_step, padded,
                 (real *)to + whole * padded);
}

static void K(load_block)(attn_element element, int rows, ptrdiff_t columns, const char *from, ptrdiff_t row_step,
                          ptrdiff_t column_step, ptrdiff_t padded, void *to)
{
    if (element == OWN && (columns <= 1 || column_step == sizeof(real))) /* a small call would notice the way there */
        K(load_contiguous)(OWN, rows, columns, from, row_step, padded, to);
    else
        K(load_any)(element, rows, columns, from, row_step, column_step, padded, to);
}

#if REAL_F32
ATTN_TEMPLATE void K(store_halves)(void (*const store)(char *, vec), ptrdiff_t count, const real *x, char *y)
{
    char rest[LANES * 2];
    ptrdiff_t n = 0;
    for (; n + LANES <= count; n += LANES) store(y + 2 * n, V(load)(x + n));
    if (n == count) return;
    store(rest, V(load_first)(x + n, (int)(count - n)));
    memcpy(y + 2 * n, rest, (size_t)(count - n) * 2);
}

static void K(store_row)(attn_element element, ptrdiff_t count, const void *from, void *to)
{
    if (element == ATTN_ELEMENT_F16)
        K(store_halves)(V(store_f16), count, from, to);
    else
        K(store_halves)(V(store_bf16), count, from, to);
}
#endif

/* Reads a tile of a mask through its strides. bool becomes 0 or -inf; a float mask is converted to real and multiplied
 * by log2(e) or by 1. A finite bias stays finite: finfo.min * log2(e) would become -inf, and a row of finfo.min would
 * see no key.
 *
 * 1. A line, up to ATTN_BLOCK_KEYS elements of any dtype and step, becomes contiguous reals.
 * 2. LANES lines become rows of the prefill layout, transposed in registers. Contiguous rows of reals are not copied to
 *    lines first, and columns that are contiguous are lines of the prefill layout already.
 */

/* Corrects y = x * log2(e) where a finite x overflowed. */
static inline vec K(bias_at_the_edge)(vec x, vec y)
{
    const vec least = V(splat)(-INFINITY), most = V(splat)(INFINITY);
    y = V(select)(V(eq)(y, least), V(select)(V(eq)(x, least), least, V(splat)(-REAL_MAX)), y);
    return V(select)(V(eq)(y, most), V(select)(V(eq)(x, most), most, V(splat)(REAL_MAX)), y);
}

static inline vec K(bias_of)(vec x, vec times)
{
    const vec y = V(mul)(x, times);
    return V(has_nan)(V(sub)(y, y)) ? K(bias_at_the_edge)(x, y) : y;
}

/* A row of a mask, or a column of one, of any dtype: at most ATTN_BLOCK_KEYS elements; whole vectors are written. */
static void K(bias_line)(attn_element dtype, int count, const char *mask, ptrdiff_t step, double times, real *bias)
{
    K(load_rows)(dtype, 1, count, mask, 0, step, count, bias);
    for (int n = count; n % LANES != 0; n++) bias[n] = 0;
    const vec factor = V(splat)((real)times);
    for (int n = 0; !attn_is_bool(dtype) && n < count; n += LANES)
        V(store)(bias + n, K(bias_of)(V(load)(bias + n), factor));
}

/* Lines into the prefill layout; those of floats are scaled. */
ATTN_TEMPLATE void K(bias_squares)(const int scales, int keys, const real *const *line, double times, real *bias,
                                   ptrdiff_t key_out)
{
    const vec factor = V(splat)((real)times);
    for (int n = 0; n < keys; n += LANES) {
        vec r[LANES];
        ATTN_UNROLL for (int l = 0; l < LANES; l++)
        {
            const vec x = V(load)(line[l] + n);
            r[l] = scales ? K(bias_of)(x, factor) : x;
        }
        K(transpose)(r);
        for (int c = 0; c < LANES && n + c < keys; c++) V(store)(bias + (n + c) * key_out, r[c]);
    }
}

/* Rows into the prefill layout, LANES at a time. They are far apart, so those of the next key block are prefetched.
 * row_step is 0 where the rows have no common one. */
static void K(bias_rows)(attn_element dtype, int rows, int keys, const char *const *mask, ptrdiff_t row_step,
                         ptrdiff_t step, double times, real *bias, ptrdiff_t key_out)
{
    const int contiguous = step == K(element_size)(dtype);
    const int in_place = dtype == OWN && contiguous && keys % LANES == 0;
    const int padded = (keys + LANES - 1) / LANES * LANES;
    real lines[LANES * ATTN_BLOCK_KEYS];
    for (int i = 0; i < rows; i += LANES) {
        const int some = rows - i < LANES ? rows - i : LANES, together = row_step != 0 ? some : 1;
        const real *line[LANES];
        for (int l = 0; l < LANES; l++) {
            const int n = l < some ? l : some - 1;
            line[l] = in_place ? (const real *)(const void *)mask[i + n] : lines + n * padded;
        }
        for (int l = 0; contiguous && l < some; l++)
            for (ptrdiff_t b = 0; b < ATTN_BLOCK_KEYS * step; b += 64)
                __builtin_prefetch(mask[i + l] + ATTN_BLOCK_KEYS * step + b);
        for (int l = 0; !in_place && l < some; l += together)
            K(load_rows)(dtype, together, keys, mask[i + l], row_step, step, padded, lines + l * padded);
        if (attn_is_bool(dtype))
            K(bias_squares)(0, keys, line, times, bias + i, key_out);
        else
            K(bias_squares)(1, keys, line, times, bias + i, key_out);
    }
}

/* A transposed mask: the rows of a column follow one another, as in the prefill layout. */
static void K(bias_columns)(attn_element dtype, int rows, int keys, const char *mask, ptrdiff_t step, double times,
                            real *bias, ptrdiff_t key_out)
{
    for (int n = 0; n < keys; n++)
        K(bias_line)(dtype, rows, mask + n * step, K(element_size)(dtype), times, bias + n * key_out);
}

/* One row that all queries share: read once. */
static void K(bias_broadcast)(attn_element dtype, int rows, int keys, const char *const *mask, ptrdiff_t step,
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
static attn_tile_kind K(bool_kind)(attn_element dtype, int rows, int keys, const char *const *mask)
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
    return (any != 0) == (dtype == ATTN_ELEMENT_BOOL) ? ATTN_TILE_FREE : ATTN_TILE_MASKED;
}

/* The bytes from row to row, if they are the same for all rows, else 0. */
static ptrdiff_t K(row_step)(int rows, const char *const *mask)
{
    const ptrdiff_t step = rows > 1 ? mask[1] - mask[0] : 0;
    for (int i = 2; i < rows; i++)
        if (mask[i] - mask[i - 1] != step) return 0;
    return step;
}

static attn_tile_kind K(bias_tile)(attn_element dtype, int rows, int keys, const char *const *mask,
                                   ptrdiff_t key_stride_bytes, double times, void *bias, ptrdiff_t row_out,
                                   ptrdiff_t key_out)
{
    const int is_bool = attn_is_bool(dtype), prefill = row_out == 1;
    const ptrdiff_t size = K(element_size)(dtype);
    const int contiguous = key_stride_bytes == size;
    const ptrdiff_t row_step = prefill || !contiguous ? K(row_step)(rows, mask) : 0;
    const int transposed = !contiguous && row_step == size;
    int same = rows > 1;

    if (is_bool && (contiguous || transposed)) {
        const char *column[ATTN_BLOCK_KEYS];
        for (int n = 0; transposed && n < keys; n++) column[n] = mask[0] + n * key_stride_bytes;
        const attn_tile_kind kind =
            transposed ? K(bool_kind)(dtype, keys, rows, column) : K(bool_kind)(dtype, rows, keys, mask);
        if (kind != ATTN_TILE_MIXED) return kind;
    }
    for (int i = 1; same && i < rows; i++) same = mask[i] == mask[0];
    if (same)
        K(bias_broadcast)(dtype, rows, keys, mask, key_stride_bytes, times, bias, row_out, key_out);
    else if (prefill && transposed)
        K(bias_columns)(dtype, rows, keys, mask[0], key_stride_bytes, times, bias, key_out);
    else if (prefill)
        K(bias_rows)(dtype, rows, keys, mask, row_step, key_stride_bytes, times, bias, key_out);
    else
        for (int i = 0; i < rows; i++)
            K(bias_line)(dtype, keys, mask[i], key_stride_bytes, times, (real *)bias + i * row_out);
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

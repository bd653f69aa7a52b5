/* Matrix products with a weight that lies as (inner, features), so that lanes hold features. An element is the same
 * chain of fma as in score_block, from zero over ATTN_FOLD_FEATURES inner elements: the memory order changes no bit.
 */

/* R rows times G rows of the weight, for one vector of features. x has been read (`splats`), or has stride 8. */
ATTN_TEMPLATE void K(gemv_vector)(const attn_element element, const int R, const int G, const int has_splats,
                                  const int whole, int count, const real *x, const vec (*splats)[8], const char *weight,
                                  ptrdiff_t weight_step, int begins, real *part, ptrdiff_t stride)
{
    vec sum[8];
    ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] =
        begins ? V(splat)(0) : K(load_part)(whole, count, part + r * stride);
    ATTN_UNROLL for (int g = 0; g < G; g++)
    {
        const char *at = weight + g * weight_step;
        const vec w = whole ? K(load_elements)(element, at) : K(load_first_elements)(element, at, count);
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] =
            V(fma)(has_splats ? splats[r][g] : V(splat)(x[8 * r + g]), w, sum[r]);
    }
    ATTN_UNROLL for (int r = 0; r < R; r++) K(store_part)(whole, count, part + r * stride, sum[r]);
}

/* The same for all features: the weight's rows are read side by side as G streams, and the unfinished sums wait in
 * `part`. Nothing is transposed. Meanwhile `lines` cache lines per vector are prefetched. */
ATTN_TEMPLATE void K(gemv_strip)(const attn_element element, const int R, const int G, const int has_splats,
                                 ptrdiff_t features, const real *x, ptrdiff_t x_stride, const char *weight,
                                 ptrdiff_t weight_step, int begins, real *part, ptrdiff_t stride,
                                 K(prefetch_cursor) * ahead, int lines, int to_l1)
{
    const ptrdiff_t size = K(element_size)(element), head = K(before_line)(size, weight, weight_step, features);
    K(prefetch_cursor) cursor = *ahead;
    vec splats[4][8];
    if (has_splats)
        ATTN_UNROLL for (int r = 0; r < R; r++)
            ATTN_UNROLL for (int g = 0; g < G; g++) splats[r][g] = V(splat)(x[r * x_stride + g]);
    ptrdiff_t n = head;
#define VECTOR(WHOLE, COUNT, AT, BEGINS)                                                                               \
    K(gemv_vector)(element, R, G, has_splats, (WHOLE), (COUNT), x, splats, weight + (AT) * size, weight_step,          \
                   (BEGINS), part + (AT), stride)
#define FETCH(TO_L1)                                                                                                   \
    do {                                                                                                               \
        int left = lines;                                                                                              \
        for (; left >= 4; left -= 4) K(fetch_lines)(&cursor, (TO_L1), 4);                                              \
        for (; left > 0; left--) K(fetch_lines)(&cursor, (TO_L1), 1);                                                  \
    } while (0)
    if (head > 0) VECTOR(0, (int)head, 0, begins);
    /* one loop per case: tests inside cost one row 35 -> 32 GB/s from memory (Zen 5) */
    if (lines > 0 && to_l1)
        for (; n + LANES <= features; n += LANES) {
            FETCH(1);
            VECTOR(1, LANES, n, begins);
        }
    else if (lines > 0)
        for (; n + LANES <= features; n += LANES) {
            FETCH(0);
            VECTOR(1, LANES, n, begins);
        }
    else if (begins)
        for (; n + LANES <= features; n += LANES) VECTOR(1, LANES, n, 1);
    else
        for (; n + LANES <= features; n += LANES) VECTOR(1, LANES, n, 0);
    if (n < features) VECTOR(0, (int)(features - n), n, begins);
#undef FETCH
#undef VECTOR
    *ahead = cursor;
}

typedef void K(gemv_rows)(int streams, ptrdiff_t features, const real *x, ptrdiff_t x_stride, const char *weight,
                          ptrdiff_t weight_step, int begins, real *part, ptrdiff_t stride, K(prefetch_cursor) * ahead,
                          int lines, int to_l1);
#define GEMV_ROWS(NAME, ELEMENT, R, KEEPS)                                                                             \
    ATTN_SEPARATE void K(NAME##_##R)(                                                                                  \
        int streams, ptrdiff_t features, const real *x, ptrdiff_t x_stride, const char *weight, ptrdiff_t weight_step, \
        int begins, real *part, ptrdiff_t stride, K(prefetch_cursor) * ahead, int lines, int to_l1)                    \
    {                                                                                                                  \
        if (streams == 8)                                                                                              \
            K(gemv_strip)(ELEMENT, R, 8, KEEPS, features, x, x_stride, weight, weight_step, begins, part, stride,      \
                          ahead, lines, to_l1);                                                                        \
        else                                                                                                           \
            for (int n = 0; n < streams; n++)                                                                          \
                K(gemv_strip)(ELEMENT, R, 1, KEEPS, features, x + n, x_stride, weight + n * weight_step, weight_step,  \
                              begins && n == 0, part, stride, ahead, 0, 0);                                            \
    }
GEMV_ROWS(gemv_read, OWN, 3, 0)
GEMV_ROWS(gemv_read, OWN, 4, 0)
GEMV_ROWS(gemv_read, OWN, 5, 0)
GEMV_ROWS(gemv_read, OWN, 6, 0)
GEMV_ROWS(gemv_read, OWN, 7, 0)
GEMV_ROWS(gemv_read, OWN, 8, 0)
#define WITH_SPLATS(NAME, ELEMENT)                                                                                     \
    GEMV_ROWS(gemv_##NAME, ELEMENT, 1, 1)                                                                              \
    GEMV_ROWS(gemv_##NAME, ELEMENT, 2, 1)                                                                              \
    GEMV_ROWS(gemv_##NAME, ELEMENT, 3, 1)                                                                              \
    GEMV_ROWS(gemv_##NAME, ELEMENT, 4, 1)
EACH_STORED(WITH_SPLATS)
#undef WITH_SPLATS
#undef GEMV_ROWS

/* Whole vectors of up to eight, whose sums stay in registers; returns the number of features. */
static ptrdiff_t K(gemv_narrow)(attn_element element, int rows, int inner, ptrdiff_t features, const real *x,
                                ptrdiff_t x_stride, const void *weight, ptrdiff_t weight_stride, int begins, real *out,
                                ptrdiff_t out_stride)
{
    static const real ones[ATTN_MAX_WIDTH] = {[0 ... ATTN_MAX_WIDTH - 1] = 1}; /* no earlier sum is scaled */
    const int vectors = (int)(features / LANES);
    if (features > 8 * LANES || vectors == 0) return 0;
    K(value_block)(element, rows, inner, vectors, x, x_stride, 1, NULL, NULL, weight, weight_stride, ones, begins, out,
                   out_stride);
    return (ptrdiff_t)vectors * LANES;
}

/* Up to four rows at a time, whose elements are kept in registers.
 *
 * With more than two rows, or while halves are converted, the hardware prefetcher leaves the memory idle. If the weight
 * comes from memory, the kernels prefetch the next strip meanwhile, in memory's order: one row reads halves at 34 GB/s
 * in place of 25. Where registers suffice, up to eight rows read the weight once: at 31 GB/s in place of 18 (Zen 5). */
static void K(gemv)(attn_element element, int rows, int inner, ptrdiff_t features, const void *x, ptrdiff_t x_stride,
                    const void *weight, ptrdiff_t weight_stride, int prefetch, int begins, void *part, void *out,
                    ptrdiff_t out_stride)
{
#define WITH_SPLATS(NAME, ELEMENT) {K(gemv_##NAME##_1), K(gemv_##NAME##_2), K(gemv_##NAME##_3), K(gemv_##NAME##_4)},
    static K(gemv_rows) *const with_splats[][4] = {EACH_STORED(WITH_SPLATS)};
#undef WITH_SPLATS
    static K(gemv_rows) *const read[] = {K(gemv_read_3), K(gemv_read_4), K(gemv_read_5),
                                         K(gemv_read_6), K(gemv_read_7), K(gemv_read_8)};
    K(gemv_rows) *const *by_rows = with_splats[K(stored)(element)];
    const ptrdiff_t size = K(element_size)(element), step = weight_stride * size;
    const ptrdiff_t done =
        K(gemv_narrow)(element, rows, inner, features, x, x_stride, weight, weight_stride, begins, out, out_stride);
    if (done == features) return;
    weight = (const char *)weight + done * size;
    out = (real *)out + done;
    features -= done;
    const int fetches = (prefetch & ATTN_FROM_MEMORY) && (rows > 2 || element != OWN);
    const int reads = VEC_ACCUMULATORS >= 24 && element == OWN && fetches && rows <= 8;
    const int groups = reads ? 1 : (rows + 3) / 4, some_lines = (int)(8 * LANES * size) / 64;
    const int lines = fetches ? (some_lines + groups - 1) / groups : 0;
    real near[8][8]; /* rows of x that are read again and again would be in each other's way in the L1 cache */
    for (int n = 0; n < inner; n += 8) {
        const int streams = inner - n < 8 ? inner - n : 8;
        const char *at = (const char *)weight + n * step;
        K(prefetch_cursor) ahead = K(rows_from)(at + 8 * step, step, features * size);
        for (int g = 0; g < groups; g++) {
            const int i = rows * g / groups, some = rows * (g + 1) / groups - i;
            const real *from = (const real *)x + i * x_stride + n;
            if (reads)
                for (int r = 0; r < some; r++) memcpy(near[r], from + r * x_stride, (size_t)streams * sizeof(real));
            (reads ? read[some - 3] : by_rows[some - 1])(streams, features, reads ? near[0] : from, x_stride, at,
                                                      step, n == 0, (real *)part + i * out_stride, out_stride, &ahead,
                                                      lines, prefetch & ATTN_TO_L1);
        }
    }
    for (int i = 0; i < rows; i++)
        for (ptrdiff_t n = 0; n < features; n += LANES) {
            real *to = (real *)out + i * out_stride + n;
            const vec sum = V(load)((const real *)part + i * out_stride + n);
            V(store)(to, begins ? sum : V(add)(V(load)(to), sum));
        }
}

/* N rows times a packed panel; PACKS vectors of another tile are packed for each inner element meanwhile. */
#define TILE(N, ELEMENT, PACKS, PACKER)                                                                                \
    K(value_tile)(OWN, (N), K(panel_vectors), inner, 0, x + i * x_stride, x_stride, 1, (const char *)packed,           \
                  K(panel) * (ptrdiff_t)sizeof(real), K(no_scale), begins, out + i * out_stride, out_stride,           \
                  (ELEMENT), (PACKS), (PACKER))
static const real K(no_scale)[8] = {1, 1, 1, 1, 1, 1, 1, 1}; /* of earlier sums */

/* Rows of a panel from i on: as many at a time as fit in the registers, then the rest. */
ATTN_SEPARATE void K(gemm_panel)(int i, int rows, int inner, const real *packed, const real *x, ptrdiff_t x_stride,
                                 int begins, real *out, ptrdiff_t out_stride)
{
    enum { R = K(panel_rows) };
    for (; i + R <= rows; i += R) TILE(R, OWN, 0, NULL);
    if (R > 4)
        for (; i + 4 <= rows; i += 4) TILE(4, OWN, 0, NULL);
    for (; i + 2 <= rows; i += 2) TILE(2, OWN, 0, NULL);
    for (; i < rows; i++) TILE(1, OWN, 0, NULL);
}

/* A packed tile. Its first rows pack the next one meanwhile. A group of rows stays in the L1 cache while narrow panels
 * go by: 88 GFLOP/s in place of 82 (Zen 3). A wide panel fills the cache, and stays there while all rows go by. */
ATTN_TEMPLATE void K(gemm_tile)(const attn_element element, int rows, const attn_tile *tile, const real *x,
                                ptrdiff_t x_stride, const attn_tile *next, int begins, real *to, ptrdiff_t out_stride)
{
    enum { R = K(panel_rows) };
    const int inner = tile->inner, panels = (tile->features + K(panel) - 1) / K(panel);
    const int wide = K(panel) * ATTN_FOLD_FEATURES * (int)sizeof(real) > 1 << 14, group = wide ? rows : 4 * R;
    K(packer) packer = K(begin_packing)(next);
    const ptrdiff_t steps = (ptrdiff_t)(rows / R) * panels * inner; /* of whole register tiles */
    const int packs = packer.left <= steps ? 1 : 2;
    for (int first = 0; first < rows; first += group) {
        const int last = rows - first < group ? rows : first + group;
        for (int c = 0; c < panels; c++) {
            const real *const packed = (const real *)tile->packed + (ptrdiff_t)c * K(panel) * inner;
            real *const out = to + c * K(panel);
            int i = first;
            for (; i + R <= last && packer.left >= packs * inner; i += R) {
                if (packs == 1)
                    TILE(R, element, 1, &packer);
                else
                    TILE(R, element, 2, &packer);
            }
            if (i < last) K(gemm_panel)(i, last, inner, packed, x, x_stride, begins, out, out_stride);
        }
    }
    K(finish_packing)(element, next, &packer);
}
#undef TILE

typedef void K(gemm_of)(int rows, const attn_tile *tile, const real *x, ptrdiff_t x_stride, const attn_tile *next,
                        int begins, real *out, ptrdiff_t out_stride);
#define GEMM(NAME, ELEMENT)                                                                                            \
    ATTN_SEPARATE void K(gemm_##NAME)(int rows, const attn_tile *tile, const real *x, ptrdiff_t x_stride,              \
                                      const attn_tile *next, int begins, real *out, ptrdiff_t out_stride)              \
    {                                                                                                                  \
        K(gemm_tile)(ELEMENT, rows, tile, x, x_stride, next, begins, out, out_stride);                                 \
    }
EACH_STORED(GEMM)
#undef GEMM

static void K(gemm)(int rows, const attn_tile *tile, const void *x, ptrdiff_t x_stride, const attn_tile *next,
                    int begins, void *out, ptrdiff_t out_stride)
{
#define GEMM(NAME, ELEMENT) K(gemm_##NAME),
    static K(gemm_of) *const gemms[] = {EACH_STORED(GEMM)};
#undef GEMM
    gemms[K(stored)(tile->element)](rows, tile, x, x_stride, next, begins, out, out_stride);
}

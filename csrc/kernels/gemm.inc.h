/* Matrix products with a weight that lies as (inner, features), so that lanes hold features. An element is the same
 * chain of fma as in score_block, from zero over ATTN_FOLD_FEATURES inner elements: the memory order changes no bit.
 */

/* R rows times G rows of the weight, for one vector of features. x has been read (`kept`), or has stride 8. */
ATTN_TEMPLATE void K(gemv_vector)(const int R, const int G, const int keeps, const int whole, int count, const real *x,
                                  const vec (*kept)[8], const real *weight, ptrdiff_t weight_stride, int begins,
                                  real *part, ptrdiff_t stride)
{
    vec sum[8];
    ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] =
        begins ? V(splat)(0) : K(load_part)(whole, count, part + r * stride);
    ATTN_UNROLL for (int g = 0; g < G; g++)
    {
        const vec w = K(load_part)(whole, count, weight + g * weight_stride);
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] =
            V(fma)(keeps ? kept[r][g] : V(splat)(x[8 * r + g]), w, sum[r]);
    }
    ATTN_UNROLL for (int r = 0; r < R; r++) K(store_part)(whole, count, part + r * stride, sum[r]);
}

/* The same for all features: the weight's rows are read side by side as G streams, and the unfinished sums wait in
 * `part`. Nothing is transposed. Meanwhile `lines` cache lines per vector are prefetched. */
ATTN_TEMPLATE void K(gemv_strip)(const int R, const int G, const int keeps, ptrdiff_t features, const real *x,
                                 ptrdiff_t x_stride, const real *weight, ptrdiff_t weight_stride, int begins,
                                 real *part, ptrdiff_t stride, K(prefetch_cursor) * ahead, int lines)
{
    const ptrdiff_t head = K(before_line)(weight, weight_stride, features);
    K(prefetch_cursor) cursor = *ahead;
    vec kept[4][8];
    if (keeps)
        ATTN_UNROLL for (int r = 0; r < R; r++)
            ATTN_UNROLL for (int g = 0; g < G; g++) kept[r][g] = V(splat)(x[r * x_stride + g]);
    ptrdiff_t n = head;
#define VECTOR(WHOLE, COUNT, AT)                                                                                       \
    K(gemv_vector)(R, G, keeps, (WHOLE), (COUNT), x, kept, weight + (AT), weight_stride, begins, part + (AT), stride)
    if (head > 0) VECTOR(0, (int)head, 0);
    for (; n + LANES <= features; n += LANES) {
        for (int l = 0; l < lines; l++) K(fetch_lines)(&cursor, 1);
        VECTOR(1, LANES, n);
    }
    if (n < features) VECTOR(0, (int)(features - n), n);
#undef VECTOR
    *ahead = cursor;
}

/* Separate functions, so that the compiler allocates registers for each of them alone. */
typedef void K(gemv_rows)(int streams, ptrdiff_t features, const real *x, ptrdiff_t x_stride, const real *weight,
                          ptrdiff_t weight_stride, int begins, real *part, ptrdiff_t stride,
                          K(prefetch_cursor) * ahead, int lines);
#define GEMV_ROWS(NAME, R, KEEPS)                                                                                      \
    static __attribute__((noinline)) void K(NAME##R)(                                                                  \
        int streams, ptrdiff_t features, const real *x, ptrdiff_t x_stride, const real *weight,                        \
        ptrdiff_t weight_stride, int begins, real *part, ptrdiff_t stride, K(prefetch_cursor) * ahead, int lines)      \
    {                                                                                                                  \
        if (streams == 8)                                                                                              \
            K(gemv_strip)(R, 8, KEEPS, features, x, x_stride, weight, weight_stride, begins, part, stride, ahead,      \
                          lines);                                                                                      \
        else                                                                                                           \
            for (int n = 0; n < streams; n++)                                                                          \
                K(gemv_strip)(R, 1, KEEPS, features, x + n, x_stride, weight + n * weight_stride, weight_stride,       \
                              begins && n == 0, part, stride, ahead, 0);                                               \
    }
GEMV_ROWS(gemv_kept_, 1, 1)
GEMV_ROWS(gemv_kept_, 2, 1)
GEMV_ROWS(gemv_kept_, 3, 1)
GEMV_ROWS(gemv_kept_, 4, 1)
GEMV_ROWS(gemv_read_, 3, 0)
GEMV_ROWS(gemv_read_, 4, 0)
GEMV_ROWS(gemv_read_, 5, 0)
GEMV_ROWS(gemv_read_, 6, 0)
GEMV_ROWS(gemv_read_, 7, 0)
GEMV_ROWS(gemv_read_, 8, 0)
#undef GEMV_ROWS

/* Whole vectors of up to eight, whose sums stay in registers; returns the number of features. */
static ptrdiff_t K(gemv_narrow)(int rows, int inner, ptrdiff_t features, const real *x, ptrdiff_t x_stride,
                                const real *weight, ptrdiff_t weight_stride, int begins, real *out,
                                ptrdiff_t out_stride)
{
    static const real ones[ATTN_MAX_WIDTH] = {[0 ... ATTN_MAX_WIDTH - 1] = 1}; /* no earlier sum is scaled */
    const int vectors = (int)(features / LANES);
    if (features > 8 * LANES || vectors == 0) return 0;
    K(value_block)(rows, inner, vectors, x, x_stride, 1, weight, weight_stride, ones, begins, out, out_stride);
    return (ptrdiff_t)vectors * LANES;
}

/* Up to four rows at a time, whose elements are kept in registers.
 *
 * With more than two rows the hardware prefetcher leaves the memory idle while sums are added up. If the weight comes
 * from memory (`fetch`), they prefetch the next strip meanwhile, in memory's order; and where registers suffice, up to
 * eight rows read the weight once: at 31 GB/s in place of 18 (Zen 5). */
static void K(gemv)(int rows, int inner, ptrdiff_t features, const void *x, ptrdiff_t x_stride, const void *weight,
                    ptrdiff_t weight_stride, int fetch, int begins, void *part, void *out, ptrdiff_t out_stride)
{
    static K(gemv_rows) *const kept[] = {K(gemv_kept_1), K(gemv_kept_2), K(gemv_kept_3), K(gemv_kept_4)};
    static K(gemv_rows) *const read[] = {K(gemv_read_3), K(gemv_read_4), K(gemv_read_5),
                                         K(gemv_read_6), K(gemv_read_7), K(gemv_read_8)};
    const ptrdiff_t done =
        K(gemv_narrow)(rows, inner, features, x, x_stride, weight, weight_stride, begins, out, out_stride);
    if (done == features) return;
    weight = (const real *)weight + done;
    out = (real *)out + done;
    features -= done;
    const int fetches = fetch && rows > 2, reads = VEC_ACCUMULATORS >= 24 && fetches && rows <= 8;
    const int groups = reads ? 1 : (rows + 3) / 4, lines = fetches ? (8 * LANES / K(line) + groups - 1) / groups : 0;
    real near[8][8]; /* rows of x that are read again and again would be in each other's way in the L1 cache */
    for (int n = 0; n < inner; n += 8) {
        const int streams = inner - n < 8 ? inner - n : 8;
        const real *at = (const real *)weight + n * weight_stride;
        K(prefetch_cursor) ahead = K(rows_from)(at + 8 * weight_stride, weight_stride, features);
        for (int g = 0; g < groups; g++) {
            const int i = rows * g / groups, some = rows * (g + 1) / groups - i;
            const real *from = (const real *)x + i * x_stride + n;
            if (reads)
                for (int r = 0; r < some; r++) memcpy(near[r], from + r * x_stride, (size_t)streams * sizeof(real));
            (reads ? read[some - 3] : kept[some - 1])(streams, features, reads ? near[0] : from, x_stride, at,
                                                      weight_stride, n == 0, (real *)part + i * out_stride, out_stride,
                                                      &ahead, lines);
        }
    }
    for (int i = 0; i < rows; i++)
        for (ptrdiff_t n = 0; n < features; n += LANES) {
            real *to = (real *)out + i * out_stride + n;
            const vec sum = V(load)((const real *)part + i * out_stride + n);
            V(store)(to, begins ? sum : V(add)(V(load)(to), sum));
        }
}

/* A packed tile: as many rows at a time as fit in the registers, then the rest. */
static void K(gemm)(int rows, const attn_tile *tile, const void *x, ptrdiff_t x_stride, const attn_tile *next,
                    int begins, void *out, ptrdiff_t out_stride)
{
    enum { J = K(panel_vectors), R = K(panel_rows) };
    static const real ones[8] = {1, 1, 1, 1, 1, 1, 1, 1}; /* no earlier sum is scaled */
    const int panels = (tile->features + K(panel) - 1) / K(panel);
    K(packer) packer = K(begin_packing)(next);
    const ptrdiff_t steps = (ptrdiff_t)(rows / R) * panels * tile->inner; /* of whole register tiles */
    const int packs = packer.left <= steps ? 1 : 2;
#define TILE(N, PACKS)                                                                                                 \
    K(value_tile)((N), J, tile->inner, 0, (const real *)x + i * x_stride, x_stride, 1,                                 \
                  (const real *)tile->packed + (ptrdiff_t)c * K(panel) * tile->inner, K(panel), ones, begins,          \
                  (real *)out + i * out_stride + c * K(panel), out_stride, (PACKS), &packer)
    for (int c = 0; c < panels; c++) {
        int i = 0;
        for (; i + R <= rows; i += R) {
            if (packer.left < packs * tile->inner)
                TILE(R, 0);
            else if (packs == 1)
                TILE(R, 1);
            else
                TILE(R, 2);
        }
        if (R > 4)
            for (; i + 4 <= rows; i += 4) TILE(4, 0);
        for (; i + 2 <= rows; i += 2) TILE(2, 0);
        for (; i < rows; i++) TILE(1, 0);
    }
#undef TILE
    K(finish_packing)(next, &packer);
}

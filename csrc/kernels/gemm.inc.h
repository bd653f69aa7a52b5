/* Matrix products with a weight that lies as (inner, features), so that lanes hold features. An element is the same
 * chain of fma as in score_block, from zero over ATTN_FOLD_FEATURES inner elements: the memory order changes no bit.
 */

/* R rows times G rows of the weight, for one vector of features. */
ATTN_TEMPLATE void K(gemv_vector)(const int R, const int G, const int whole, int count, vec (*factor)[8],
                                  const real *weight, ptrdiff_t weight_stride, int begins, real *part, ptrdiff_t stride)
{
    vec sum[4];
    ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] =
        begins ? V(splat)(0) : K(load_part)(whole, count, part + r * stride);
    ATTN_UNROLL for (int g = 0; g < G; g++)
    {
        const vec w = K(load_part)(whole, count, weight + g * weight_stride);
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = V(fma)(factor[r][g], w, sum[r]);
    }
    ATTN_UNROLL for (int r = 0; r < R; r++) K(store_part)(whole, count, part + r * stride, sum[r]);
}

/* The same for all features: the weight's rows are read side by side as G streams, and the unfinished sums wait in
 * `part`. No transpose, no jump in memory, and the hardware prefetcher follows: one row reads 93% of a pure read (Zen
 * 5). */
ATTN_TEMPLATE void K(gemv_strip)(const int R, const int G, ptrdiff_t features, const real *x, ptrdiff_t x_stride,
                                 const real *weight, ptrdiff_t weight_stride, int begins, real *part, ptrdiff_t stride,
                                 const real *next, int next_rows)
{
    const ptrdiff_t head = K(before_line)(weight, weight_stride, features);
    vec factor[4][8];
    ATTN_UNROLL for (int r = 0; r < R; r++) ATTN_UNROLL for (int g = 0; g < G; g++) factor[r][g] =
        V(splat)(x[r * x_stride + g]);
    ptrdiff_t n = head;
#define VECTOR(WHOLE, COUNT, AT)                                                                                       \
    K(gemv_vector)(R, G, (WHOLE), (COUNT), factor, weight + (AT), weight_stride, begins, part + (AT), stride)
    if (head > 0) VECTOR(0, (int)head, 0);
    for (; n + LANES <= features; n += LANES) {
        for (int g = 0; g < next_rows; g++) __builtin_prefetch(next + g * weight_stride + n, 0, 2);
        VECTOR(1, LANES, n);
    }
    if (n < features) VECTOR(0, (int)(features - n), n);
#undef VECTOR
}

/* Separate functions, so that the compiler allocates registers for each of them alone. */
typedef void K(gemv_rows)(int streams, ptrdiff_t features, const real *x, ptrdiff_t x_stride, const real *weight,
                          ptrdiff_t weight_stride, int begins, real *part, ptrdiff_t stride, const real *next,
                          int next_rows);
#define GEMV_ROWS(R)                                                                                                   \
    static __attribute__((noinline)) void K(gemv_rows_##R)(                                                            \
        int streams, ptrdiff_t features, const real *x, ptrdiff_t x_stride, const real *weight,                        \
        ptrdiff_t weight_stride, int begins, real *part, ptrdiff_t stride, const real *next, int next_rows)            \
    {                                                                                                                  \
        if (streams == 8)                                                                                              \
            K(gemv_strip)(R, 8, features, x, x_stride, weight, weight_stride, begins, part, stride, next, next_rows);  \
        else                                                                                                           \
            for (int n = 0; n < streams; n++)                                                                          \
                K(gemv_strip)(R, 1, features, x + n, x_stride, weight + n * weight_stride, weight_stride,              \
                              begins && n == 0, part, stride, next, 0);                                                \
    }
GEMV_ROWS(1)
GEMV_ROWS(2)
GEMV_ROWS(3)
GEMV_ROWS(4)
#undef GEMV_ROWS

static void K(gemv)(int rows, int inner, ptrdiff_t features, const void *x, ptrdiff_t x_stride, const void *weight,
                    ptrdiff_t weight_stride, int begins, void *part, void *out, ptrdiff_t out_stride)
{
    static K(gemv_rows) *const by_rows[] = {K(gemv_rows_1), K(gemv_rows_2), K(gemv_rows_3), K(gemv_rows_4)};
    const int groups = (rows + 3) / 4;
    for (int n = 0; n < inner; n += 8) {
        const int streams = inner - n < 8 ? inner - n : 8;
        const real *at = (const real *)weight + n * weight_stride;
        for (int g = 0; g < groups; g++) { /* the first group reads the strip, the others prefetch the next one */
            const int i = 4 * g, parts = groups > 2 && g > 0 ? groups - 1 : 0;
            const int from = parts ? 8 * (g - 1) / parts : 0, to = parts ? 8 * g / parts : 0;
            by_rows[(rows - i < 4 ? rows - i : 4) - 1](streams, features, (const real *)x + i * x_stride + n, x_stride,
                                                       at, weight_stride, n == 0, (real *)part + i * out_stride,
                                                       out_stride, at + (8 + from) * weight_stride, to - from);
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
    int i = 0;
#define TILE(N, PACKS)                                                                                                 \
    K(value_tile)((N), J, tile->inner, 0, (const real *)x + i * x_stride, x_stride, 1,                                 \
                  (const real *)tile->packed + (ptrdiff_t)c * K(panel) * tile->inner, K(panel), ones, begins,          \
                  (real *)out + i * out_stride + c * K(panel), out_stride, (PACKS), &packer)
    for (; i + R <= rows; i += R)
        for (int c = 0; c < panels; c++) {
            if (packer.left < packs * tile->inner)
                TILE(R, 0);
            else if (packs == 1)
                TILE(R, 1);
            else
                TILE(R, 2);
        }
    if (R > 4)
        for (; i + 4 <= rows; i += 4)
            for (int c = 0; c < panels; c++) TILE(4, 0);
    for (; i + 2 <= rows; i += 2)
        for (int c = 0; c < panels; c++) TILE(2, 0);
    for (; i < rows; i++)
        for (int c = 0; c < panels; c++) TILE(1, 0);
#undef TILE
    K(finish_packing)(next, &packer);
}

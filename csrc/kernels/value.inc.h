/* Weighted values of one block: out (rows, columns) = correction * out + weights (rows, keys) . value (keys, columns).
 * The block's own sum is taken from zero, one chain of fma per element, and folded in with one fma.
 */

/* Ends a tile: folds the block's sum into the output. */
static inline void K(fold_value)(real *out, vec acc, real correction, int begins)
{
    V(store)(out, begins ? acc : V(fma)(V(load)(out), V(splat)(correction), acc));
}

/* The products of one key. */
ATTN_TEMPLATE void K(value_key)(const attn_element element, const int R, const int J, int fetch, const real *weights,
                                ptrdiff_t row_stride, const char *value, ptrdiff_t value_step, vec (*acc)[8])
{
    const ptrdiff_t size = K(element_size)(element);
    vec v[8];
    ATTN_UNROLL for (int j = 0; j < J; j++) v[j] = K(load_elements)(element, value + j * LANES * size);
    if (fetch)
        ATTN_UNROLL for (ptrdiff_t c = 0; c < J * LANES * size; c += 64)
            __builtin_prefetch(value + ATTN_ROWS_AHEAD * value_step + c);
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        const vec p = V(splat)(weights[r * row_stride]);
        ATTN_UNROLL for (int j = 0; j < J; j++) acc[r][j] = V(fma)(p, v[j], acc[r][j]);
    }
}

/* The register tile: R queries x J vectors of value columns, over all keys. `fetch`: this is the first tile of its
 * columns, which prefetches the next rows. `packs`: vectors that are packed for each key meanwhile (pack.inc.h). */
ATTN_TEMPLATE void K(value_tile)(const attn_element element, const int R, const int J, int keys, int fetch,
                                 const real *weights, ptrdiff_t row_stride, ptrdiff_t key_stride, const char *value,
                                 ptrdiff_t value_step, const real *correction, int begins, real *out,
                                 ptrdiff_t out_stride, const attn_element packed, const int packs, K(packer) * packer)
{
    vec acc[24][8];
    K(packer) next;
    if (packs > 0) next = *packer;

    ATTN_UNROLL for (int r = 0; r < R; r++)
        ATTN_UNROLL for (int j = 0; j < J; j++) acc[r][j] = V(splat)(0);

    if (element != OWN) { /* waits for the memory */
        for (int n = 0; n < keys; n++)
            K(value_key)(element, R, J, fetch, weights + n * key_stride, row_stride, value + n * value_step, value_step,
                         acc);
    } else {
        ATTN_UNROLL_SOME for (int n = 0; n < keys; n++) {
            if (packs > 0) K(pack_vectors)(packed, packs, &next);
            K(value_key)(element, R, J, fetch, weights + n * key_stride, row_stride, value + n * value_step, value_step,
                         acc);
        }
    }

    ATTN_UNROLL for (int r = 0; r < R; r++)
        ATTN_UNROLL for (int j = 0; j < J; j++)
            K(fold_value)(out + r * out_stride + j * LANES, acc[r][j], correction[r], begins);
    if (packs > 0) *packer = next;
}

/* The first of the keys that some of `rows` rows see; `keys` becomes their number, up to the last one. */
static inline int K(first_seen)(int rows, const int32_t *first, const int32_t *last, int *keys)
{
    int from = *keys, to = 0;
    for (int i = 0; i < rows; i++) {
        if (first[i] >= last[i]) continue;
        if (first[i] < from) from = first[i];
        if (last[i] > to) to = last[i];
    }
    *keys = to > from ? to - from : 0;
    return *keys > 0 ? from : 0;
}

/* One panel of J vectors of columns: as many rows at a time as fit in the registers, then the rest. Halves are read for
 * a few rows alone. */
ATTN_TEMPLATE void K(value_panel)(const attn_element element, const int J, int rows, int keys, const real *weights,
                                  ptrdiff_t row_stride, ptrdiff_t key_stride, const int32_t *first,
                                  const int32_t *last, const char *value, ptrdiff_t value_step,
                                  const real *correction, int begins, real *out, ptrdiff_t out_stride)
{
    const int most = element != OWN ? 4 : 12, fit = VEC_ACCUMULATORS / J, R = fit < most ? fit : most;
    int i = 0;
#define TILE(N)                                                                                                   \
    {                                                                                                             \
        int seen = keys;                                                                                          \
        const int from = first ? K(first_seen)((N), first + i, last + i, &seen) : 0;                              \
        K(value_tile)(element, (N), J, seen, i == 0, weights + i * row_stride + from * key_stride, row_stride,    \
                      key_stride, value + from * value_step, value_step, correction + i, begins,                  \
                      out + i * out_stride, out_stride, OWN, 0, NULL);                                                 \
    }
    for (; i + R <= rows; i += R) TILE(R)
    if (R > 4)
        for (; i + 4 <= rows; i += 4) TILE(4)
    if (R > 2)
        for (; i + 2 <= rows; i += 2) TILE(2)
    for (; i < rows; i++) TILE(1)
#undef TILE
}

/* All columns. */
ATTN_TEMPLATE void K(value_panels)(const attn_element element, int rows, int keys, int vectors, const real *weights,
                                   ptrdiff_t row_stride, ptrdiff_t key_stride, const int32_t *first,
                                   const int32_t *last, const char *value, ptrdiff_t value_step,
                                   const real *correction, int begins, real *out, ptrdiff_t out_stride)
{
    enum { WIDE = K(panel_vectors) };
    const ptrdiff_t size = K(element_size)(element);
#define PANEL(J)                                                                                                  \
    K(value_panel)(element, J, rows, keys, weights, row_stride, key_stride, first, last, value + j * LANES * size, \
                   value_step, correction, begins, out + j * LANES, out_stride)
    int j = 0;
    if (rows * 8 <= VEC_ACCUMULATORS) /* few rows: reads value once, in memory order */
        for (; j + 8 <= vectors; j += 8) PANEL(8);
    for (; j + WIDE <= vectors; j += WIDE) PANEL(WIDE);
    if (WIDE > 2 && element == OWN)
        for (; j + 2 <= vectors; j += 2) PANEL(2);
    for (; j < vectors; j++) PANEL(1);
#undef PANEL
}

typedef void K(values_of)(int rows, int keys, int vectors, const real *weights, ptrdiff_t row_stride,
                          ptrdiff_t key_stride, const int32_t *first, const int32_t *last, const char *value,
                          ptrdiff_t value_step, const real *correction, int begins, real *out, ptrdiff_t out_stride);
#define VALUES(NAME, ELEMENT)                                                                                          \
    ATTN_SEPARATE void K(value_##NAME)(                                                                                \
        int rows, int keys, int vectors, const real *weights, ptrdiff_t row_stride, ptrdiff_t key_stride,              \
        const int32_t *first, const int32_t *last, const char *value, ptrdiff_t value_step, const real *correction,    \
        int begins, real *out, ptrdiff_t out_stride)                                                                   \
    {                                                                                                                  \
        K(value_panels)(ELEMENT, rows, keys, vectors, weights, row_stride, key_stride, first, last, value, value_step, \
                        correction, begins, out, out_stride);                                                          \
    }
EACH_STORED(VALUES)
#undef VALUES

static void K(value_block)(attn_element element, int rows, int keys, int vectors, const void *weights,
                           ptrdiff_t row_stride, ptrdiff_t key_stride, const int32_t *first, const int32_t *last,
                           const void *value, ptrdiff_t value_stride, const void *correction, int begins, void *out,
                           ptrdiff_t out_stride)
{
#define VALUES(NAME, ELEMENT) K(value_##NAME),
    static K(values_of) *const values[] = {EACH_STORED(VALUES)};
#undef VALUES
    values[K(stored)(element)](rows, keys, vectors, weights, row_stride, key_stride, first, last, value,
                               value_stride * K(element_size)(element), correction, begins, out, out_stride);
}

static uint64_t K(finite_values)(int keys, int vectors, const void *value, ptrdiff_t value_stride, double factor,
                                 void *copy)
{
    const vec times = V(splat)((real)factor), none = V(splat)(0);
    uint64_t nonfinite = 0;
    for (int n = 0; n < keys; n++) {
        vec check = none;
        for (int j = 0; j < vectors; j++) {
            const vec v = V(mul)(V(load)((const real *)value + n * value_stride + j * LANES), times);
            const vec zero = V(mul)(v, none); /* NaN where v is not finite */
            check = V(add)(check, zero);
            V(store)((real *)copy + (n * vectors + j) * LANES, V(select)(V(eq)(zero, none), v, V(signed_zero)(v)));
        }
        nonfinite |= (uint64_t)V(has_nan)(check) << n;
    }
    return nonfinite;
}

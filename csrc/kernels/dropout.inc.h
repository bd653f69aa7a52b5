/* Dropout: computes which weights of a tile, or features of a row, are kept, and drops the others.
 *
 * The random numbers are those of Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel
 * random numbers: as easy as 1, 2, 3", 2011). They depend only on the seed, head, query and key, and so neither on
 * tiles nor on the order of work or the number of threads. The counter is (key / 4, query, head, 0), Philox's key is
 * the seed; output word w belongs to key 4 * (key / 4) + w. It is integer arithmetic, the same at every level.
 */

/* Ten rounds, in place: turns the counters c[0..3][l], l < count, into random numbers. */
static void K(philox)(int count, uint32_t c[4][ATTN_MAX_WIDTH], const uint32_t seed[2])
{
    uint32_t low = seed[0], high = seed[1];
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < count; l++) {
            const uint64_t a = (uint64_t)c[0][l] * 0xd2511f53u, b = (uint64_t)c[2][l] * 0xcd9e8d57u;
            c[0][l] = (uint32_t)(b >> 32) ^ c[1][l] ^ low;
            c[1][l] = (uint32_t)b;
            c[2][l] = (uint32_t)(a >> 32) ^ c[3][l] ^ high;
            c[3][l] = (uint32_t)a;
        }
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
}

/* The prefill layout: four keys of all rows at a time. */
static void K(drop_mask_lanes)(const attn_dropout *dropout, int rows, int keys, const uint32_t *query,
                               const uint32_t *head, uint32_t first, real *drop_mask, ptrdiff_t width)
{
    uint32_t c[4][ATTN_MAX_WIDTH];
    for (int n = 0; n < keys; n += 4) {
        for (int l = 0; l < rows; l++) {
            c[0][l] = first + (uint32_t)n / 4;
            c[1][l] = query[l];
            c[2][l] = head[l];
            c[3][l] = 0;
        }
        K(philox)(rows, c, dropout->seed);
        for (int w = 0; w < 4; w++)
            for (int l = 0; l < rows; l++) drop_mask[(n + w) * width + l] = c[w][l] > dropout->most ? 0 : -INFINITY;
    }
}

/* The decode layout: all keys of one row. */
static void K(drop_mask_row)(const attn_dropout *dropout, uint32_t query, uint32_t head, uint32_t first,
                             real *drop_mask)
{
    enum { COUNT = ATTN_BLOCK_KEYS / 4 };
    uint32_t c[4][ATTN_MAX_WIDTH];
    for (int l = 0; l < COUNT; l++) {
        c[0][l] = first + (uint32_t)l;
        c[1][l] = query;
        c[2][l] = head;
        c[3][l] = 0;
    }
    K(philox)(COUNT, c, dropout->seed);
    for (int l = 0; l < COUNT; l++)
        for (int w = 0; w < 4; w++) drop_mask[4 * l + w] = c[w][l] > dropout->most ? 0 : -INFINITY;
}

static void K(drop_mask_tile)(const attn_dropout *dropout, int rows, int keys, const uint32_t *query,
                              const uint32_t *head, uint32_t first, void *drop_mask, ptrdiff_t row_out,
                              ptrdiff_t key_out)
{
    if (row_out == 1)
        K(drop_mask_lanes)(dropout, rows, keys, query, head, first, drop_mask, key_out);
    else
        for (int i = 0; i < rows; i++)
            K(drop_mask_row)(dropout, query[i], head[i], first, (real *)drop_mask + i * row_out);
}

static void K(drop_weights)(ptrdiff_t n, const void *drop_mask, void *weights)
{
    const vec dropped = V(splat)(-INFINITY), none = V(splat)(0);
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        const vec w = V(load)((const real *)weights + i);
        V(store)((real *)weights + i, V(select)(V(eq)(V(load)((const real *)drop_mask + i), dropped), none, w));
    }
}

/* Dropped features are set to 0 instead of multiplied by it, so that a dropped NaN becomes 0. */
static void K(drop_features)(const attn_dropout *dropout, uint64_t row, ptrdiff_t first, ptrdiff_t features,
                             double factor, const void *x, void *y)
{
    const vec dropped = V(splat)(-INFINITY), none = V(splat)(0), times = V(splat)((real)factor);
    real drop_mask[ATTN_BLOCK_KEYS];
    for (ptrdiff_t i = 0; i < features; i += LANES) {
        const ptrdiff_t at = i % ATTN_BLOCK_KEYS;
        const real *in = (const real *)x + i;
        real *out = (real *)y + i;
        if (at == 0)
            K(drop_mask_row)(dropout, (uint32_t)row, (uint32_t)(row >> 32), (uint32_t)((first + i) / 4), drop_mask);
        const vec_mask gone = V(eq)(V(load)(drop_mask + at), dropped);
        const int count = features - i < LANES ? (int)(features - i) : LANES;
        const vec a = count == LANES ? V(load)(in) : V(load_first)(in, count);
        const vec b = V(select)(gone, none, V(mul)(a, times));
        if (count == LANES)
            V(store)(out, b);
        else
            V(store_first)(out, count, b);
    }
}

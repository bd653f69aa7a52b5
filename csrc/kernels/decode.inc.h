/* Decode: a few rows of queries against a long KV cache, which is read once, at memory bandwidth.
 *
 * Each lane holds a key: squares of LANES keys x LANES features are transposed in registers. Every score is the same
 * chain of fma over the features as in the prefill tile. Scores are (rows, ATTN_BLOCK_KEYS).
 */

enum { K(square_lines) = LANES * LANES < K(line) ? 1 : LANES * LANES / K(line) }; /* cache lines */

/* R rows against G groups of LANES keys over whole squares of features. Within a group, each fma depends on the one
 * before; the next group's transpose fills the wait.
 *
 *   query (R, features)                     row stride query_stride
 *   key   (G * LANES, features)             row stride key_stride
 *   acc   (G, R)                            in, out
 */
ATTN_TEMPLATE void K(decode_squares)(const int R, const int G, ptrdiff_t features, const real *query,
                                     ptrdiff_t query_stride, const real *key, ptrdiff_t key_stride,
                                     K(prefetch_cursor) * cursor, vec *acc)
{
    K(prefetch_cursor) stream = *cursor;
    const real *row[R];
    vec sum[ATTN_DECODE_ROWS];
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        row[r] = query + r * query_stride;
        __asm__("" : "+r"(row[r])); /* or the compiler computes addresses in vectors */
    }
    ATTN_UNROLL for (int c = 0; c < G * R; c++) sum[c] = acc[c];
    for (ptrdiff_t d = 0; d < features; d += LANES) {
        const real *at = key + d;
        ATTN_UNROLL for (int g = 0; g < G; g++)
        {
            vec k[LANES];
            at = K(load_transposed)(at, key_stride, k);
            ATTN_UNROLL for (int i = 0; i < LANES; i++) ATTN_UNROLL for (int r = 0; r < R; r++) sum[g * R + r] =
                V(fma)(k[i], V(splat)(row[r][d + i]), sum[g * R + r]);
            K(fetch_lines)(&stream, K(square_lines));
            __asm__ volatile("" ::: "memory"); /* one square at a time: two do not fit in the registers */
        }
    }
    ATTN_UNROLL for (int c = 0; c < G * R; c++) acc[c] = sum[c];
    *cursor = stream;
}

/* The same for features [from, to) of a transposed square; query points to its first feature. */
ATTN_TEMPLATE void K(decode_lanes)(const int R, int from, int to, const real *query, ptrdiff_t query_stride,
                                   const vec *k, vec *acc)
{
    for (int i = from; i < to; i++)
        ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] = V(fma)(k[i], V(splat)(query[r * query_stride + i]), acc[r]);
}

/* The same for G groups, of which only a single one may have fewer keys, over any number of features. */
ATTN_TEMPLATE void K(decode_edges)(const int R, const int G, int keys, ptrdiff_t features, const real *query,
                                   ptrdiff_t query_stride, const real *key, ptrdiff_t key_stride, vec *acc)
{
    for (ptrdiff_t d = 0; d < features; d += LANES)
        for (int g = 0; g < G; g++) {
            const int count = features - d < LANES ? (int)(features - d) : LANES;
            const real *at = key + g * LANES * key_stride + d;
            vec k[LANES];
            for (int i = 0; i < LANES; i++) k[i] = i < keys ? V(load_first)(at + i * key_stride, count) : V(splat)(0);
            K(transpose)(k);
            K(decode_lanes)(R, 0, count, query + d, query_stride, k, acc + g * R);
        }
}

/* Multiplies R rows with the keys of a block from n on, in whole sets of G groups of LANES keys. Returns the first key
 * not done. */
ATTN_TEMPLATE int K(decode_groups)(const int R, const int G, int n, int keys, ptrdiff_t head_dim, const real *query,
                                   ptrdiff_t query_stride, const real *key, ptrdiff_t key_stride, const real *next,
                                   real *scores)
{
    /* Where rows share sets of the L1 cache, squares begin with a cache line: one that two squares need is gone before
     * the second reads it. Short rows lose more at their ends than that. */
    enum { LONG = 2 * ATTN_FOLD_FEATURES };
    const int aligns = head_dim >= LONG && attn_aliases(key_stride * (ptrdiff_t)sizeof(real));
    for (; n < keys && (G == 1 || n + G * LANES <= keys); n += G * LANES) {
        const int left = keys - n < LANES ? keys - n : LANES;
        const real *k = key + n * key_stride;
        K(prefetch_cursor) cursor = K(rows_ahead_of)(key, next, n, key_stride, head_dim, G * LANES);
        vec acc[ATTN_DECODE_ROWS], shared[G][LANES]; /* shared: squares in which one fold ends and the next begins */

        ptrdiff_t from = 0;
        do { /* runs once even for head_dim 0, as scores are then 0 */
            const ptrdiff_t features = head_dim - from < ATTN_FOLD_FEATURES ? head_dim - from : ATTN_FOLD_FEATURES;
            /* squares are the features [head, end) */
            const ptrdiff_t head = aligns && left == LANES ? K(before_line)(k + from, key_stride, features) : 0;
            const ptrdiff_t end = left < LANES ? 0 : features - (features - head) % LANES;
            const int shares = head > 0 && from + end + LANES <= head_dim;
            const real *q = query + from, *at = k + from;
            ATTN_UNROLL for (int c = 0; c < G * R; c++) acc[c] = V(splat)(0);
            if (from == 0) {
                K(decode_edges)(R, G, left, head, q, query_stride, at, key_stride, acc);
            } else if (head > 0) {
                const int rest = LANES - (int)head; /* features of the square that the fold before had */
                for (int g = 0; g < G; g++)
                    K(decode_lanes)(R, rest, LANES, q - rest, query_stride, shared[g], acc + g * R);
            }
            K(decode_squares)(R, G, end - head, q + head, query_stride, at + head, key_stride, &cursor, acc);
            if (shares) {
                for (int g = 0; g < G; g++) {
                    K(load_transposed)(at + g * LANES * key_stride + end, key_stride, shared[g]);
                    K(decode_lanes)(R, 0, (int)(features - end), q + end, query_stride, shared[g], acc + g * R);
                }
                K(fetch_lines)(&cursor, G * K(square_lines));
            } else {
                K(decode_edges)(R, G, left, features - end, q + end, query_stride, at + end, key_stride, acc);
            }
            ATTN_UNROLL for (int g = 0; g < G; g++) ATTN_UNROLL for (int r = 0; r < R; r++)
            {
                real *out = scores + r * ATTN_BLOCK_KEYS + n + g * LANES;
                const vec fold = acc[g * R + r];
                V(store)(out, from > 0 ? V(add)(V(load)(out), fold) : fold);
            }
            from += ATTN_FOLD_FEATURES;
        } while (from < head_dim);
    }
    return n;
}

/* Whether the rows of two groups leave room in the L2 cache, which prefetching needs, and do not fall into the same few
 * sets of the L1 cache. */
static inline int K(two_fit)(ptrdiff_t head_dim, ptrdiff_t key_stride)
{
    enum { FIRST = 16 << 10, SECOND = 128 << 10 };
    const ptrdiff_t bytes = 2 * LANES * head_dim * (ptrdiff_t)sizeof(real);
    return bytes <= FIRST || (bytes <= SECOND && !attn_aliases(key_stride * (ptrdiff_t)sizeof(real)));
}

/* Separate functions, so that the compiler allocates registers for each of them alone. */
typedef int K(groups_of)(int n, int keys, ptrdiff_t head_dim, const real *query, ptrdiff_t query_stride,
                         const real *key, ptrdiff_t key_stride, const real *next, real *scores);
#define DECODE_GROUPS(R, G)                                                                                            \
    static __attribute__((noinline)) int K(decode_groups_##R##_##G)(                                                   \
        int n, int keys, ptrdiff_t head_dim, const real *query, ptrdiff_t query_stride, const real *key,               \
        ptrdiff_t key_stride, const real *next, real *scores)                                                          \
    {                                                                                                                  \
        return K(decode_groups)(R, G, n, keys, head_dim, query, query_stride, key, key_stride, next, scores);          \
    }
DECODE_GROUPS(1, 1)
DECODE_GROUPS(2, 1)
DECODE_GROUPS(3, 1)
DECODE_GROUPS(4, 1)
DECODE_GROUPS(5, 1)
DECODE_GROUPS(6, 1)
DECODE_GROUPS(7, 1)
DECODE_GROUPS(8, 1)
DECODE_GROUPS(1, 2)
DECODE_GROUPS(2, 2)
DECODE_GROUPS(3, 2)
DECODE_GROUPS(4, 2)
#undef DECODE_GROUPS

static void K(decode_scores)(int rows, int keys, ptrdiff_t head_dim, const void *queries, ptrdiff_t query_stride,
                             const void *key, ptrdiff_t key_stride, const void *next, int far, void *scores)
{
    static K(groups_of) *const single[] = {K(decode_groups_1_1), K(decode_groups_2_1), K(decode_groups_3_1),
                                           K(decode_groups_4_1), K(decode_groups_5_1), K(decode_groups_6_1),
                                           K(decode_groups_7_1), K(decode_groups_8_1)};
    static K(groups_of) *const two[] = {K(decode_groups_1_2), K(decode_groups_2_2), K(decode_groups_3_2),
                                        K(decode_groups_4_2)};
    enum { TWO = VEC_ACCUMULATORS / 6, WIDE = LANES * sizeof(real) == 64, FROM = 128, BELOW = 512 };
    /* Take two groups if their sums fit in the registers. A single row in wide vectors takes one if its keys come from
     * memory and have 128 to 511 features (Zen 5, 128 features: 1.1 times as fast; in the cache 0.85 times). */
    const int waits = WIDE && rows == 1 && far && head_dim >= FROM && head_dim < BELOW;
    const int alone = rows > TWO || waits;
    const int both = !alone && K(two_fit)(head_dim, key_stride);
    const int n = both ? two[rows - 1](0, keys, head_dim, queries, query_stride, key, key_stride, next, scores) : 0;
    if (n < keys) single[rows - 1](n, keys, head_dim, queries, query_stride, key, key_stride, next, scores);
}

/* hide_key for one row: bias and limits over `keys` scores, in place. */
static inline void K(decode_mask)(int keys, int first, int last, const real *bias, real *s)
{
    for (int n = 0; n < keys; n++) {
        if (bias) s[n] = bias[n] == -INFINITY ? -INFINITY : s[n] + bias[n];
        if (n < first || n >= last) s[n] = -INFINITY;
    }
}

/* softmax_block for one row, with the same four partial sums: keys 0, 4, 8 ... in the first, and so on. */
static inline void K(decode_row)(int keys, real *s, real *state_max, real *state_sum, real *correction)
{
    typedef real quad __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real))));
    const real top = K(row_maximum)(keys, s, *state_max), shift = top == -INFINITY ? 0 : top;
    real lanes[LANES];
    quad part = {0};
    int n = 0;

    for (; n + LANES <= keys; n += LANES) V(store)(s + n, K(exp2)(V(sub)(V(load)(s + n), V(splat)(shift))));
    if (n < keys) V(store_first)(s + n, keys - n, K(exp2)(V(sub)(V(load_first)(s + n, keys - n), V(splat)(shift))));
    for (n = 0; n + 4 <= keys; n += 4) part += *(const quad *)(s + n);
    for (int c = 0; n + c < keys; c++) part[c] += s[n + c];
    real sum = (part[0] + part[1]) + (part[2] + part[3]);

    vec scale = K(exp2)(V(splat)(*state_max - shift));
    V(store)(lanes, scale);
    *correction = lanes[0];
    V(store)(lanes, V(fma)(V(splat)(*state_sum), scale, V(splat)(sum)));
    *state_sum = lanes[0];
    *state_max = top;
}

static void K(decode_softmax)(int rows, int keys, const int32_t *first, const int32_t *last, const void *bias,
                              void *scores, attn_state *state, void *correction)
{
    for (int i = 0; i < rows; i++) {
        real *s = (real *)scores + i * ATTN_BLOCK_KEYS;
        const real *b = bias ? (const real *)bias + i * ATTN_BLOCK_KEYS : NULL;
        if (b || first[i] > 0 || last[i] < keys) K(decode_mask)(keys, first[i], last[i], b, s);
        K(decode_row)(keys, s, (real *)state->maximum + i, (real *)state->sum + i, (real *)correction + i);
    }
}

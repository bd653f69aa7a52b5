/* Decode: a few rows of queries against a long KV cache, which is read once, at memory bandwidth.
 *
 * Each lane holds a key: squares of LANES keys x LANES words are transposed in registers. A word is a real, or two
 * halves, which become reals afterwards. Every score is the same chain of fma over the features as in the prefill tile.
 * Scores are (rows, ATTN_BLOCK_KEYS).
 */

enum { K(square_lines) = LANES * LANES < K(line) ? 1 : LANES * LANES / K(line) }; /* cache lines */

/* Features of a square. */
static inline int K(square_width)(attn_element element) { return element == OWN ? LANES : 2 * LANES; }

/* Number of features before the first cache-line boundary if it is the same for all rows, else 0. A vector inside one
 * line is read in half the time. */
static inline ptrdiff_t K(before_line)(ptrdiff_t size, const char *row, ptrdiff_t step, ptrdiff_t features)
{
    const ptrdiff_t head = -((ptrdiff_t)row / size) & (LANES - 1);
    return step % (LANES * size) != 0 || head > features ? 0 : head;
}

/* Loads a square and transposes it part by part, as a whole square does not fit in the registers. The asm hides how row
 * addresses are related, so that the compiler does not keep all of them in registers. Returns the next square's
 * address. */
ATTN_TEMPLATE const char *K(load_transposed)(const ptrdiff_t size, const char *at, ptrdiff_t stride, vec *r)
{
    const char *group[K(parts)];
    ATTN_UNROLL for (int n = 0; n < K(parts); n++)
    {
        group[n] = at;
        at += K(part) * stride * size;
        __asm__("" : "+r"(at));
    }
    ATTN_UNROLL for (int i = 0; i < K(part); i++)
    {
        const real *row[K(parts)];
        vec rows[K(parts)];
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) row[n] =
            (const real *)(const void *)(group[n] + i * stride * size);
        V(load_across)(row, 0, rows);
        ATTN_UNROLL for (int n = 0; n < K(parts); n++) r[n * K(part) + i] = rows[n];
    }
    ATTN_UNROLL for (int n = 0; n < LANES; n += K(part)) V(transpose_inside)(r + n);
    return at;
}

/* Adds the products with word i of a transposed square, whose first feature is d. */
ATTN_TEMPLATE void K(decode_word)(const attn_element element, const int R, ptrdiff_t d, int i, vec word,
                                  const real *const *row, vec *sum)
{
    (void)element;
#if REAL_F32
    if (element != OWN) {
        const vec even = element == ATTN_ELEMENT_F16 ? vf32_even_f16(word) : vf32_even_bf16(word);
        const vec odd = element == ATTN_ELEMENT_F16 ? vf32_odd_f16(word) : vf32_odd_bf16(word);
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = V(fma)(even, V(splat)(row[r][d + 2 * i]), sum[r]);
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = V(fma)(odd, V(splat)(row[r][d + 2 * i + 1]), sum[r]);
        return;
    }
#endif
    ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = V(fma)(word, V(splat)(row[r][d + i]), sum[r]);
}

/* R rows against G groups of LANES keys over whole squares of features. Within a group, each fma depends on the one
 * before; the next group's transpose fills the wait.
 *
 *   query (R, features)                     row stride query_stride
 *   key   (G * LANES, features)             row stride key_stride, in elements
 *   acc   (G, R)                            in, out
 */
ATTN_TEMPLATE void K(decode_squares)(const attn_element element, const int R, const int G, const int to_l1,
                                     ptrdiff_t features, const real *query, ptrdiff_t query_stride, const char *key,
                                     ptrdiff_t key_stride, K(prefetch_cursor) * cursor, vec *acc)
{
    const ptrdiff_t size = K(element_size)(element), width = K(square_width)(element);
    K(prefetch_cursor) stream = *cursor;
    const real *row[R];
    vec sum[ATTN_DECODE_ROWS];
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        row[r] = query + r * query_stride;
        __asm__("" : "+r"(row[r])); /* or the compiler computes addresses in vectors */
    }
    ATTN_UNROLL for (int c = 0; c < G * R; c++) sum[c] = acc[c];
    for (ptrdiff_t d = 0; d < features; d += width) {
        const char *at = key + d * size;
        ATTN_UNROLL for (int g = 0; g < G; g++)
        {
            vec k[LANES];
            at = K(load_transposed)(size, at, key_stride, k);
            ATTN_UNROLL for (int i = 0; i < LANES; i++) K(decode_word)(element, R, d, i, k[i], row, sum + g * R);
            K(fetch_lines)(&stream, to_l1, K(square_lines));
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
ATTN_TEMPLATE void K(decode_edges)(const attn_element element, const int R, const int G, int keys, ptrdiff_t features,
                                   const real *query, ptrdiff_t query_stride, const char *key, ptrdiff_t key_stride,
                                   vec *acc)
{
    const ptrdiff_t size = K(element_size)(element);
    for (ptrdiff_t d = 0; d < features; d += LANES)
        for (int g = 0; g < G; g++) {
            const int count = features - d < LANES ? (int)(features - d) : LANES;
            const char *at = key + (g * LANES * key_stride + d) * size;
            vec k[LANES];
            for (int i = 0; i < LANES; i++)
                k[i] = i < keys ? K(load_first_elements)(element, at + i * key_stride * size, count) : V(splat)(0);
            K(transpose)(k);
            K(decode_lanes)(R, 0, count, query + d, query_stride, k, acc + g * R);
        }
}

/* Multiplies R rows with the keys of a block from n on, in whole sets of G groups of LANES keys. Returns the first key
 * not done. */
ATTN_TEMPLATE int K(decode_vectors)(const attn_element element, const int R, const int G, int n, int keys,
                                   ptrdiff_t head_dim, const real *query, ptrdiff_t query_stride, const char *key,
                                   ptrdiff_t key_stride, const char *next, int prefetch, real *scores)
{
    const ptrdiff_t size = K(element_size)(element);
    /* Where rows share sets of the L1 cache, squares begin with a cache line: one that two squares need is gone before
     * the second reads it. Short rows lose more at their ends than that. */
    enum { LONG = 2 * ATTN_FOLD_FEATURES };
    const int aligns = element == OWN && head_dim >= LONG && attn_aliases(key_stride * size);
    for (; n < keys && (G == 1 || n + G * LANES <= keys); n += G * LANES) {
        const int left = keys - n < LANES ? keys - n : LANES;
        const char *k = key + n * key_stride * size;
        K(prefetch_cursor) cursor = K(rows_ahead_of)(key, next, n, key_stride * size, head_dim * size, G * LANES);
        vec acc[ATTN_DECODE_ROWS], shared[G][LANES]; /* shared: squares in which one fold ends and the next begins */

        ptrdiff_t from = 0;
        do { /* runs once even for head_dim 0, as scores are then 0 */
            const ptrdiff_t features = head_dim - from < ATTN_FOLD_FEATURES ? head_dim - from : ATTN_FOLD_FEATURES;
            /* squares are the features [head, end) */
            const char *at = k + from * size;
            const ptrdiff_t head = aligns && left == LANES ? K(before_line)(size, at, key_stride * size, features) : 0;
            const ptrdiff_t end = left < LANES ? 0 : features - (features - head) % K(square_width)(element);
            const int shares = head > 0 && from + end + LANES <= head_dim;
            const real *q = query + from;
            ATTN_UNROLL for (int c = 0; c < G * R; c++) acc[c] = V(splat)(0);
            if (from == 0) {
                K(decode_edges)(element, R, G, left, head, q, query_stride, at, key_stride, acc);
            } else if (head > 0) {
                const int rest = LANES - (int)head; /* features of the square that the fold before had */
                for (int g = 0; g < G; g++)
                    K(decode_lanes)(R, rest, LANES, q - rest, query_stride, shared[g], acc + g * R);
            }
#define SQUARES(TO_L1)                                                                                                 \
    K(decode_squares)(element, R, G, (TO_L1), end - head, q + head, query_stride, at + head * size, key_stride,        \
                      &cursor, acc)
            if (prefetch & ATTN_TO_L1)
                SQUARES(1);
            else
                SQUARES(0);
#undef SQUARES
            if (shares) {
                for (int g = 0; g < G; g++) {
                    K(load_transposed)(size, at + (g * LANES * key_stride + end) * size, key_stride, shared[g]);
                    K(decode_lanes)(R, 0, (int)(features - end), q + end, query_stride, shared[g], acc + g * R);
                }
                if (prefetch & ATTN_TO_L1)
                    K(fetch_lines)(&cursor, 1, G * K(square_lines));
                else
                    K(fetch_lines)(&cursor, 0, G * K(square_lines));
            } else {
                K(decode_edges)
                (element, R, G, left, features - end, q + end, query_stride, at + end * size, key_stride, acc);
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
static inline int K(two_fit)(ptrdiff_t row_bytes, ptrdiff_t key_step)
{
    enum { FIRST = 16 << 10, SECOND = 128 << 10 };
    const ptrdiff_t bytes = 2 * LANES * row_bytes;
    return bytes <= FIRST || (bytes <= SECOND && !attn_aliases(key_step));
}

typedef int K(groups_of)(int n, int keys, ptrdiff_t head_dim, const real *query, ptrdiff_t query_stride,
                         const char *key, ptrdiff_t key_stride, const char *next, int prefetch, real *scores);
#define DECODE_GROUPS(NAME, ELEMENT, R, G)                                                                             \
    ATTN_SEPARATE int K(decode_##NAME##_##R##_##G)(int n, int keys, ptrdiff_t head_dim, const real *query,             \
                                                   ptrdiff_t query_stride, const char *key, ptrdiff_t key_stride,      \
                                                   const char *next, int prefetch, real *scores)                       \
    {                                                                                                                  \
        return K(decode_vectors)(ELEMENT, R, G, n, keys, head_dim, query, query_stride, key, key_stride, next,         \
                                 prefetch, scores);                                                                    \
    }
#define SINGLE(NAME, ELEMENT)                                                                                          \
    DECODE_GROUPS(NAME, ELEMENT, 1, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 2, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 3, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 4, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 5, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 6, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 7, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 8, 1)                                                                                 \
    DECODE_GROUPS(NAME, ELEMENT, 1, 2)
EACH_STORED(SINGLE)
#undef SINGLE
DECODE_GROUPS(own, OWN, 2, 2)
DECODE_GROUPS(own, OWN, 3, 2)
DECODE_GROUPS(own, OWN, 4, 2)
#undef DECODE_GROUPS

/* Whether a single row in wide vectors takes one group, not two: where its keys come from memory and have 128 to 511
 * features (Zen 5, 128 features: 1.1 times as fast; in the cache 0.85 times). */
static inline int K(row_waits)(int rows, int prefetch, ptrdiff_t head_dim)
{
    enum { WIDE = LANES * sizeof(real) == 64, FROM = 128, BELOW = 512 };
    return WIDE && rows == 1 && (prefetch & ATTN_FROM_MEMORY) && head_dim >= FROM && head_dim < BELOW;
}

static void K(decode_scores)(attn_element element, int rows, int keys, ptrdiff_t head_dim, const void *queries,
                             ptrdiff_t query_stride, const void *key, ptrdiff_t key_stride, const void *next,
                             int prefetch, void *scores)
{
#define SINGLE(NAME, ELEMENT)                                                                                          \
    {K(decode_##NAME##_1_1), K(decode_##NAME##_2_1), K(decode_##NAME##_3_1), K(decode_##NAME##_4_1),                   \
     K(decode_##NAME##_5_1), K(decode_##NAME##_6_1), K(decode_##NAME##_7_1), K(decode_##NAME##_8_1)},
    static K(groups_of) *const single[][8] = {EACH_STORED(SINGLE)};
#undef SINGLE
#define TWO(NAME, ELEMENT) K(decode_##NAME##_1_2),
    static K(groups_of) *const two_of_one[] = {EACH_STORED(TWO)};
#undef TWO
    static K(groups_of) *const two_of_more[] = {NULL, NULL, K(decode_own_2_2), K(decode_own_3_2), K(decode_own_4_2)};
    const int most = element == OWN ? VEC_ACCUMULATORS / 6 : 1; /* rows with room for the sums of two groups */
    const ptrdiff_t size = K(element_size)(element);
    int n = 0;
    if (rows <= most && !K(row_waits)(rows, prefetch, head_dim) && K(two_fit)(head_dim * size, key_stride * size))
        n = (rows == 1 ? two_of_one[K(stored)(element)] : two_of_more[rows])(0, keys, head_dim, queries, query_stride,
                                                                             key, key_stride, next, prefetch, scores);
    if (n < keys)
        single[K(stored)(element)][rows - 1](n, keys, head_dim, queries, query_stride, key, key_stride, next, prefetch,
                                             scores);
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

static void K(decode_softmax)(int rows, int keys, const attn_score_epilogue *epilogue, void *scores, attn_state *state,
                              void *correction)
{
    const real *bias = epilogue->bias;
    const int32_t *first = epilogue->first, *last = epilogue->last;
    for (int i = 0; i < rows; i++) {
        real *s = (real *)scores + i * ATTN_BLOCK_KEYS;
        const real *b = bias ? bias + i * ATTN_BLOCK_KEYS : NULL;
        if (b || first[i] > 0 || last[i] < keys) K(decode_mask)(keys, first[i], last[i], b, s);
        K(decode_row)(keys, s, (real *)state->maximum + i, (real *)state->sum + i, (real *)correction + i);
    }
}

/* Decode: a few rows of queries against a long KV cache, which is read once, at memory bandwidth.
 *
 * Each lane holds a key: squares of LANES keys x LANES features are transposed in registers. Every score is the same
 * chain of fma over the features as in the prefill tile. Scores are (rows, ATTN_BLOCK_KEYS).
 */

/* R rows against G groups of LANES keys over whole squares of features. Within a group, each fma depends on the one
 * before; the next group's transpose fills the wait.
 *
 *   query (R) pointers to `features` reals
 *   key   (G * LANES, features)             row stride key_stride
 *   acc   (G, R)                            in, out
 */
ATTN_TEMPLATE void K(decode_squares)(const int R, const int G, ptrdiff_t features, const real *const *query,
                                     const real *key, ptrdiff_t key_stride, K(row_stream) * soon, vec *acc)
{
    K(row_stream) stream = *soon;
    vec sum[ATTN_DECODE_ROWS];
    ATTN_UNROLL for (int n = 0; n < G * R; n++) sum[n] = acc[n];
    for (ptrdiff_t d = 0; d < features; d += LANES) {
        const real *at = key + d;
        ATTN_UNROLL for (int g = 0; g < G; g++)
        {
            vec k[LANES];
            at = K(load_transposed)(at, key_stride, k);
            ATTN_UNROLL for (int i = 0; i < LANES; i++)
                ATTN_UNROLL for (int r = 0; r < R; r++)
                    sum[g * R + r] = V(fma)(k[i], V(splat)(query[r][d + i]), sum[g * R + r]);
            K(fetch_lines)(&stream, LANES * LANES < K(line) ? 1 : LANES * LANES / K(line));
            __asm__ volatile("" ::: "memory"); /* one square at a time: two do not fit in the registers */
        }
    }
    ATTN_UNROLL for (int n = 0; n < G * R; n++) acc[n] = sum[n];
    *soon = stream;
}

/* The same for up to LANES keys and features, G = 1. */
ATTN_TEMPLATE void K(decode_edge)(const int R, int keys, int features, const real *const *query, const real *key,
                                  ptrdiff_t key_stride, vec *acc)
{
    vec k[LANES];
    for (int i = 0; i < LANES; i++) k[i] = i < keys ? V(load_first)(key + i * key_stride, features) : V(splat)(0);
    K(transpose)(k);
    for (int i = 0; i < features; i++)
        ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] = V(fma)(k[i], V(splat)(query[r][i]), acc[r]);
}

/* The number of groups processed together: G, unless their rows would fill the L2 cache, which prefetching needs, or
 * fall into the same few sets of the L1 cache. */
ATTN_TEMPLATE int K(groups_beside)(const int G, ptrdiff_t head_dim, ptrdiff_t key_stride)
{
    enum { FIRST = 16 << 10, SECOND = 128 << 10 };
    const ptrdiff_t bytes = G * LANES * head_dim * (ptrdiff_t)sizeof(real);
    const int near = bytes <= SECOND && !attn_aliases(key_stride * (ptrdiff_t)sizeof(real));
    return bytes <= FIRST || near ? G : 1;
}

/* The copy of a square: its row stride is ATTN_FOLD_FEATURES plus a cache line. Unused if a set has enough ways. */
enum { K(WAYS) = 8, K(COPY_STRIDE) = ATTN_FOLD_FEATURES + 64 / sizeof(real) };
enum { K(COPY_BYTES) = LANES > K(WAYS) ? LANES * K(COPY_STRIDE) * sizeof(real) : 0 };

/* Whether the rows of a square conflict in the L1 cache: more rows than ways, in few sets. They are then copied first,
 * ATTN_FOLD_FEATURES at a time. This raises a linear layer of one row from 17 to 21 GB/s (Zen 4), but does not pay for
 * four queries or more, which are limited by arithmetic. */
ATTN_TEMPLATE int K(share_sets)(ptrdiff_t head_dim, ptrdiff_t key_stride)
{
    enum { FIRST = 32 << 10 };
    const ptrdiff_t size = (ptrdiff_t)sizeof(real);
    return K(COPY_BYTES) > 0 && LANES * head_dim * size > FIRST && attn_aliases(key_stride * size);
}

ATTN_TEMPLATE void K(copy_rows)(ptrdiff_t features, const real *row, ptrdiff_t stride, real *copy)
{
    for (int i = 0; i < LANES; i++)
        for (ptrdiff_t d = 0; d < features; d += LANES)
            V(store)(copy + i * K(COPY_STRIDE) + d, V(load)(row + i * stride + d));
}

/* Up to R rows against all keys of a block; missing rows repeat the last one. `squares` is decode_squares for G groups,
 * `single` for one group. */
typedef void K(squares_of)(ptrdiff_t features, const real *const *query, const real *key, ptrdiff_t key_stride,
                           K(row_stream) * soon, vec *acc);
ATTN_TEMPLATE void K(decode_rows)(const int R, const int G, K(squares_of) * squares, K(squares_of) * single, int rows,
                                  int keys, ptrdiff_t head_dim, const real *queries, const real *key,
                                  ptrdiff_t key_stride, const real *next_key, real *copy, real *scores)
{
    const int most = K(groups_beside)(G, head_dim, key_stride);
    const int copies = R <= 2 && K(share_sets)(head_dim, key_stride);
    for (int n = 0, groups; n < keys; n += groups * LANES) {
        const int left = keys - n < LANES ? keys - n : LANES;
        const real *k = key + n * key_stride;
        K(row_stream) soon = K(rows_soon)(key, next_key, n, key_stride, head_dim, most * LANES);
        groups = keys - n >= most * LANES ? most : 1;

        for (ptrdiff_t from = 0; from == 0 || from < head_dim; from += ATTN_FOLD_FEATURES) {
            const ptrdiff_t inner = head_dim - from < ATTN_FOLD_FEATURES ? head_dim - from : ATTN_FOLD_FEATURES;
            const ptrdiff_t whole = left < LANES ? 0 : inner - inner % LANES;
            const real *query[R];
            vec acc[ATTN_DECODE_ROWS];
            ATTN_UNROLL for (int r = 0; r < R; r++) query[r] = queries + (r < rows ? r : rows - 1) * head_dim + from;
            ATTN_UNROLL for (int c = 0; c < G * R; c++) acc[c] = V(splat)(0);

            if (whole > 0 && copies) {
                K(copy_rows)(whole, k + from, key_stride, copy);
                single(whole, query, copy, K(COPY_STRIDE), &soon, acc);
            } else if (whole > 0) {
                (groups == G ? squares : single)(whole, query, k + from, key_stride, &soon, acc);
            }
            for (ptrdiff_t d = whole; d < inner; d += LANES) {
                const real *at[R];
                ATTN_UNROLL for (int r = 0; r < R; r++) at[r] = query[r] + d;
                for (int g = 0; g < groups; g++)
                    K(decode_edge)(R, left, inner - d < LANES ? (int)(inner - d) : LANES, at,
                                   k + g * LANES * key_stride + from + d, key_stride, acc + g * R);
            }
            for (int g = 0; g < groups; g++)
                for (int r = 0; r < rows; r++) {
                    real *out = scores + r * ATTN_BLOCK_KEYS + n + g * LANES;
                    V(store)(out, from > 0 ? V(add)(V(load)(out), acc[g * R + r]) : acc[g * R + r]);
                }
        }
    }
}

/* Two groups are processed together if they fit in the registers. */
#define GROUPS(R) (2 * (R) <= VEC_ACCUMULATORS / 3 ? 2 : 1)

/* Separate functions, so that the compiler allocates registers for each of them alone. */
#define DECODE_ROWS(R)                                                                                                 \
    static __attribute__((noinline)) void K(decode_squares_##R)(ptrdiff_t features, const real *const *query,          \
                                                                const real *key, ptrdiff_t key_stride,                 \
                                                                K(row_stream) * soon, vec * acc)                       \
    {                                                                                                                  \
        K(decode_squares)(R, GROUPS(R), features, query, key, key_stride, soon, acc);                                  \
    }                                                                                                                  \
    static __attribute__((noinline)) void K(decode_single_##R)(ptrdiff_t features, const real *const *query,           \
                                                               const real *key, ptrdiff_t key_stride,                  \
                                                               K(row_stream) * soon, vec * acc)                        \
    {                                                                                                                  \
        K(decode_squares)(R, 1, features, query, key, key_stride, soon, acc);                                          \
    }                                                                                                                  \
    static __attribute__((noinline)) void K(decode_rows_##R)(int rows, int keys, ptrdiff_t head_dim,                   \
                                                             const real *queries, const real *key,                     \
                                                             ptrdiff_t key_stride, const real *next, real *copy,       \
                                                             real *scores)                                             \
    {                                                                                                                  \
        K(decode_rows)                                                                                                 \
        (R, GROUPS(R), K(decode_squares_##R), K(decode_single_##R), rows, keys, head_dim, queries, key, key_stride,    \
         next, copy, scores);                                                                                          \
    }
DECODE_ROWS(1)
DECODE_ROWS(2)
DECODE_ROWS(4)
DECODE_ROWS(8)
#undef DECODE_ROWS
#undef GROUPS

static void K(decode_scores)(int rows, int keys, ptrdiff_t head_dim, const void *queries, const void *key,
                             ptrdiff_t key_stride, const void *next, void *copy, void *scores)
{
    (rows > 4   ? K(decode_rows_8)
     : rows > 2 ? K(decode_rows_4)
     : rows > 1 ? K(decode_rows_2)
                : K(decode_rows_1))(rows, keys, head_dim, queries, key, key_stride, next, copy, scores);
}

/* One row of mask_block: bias and limits over `keys` scores, in place. */
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

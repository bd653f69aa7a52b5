/* Decode: a few rows of queries against a long cache, which is read once, at the speed of memory.
 *
 * A key lies in each lane: squares of LANES keys x LANES features are transposed in registers, and every score is the
 * same chain of fma over the features that the prefill tile computes. Scores are (rows, ATTN_BLOCK_KEYS).
 */

/* A square of keys, transposed: k[d] lane i = key[i][d]. Rows past `count` repeat the last one; nobody reads them. */
ATTN_TEMPLATE void K(load_square)(const int whole, int count, int features, const real *key, ptrdiff_t key_stride,
                                  vec *k)
{
    if (whole) {
        ATTN_UNROLL for (int i = 0; i < LANES; i++) { /* addresses in fours: no more than there are registers */
            k[i] = V(load)(key + i % 4 * key_stride);
            if (i % 4 == 3) key += 4 * key_stride;
        }
    } else {
        for (int i = 0; i < LANES; i++) {
            k[i] = V(load_first)(key, features);
            if (i + 1 < count) key += key_stride;
        }
    }
    V(transpose)(k);
}

/*   queries (R, head_dim)             times scale * log2(e)
 *   key     (count, head_dim)         1 <= count <= LANES
 *   scores  (R, ATTN_BLOCK_KEYS)      out: LANES of each row
 */
ATTN_TEMPLATE void K(decode_tile)(const int R, int count, ptrdiff_t head_dim, const real *queries, const real *key,
                                  ptrdiff_t key_stride, real *scores)
{
    K(row_stream) soon = K(rows_soon)(key, key_stride, head_dim);

    for (ptrdiff_t from = 0; from == 0 || from < head_dim; from += ATTN_FOLD_FEATURES) {
        const ptrdiff_t to = head_dim - from > ATTN_FOLD_FEATURES ? from + ATTN_FOLD_FEATURES : head_dim;
        ptrdiff_t d = from;
        vec acc[ATTN_DECODE_ROWS], k[LANES];
        ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] = V(splat)(0);

        if (count == LANES)
            for (; d + LANES <= to; d += LANES) {
                K(load_square)(1, LANES, LANES, key + d, key_stride, k);
                ATTN_UNROLL for (int i = 0; i < LANES; i++)
                    ATTN_UNROLL for (int r = 0; r < R; r++)
                        acc[r] = V(fma)(k[i], V(splat)(queries[r * head_dim + d + i]), acc[r]);
                K(fetch_lines)(&soon, LANES * LANES < K(line) ? 1 : LANES * LANES / K(line));
            }
        for (; d < to; d += LANES) {
            const int features = to - d < LANES ? (int)(to - d) : LANES;
            K(load_square)(0, count, features, key + d, key_stride, k);
            for (int i = 0; i < features; i++)
                ATTN_UNROLL for (int r = 0; r < R; r++)
                    acc[r] = V(fma)(k[i], V(splat)(queries[r * head_dim + d + i]), acc[r]);
        }

        ATTN_UNROLL for (int r = 0; r < R; r++) {
            real *out = scores + r * ATTN_BLOCK_KEYS;
            V(store)(out, from > 0 ? V(add)(V(load)(out), acc[r]) : acc[r]);
        }
    }
}

/* A function each: in one, the compiler keeps the addresses of all of them, and no room for any. */
static __attribute__((noinline)) void K(decode_tile_1)(int count, ptrdiff_t head_dim, const real *queries,
                                                       const real *key, ptrdiff_t key_stride, real *scores)
{
    K(decode_tile)(1, count, head_dim, queries, key, key_stride, scores);
}
static __attribute__((noinline)) void K(decode_tile_2)(int count, ptrdiff_t head_dim, const real *queries,
                                                       const real *key, ptrdiff_t key_stride, real *scores)
{
    K(decode_tile)(2, count, head_dim, queries, key, key_stride, scores);
}
static __attribute__((noinline)) void K(decode_tile_4)(int count, ptrdiff_t head_dim, const real *queries,
                                                       const real *key, ptrdiff_t key_stride, real *scores)
{
    K(decode_tile)(4, count, head_dim, queries, key, key_stride, scores);
}
static __attribute__((noinline)) void K(decode_tile_8)(int count, ptrdiff_t head_dim, const real *queries,
                                                       const real *key, ptrdiff_t key_stride, real *scores)
{
    K(decode_tile)(8, count, head_dim, queries, key, key_stride, scores);
}

static void K(decode_scores)(int rows, int keys, ptrdiff_t head_dim, const void *queries, const void *key,
                             ptrdiff_t key_stride, void *scores)
{
    for (int n = 0; n < keys; n += LANES) {
        const int count = keys - n < LANES ? keys - n : LANES;
        const real *k = (const real *)key + n * key_stride, *q = queries;
        real *s = (real *)scores + n;
        for (int i = 0, r; i < rows; i += r, q += r * head_dim, s += r * ATTN_BLOCK_KEYS) {
            const int left = rows - i;
            r = left >= 8 && VEC_ACCUMULATORS >= 24 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            (r == 8   ? K(decode_tile_8)
             : r == 4 ? K(decode_tile_4)
             : r == 2 ? K(decode_tile_2)
                      : K(decode_tile_1))(count, head_dim, q, k, key_stride, s);
        }
    }
}

/* One row of mask_block: bias and limits over `keys` scores, in place. */
static inline void K(decode_mask)(int keys, int first, int last, const real *bias, real *s)
{
    for (int n = 0; n < keys; n++) {
        if (bias) s[n] = bias[n] == -INFINITY ? -INFINITY : s[n] + bias[n];
        if (n < first || n >= last) s[n] = -INFINITY;
    }
}

/* The maximum of `keys` scores and of what was there before, in any order: it is exact. */
static inline real K(decode_maximum)(int keys, const real *s, real before)
{
    real lanes[LANES];
    vec top = V(splat)(before);
    int n = 0;
    for (; n + LANES <= keys; n += LANES) top = V(max)(V(load)(s + n), top);
    V(store)(lanes, top);
    for (int i = 0; i < LANES; i++) before = lanes[i] > before ? lanes[i] : before;
    for (; n < keys; n++) before = s[n] > before ? s[n] : before;
    return before;
}

/* softmax_block for one row. The four partial sums are the same four: keys 0, 4, 8 ... in the first, and so on. */
static inline void K(decode_row)(int keys, real *s, real *state_max, real *state_sum, real *correction)
{
    typedef real quad __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real))));
    const real top = K(decode_maximum)(keys, s, *state_max), shift = top == -INFINITY ? 0 : top;
    real lanes[LANES];
    quad part = {0};
    int n = 0;

    for (; n + LANES <= keys; n += LANES) V(store)(s + n, K(exp2)(V(sub)(V(load)(s + n), V(splat)(shift))));
    if (n < keys)
        V(store_first)(s + n, keys - n, K(exp2)(V(sub)(V(load_first)(s + n, keys - n), V(splat)(shift))));
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

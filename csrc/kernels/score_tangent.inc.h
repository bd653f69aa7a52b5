/* Tangents of the scores distance and additive. A tangent is a sum over features: a slope times the tangents of a query
 * and a key. Arrays have score_block's layout. Rows of keys and rows of their tangents have the same stride.
 */

/* The change of a squared difference: 2 (query - key) * (their tangents' difference). */
static inline vec K(distance_term)(vec acc, vec query, vec key, vec of_query, vec of_key, vec factor)
{
    return V(fma)(V(mul)(V(sub)(query, key), factor), V(sub)(of_query, of_key), acc);
}

/* The change of factor * tanh(query + key). */
static inline vec K(additive_term)(vec acc, vec query, vec key, vec of_query, vec of_key, vec factor)
{
    vec slope;
    (void)K(tanh_and_slope)(V(add)(query, key), &slope);
    return V(fma)(V(mul)(slope, factor), V(add)(of_query, of_key), acc);
}

/* R keys and one vector of queries. One chain per pair, folded every ATTN_FOLD_FEATURES. The factor of a feature is
 * factor * weight[feature], or factor without a weight. */
#define TANGENT_KEYS(NAME, TERM)                                                                                       \
    ATTN_TEMPLATE void K(NAME)(const int R, ptrdiff_t features, const real *packed, const real *of_packed,             \
                               ptrdiff_t width, const real *key, const real *of_key, ptrdiff_t stride,                 \
                               const real *weight, real factor, real *scores)                                          \
    {                                                                                                                  \
        vec sum[R], acc[R];                                                                                            \
        for (ptrdiff_t from = 0; from == 0 || from < features; from += ATTN_FOLD_FEATURES) {                           \
            const ptrdiff_t to = features - from < ATTN_FOLD_FEATURES ? features : from + ATTN_FOLD_FEATURES;          \
            ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] = V(splat)(0);                                              \
            for (ptrdiff_t d = from; d < to; d++) {                                                                    \
                const vec q = V(load)(packed + d * width), of_q = V(load)(of_packed + d * width);                      \
                const vec f = V(splat)(weight ? weight[d] * factor : factor);                                          \
                ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] =                                                       \
                    TERM(acc[r], q, V(splat)(key[r * stride + d]), of_q, V(splat)(of_key[r * stride + d]), f);         \
            }                                                                                                          \
            ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = from > 0 ? V(add)(sum[r], acc[r]) : acc[r];               \
        }                                                                                                              \
        ATTN_UNROLL for (int r = 0; r < R; r++) V(store)(scores + r * width, sum[r]);                                  \
    }                                                                                                                  \
                                                                                                                       \
    static void K(NAME##_block)(int vectors, int keys, ptrdiff_t features, const void *packed, const void *of_packed,  \
                                const void *key, const void *of_key, ptrdiff_t stride, const void *weight,             \
                                double factor, void *scores)                                                           \
    {                                                                                                                  \
        const ptrdiff_t width = (ptrdiff_t)vectors * LANES;                                                            \
        for (int j = 0; j < vectors; j++) {                                                                            \
            const real *q = (const real *)packed + j * LANES, *of_q = (const real *)of_packed + j * LANES;             \
            real *out = (real *)scores + j * LANES;                                                                    \
            int n = 0;                                                                                                 \
            for (; n + 4 <= keys; n += 4) K(NAME)                                                                      \
            (4, features, q, of_q, width, (const real *)key + n * stride, (const real *)of_key + n * stride, stride,   \
             weight, (real)factor, out + n * width);                                                                   \
            for (; n < keys; n++) K(NAME)                                                                              \
            (1, features, q, of_q, width, (const real *)key + n * stride, (const real *)of_key + n * stride, stride,   \
             weight, (real)factor, out + n * width);                                                                   \
        }                                                                                                              \
    }

TANGENT_KEYS(distance_tangent, K(distance_term))
TANGENT_KEYS(additive_tangent, K(additive_term))
#undef TANGENT_KEYS

/* Additive scores, weight . tanh(query + key), in score_block's layout. tanh dominates the time, so one vector of
 * queries at a time is enough.
 */

/* R keys against J = 1 vector of queries, over some features: one chain of fma per score. */
ATTN_TEMPLATE void K(additive_tile)(const int R, ptrdiff_t features, const real *packed, ptrdiff_t width,
                                    const real *key, ptrdiff_t key_stride, const real *weight, real factor, vec *acc)
{
    ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] = V(splat)(0);
    for (ptrdiff_t d = 0; d < features; d++) {
        const vec q = V(load)(packed + d * width), w = V(splat)(weight[d] * factor);
        ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] =
            V(fma)(w, K(tanh)(V(add)(q, V(splat)(key[r * key_stride + d]))), acc[r]);
    }
}

/* R keys and all features, summed in parts of ATTN_FOLD_FEATURES; stores the scores. */
ATTN_TEMPLATE vec K(additive_keys)(const int R, ptrdiff_t features, const real *packed, ptrdiff_t width,
                                   const real *key, ptrdiff_t key_stride, const real *weight, real factor,
                                   const real *bias, const K(lane_limits) * limits, int n, real *scores, vec best)
{
    vec sum[R], acc[R];
    for (ptrdiff_t from = 0; from == 0 || from < features; from += ATTN_FOLD_FEATURES) {
        const ptrdiff_t some = features - from < ATTN_FOLD_FEATURES ? features - from : ATTN_FOLD_FEATURES;
        K(additive_tile)(R, some, packed + from * width, width, key + from, key_stride, weight + from, factor, acc);
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = from > 0 ? V(add)(sum[r], acc[r]) : acc[r];
    }
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        sum[r] = K(hide_key)(sum[r], bias ? bias + r * width : NULL, limits, n + r);
        V(store)(scores + r * width, sum[r]);
        best = V(max)(sum[r], best);
    }
    return best;
}

static void K(additive_block)(int vectors, int keys, ptrdiff_t features, const void *packed, const void *key,
                              ptrdiff_t key_stride, const void *weight, double factor,
                              const attn_score_epilogue *epilogue, void *scores, void *maximum)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const real *bias = epilogue->bias;
    const int32_t *first = epilogue->first, *last = epilogue->last;
    for (int j = 0; j < vectors; j++) {
        const real *q = (const real *)packed + j * LANES, *b = bias ? bias + j * LANES : NULL;
        real *out = (real *)scores + j * LANES, *top = (real *)maximum + j * LANES;
        K(lane_limits) limits, *const given = first ? &limits : NULL;
        vec best = V(load)(top);
        int n = 0, from = 0, to = keys;
        if (first) limits = K(limits_of)(first + j * LANES, last + j * LANES, &from, &to);
#define KEYS(R)                                                                                                     \
    best = K(additive_keys)((R), features, q, width, (const real *)key + n * key_stride, key_stride, weight,        \
                            (real)factor, b ? b + n * width : NULL, given, n, out + n * width, best)
        for (; n < from && n < keys; n++) K(hide_all)(out + n * width);
        for (; n + 4 <= to; n += 4) KEYS(4);
        for (; n < to; n++) KEYS(1);
        for (; n < keys; n++) K(hide_all)(out + n * width);
#undef KEYS
        V(store)(top, best);
    }
}

/* Distances as scores, -factor |q - k|^2, in two forms.
 *
 *     product   2 factor q . k - factor |q|^2 - factor |k|^2: score_block's, over two features more
 *     direct    -factor sum (q - k)^2
 *
 * The product form cancels: its error is about u factor (|q| + |k|)^2, even if q is close to k. Pairs whose
 * factor (|q|^2 + |k|^2) is below ATTN_PRODUCT_LIMIT use it nevertheless, as the error is then little more than that of
 * usual dot products; all others use the direct form. The choice depends only on the pair, and so do its bits. With the
 * default scale, normally distributed rows of 256 features have a sum of 23 +- 1.5.
 *
 * A row's *size* is -factor |row|^2, stored after its features. It is inf or NaN if the square overflows or the row is
 * not finite; such pairs use the direct form.
 */

/* Stores a row's size after its features. Returns the larger of |size| and `most`, or NaN. */
static inline double K(put_neg_sq_norm)(ptrdiff_t dim, double factor, real *row, double most)
{
    row[dim] = (real)(-factor * K(sum_of_squares)(dim, row, 1));
    const double size = fabs((double)row[dim]);
    return size > most || size != size ? size : most;
}

/*   key  (keys, dim + 2)   row stride `stride`; out: the size and 1, after the features
 * Returns the largest size, or NaN.
 */
static double K(distance_keys)(int keys, ptrdiff_t dim, ptrdiff_t stride, double factor, void *key)
{
    double most = 0;
    for (int n = 0; n < keys; n++) {
        real *row = (real *)key + n * stride;
        most = K(put_neg_sq_norm)(dim, factor, row, most);
        row[dim + 1] = 1;
    }
    return most;
}

/*   query   (rows, dim + 1)  row stride `stride`; out: the size, after the features
 *   scaled  (rows, dim + 2)  row stride `stride`; out: 2 factor query, 1, size, whose products with keys are the scores
 * Returns the largest size, or NaN.
 */
static double K(distance_queries)(int rows, ptrdiff_t dim, ptrdiff_t stride, double factor, void *query, void *scaled)
{
    double most = 0;
    for (int i = 0; i < rows; i++) {
        real *row = (real *)query + i * stride, *out = (real *)scaled + i * stride;
        most = K(put_neg_sq_norm)(dim, factor, row, most);
        for (ptrdiff_t d = 0; d < dim; d++) out[d] = (real)((double)row[d] * (2 * factor));
        out[dim] = 1;
        out[dim + 1] = row[dim];
    }
    return most;
}

/* sum = |packed - row|^2 of R rows and one vector of lanes: one chain of fma per pair, folded every
 * ATTN_FOLD_FEATURES. */
ATTN_TEMPLATE void K(direct_tile)(const int R, ptrdiff_t features, const real *packed, ptrdiff_t width, const real *row,
                                  ptrdiff_t row_stride, vec *sum)
{
    for (ptrdiff_t from = 0, to; from == 0 || from < features; from = to) {
        vec acc[R];
        to = features - from < ATTN_FOLD_FEATURES ? features : from + ATTN_FOLD_FEATURES;
        ATTN_UNROLL for (int r = 0; r < R; r++) acc[r] = V(splat)(0);
        for (ptrdiff_t d = from; d < to; d++) {
            const vec x = V(load)(packed + d * width);
            ATTN_UNROLL for (int r = 0; r < R; r++)
            {
                const vec apart = V(sub)(x, V(splat)(row[r * row_stride + d]));
                acc[r] = V(fma)(apart, apart, acc[r]);
            }
        }
        ATTN_UNROLL for (int r = 0; r < R; r++) sum[r] = from > 0 ? V(add)(sum[r], acc[r]) : acc[r];
    }
}

/* R rows and one vector of lanes. scores: in, the product forms; out, the scores. */
ATTN_TEMPLATE vec K(distance_rows)(const int R, ptrdiff_t features, const real *packed, ptrdiff_t width,
                                   const real *row, ptrdiff_t row_stride, real factor, const real *bias,
                                   const K(lane_limits) * limits, int n, real *scores, vec best)
{
    const vec lane_norm = V(load)(packed + features * width);
    const vec limit = V(splat)((real)ATTN_PRODUCT_LIMIT * (real)ATTN_PRODUCT_LIMIT);
    vec score[R], sum[R], missing = V(splat)(0);

    /* 1. the product form where it is accurate enough, else NaN. A size has the sign of -factor: compare squares. */
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        const vec size = V(add)(V(splat)(row[r * row_stride + features]), lane_norm);
        const vec_mask near = V(lt)(V(mul)(size, size), limit);
        score[r] = V(select)(near, V(load)(scores + r * width), V(splat)(NAN));
        missing = V(add)(missing, score[r]);
    }

    /* 2. the direct form in place of NaN. An accepted product has finite inputs, and so is never NaN itself. */
    if (V(has_nan)(missing)) {
        K(direct_tile)(R, features, packed, width, row, row_stride, sum);
        ATTN_UNROLL for (int r = 0; r < R; r++)
            score[r] = V(select)(V(eq)(score[r], score[r]), score[r], V(mul)(sum[r], V(splat)(-factor)));
    }

    /* 3. the bias and the limits */
    ATTN_UNROLL for (int r = 0; r < R; r++)
    {
        score[r] = K(hide_key)(score[r], bias ? bias + r * width : NULL, limits, n + r);
        V(store)(scores + r * width, score[r]);
        best = V(max)(score[r], best);
    }
    return best;
}

static void K(distance_block)(int vectors, int rows, ptrdiff_t features, const void *packed, const void *row,
                              ptrdiff_t row_stride, double factor, const attn_score_epilogue *epilogue, void *scores,
                              void *maximum)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    const real *bias = epilogue->bias;
    const int32_t *first = epilogue->first, *last = epilogue->last;
    for (int j = 0; j < vectors; j++) {
        const real *q = (const real *)packed + j * LANES, *b = bias ? bias + j * LANES : NULL;
        real *out = (real *)scores + j * LANES, *top = (real *)maximum + j * LANES;
        K(lane_limits) limits, *const given = first ? &limits : NULL;
        vec best = V(load)(top);
        int n = 0, from = 0, to = rows;
        if (first) limits = K(limits_of)(first + j * LANES, last + j * LANES, &from, &to);
#define ROWS(R)                                                                                                        \
    best = K(distance_rows)((R), features, q, width, (const real *)row + n * row_stride, row_stride, (real)factor,     \
                            b ? b + n * width : NULL, given, n, out + n * width, best)
        for (; n < from && n < rows; n++) K(hide_all)(out + n * width);
        for (; n + 8 <= to; n += 8) ROWS(8);
        for (; n < to; n++) ROWS(1);
        for (; n < rows; n++) K(hide_all)(out + n * width);
#undef ROWS
        V(store)(top, best);
    }
}

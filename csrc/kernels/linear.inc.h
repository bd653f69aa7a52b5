/* The way out of a matrix product: y = activation(product + bias) + residual.
 *
 * The product itself is score_block's or decode_scores's, with the weight's rows as keys and x's rows as queries.
 */

ATTN_TEMPLATE vec K(finish_product)(vec product, vec bias, attn_activation_kind activation, vec residual)
{
    vec y = V(add)(product, bias);
    if (activation == ATTN_KIND_RELU) y = V(max)(V(splat)(0), y); /* a NaN stays */
    return V(add)(y, residual);
}

/* Up to LANES features of one row; `count` of them when not whole. */
ATTN_TEMPLATE void K(finish_part)(const int whole, int count, vec product, const real *bias,
                                  attn_activation_kind activation, const real *residual, real *y)
{
    const vec none = V(splat)(0);
    if (whole)
        V(store)(y, K(finish_product)(product, bias ? V(load)(bias) : none, activation,
                                      residual ? V(load)(residual) : none));
    else
        V(store_first)(y, count, K(finish_product)(product, bias ? V(load_first)(bias, count) : none, activation,
                                                   residual ? V(load_first)(residual, count) : none));
}

/*   product   (features, vectors * LANES)            score_block's
 *   residual  (rows) pointers to `features` reals    or NULL
 *   y         (rows) pointers to `features` reals    out
 */
static void K(linear_block)(int vectors, int rows, int features, const void *product, const void *bias,
                            attn_activation_kind activation, const void *const *residual, void *const *y)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    for (int i = 0; i < rows; i += LANES)
        for (int n = 0; n < features; n += LANES) {
            const int lanes = rows - i < LANES ? rows - i : LANES;
            const int count = features - n < LANES ? features - n : LANES;
            const real *panel = (const real *)product + n * width + i, *b = bias ? (const real *)bias + n : NULL;
            vec r[LANES];
            if (count == LANES) K(turn_square)(1, LANES, panel, width, r);
            else K(turn_square)(0, count, panel, width, r);
            for (int l = 0; l < lanes; l++) {
                const real *other = residual ? (const real *)residual[i + l] + n : NULL;
                real *out = (real *)y[i + l] + n;
                if (count == LANES) K(finish_part)(1, LANES, r[l], b, activation, other, out);
                else K(finish_part)(0, count, r[l], b, activation, other, out);
            }
        }
}

/*   product   (rows, ATTN_BLOCK_KEYS)                decode_scores's */
static void K(linear_rows)(int rows, int features, const void *product, const void *bias,
                           attn_activation_kind activation, const void *const *residual, void *const *y)
{
    for (int i = 0; i < rows; i++)
        for (int n = 0; n < features; n += LANES) {
            const int count = features - n < LANES ? features - n : LANES;
            const real *from = (const real *)product + i * ATTN_BLOCK_KEYS + n;
            K(finish_part)(0, count, V(load_first)(from, count), bias ? (const real *)bias + n : NULL, activation,
                           residual ? (const real *)residual[i] + n : NULL, (real *)y[i] + n);
        }
}

/* The way out of a matrix product: y = activation(product + bias) * gate + residual.
 *
 * The product itself is score_block's or decode_scores's, with the weight's rows as keys and x's rows as queries.
 */

/* Features n, n + 1, ... of row i. */
ATTN_TEMPLATE void K(finish_part)(const int whole, int count, vec product, const attn_way_out *way, int i, int n,
                                  real *y)
{
    if (way->bias) product = V(add)(product, K(load_part)(whole, count, (const real *)way->bias + n));
    if (way->activation != ATTN_KIND_IDENTITY) product = K(activation)(way->activation, product);
    if (way->gate) product = V(mul)(product, K(load_part)(whole, count, (const real *)way->gate[i] + n));
    if (way->residual) product = V(add)(product, K(load_part)(whole, count, (const real *)way->residual[i] + n));
    if (whole) V(store)(y, product);
    else V(store_first)(y, count, product);
}

/*   product   (features, vectors * LANES)            score_block's
 *   y         (rows) pointers to `features` reals    out
 */
static void K(linear_block)(int vectors, int rows, int features, const void *product, const attn_way_out *way,
                            void *const *y)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    for (int i = 0; i < rows; i += LANES)
        for (int n = 0; n < features; n += LANES) {
            const int lanes = rows - i < LANES ? rows - i : LANES;
            const int count = features - n < LANES ? features - n : LANES;
            const real *panel = (const real *)product + n * width + i;
            vec r[LANES];
            if (count == LANES) K(turn_square)(1, LANES, panel, width, r);
            else K(turn_square)(0, count, panel, width, r);
            for (int l = 0; l < lanes; l++) {
                real *out = (real *)y[i + l] + n;
                if (count == LANES) K(finish_part)(1, LANES, r[l], way, i + l, n, out);
                else K(finish_part)(0, count, r[l], way, i + l, n, out);
            }
        }
}

/*   product   (rows, ATTN_BLOCK_KEYS)                decode_scores's */
static void K(linear_rows)(int rows, int features, const void *product, const attn_way_out *way, void *const *y)
{
    for (int i = 0; i < rows; i++)
        for (int n = 0; n < features; n += LANES) {
            const int count = features - n < LANES ? features - n : LANES;
            const real *from = (const real *)product + i * ATTN_BLOCK_KEYS + n;
            K(finish_part)(0, count, V(load_first)(from, count), way, i, n, (real *)y[i] + n);
        }
}

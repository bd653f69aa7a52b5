/* The epilogue of a matrix product: y = activation(product + bias) * gate + residual.
 *
 * The product itself is score_block's or decode_scores's, with the weight's rows as keys and x's rows as queries, or
 * gemv's or gemm's.
 */

/* Features n, n + 1, ... of row i. `plain`: no gate, and ReLU or no activation, so that no function is called. */
ATTN_TEMPLATE void K(finish_part)(const int plain, const int whole, int count, vec product, const attn_epilogue *e,
                                  int i, ptrdiff_t n, real *y)
{
    if (e->bias) product = V(add)(product, K(load_part)(whole, count, (const real *)e->bias + n));
    if (plain) {
        if (e->activation == ATTN_KIND_RELU) product = V(max)(V(splat)(0), product); /* keeps NaN */
    } else {
        product = K(activation)(e->activation, product);
        if (e->gate) product = V(mul)(product, K(load_part)(whole, count, (const real *)e->gate[i] + n));
    }
    if (e->residual) product = V(add)(product, K(load_part)(whole, count, (const real *)e->residual[i] + n));
    K(store_part)(whole, count, y, product);
}

static inline int K(is_plain)(const attn_epilogue *e)
{
    return e->gate == NULL && (e->activation == ATTN_KIND_IDENTITY || e->activation == ATTN_KIND_RELU);
}

/*   product   (features, vectors * LANES)            score_block's
 *   y         (rows) pointers to `features` reals    out
 */
ATTN_TEMPLATE void K(linear_panel)(const int plain, int vectors, int rows, int features, const real *product,
                                   const attn_epilogue *e, void *const *y)
{
    const ptrdiff_t width = (ptrdiff_t)vectors * LANES;
    for (int i = 0; i < rows; i += LANES)
        for (int n = 0; n < features; n += LANES) {
            const int lanes = rows - i < LANES ? rows - i : LANES;
            const int count = features - n < LANES ? features - n : LANES;
            const real *panel = product + n * width + i;
            vec r[LANES];
            if (count == LANES)
                K(transpose_square)(1, LANES, panel, width, r);
            else
                K(transpose_square)(0, count, panel, width, r);
            for (int l = 0; l < lanes; l++) {
                real *out = (real *)y[i + l] + n;
                if (count == LANES)
                    K(finish_part)(plain, 1, LANES, r[l], e, i + l, n, out);
                else
                    K(finish_part)(plain, 0, count, r[l], e, i + l, n, out);
            }
        }
}

static void K(linear_block)(int vectors, int rows, int features, const void *product, const attn_epilogue *e,
                            void *const *y)
{
    const attn_epilogue own = *e; /* a copy that stores to y cannot alias */
    if (K(is_plain)(e))
        K(linear_panel)(1, vectors, rows, features, product, &own, y);
    else
        K(linear_panel)(0, vectors, rows, features, product, &own, y);
}

/*   product   (rows, stride)                         of decode_scores, gemv or gemm */
ATTN_TEMPLATE void K(linear_row)(const int plain, int i, ptrdiff_t features, const real *product,
                                 const attn_epilogue *e, real *y)
{
    ptrdiff_t n = 0;
    for (; n + LANES <= features; n += LANES) K(finish_part)(plain, 1, LANES, V(load)(product + n), e, i, n, y + n);
    if (n < features) {
        const int count = (int)(features - n);
        K(finish_part)(plain, 0, count, V(load_first)(product + n, count), e, i, n, y + n);
    }
}

static void K(linear_rows)(int rows, ptrdiff_t features, const void *product, ptrdiff_t product_stride,
                           const attn_epilogue *e, void *const *y)
{
    const attn_epilogue own = *e;
    const int plain = K(is_plain)(e);
    for (int i = 0; i < rows; i++) {
        const real *row = (const real *)product + i * product_stride;
        if (plain)
            K(linear_row)(1, i, features, row, &own, y[i]);
        else
            K(linear_row)(0, i, features, row, &own, y[i]);
    }
}

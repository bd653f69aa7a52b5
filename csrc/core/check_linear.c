/* All rules on the arguments of a linear layer. */
#include "error.h"
#include "linear.h"

attn_status attn_check_linear(const attn_linear_args *args, attn_error *error)
{
    const attn_tensor *x = &args->x, *weight = &args->weight, *bias = &args->bias;
    if (x->ndim < 1 || x->ndim > ATTN_MAX_AXES) FAIL("x has %d axes, expected (..., inner)", x->ndim);
    if (weight->ndim != 2)
        FAIL("weight has shape %s, expected 2 axes: (features, inner)", attn_shape_text(weight->ndim, weight->shape));
    if (attn_last_size(weight) != attn_last_size(x))
        FAIL("weight has shape %s, expected (features, %td): x has shape %s%s",
             attn_shape_text(weight->ndim, weight->shape), attn_last_size(x), attn_shape_text(x->ndim, x->shape),
             weight->shape[0] == attn_last_size(x) ? "; for x @ weight, pass weight.T" : "");
    if (bias->data && (bias->ndim != 1 || bias->shape[0] != weight->shape[0]))
        FAIL("bias has shape %s, expected (%td,): weight has shape %s", attn_shape_text(bias->ndim, bias->shape),
             weight->shape[0], attn_shape_text(weight->ndim, weight->shape));
    if (attn_count_rows(x, weight->shape[0]) < 0)
        FAIL("the result is too large for memory: x %s, weight %s", attn_shape_text(x->ndim, x->shape),
             attn_shape_text(weight->ndim, weight->shape));
    if (attn_size_of_real(x->dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    const attn_tensor *others[] = {weight, bias, &args->gate, &args->residual};
    static const char *const names[] = {"weight", "bias", "gate", "residual"};
    for (int n = 0; n < 4; n++) {
        if (others[n]->data && !attn_go_together(others[n]->dtype, x->dtype))
            FAIL("%s has another dtype than x", names[n]);
        if (n > 1 && others[n]->data && attn_check_rows(names[n], others[n], x, weight->shape[0], error) != ATTN_OK)
            return ATTN_INVALID;
    }
    if (bias->data && bias->shape[0] > 1 && bias->strides[0] != attn_size_of_real(bias->dtype))
        FAIL("bias must be contiguous");
    return ATTN_OK;
}

attn_status attn_setup_linear(const attn_linear_args *args, attn_product *product, attn_error *error)
{
    const attn_tensor *x = &args->x, *weight = &args->weight;
    const attn_status status = attn_check_linear(args, error);
    if (status != ATTN_OK) return status;
    product->dtype = attn_computed(x->dtype);
    product->weight_dtype = weight->dtype;
    product->bias_dtype = args->bias.dtype;
    product->rows = attn_count_rows(x, weight->shape[0]);
    product->inner = attn_last_size(x);
    product->features = weight->shape[0];
    attn_rows_of(x, &product->x);
    attn_rows_of(&args->gate, &product->gate);
    attn_rows_of(&args->residual, &product->residual);
    product->weight = weight->data;
    product->bias = args->bias.data;
    product->weight_row = weight->strides[0];
    product->weight_column = weight->strides[1];
    product->activation = args->activation;
    return ATTN_OK;
}

attn_status attn_layout_linear(const attn_linear_args *args, const attn_tensor *y, attn_product *product,
                               attn_error *error)
{
    attn_status status = attn_setup_linear(args, product, error);
    if (status == ATTN_OK) status = attn_check_rows("y", y, &args->x, product->features, error);
    if (status != ATTN_OK) return status;
    attn_rows_of(y, &product->y);
    return ATTN_OK;
}

attn_status attn_linear(const attn_linear_args *args, attn_tensor y, attn_error *error)
{
    attn_product product;
    const attn_status status = attn_layout_linear(args, &y, &product, error);
    return status == ATTN_OK ? attn_multiply(&product, args->num_threads, error) : status;
}

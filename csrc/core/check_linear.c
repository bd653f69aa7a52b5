/* All rules on the arguments of a linear layer. */
#include "error.h"
#include "linear.h"

#define FAIL(...) return attn_fail(error, ATTN_INVALID, __VA_ARGS__)

static ptrdiff_t last_size(const attn_view *view) { return view->shape[view->axes - 1]; }
static ptrdiff_t last_stride(const attn_view *view) { return view->strides[view->axes - 1]; }

/* Axes that follow one another in memory are one axis: a row is then found without a division for each. */
void attn_rows_of(const attn_view *view, attn_rows *rows)
{
    rows->data = view->data;
    rows->axes = 0;
    if (view->data == NULL) return;
    rows->column = last_stride(view);
    for (int n = 0; n < view->axes - 1; n++) {
        const int last = rows->axes - 1;
        if (view->shape[n] == 1) continue;
        if (last >= 0 && rows->strides[last] == view->shape[n] * view->strides[n]) {
            rows->shape[last] *= view->shape[n];
            rows->strides[last] = view->strides[n];
        } else {
            rows->shape[rows->axes] = view->shape[n];
            rows->strides[rows->axes++] = view->strides[n];
        }
    }
}

/* The number of x's rows; -1 when they, or the bytes of the result, do not fit. */
static ptrdiff_t count_rows(const attn_view *x, ptrdiff_t features)
{
    ptrdiff_t rows = 1, bytes;
    int over = 0;
    for (int n = 0; n < x->axes - 1; n++) over |= __builtin_mul_overflow(rows, x->shape[n], &rows);
    over |= __builtin_mul_overflow(features > 0 ? features : 1, (ptrdiff_t)sizeof(double), &bytes);
    over |= __builtin_mul_overflow(rows, bytes, &bytes);
    return over ? -1 : rows;
}

/* y and residual: x's rows, with `features` contiguous columns. */
static attn_status check_rows(const char *name, const attn_view *view, const attn_view *x, ptrdiff_t features,
                              attn_error *error)
{
    const ptrdiff_t size = x->dtype == ATTN_F64 ? 8 : 4;
    ptrdiff_t expected[ATTN_MAX_AXES];
    int same = view->axes == x->axes;
    for (int n = 0; n < x->axes; n++) {
        expected[n] = n < x->axes - 1 ? x->shape[n] : features;
        same = same && view->shape[n] == expected[n];
    }
    if (!same)
        FAIL("%s has shape %s, expected %s", name, attn_shape_text(view->axes, view->shape),
             attn_shape_text(x->axes, expected));
    if (view->dtype != x->dtype) FAIL("%s has another dtype than x", name);
    if (features > 1 && count_rows(x, features) > 0 && last_stride(view) != size)
        FAIL("%s must have a contiguous last axis", name);
    return ATTN_OK;
}

attn_status attn_check_linear(const attn_linear_args *args, attn_error *error)
{
    const attn_view *x = &args->x, *weight = &args->weight, *bias = &args->bias;
    if (x->axes < 1 || x->axes > ATTN_MAX_AXES) FAIL("x has %d axes, expected (..., inner)", x->axes);
    if (weight->axes != 2)
        FAIL("weight has shape %s, expected 2 axes: (features, inner)", attn_shape_text(weight->axes, weight->shape));
    if (last_size(weight) != last_size(x))
        FAIL("weight has shape %s, expected (features, %td): x has shape %s",
             attn_shape_text(weight->axes, weight->shape), last_size(x), attn_shape_text(x->axes, x->shape));
    if (bias->data && (bias->axes != 1 || bias->shape[0] != weight->shape[0]))
        FAIL("bias has shape %s, expected (%td,): weight has shape %s", attn_shape_text(bias->axes, bias->shape),
             weight->shape[0], attn_shape_text(weight->axes, weight->shape));
    if (count_rows(x, weight->shape[0]) < 0)
        FAIL("the result is too large for memory: x %s, weight %s", attn_shape_text(x->axes, x->shape),
             attn_shape_text(weight->axes, weight->shape));
    if (x->dtype != ATTN_F32 && x->dtype != ATTN_F64) FAIL("x must be float32 or float64");
    if (weight->dtype != x->dtype) FAIL("weight has another dtype than x");
    if (bias->data && bias->dtype != x->dtype) FAIL("bias has another dtype than x");
    if (args->residual.data) {
        const attn_status status = check_rows("residual", &args->residual, x, weight->shape[0], error);
        if (status != ATTN_OK) return status;
    }
    if (bias->data && bias->shape[0] > 1 && bias->strides[0] != (x->dtype == ATTN_F64 ? 8 : 4))
        FAIL("bias must be contiguous");
    return ATTN_OK;
}

attn_status attn_lay_linear(const attn_linear_args *args, attn_view y, attn_product *product, attn_error *error)
{
    const attn_view *x = &args->x, *weight = &args->weight;
    attn_status status = attn_check_linear(args, error);
    if (status == ATTN_OK) status = check_rows("y", &y, x, weight->shape[0], error);
    if (status != ATTN_OK) return status;

    product->dtype = x->dtype;
    product->rows = count_rows(x, weight->shape[0]);
    product->inner = last_size(x);
    product->features = weight->shape[0];
    attn_rows_of(x, &product->x);
    attn_rows_of(&args->residual, &product->residual);
    attn_rows_of(&y, &product->y);
    product->weight = weight->data;
    product->bias = args->bias.data;
    product->weight_row = weight->strides[0];
    product->weight_column = weight->strides[1];
    product->activation = args->activation;
    return ATTN_OK;
}

attn_status attn_linear(const attn_linear_args *args, attn_view y, attn_error *error)
{
    attn_product product;
    const attn_status status = attn_lay_linear(args, y, &product, error);
    return status == ATTN_OK ? attn_multiply(&product, args->num_threads, error) : status;
}

/* Rows of tensors: counted, merged and checked. See walk.h. */
#include "walk.h"

#include "arena.h"
#include "error.h"

size_t attn_layout_contiguous(const attn_tensor *x, ptrdiff_t columns, attn_tensor *tensor)
{
    const attn_dtype dtype = attn_computed(x->dtype);
    size_t bytes = (size_t)attn_size_of_real(dtype);
    *tensor = (attn_tensor){.dtype = dtype, .ndim = x->ndim};
    for (int n = x->ndim - 1; n >= 0; n--) {
        tensor->shape[n] = n == x->ndim - 1 ? columns : x->shape[n];
        tensor->strides[n] = (ptrdiff_t)bytes;
        bytes = attn_saturating_mul(bytes, (size_t)tensor->shape[n]);
    }
    return bytes;
}

/* Merges axes that are contiguous with each other, so that finding a row takes fewer divisions. */
void attn_rows_of(const attn_tensor *tensor, attn_tensor *rows)
{
    rows->data = tensor->data;
    rows->dtype = tensor->dtype;
    rows->ndim = 0;
    if (tensor->data == NULL) return;
    for (int n = 0; n < tensor->ndim; n++) {
        const int last = rows->ndim - 1, is_row = n < tensor->ndim - 1;
        if (is_row && tensor->shape[n] == 1) continue;
        if (is_row && last >= 0 && rows->strides[last] == tensor->shape[n] * tensor->strides[n]) {
            rows->shape[last] *= tensor->shape[n];
            rows->strides[last] = tensor->strides[n];
        } else {
            rows->shape[rows->ndim] = tensor->shape[n];
            rows->strides[rows->ndim++] = tensor->strides[n];
        }
    }
}

ptrdiff_t attn_count_rows(const attn_tensor *tensor, ptrdiff_t columns)
{
    ptrdiff_t rows = 1, bytes;
    int over = 0;
    for (int n = 0; n < tensor->ndim - 1; n++) over |= __builtin_mul_overflow(rows, tensor->shape[n], &rows);
    over |= __builtin_mul_overflow(columns > 0 ? columns : 1, (ptrdiff_t)sizeof(double), &bytes);
    over |= __builtin_mul_overflow(rows, bytes, &bytes);
    return over ? -1 : rows;
}

attn_status attn_check_rows(const char *name, const attn_tensor *tensor, const attn_tensor *x, ptrdiff_t columns,
                            attn_error *error)
{
    ptrdiff_t expected[ATTN_MAX_AXES];
    int same = tensor->ndim == x->ndim;
    for (int n = 0; n < x->ndim; n++) {
        expected[n] = n < x->ndim - 1 ? x->shape[n] : columns;
        same = same && tensor->shape[n] == expected[n];
    }
    if (!same)
        FAIL("%s has shape %s, expected %s", name, attn_shape_text(tensor->ndim, tensor->shape),
             attn_shape_text(x->ndim, expected));
    if (!attn_go_together(tensor->dtype, x->dtype)) FAIL("%s has another dtype than x", name);
    if (columns > 1 && attn_count_rows(x, columns) > 0 && attn_last_stride(tensor) != attn_size_of_real(tensor->dtype))
        FAIL("%s must have a contiguous last axis", name);
    return ATTN_OK;
}

attn_status attn_check_vector(const char *name, const attn_tensor *vector, const attn_tensor *x, attn_error *error)
{
    const ptrdiff_t size = attn_last_size(x);
    if (vector->ndim != 1 || vector->shape[0] != size)
        FAIL("%s has shape %s, expected (%td,): x has shape %s", name, attn_shape_text(vector->ndim, vector->shape),
             size, attn_shape_text(x->ndim, x->shape));
    if (!attn_go_together(vector->dtype, x->dtype)) FAIL("%s has another dtype than x", name);
    if (size > 1 && vector->strides[0] != attn_size_of_real(vector->dtype)) FAIL("%s must be contiguous", name);
    return ATTN_OK;
}

#include "walk.h"

#include "arena.h"
#include "error.h"

size_t attn_layout_contiguous(const attn_view *x, ptrdiff_t columns, attn_own_view *own)
{
    size_t bytes = x->dtype == ATTN_F64 ? 8 : 4;
    for (int n = x->axes - 1; n >= 0; n--) {
        own->shape[n] = n == x->axes - 1 ? columns : x->shape[n];
        own->strides[n] = (ptrdiff_t)bytes;
        bytes = attn_saturating_mul(bytes, (size_t)own->shape[n]);
    }
    own->view = (attn_view){NULL, x->dtype, x->axes, own->shape, own->strides};
    return bytes;
}

/* Merges axes that are contiguous with each other, so that finding a row takes fewer divisions. */
void attn_rows_of(const attn_view *view, attn_rows *rows)
{
    rows->data = view->data;
    rows->axes = 0;
    if (view->data == NULL) return;
    rows->column = attn_last_stride(view);
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

ptrdiff_t attn_count_rows(const attn_view *view, ptrdiff_t columns)
{
    ptrdiff_t rows = 1, bytes;
    int over = 0;
    for (int n = 0; n < view->axes - 1; n++) over |= __builtin_mul_overflow(rows, view->shape[n], &rows);
    over |= __builtin_mul_overflow(columns > 0 ? columns : 1, (ptrdiff_t)sizeof(double), &bytes);
    over |= __builtin_mul_overflow(rows, bytes, &bytes);
    return over ? -1 : rows;
}

attn_status attn_check_rows(const char *name, const attn_view *view, const attn_view *x, ptrdiff_t columns,
                            attn_error *error)
{
    const ptrdiff_t size = x->dtype == ATTN_F64 ? 8 : 4;
    ptrdiff_t expected[ATTN_MAX_AXES];
    int same = view->axes == x->axes;
    for (int n = 0; n < x->axes; n++) {
        expected[n] = n < x->axes - 1 ? x->shape[n] : columns;
        same = same && view->shape[n] == expected[n];
    }
    if (!same)
        FAIL("%s has shape %s, expected %s", name, attn_shape_text(view->axes, view->shape),
             attn_shape_text(x->axes, expected));
    if (view->dtype != x->dtype) FAIL("%s has another dtype than x", name);
    if (columns > 1 && attn_count_rows(x, columns) > 0 && attn_last_stride(view) != size)
        FAIL("%s must have a contiguous last axis", name);
    return ATTN_OK;
}

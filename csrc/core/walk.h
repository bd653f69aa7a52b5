/* The rows of an array: all axes but the last, merged into as few as possible. */
#ifndef ATTN_CORE_WALK_H
#define ATTN_CORE_WALK_H

#include "attn.h"

/* A row's elements lie `column` bytes apart. data == NULL: not given. */
typedef struct {
    char *data;
    int axes;
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
    ptrdiff_t column;
} attn_rows;

/* A view with its own shape and strides; the view points into this. */
typedef struct {
    attn_view view;
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
} attn_own_view;

/* Describes a contiguous array of x's dtype and axes, but with `columns` columns; its data is set later. Returns its
 * size in bytes, at most SIZE_MAX. */
size_t attn_layout_contiguous(const attn_view *x, ptrdiff_t columns, attn_own_view *own);

/* Fills `rows`, which keeps no pointer to the view's shape. Entries beyond rows->axes are not set. */
void attn_rows_of(const attn_view *view, attn_rows *rows);

/* The number of rows; -1 when rows of `columns` doubles would not fit in memory. */
ptrdiff_t attn_count_rows(const attn_view *view, ptrdiff_t columns);

/* Checks that an array has x's rows and dtype, with `columns` contiguous elements each. */
attn_status attn_check_rows(const char *name, const attn_view *view, const attn_view *x, ptrdiff_t columns,
                            attn_error *error);

/* The address of row n. */
static inline char *attn_row_at(const attn_rows *rows, ptrdiff_t n)
{
    char *at = rows->data;
    for (int axis = rows->axes - 1; axis > 0; axis--) {
        at += n % rows->shape[axis] * rows->strides[axis];
        n /= rows->shape[axis];
    }
    return rows->axes > 0 ? at + n * rows->strides[0] : at;
}

static inline ptrdiff_t attn_last_size(const attn_view *view) { return view->shape[view->axes - 1]; }
static inline ptrdiff_t attn_last_stride(const attn_view *view) { return view->strides[view->axes - 1]; }

#endif

/* Tensors and their rows. */
#ifndef ATTN_CORE_WALK_H
#define ATTN_CORE_WALK_H

#include "attn.h"

static const attn_tensor attn_none = {.data = NULL}; /* no tensor */

/* Describes a contiguous array of x's dtype and axes, but with `columns` columns; its data is set later. Returns its
 * size in bytes, at most SIZE_MAX. */
size_t attn_layout_contiguous(const attn_tensor *x, ptrdiff_t columns, attn_tensor *tensor);

/* Merges the axes of a tensor but the last into as few as possible, for attn_row_at. */
void attn_rows_of(const attn_tensor *tensor, attn_tensor *rows);

/* The number of rows; -1 when rows of `columns` doubles would not fit in memory. */
ptrdiff_t attn_count_rows(const attn_tensor *tensor, ptrdiff_t columns);

/* Checks that an array has x's rows and dtype, with `columns` contiguous elements each. */
attn_status attn_check_rows(const char *name, const attn_tensor *tensor, const attn_tensor *x, ptrdiff_t columns,
                            attn_error *error);

/* The address of row n. */
static inline char *attn_row_at(const attn_tensor *rows, ptrdiff_t n)
{
    char *at = rows->data;
    for (int axis = rows->ndim - 2; axis > 0; axis--) {
        at += n % rows->shape[axis] * rows->strides[axis];
        n /= rows->shape[axis];
    }
    return rows->ndim > 1 ? at + n * rows->strides[0] : at;
}

static inline ptrdiff_t attn_last_size(const attn_tensor *tensor) { return tensor->shape[tensor->ndim - 1]; }
static inline ptrdiff_t attn_last_stride(const attn_tensor *tensor) { return tensor->strides[tensor->ndim - 1]; }

#endif

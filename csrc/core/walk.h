/* Tensors and their rows. */
#ifndef ATTN_CORE_WALK_H
#define ATTN_CORE_WALK_H

#include "attn.h"

/* Bytes of a stored real; 0 for other dtypes. */
static inline ptrdiff_t attn_size_of_real(attn_dtype dtype)
{
    static const unsigned char sizes[] = {[ATTN_F16] = 2, [ATTN_BF16] = 2, [ATTN_F32] = 4, [ATTN_F64] = 8};
    return (size_t)dtype < sizeof sizes ? sizes[dtype] : 0;
}

/* Number n of floats or doubles, of `size` bytes. */
static inline double attn_real_at(const void *reals, ptrdiff_t n, ptrdiff_t size)
{
    return size == 4 ? (double)((const float *)reals)[n] : ((const double *)reals)[n];
}

static inline void attn_put_real(void *reals, ptrdiff_t n, ptrdiff_t size, double x)
{
    if (size == 4)
        ((float *)reals)[n] = (float)x;
    else
        ((double *)reals)[n] = x;
}

static inline int attn_is_half(attn_dtype dtype) { return dtype == ATTN_F16 || dtype == ATTN_BF16; }

/* The dtype in which numbers of a stored dtype are computed. */
static inline attn_dtype attn_computed(attn_dtype dtype) { return dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32; }

/* Whether numbers of two stored dtypes are computed together: not float16 with bfloat16, nor float64 with another. */
static inline int attn_go_together(attn_dtype a, attn_dtype b)
{
    if (a == b) return attn_size_of_real(a) > 0;
    if (attn_size_of_real(a) == 0 || attn_size_of_real(b) == 0) return 0;
    return attn_computed(a) == attn_computed(b) && !(attn_is_half(a) && attn_is_half(b));
}

static const attn_tensor attn_none = {.data = NULL}; /* no tensor */

/* Describes a contiguous array with x's axes, but with `columns` columns, of the dtype in which x is computed; its data
 * is set later. Returns its size in bytes, at most SIZE_MAX. */
size_t attn_layout_contiguous(const attn_tensor *x, ptrdiff_t columns, attn_tensor *tensor);

/* Merges the axes of a tensor but the last into as few as possible, for attn_row_at. */
void attn_rows_of(const attn_tensor *tensor, attn_tensor *rows);

/* The number of rows; -1 when rows of `columns` doubles would not fit in memory. */
ptrdiff_t attn_count_rows(const attn_tensor *tensor, ptrdiff_t columns);

/* Checks that an array has x's rows, with `columns` contiguous elements each, and a dtype that goes with x's. */
attn_status attn_check_rows(const char *name, const attn_tensor *tensor, const attn_tensor *x, ptrdiff_t columns,
                            attn_error *error);

/* Checks that a vector is contiguous, as long as x's last axis, and has a dtype that goes with x's. */
attn_status attn_check_vector(const char *name, const attn_tensor *vector, const attn_tensor *x, attn_error *error);

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

/* A matrix product that is checked all through: y = activation(x . weight^T + bias) + residual. */
#ifndef ATTN_CORE_LINEAR_H
#define ATTN_CORE_LINEAR_H

#include "attn.h"

/* The rows of an array: all axes but the last, as few as they can be walked as, whose elements lie `column` bytes apart.
 * data == NULL: not given. */
typedef struct {
    char *data;
    int axes;
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
    ptrdiff_t column;
} attn_rows;

/* check_linear.c: the rows of a view; and where row n begins. */
void attn_rows_of(const attn_view *view, attn_rows *rows);
static inline char *attn_row_at(const attn_rows *rows, ptrdiff_t n)
{
    char *at = rows->data;
    for (int axis = rows->axes - 1; axis > 0; axis--) {
        at += n % rows->shape[axis] * rows->strides[axis];
        n /= rows->shape[axis];
    }
    return rows->axes > 0 ? at + n * rows->strides[0] : at;
}

typedef struct {
    attn_dtype dtype;
    ptrdiff_t rows, inner, features;
    attn_rows x, residual, y;  /* residual, y: contiguous columns */
    const char *weight, *bias; /* bias: contiguous, may be NULL */
    ptrdiff_t weight_row, weight_column;
    attn_activation activation;
} attn_product;

/* check_linear.c: fills `product`; all rules on the arguments and on y. Nothing in it points to a shape of the caller's. */
attn_status attn_lay_linear(const attn_linear_args *args, attn_view y, attn_product *product, attn_error *error);

attn_status attn_multiply(const attn_product *product, int num_threads, attn_error *error);

#endif

/* Where the axes of an array lie, for the rules on inputs (check.c) and on results (results.c). */
#ifndef ATTN_CORE_CHECK_H
#define ATTN_CORE_CHECK_H

#include "problem.h"

/* A hint of messages about shapes that fit if the axes of lengths and heads are swapped. */
#define ATTN_OTHER_LAYOUT "if the axes are (..., length, heads, dim), pass layout='bshd'"

/* Axes are counted from the right, the last is 1. An axis that is not there has size 1. */
static inline ptrdiff_t attn_size_of(const attn_tensor *tensor, int axis)
{
    return axis <= tensor->ndim ? tensor->shape[tensor->ndim - axis] : 1;
}
/* 0 where the axis is broadcast. */
static inline ptrdiff_t attn_stride_of(const attn_tensor *tensor, int axis)
{
    return axis <= tensor->ndim && tensor->shape[tensor->ndim - axis] != 1 ? tensor->strides[tensor->ndim - axis] : 0;
}

/* Where the named axes lie, counted from the right. */
typedef struct {
    int length, heads, batch; /* batch: the rightmost batch axis; heads: 0 without a heads axis */
} attn_axis_places;

/* Where the axes of query, key, value and output lie. */
static inline attn_axis_places attn_places_of(attn_layout layout, int has_heads)
{
    attn_axis_places at = {.length = 2, .heads = has_heads ? 3 : 0, .batch = 3 + has_heads};
    if (has_heads && layout == ATTN_LAYOUT_BSHD) {
        at.length = 3;
        at.heads = 2;
    }
    return at;
}

/* Where the axes of lse, and of its gradient, lie: (..., heads, length). */
static inline attn_axis_places attn_lse_places(int has_heads)
{
    return (attn_axis_places){.length = 1, .heads = has_heads ? 2 : 0, .batch = 2 + has_heads};
}

/* Turns an array into an operand of the problem: its strides, by named axis. */
static inline void attn_resolve(const attn_tensor *tensor, const attn_axis_places *at, const attn_problem *p,
                                attn_operand *operand)
{
    operand->data = tensor->data;
    operand->dtype = tensor->dtype;
    operand->column = attn_stride_of(tensor, 1);
    operand->row = attn_stride_of(tensor, at->length);
    operand->head = at->heads ? attn_stride_of(tensor, at->heads) : 0;
    for (int n = 0; n < p->batch_axes; n++)
        operand->batch[n] = attn_stride_of(tensor, at->batch + p->batch_axes - 1 - n);
}

/* results.c: a result that is given must have this shape and dtype. */
attn_status attn_check_result(const char *name, const attn_tensor *tensor, int axes, const ptrdiff_t *shape,
                              attn_dtype dtype, attn_error *error);

/* check_masks.c: the first integer of an ATTN_I64 tensor that is out of range, or NULL. */
const int64_t *attn_out_of_range(const attn_tensor *integers, int64_t least, int64_t most);

#endif

/* A matrix product that is checked all through: y = activation(x . weight^T + bias) * gate + residual. */
#ifndef ATTN_CORE_LINEAR_H
#define ATTN_CORE_LINEAR_H

#include "walk.h"

typedef struct {
    attn_dtype dtype;
    ptrdiff_t rows, inner, features;
    attn_rows x, gate, residual, y; /* all but x: contiguous columns */
    const char *weight, *bias;      /* bias: contiguous, may be NULL */
    ptrdiff_t weight_row, weight_column;
    attn_activation activation;
} attn_product;

/* check_linear.c: fills `product`; all rules on the arguments and on y. Nothing in it points to a shape of the caller's. */
attn_status attn_lay_linear(const attn_linear_args *args, attn_view y, attn_product *product, attn_error *error);

attn_status attn_multiply(const attn_product *product, int num_threads, attn_error *error);

#endif

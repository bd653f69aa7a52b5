/* A fully checked matrix product: y = activation(x . weight^T + bias) * gate + residual. */
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

/* check_linear.c: checks the arguments and y; fills `product`, which keeps no pointer to the caller's shapes. */
attn_status attn_layout_linear(const attn_linear_args *args, attn_view y, attn_product *product, attn_error *error);

attn_status attn_multiply(const attn_product *product, int num_threads, attn_error *error);

#endif

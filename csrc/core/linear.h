/* A fully checked matrix product: y = activation(x . weight^T + bias) * gate + residual. Each array has a dtype of its
 * own. */
#ifndef ATTN_CORE_LINEAR_H
#define ATTN_CORE_LINEAR_H

#include "walk.h"

typedef struct {
    attn_dtype dtype, weight_dtype, bias_dtype; /* dtype: of the sums */
    ptrdiff_t rows, inner, features;
    attn_tensor x, gate, residual, y; /* rows; all but x: contiguous columns */
    const char *weight, *bias;        /* bias: contiguous, may be NULL */
    ptrdiff_t weight_row, weight_column;
    attn_activation activation;
} attn_product;

/* check_linear.c: checks the arguments. attn_setup_linear fills all of `product` except y; attn_layout_linear checks y,
 * too. */
attn_status attn_check_linear(const attn_linear_args *args, attn_error *error);
attn_status attn_setup_linear(const attn_linear_args *args, attn_product *product, attn_error *error);
attn_status attn_layout_linear(const attn_linear_args *args, const attn_tensor *y, attn_product *product,
                               attn_error *error);

attn_status attn_multiply(const attn_product *product, int num_threads, attn_error *error);

#endif

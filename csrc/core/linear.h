/* A matrix product that is checked all through: y = activation(x . weight^T + bias) + residual. */
#ifndef ATTN_CORE_LINEAR_H
#define ATTN_CORE_LINEAR_H

#include "attn.h"

/* The rows of an array: all axes but the last, whose elements lie `column` bytes apart. data == NULL: not given. */
typedef struct {
    char *data;
    int axes;
    const ptrdiff_t *shape, *strides;
    ptrdiff_t column;
} attn_rows;

typedef struct {
    attn_dtype dtype;
    ptrdiff_t rows, inner, features;
    attn_rows x, residual, y;  /* residual, y: contiguous columns */
    const char *weight, *bias; /* bias: contiguous, may be NULL */
    ptrdiff_t weight_row, weight_column;
    attn_activation activation;
} attn_product;

attn_status attn_multiply(const attn_product *product, int num_threads, attn_error *error);

#endif

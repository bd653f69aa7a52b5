/* A fully checked normalisation. */
#ifndef ATTN_CORE_NORM_H
#define ATTN_CORE_NORM_H

#include "walk.h"

typedef struct {
    attn_norm kind;
    ptrdiff_t rows, columns;
    attn_tensor x, residual, sum, y; /* rows of contiguous columns */
    attn_tensor weight, bias;        /* contiguous, may be left out */
    double epsilon;
} attn_normalization;

/* attn_check_norm checks the arguments; attn_layout_norm also checks y and the optional sum, and fills
 * `norm`. */
attn_status attn_check_norm(const attn_norm_args *args, attn_error *error);
attn_status attn_layout_norm(const attn_norm_args *args, attn_tensor sum, attn_tensor y, attn_normalization *norm,
                             attn_error *error);

attn_status attn_normalize_rows(const attn_normalization *norm, int num_threads, attn_error *error);

/* norm_backward.c: the gradients of a fully checked normalisation. */
typedef struct {
    attn_norm kind;
    ptrdiff_t rows, columns;
    attn_tensor grad_output, x, grad_x; /* rows of contiguous columns */
    attn_tensor weight;                 /* contiguous, may be left out */
    void *grad_weight, *grad_bias;      /* (columns) reals of the arithmetic, or NULL */
    double epsilon;
} attn_norm_differentials;

/* attn_check_norm_backward checks the arguments; attn_layout_norm_backward also checks where the gradients go, and
 * fills `norm`. */
attn_status attn_check_norm_backward(const attn_norm_backward_args *args, attn_error *error);
attn_status attn_layout_norm_backward(const attn_norm_backward_args *args, const attn_norm_gradients *gradients,
                                      attn_norm_differentials *norm, attn_error *error);

attn_status attn_normalize_rows_backward(const attn_norm_differentials *norm, int num_threads, attn_error *error);

#endif

/* Gradients of attention: a checked problem. check_backward.c checks it, backward.c computes it. */
#ifndef ATTN_CORE_BACKWARD_H
#define ATTN_CORE_BACKWARD_H

#include "problem.h"

typedef struct {
    attn_problem forward;
    attn_operand grad_output, output, lse, grad_lse;
    attn_operand query, key, value, mask; /* gradients that are wanted */
    double *scale;                        /* its gradient, or NULL */
    void *score_weight;                   /* its gradient, of additive scores, or NULL */
    int unscaled;       /* the scale is 0, and so are gradients of query, key and score_weight; forward.scale is 1 */
} attn_backward_problem;

/* Checks all rules, and fills `problem`. */
attn_status attn_check_gradients(const attn_backward_args *args, const attn_gradients *gradients,
                                 attn_backward_problem *problem, attn_error *error);

/* Computes a checked problem. `gradients` are the arrays of its operands. */
attn_status attn_attend_backward(const attn_backward_problem *problem, const attn_gradients *gradients, int num_threads,
                                 attn_error *error);

#endif

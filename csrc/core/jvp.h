/* Forward mode of attention: a checked problem. check_backward.c checks it, jvp.c computes it. */
#ifndef ATTN_CORE_JVP_H
#define ATTN_CORE_JVP_H

#include "problem.h"

typedef struct {
    attn_problem forward;
    attn_operand output, lse;
    attn_operand query, key, value, mask; /* tangents; those that are not given are 0 */
    attn_operand tangent_output;
} attn_jvp_problem;

/* Checks all rules on the inputs, and fills `problem` but for tangent_output. */
attn_status attn_check_tangents(const attn_jvp_args *args, attn_jvp_problem *problem, attn_error *error);

/* The same for the result. */
attn_status attn_check_tangent_output(const attn_jvp_args *args, const attn_tensor *tangent_output,
                                      attn_jvp_problem *problem, attn_error *error);

/* Computes a fully checked problem. */
attn_status attn_attend_jvp(const attn_jvp_problem *problem, int num_threads, attn_error *error);

#endif

/* Attention by its formula, a row at a time: in double for float32, in long double for float64. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "cases.h"

/* The largest errors, in units of each number's bound below; INFINITY if rounding cannot explain the difference. They
 * must be at most 1, but for outputs OUTPUT_BAR, or FLAT_OUTPUT_BAR if all values of a column are the same, as their
 * sums are then rounded the same way at every step.
 *
 *     u        2^-24 for float32, 2^-53 for float64
 *     tiny     2^-126, 2^-1022: denormals may be flushed
 *     a_j      |scale| size_j + |bias_j| over the keys j that a row attends to; A = max_j a_j
 *     size_j   dot: sum_d |q_d| |k_jd|; cosine: the same / (|q| |k_j|); additive: sum_d |weight_d|; distance:
 *              3 sum_d (q_d - k_jd)^2 + the smaller of sum_d (|q_d| + |k_jd|)^2 and 2 PRODUCT_LIMIT / |scale|
 *              (pyattn/_bounds.py says why)
 *     output   u sum_j p_j (|v_j| + |o|) (1 + a_j) + (kv_len + head_dim + 1) tiny
 *     weight   8u w (1 + 2A) + tiny;   their sum: 8u sqrt(kv_len)
 *     lse      4u (1 + |lse| + A)
 */
#define PRODUCT_LIMIT 22.18 /* 32 log2 units */
enum { OUTPUT_BAR = 4, FLAT_OUTPUT_BAR = 16 };
typedef struct {
    double output, weights, sums, lse;
} worst_errors;

/* Compares results of one case, computed `count` times (at several levels), with the reference: worst[n] of same[n]. */
void reference_compare(const test_case *same, int count, worst_errors *worst);

#endif

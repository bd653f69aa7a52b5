/* A fixed list of attention calls: each combination of dtype, mask, causal form and regime once, with the rest drawn;
 * then some of them again with each of the other scores. */
#ifndef CASES_H
#define CASES_H

#include "tensor.h"

enum { MASK_NONE, MASK_BOOL, MASK_F16, MASK_F32, MASK_F64, MASK_LONG, MASK_LEAST, MASK_KINDS };
enum { SEES_ALL, CAUSAL_UPPER, CAUSAL_LOWER, WINDOW_UPPER, WINDOW_LOWER, FORMS };
enum { SMALL, DECODE, PREFILL, LONG, REGIMES };
enum { DTYPES = 2, DOT_CASES = DTYPES * MASK_KINDS * FORMS * REGIMES, OTHER_SCORES = 3, CASES = DOT_CASES * 3 / 2 };

typedef struct {
    int number, mask_kind, form, regime;
    attn_dtype dtype;
    int has_heads, rank;
    ptrdiff_t outer, batch, heads, q_len, kv_len, head_dim, v_dim;
    attn_args args; /* views point into the tensors, so a case must not be moved */
    tensor query, key, value, mask, padding, key_limits, key_lengths, query_lengths; /* data == NULL: not given */
    tensor score_weight;
    tensor output, weights, lse;
    int wants_weights, wants_lse;
    double offset; /* of queries and keys */
    char text[300];
} test_case;

void case_make(test_case *c, int number);
void case_free(test_case *c);

/* Computes at the current level, into wiped results; claims success and that nothing else was written. case_compute is
 * the same without the claims, and allocates nothing itself. */
void case_run(test_case *c);
attn_status case_compute(test_case *c, attn_error *error);

/* Claims that the results have the shapes that attn_attention_shapes gives. */
void case_claim_shapes(const test_case *c);

#endif

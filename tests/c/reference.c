#include "reference.h"

#include <float.h>
#include <stdlib.h>
#include <tgmath.h>

/* Broadcast axes have step 0, so they need no special case. */

/* The length of a batch entry; `otherwise` without lengths. */
static ptrdiff_t length_of(const tensor *lengths, const ptrdiff_t *whose, ptrdiff_t otherwise)
{
    const ptrdiff_t at[ROLES] = {whose[OUTER], whose[BATCH]};
    return lengths->data ? (ptrdiff_t)tensor_get(lengths, at) : otherwise;
}

/* Whether one mask allows a pair; adds its bias. */
static int lets_through(const tensor *mask, int blocked, const ptrdiff_t *pair, double *bias)
{
    if (mask->data == NULL) return 1;
    const double m = tensor_get(mask, pair);
    if (mask->dtype == ATTN_BOOL) return (m != 0) != blocked;
    *bias += m;
    return m != -(double)INFINITY;
}

/* Whether key j is inside a query's limits. */
static int inside(const tensor *limits, const ptrdiff_t *at, ptrdiff_t j)
{
    const ptrdiff_t first[ROLES] = {at[OUTER], at[BATCH], at[HEAD], at[ROW], 0};
    const ptrdiff_t end[ROLES] = {at[OUTER], at[BATCH], at[HEAD], at[ROW], 1};
    return limits->data == NULL || ((double)j >= tensor_get(limits, first) && (double)j < tensor_get(limits, end));
}

/* Whether query at[ROW] attends to key j, and the masks' bias: a direct transcription of the rule in attn.h. */
static int sees(const test_case *c, const ptrdiff_t *at, ptrdiff_t key_length, ptrdiff_t query_length, ptrdiff_t j,
                double *bias)
{
    const attn_args *a = &c->args;
    const ptrdiff_t lower = a->align == ATTN_ALIGN_LOWER_RIGHT ? key_length - query_length : 0;
    const ptrdiff_t centre = at[ROW] + a->query_start - a->key_start + lower;

    *bias = 0;
    if (j >= c->kv_len - a->extra_keys) return 1;
    if (j >= key_length || at[ROW] >= query_length) return 0;
    if (a->window_left != ATTN_UNBOUNDED && j < centre - a->window_left) return 0;
    if (a->window_right != ATTN_UNBOUNDED && j > centre + a->window_right) return 0;
    if (a->is_causal && j > centre) return 0;
    if (!inside(&c->key_limits, at, j)) return 0;

    const ptrdiff_t pair[ROLES] = {at[OUTER], at[BATCH], at[HEAD], at[ROW], j};
    return lets_through(&c->mask, a->mask_blocked, pair, bias) &&
           lets_through(&c->padding, a->padding_blocked, pair, bias);
}

#define WIDE    double
#define REAL    float
#define UNIT    0x1p-24
#define LEAST   ((double)FLT_MIN)
#define RECORD  row_f32
#define NAME(x) x##_f32
#include "reference.inc.h"
#undef WIDE
#undef REAL
#undef UNIT
#undef LEAST
#undef RECORD
#undef NAME

#define WIDE    long double
#define REAL    double
#define UNIT    0x1p-53
#define LEAST   DBL_MIN
#define RECORD  row_f64
#define NAME(x) x##_f64
#include "reference.inc.h"

void reference_compare(const test_case *same, int count, worst_errors *worst)
{
    const test_case *c = &same[0];
    for (int n = 0; n < count; n++) worst[n] = (worst_errors){0};
    for (ptrdiff_t outer = 0; outer < c->outer; outer++)
        for (ptrdiff_t batch = 0; batch < c->batch; batch++)
            for (ptrdiff_t head = 0; head < c->heads; head++) {
                const ptrdiff_t whose[ROLES] = {outer, batch, head};
                if (c->dtype == ATTN_F32)
                    compare_f32(same, count, whose, worst);
                else
                    compare_f64(same, count, whose, worst);
            }
}

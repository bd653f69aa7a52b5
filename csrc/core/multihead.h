/* Multi-head attention that is checked: its projections, and where they go. */
#ifndef ATTN_CORE_MULTIHEAD_H
#define ATTN_CORE_MULTIHEAD_H

#include "problem.h"
#include "walk.h"

enum { ATTN_Q, ATTN_K, ATTN_V, ATTN_PROJECTIONS };

/* (batch, length, features) in scratch memory. */
typedef struct {
    char *data;
    ptrdiff_t length, features, row; /* row: in bytes, from one to the next */
} attn_projection;

typedef struct {
    const attn_multihead_args *args;
    attn_dtype dtype;
    ptrdiff_t size, batches, extra; /* extra: keys behind those of `key` */
    int batch_axes;
    const ptrdiff_t *batch_shape;
    int projections; /* all, or that of query alone, where keys and values lie in a cache already */
    attn_projection part[ATTN_PROJECTIONS], heads;
    int joined[ATTN_PROJECTIONS]; /* with the one before it: one product gives both */
    ptrdiff_t cuts;               /* parts that the queries are done in, one after the other */
    struct attn_queries *queries; /* memory for the one at hand, where there are several */
} attn_multihead_plan;

/* queries.c: a part of the queries, with the arguments and results that are theirs. */
enum { ATTN_QUERY_VIEWS = 8 };
typedef struct attn_queries {
    attn_multihead_plan plan;
    attn_multihead_args args;
    attn_view output, weights;
    ptrdiff_t shapes[ATTN_QUERY_VIEWS][ATTN_MAX_AXES]; /* what the views' shapes point to */
} attn_queries;

/* Cuts a plan's queries: q and what the heads give are then for the longest part. Where there are several, all rules are
 * looked at, as a part would not tell a wrong length from its own. */
attn_status attn_cut_queries(attn_multihead_plan *plan, const attn_view *output, const attn_view *weights,
                             attn_error *error);

void attn_take_queries(const attn_multihead_plan *plan, attn_view output, attn_view weights, ptrdiff_t number,
                       attn_queries *part);

/* Fills `plan` but for memory and cuts: all rules but those on the attention in the middle and on what goes into a cache. */
attn_status attn_check_multihead(const attn_multihead_args *args, attn_multihead_plan *plan, attn_error *error);

static inline const attn_view *attn_input_of(const attn_multihead_args *args, int n)
{
    return n == ATTN_Q ? &args->query : n == ATTN_K ? &args->key : &args->value;
}
static inline const attn_view *attn_weight_of(const attn_multihead_args *args, int n)
{
    return n == ATTN_Q ? &args->q_weight : n == ATTN_K ? &args->k_weight : &args->v_weight;
}
static inline const attn_view *attn_bias_of(const attn_multihead_args *args, int n)
{
    return n == ATTN_Q ? &args->q_bias : n == ATTN_K ? &args->k_bias : &args->v_bias;
}

#endif

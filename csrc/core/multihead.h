/* Checked multi-head attention: its projections, and where they are stored. */
#ifndef ATTN_CORE_MULTIHEAD_H
#define ATTN_CORE_MULTIHEAD_H

#include "problem.h"
#include "walk.h"

enum { ATTN_Q, ATTN_K, ATTN_V, ATTN_PROJECTIONS };

/* An array (batch, length, features) in scratch memory, or the result. */
typedef struct {
    char *data;
    attn_dtype dtype;
    ptrdiff_t length, features, row; /* row: stride in bytes */
} attn_projection;

typedef struct {
    const attn_multihead_args *args;
    attn_dtype dtype;               /* of the sums and of all that is between */
    ptrdiff_t size, batches, extra; /* extra: keys behind those of `key` */
    int batch_axes;
    const ptrdiff_t *batch_shape;
    int projections; /* 3, or 1 when a cache already holds all keys and values */
    attn_projection part[ATTN_PROJECTIONS], heads;
    int joined[ATTN_PROJECTIONS]; /* shares a product with the one before it */
    ptrdiff_t cuts;               /* number of parts that queries are cut into */
    struct attn_queries *queries; /* the current part, if cuts > 1 */
} attn_multihead_plan;

/* queries.c: a part of the queries, with its slices of the arguments and results. */
typedef struct attn_queries {
    attn_multihead_plan plan;
    attn_multihead_args args;
    attn_tensor output, weights;
} attn_queries;

/* Cuts a plan's queries: q and the heads' output then have the size of the longest part. With several parts, this
 * checks all rules: a part could not tell a wrong length from its own. */
attn_status attn_cut_queries(attn_multihead_plan *plan, const attn_tensor *weights, attn_error *error);

void attn_take_queries(const attn_multihead_plan *plan, attn_tensor output, attn_tensor weights, ptrdiff_t number,
                       attn_queries *part);

/* Fills `plan` except memory and cuts. Checks all rules except those of the inner attention and of the cache's rows. */
attn_status attn_check_multihead(const attn_multihead_args *args, attn_multihead_plan *plan, attn_error *error);

static inline const attn_tensor *attn_input_of(const attn_multihead_args *args, int n)
{
    return n == ATTN_Q ? &args->query : n == ATTN_K ? &args->key : &args->value;
}
static inline const attn_tensor *attn_weight_of(const attn_multihead_args *args, int n)
{
    return n == ATTN_Q ? &args->q_weight : n == ATTN_K ? &args->k_weight : &args->v_weight;
}
static inline const attn_tensor *attn_bias_of(const attn_multihead_args *args, int n)
{
    return n == ATTN_Q ? &args->q_bias : n == ATTN_K ? &args->k_bias : &args->v_bias;
}

#endif

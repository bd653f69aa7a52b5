/* A lookup that is checked all through: y[row] = scale * weight[ids[row]] + residual[row]. */
#ifndef ATTN_CORE_EMBEDDING_H
#define ATTN_CORE_EMBEDDING_H

#include "walk.h"

typedef struct {
    attn_dtype dtype;
    ptrdiff_t rows, dim;
    attn_rows ids, residual, y; /* y: contiguous columns */
    const char *weight;
    ptrdiff_t weight_row, weight_column;
    double scale;
} attn_lookup;

/* All rules but that ids are rows of weight: what the result looks like is settled then. */
attn_status attn_check_embedding_shapes(const attn_embedding_args *args, attn_error *error);

/* Fills `lookup`; all rules on the arguments, the ids among them, and on y. Nothing in it points to a shape of the
 * caller's. Ids must not change from here on. */
attn_status attn_lay_embedding(const attn_embedding_args *args, attn_view y, attn_lookup *lookup, attn_error *error);

attn_status attn_look_up(const attn_lookup *lookup, int num_threads, attn_error *error);

#endif

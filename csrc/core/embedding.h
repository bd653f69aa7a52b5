/* A fully checked lookup: y[row] = scale * weight[ids[row]] + residual[row]. */
#ifndef ATTN_CORE_EMBEDDING_H
#define ATTN_CORE_EMBEDDING_H

#include "walk.h"

typedef struct {
    attn_dtype dtype; /* of the weight */
    ptrdiff_t rows, dim;
    attn_tensor ids, residual, y; /* rows; y: contiguous columns */
    const char *weight;
    ptrdiff_t weight_row, weight_column;
    double scale;
} attn_lookup;

/* All rules except the range of the ids, which is enough to know the result's shape and dtype. */
attn_status attn_check_embedding_shapes(const attn_embedding_args *args, attn_error *error);

/* Checks the arguments, ids included, and y; fills `lookup`. The ids must not change
 * afterwards. */
attn_status attn_layout_embedding(const attn_embedding_args *args, attn_tensor y, attn_lookup *lookup,
                                  attn_error *error);

attn_status attn_look_up(const attn_lookup *lookup, int num_threads, attn_error *error);

#endif

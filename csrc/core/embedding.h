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

/* Ids (...), of less than ATTN_MAX_AXES axes, as rows of one id each; the id of a row of these. */
attn_tensor attn_rows_of_ids(const attn_tensor *ids);
static inline int64_t attn_id_at(const attn_tensor *ids, ptrdiff_t row)
{
    return *(const int64_t *)(const void *)attn_row_at(ids, row);
}

/* Checks that 0 <= id < count for all ids, whose number does not overflow; the message ends with the reason. */
attn_status attn_check_ids(const char *name, const attn_tensor *ids, ptrdiff_t count, const char *reason,
                           attn_error *error);

attn_status attn_look_up(const attn_lookup *lookup, int num_threads, attn_error *error);

/* embedding_backward.c: fully checked gradients: grad_weight[ids[row]] += scale * grad_output[row]. */
typedef struct {
    ptrdiff_t rows, dim, count; /* count: rows of grad_weight */
    attn_tensor ids, grad_output, grad_weight;
    ptrdiff_t padding; /* a row that stays 0, or -1 */
    double scale;
} attn_scatter;

/* All rules except the range of the ids, and those on grad_weight. */
attn_status attn_check_embedding_backward(const attn_embedding_backward_args *args, attn_error *error);

/* Checks the arguments, ids included, and grad_weight; fills `scatter`. The ids must not change afterwards. */
attn_status attn_layout_embedding_backward(const attn_embedding_backward_args *args, attn_tensor grad_weight,
                                           attn_scatter *scatter, attn_error *error);

attn_status attn_scatter_add(const attn_scatter *scatter, int num_threads, attn_error *error);

#endif

/* An attention call that has passed every check: sizes resolved, axes named, broadcasting turned into strides. */
#ifndef ATTN_CORE_PROBLEM_H
#define ATTN_CORE_PROBLEM_H

#include "arena.h"
#include "attn.h"
#include "walk.h"
#include "kernels.h"

/* Numbers of a row's state after those of its output: the largest score and the sum. */
enum { ATTN_STATE_EXTRA = 2 };

/* The masks of a problem: attn_args' mask, padding_mask and keep_mask. */
enum { ATTN_MASK, ATTN_PADDING, ATTN_KEEP, ATTN_MASKS };

/* One array. Strides are in bytes; an axis that is broadcast has stride 0. data == NULL: not given. */
typedef struct {
    char *data;
    attn_dtype dtype;
    ptrdiff_t head, row, column; /* masks, weights: row is the query axis, column the key axis; lse: row alone */
    ptrdiff_t batch[ATTN_MAX_AXES];
} attn_operand;

typedef struct {
    int batch_axes, has_heads;
    ptrdiff_t batch_shape[ATTN_MAX_AXES];
    ptrdiff_t batches, heads, q_len, kv_len, head_dim, v_dim;
    ptrdiff_t maskable_len;           /* keys that masks, windows and lengths apply to; every row sees those after */
    ptrdiff_t key_group, value_group; /* query heads per key head, per value head */
    ptrdiff_t group;                  /* query heads that share both of them */
    attn_dtype dtype;                 /* of all arithmetic */
    int has_scale; /* 0: the score's default, computed inside a task, where flags are not the caller's */
    attn_score score;
    const char *score_weight;
    double scale, empty;
    double dropout_p;
    uint64_t dropout_seed;
    int unfinished;          /* output is a state */
    int drops;               /* dropout by keep_mask or at random */
    ptrdiff_t before, after; /* visible: i + offset - before <= j <= i + offset + after; PTRDIFF_MAX = unbounded */
    ptrdiff_t query_start, key_start, offset;
    int lower_right, average; /* average: mean of the weights over heads */
    attn_element mask_dtypes[ATTN_MASKS];
    attn_operand masks[ATTN_MASKS];
    const attn_cache *cache; /* NULL, or the cache; key.data and value.data then point to its page tables */
    attn_operand query, key, value, key_limits, key_lengths, query_lengths, units, state, output, weights, lse;
} attn_problem;

/* Checks all rules on the inputs, and fills `problem` up to query_lengths. */
attn_status attn_check_inputs(const attn_args *args, attn_problem *problem, attn_error *error);

/* check_masks.c: the rules on masks, dropout, lengths and visibility, for a problem whose sizes are known. */
attn_status attn_check_masks(const attn_args *args, attn_problem *problem, attn_error *error);

/* cache.c: checks a cache and describes it as two tensors, key and value, for attention's other rules. Their batch axis
 * steps over page tables; their other strides are valid inside a page. */
attn_status attn_cache_tensors(const attn_cache *cache, attn_layout layout, attn_tensor *key, attn_tensor *value,
                               attn_error *error);

/* cache.c: checks that a page exists for every visible position. The key_lengths must have been checked. */
attn_status attn_check_pages(const attn_problem *problem, attn_error *error);

/* cache.c: the rules of attn_cache_append. */
attn_status attn_check_append(const attn_cache *cache, const ptrdiff_t *first, const ptrdiff_t *count,
                              const attn_tensor *key, const attn_tensor *value, attn_layout layout, attn_error *error);

/* Byte offset of the values in a page. */
static inline ptrdiff_t attn_page_values(const attn_cache *cache)
{
    return cache->kv_heads * ATTN_PAGE_KEYS * cache->head_dim * attn_size_of_real(cache->dtype);
}

/* The shapes of the results of a checked problem. */
void attn_describe(const attn_args *args, const attn_problem *problem, attn_shapes *shapes);

/* Checks shapes and dtypes of the caller's result arrays. */
attn_status attn_check_results(const attn_args *args, const attn_problem *problem, const attn_tensor *output,
                               const attn_tensor *weights, const attn_tensor *lse, attn_error *error);

/* Fills output, weights and lse of a problem whose inputs have been checked. */
attn_status attn_check_outputs(const attn_args *args, const attn_tensor *output, const attn_tensor *weights,
                               const attn_tensor *lse, attn_problem *problem, attn_error *error);

/* attend.c: computes a fully checked problem. */
attn_status attn_attend(const attn_problem *problem, int num_threads, attn_error *error);

/* Approximate number of multiply-adds; a tanh counts as 20. In integers, as a double would raise the caller's inexact
 * flag. */
static inline size_t attn_work(const attn_problem *p)
{
    const size_t pairs =
        attn_saturating_mul((size_t)p->batches * (size_t)p->heads * (size_t)p->q_len, (size_t)p->kv_len);
    const size_t score = attn_saturating_mul((size_t)p->head_dim, p->score == ATTN_SCORE_ADDITIVE ? 20 : 1);
    return attn_saturating_mul(pairs, attn_saturating_add(score, (size_t)p->v_dim));
}

/* Address of an array's slice for one batch entry and head. */
static inline char *attn_part(const attn_problem *problem, const attn_operand *operand, ptrdiff_t batch, ptrdiff_t head)
{
    char *at = operand->data + head * operand->head;
    for (int axis = problem->batch_axes - 1; axis >= 0 && batch > 0; axis--) {
        at += batch % problem->batch_shape[axis] * operand->batch[axis];
        batch /= problem->batch_shape[axis];
    }
    return at;
}

#endif

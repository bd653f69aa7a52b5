/* The score functions: how a pair's score comes from a query and a key. */
#include <math.h>
#include <string.h>

#include "attend.h"

/* The rows of a tile of keys against a block of queries, and task->maximum, by products of packed rows. */
static void product_tile(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                         const attn_score_epilogue *epilogue, void *scores)
{
    const attn_plan *plan = task->plan;
    plan->kernels->score_block(block->vectors, keys, plan->features, block->packed, key->data, key->stride, epilogue, 0,
                               scores, task->maximum);
}

static void decode_products(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                            void *scores)
{
    const attn_plan *plan = task->plan;
    plan->kernels->decode_scores(key->element, block->rows, keys, plan->features, block->packed, plan->features,
                                 key->data, key->stride, key->next, plan->prefetch, scores);
}

/* Keys of the decode layout as queries of the other: scores that are symmetric in query and key can then be computed
 * with their roles exchanged, bit-identically. */
static void transpose_keys(const attn_task *task, const attn_key_block *key, int keys)
{
    const attn_plan *plan = task->plan;
    const attn_kernels *k = plan->kernels;
    const void *row[ATTN_BLOCK_KEYS];
    for (int n = 0; n < keys; n++) row[n] = (const char *)key->data + n * key->stride * k->size;
    k->pack_queries(keys, ATTN_BLOCK_KEYS / k->lanes, plan->features, row, 1, task->transposed_keys);
}

/* Cosine ------------------------------------------------------------------------------------------------------------
 */

static void normalise_keys(const attn_task *task, attn_key_block *key, int keys)
{
    const attn_plan *plan = task->plan;
    (void)key;
    plan->kernels->normalise_rows(keys, plan->problem->head_dim, plan->features, task->key_copy);
}

static void normalise_queries(const attn_task *task, attn_block *block, void **query)
{
    const attn_plan *plan = task->plan;
    (void)query;
    plan->kernels->normalise_rows(block->rows, plan->problem->head_dim, plan->features, task->query_rows);
}

/* Distances: distance.inc.h -----------------------------------------------------------------------------------------
 */

static void norm_keys(const attn_task *task, attn_key_block *key, int keys)
{
    const attn_plan *plan = task->plan;
    key->max_norm = plan->kernels->distance_keys(keys, plan->problem->head_dim, plan->features,
                                                 attn_factor_of(plan->problem), task->key_copy);
}

/* Distances need queries unscaled, packed here, and scaled: afterwards `query` points to the scaled rows. */
static void norm_queries(const attn_task *task, attn_block *block, void **query)
{
    const attn_plan *plan = task->plan;
    const attn_kernels *k = plan->kernels;
    block->max_norm = k->distance_queries(block->rows, plan->problem->head_dim, plan->features,
                                          attn_factor_of(plan->problem), task->query_rows, task->scaled_queries);
    if (!plan->decode)
        k->pack_queries(block->rows, block->vectors, plan->features, (const void *const *)query, 1, block->unscaled);
    for (int r = 0; r < block->rows; r++)
        query[r] = (char *)task->scaled_queries + (ptrdiff_t)r * plan->features * k->size;
}

/* Whether the product form is accurate enough for every pair of a tile. The margin of 1% leaves borderline pairs to the
 * kernel, which decides them in its own arithmetic. NaN compares as false. */
static int products_do(const attn_block *block, const attn_key_block *key)
{
    return block->max_norm + key->max_norm < 0.99 * ATTN_PRODUCT_LIMIT;
}

static void distance_tile(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                          const attn_score_epilogue *epilogue, void *scores)
{
    const attn_plan *plan = task->plan;
    const attn_kernels *k = plan->kernels;
    const attn_problem *p = plan->problem;
    if (products_do(block, key)) {
        product_tile(task, block, key, keys, epilogue, scores);
        return;
    }
    product_tile(task, block, key, keys, &attn_no_epilogue, scores);
    memcpy(task->maximum, block->chunk_state.maximum, (size_t)(block->vectors * k->lanes * k->size));
    k->distance_block(block->vectors, keys, p->head_dim, block->unscaled, key->data, key->stride, attn_factor_of(p),
                      epilogue, scores, task->maximum);
}

static void decode_distances(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                             void *scores)
{
    const attn_plan *plan = task->plan;
    const attn_kernels *k = plan->kernels;
    const attn_problem *p = plan->problem;
    double unused[ATTN_BLOCK_KEYS] = {0}; /* maxima over queries */
    decode_products(task, block, key, keys, scores);
    if (products_do(block, key)) return;

    for (int r = 0; r < block->rows; r++) /* distance_block reads unused lanes, too */
        memset((char *)scores + (r * ATTN_BLOCK_KEYS + keys) * k->size, 0,
               (size_t)((ATTN_BLOCK_KEYS - keys) * k->size));
    transpose_keys(task, key, keys);
    k->distance_block(ATTN_BLOCK_KEYS / k->lanes, block->rows, p->head_dim, task->transposed_keys, block->unscaled,
                      plan->features, attn_factor_of(p), &attn_no_epilogue, scores, unused);
}

/* Additive ----------------------------------------------------------------------------------------------------------
 */

static void additive_tile(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                          const attn_score_epilogue *epilogue, void *scores)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    plan->kernels->additive_block(block->vectors, keys, p->head_dim, block->packed, key->data, key->stride,
                                  p->score_weight, attn_factor_of(p), epilogue, scores, task->maximum);
}

static void decode_additive(const attn_task *task, const attn_block *block, const attn_key_block *key, int keys,
                            void *scores)
{
    const attn_plan *plan = task->plan;
    const attn_kernels *k = plan->kernels;
    const attn_problem *p = plan->problem;
    double unused[ATTN_BLOCK_KEYS] = {0}; /* maxima over queries */
    transpose_keys(task, key, keys);
    k->additive_block(ATTN_BLOCK_KEYS / k->lanes, block->rows, p->head_dim, task->transposed_keys, block->packed,
                      plan->features, p->score_weight, attn_factor_of(p), &attn_no_epilogue, scores, unused);
}

/* The table ---------------------------------------------------------------------------------------------------------
 */

const attn_score_function attn_score_functions[] = {
    [ATTN_SCORE_DOT] =
        {.scale = 1, .over_root = 1, .scales_queries = 1, .tile = product_tile, .decode = decode_products},
    [ATTN_SCORE_COSINE] = {.scale = 1,
                           .scales_queries = 1,
                           .prepare_keys = normalise_keys,
                           .prepare_queries = normalise_queries,
                           .tile = product_tile,
                           .decode = decode_products},
    [ATTN_SCORE_DISTANCE] = {.scale = 0.5,
                             .over_root = 1,
                             .extra_features = 2,
                             .unscaled = 1,
                             .transposes = 1,
                             .prepare_keys = norm_keys,
                             .prepare_queries = norm_queries,
                             .tile = distance_tile,
                             .decode = decode_distances},
    [ATTN_SCORE_ADDITIVE] = {.scale = 1, .transposes = 1, .tile = additive_tile, .decode = decode_additive},
};

double attn_scale_of(const attn_problem *p)
{
    const attn_score_function *f = &attn_score_functions[p->score];
    const double root = sqrt((double)(p->head_dim > 0 ? p->head_dim : 1));
    return p->has_scale ? p->scale : f->over_root ? f->scale / root : f->scale;
}

/* In units of log2. */
double attn_factor_of(const attn_problem *p) { return attn_scale_of(p) * ATTN_LOG2E; }

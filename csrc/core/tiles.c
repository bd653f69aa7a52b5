/* Tiles of attention's scores, computed again: their queries and keys, their masks, and the shifts of their rows. */
#include "tiles.h"

#include <math.h>
#include <string.h>

#include "dispatch.h"
#include "stored.h"

enum { QUERIES = ATTN_TILE_QUERIES };

attn_tile_plan attn_plan_tiles(const attn_problem *p, const attn_operand *lse, int unscaled)
{
    const attn_kernels *k = attn_kernels_for(p->dtype);
    const attn_score_function *score = &attn_score_functions[p->score];
    attn_tile_plan plan = {.plan = {.problem = p, .kernels = k, .score = score},
                           .lse = *lse,
                           .unscaled = unscaled,
                           .query_blocks = attn_ceil_div(p->q_len, QUERIES),
                           .key_blocks = attn_ceil_div(p->kv_len, ATTN_BLOCK_KEYS),
                           .columns = attn_ceil_div(p->head_dim, k->lanes) * k->lanes,
                           .v_columns = attn_ceil_div(p->v_dim, k->lanes) * k->lanes};
    plan.plan.features = attn_ceil_div(p->head_dim + score->extra_features, k->lanes) * k->lanes;
    return plan;
}

/* Memory ------------------------------------------------------------------------------------------------------------
 */

static size_t rows_bytes(const attn_tile_plan *plan, size_t rows)
{
    return attn_saturating_mul((size_t)plan->plan.features, rows * (size_t)plan->plan.kernels->size);
}

void attn_layout_tiles(const attn_tile_plan *plan, char *memory, size_t *used, attn_tile_walk *w)
{
    const size_t size = (size_t)plan->plan.kernels->size, tile = (size_t)ATTN_BLOCK_KEYS * QUERIES * size;
    const size_t query_bytes = rows_bytes(plan, QUERIES);
    w->plan = plan;
    w->scores = attn_next_part(memory, used, tile);
    w->no_scores = attn_next_part(memory, used, plan->unscaled ? tile : 0);
    w->zeros = attn_next_part(memory, used, QUERIES * size);
    w->part = attn_next_part(memory, used, sizeof *w->part);
    w->task.bias = attn_next_part(memory, used, tile);
    w->task.drop_mask = attn_next_part(memory, used, tile);
    w->task.maximum = attn_next_part(memory, used, QUERIES * size);
    w->task.query_rows = attn_next_part(memory, used, query_bytes);
    w->task.scaled_queries = attn_next_part(memory, used, plan->plan.score->unscaled ? query_bytes : 0);
}

void attn_layout_tile_queries(const attn_tile_plan *plan, char *memory, size_t *used, attn_tile_queries *q)
{
    const size_t row = (size_t)(QUERIES * plan->plan.kernels->size);
    q->packed = attn_next_part(memory, used, rows_bytes(plan, QUERIES));
    q->unscaled = attn_next_part(memory, used, plan->plan.score->unscaled ? rows_bytes(plan, QUERIES) : 0);
    q->shift = attn_next_part(memory, used, row);
    q->factor = attn_next_part(memory, used, row);
}

void attn_layout_tile_keys(const attn_tile_plan *plan, char *memory, size_t *used, attn_tile_keys *key)
{
    key->key = attn_next_part(memory, used, rows_bytes(plan, ATTN_BLOCK_KEYS));
}

void attn_begin_tiles(attn_tile_walk *w, attn_job *job, int worker)
{
    const attn_tile_plan *plan = w->plan;
    const size_t row = (size_t)(QUERIES * plan->plan.kernels->size);
    w->task.job = job;
    w->task.worker = worker;
    memset(w->task.maximum, 0, row);
    memset(w->zeros, 0, row);
    memset(w->part, 0, sizeof *w->part);
    w->part->chunk_state.maximum = w->zeros;
    if (plan->plan.score->unscaled) /* whose padding is only read */
        memset(w->task.scaled_queries, 0, rows_bytes(plan, QUERIES));
    if (plan->unscaled) memset(w->no_scores, 0, ATTN_BLOCK_KEYS * row);
}

void attn_begin_slice(attn_tile_walk *w, ptrdiff_t batch, ptrdiff_t head)
{
    const attn_problem *p = w->plan->plan.problem;
    attn_place_task(&w->plan->plan, batch, head / p->group, &w->task);
    w->head = head;
    w->task.key = (attn_source){.first = attn_part(p, &p->key, batch, head / p->key_group)};
    w->task.value = (attn_source){.first = attn_part(p, &p->value, batch, head / p->value_group)};
}

/* Rows --------------------------------------------------------------------------------------------------------------
 */

void attn_load_tile_rows(const attn_tile_walk *w, const attn_operand *operand, const attn_block *block,
                         ptrdiff_t columns, ptrdiff_t padded, void *to)
{
    void *row[ATTN_MAX_WIDTH];
    attn_row_addresses(&w->task, operand, block, row);
    attn_load_rows(w->plan->plan.kernels, operand->dtype, block->rows, columns, operand->column, padded, row, to);
}

void attn_load_tile_keys(const attn_tile_walk *w, const attn_source *source, const attn_operand *operand,
                         const attn_tile_keys *key, ptrdiff_t columns, ptrdiff_t padded, void *to)
{
    w->plan->plan.kernels->load_block((attn_element)operand->dtype, key->keys, columns,
                                      attn_rows_at(source, operand, key->from), operand->row, operand->column, padded,
                                      to);
}

void attn_pack_tile_rows(const attn_tile_walk *w, const attn_block *block, ptrdiff_t features, ptrdiff_t stride,
                         void *rows, double factor, void *packed)
{
    const attn_tile_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    for (int r = 0; r < block->rows; r += k->width) {
        const void *row[ATTN_MAX_WIDTH];
        const int some = (int)attn_min(block->rows - r, k->width);
        for (int n = 0; n < some; n++) row[n] = attn_tile_real(plan, rows, (r + n) * stride);
        k->pack_queries(some, attn_tile_vectors(w, block, r), features, row, factor,
                        attn_tile_real(plan, packed, r * features));
    }
}

/* The part of a block that begins at row r, as a score function reads it. */
static attn_block *part_at(const attn_tile_walk *w, const attn_tile_queries *q, int r)
{
    const attn_tile_plan *plan = w->plan;
    attn_block *part = w->part;
    part->rows = (int)attn_min(q->block.rows - r, plan->plan.kernels->width);
    part->vectors = attn_tile_vectors(w, &q->block, r);
    part->packed = attn_tile_real(plan, q->packed, r * plan->plan.features);
    part->unscaled = attn_tile_real(plan, q->unscaled, r * plan->plan.features);
    part->max_norm = q->max_norm;
    return part;
}

/* Prepares a block's queries for the score function, and packs them. */
static void pack_queries(attn_tile_walk *w, attn_tile_queries *q)
{
    const attn_tile_plan *plan = w->plan;
    const attn_kernels *k = plan->plan.kernels;
    const attn_score_function *score = plan->plan.score;
    const double factor = score->scales_queries ? attn_factor_of(plan->plan.problem) : 1;
    void *const all = w->task.query_rows;
    attn_load_tile_rows(w, &plan->plan.problem->query, &q->block, plan->plan.problem->head_dim, plan->plan.features,
                        all);
    q->max_norm = 0;
    for (int r = 0; r < q->block.rows; r += k->width) {
        void *row[ATTN_MAX_WIDTH];
        attn_block *part = part_at(w, q, r);
        w->task.query_rows = attn_tile_real(plan, all, r * plan->plan.features);
        for (int n = 0; n < part->rows; n++) row[n] = attn_tile_real(plan, w->task.query_rows, n * plan->plan.features);
        if (score->prepare_queries) score->prepare_queries(&w->task, part, row);
        if (q->max_norm == q->max_norm && !(part->max_norm <= q->max_norm)) /* a NaN stays */
            q->max_norm = part->max_norm;
        k->pack_queries(part->rows, part->vectors, plan->plan.features, (const void *const *)row, factor, part->packed);
    }
    w->task.query_rows = all;
}

void attn_begin_tile_queries(attn_tile_walk *w, attn_tile_queries *q, ptrdiff_t number)
{
    const attn_problem *p = w->plan->plan.problem;
    attn_block *block = &q->block;
    const ptrdiff_t i = number * QUERIES;
    block->row = w->head % p->group * p->q_len + i;
    block->rows = (int)attn_min(p->q_len - i, QUERIES);
    block->vectors = (int)attn_ceil_div(block->rows, w->plan->plan.kernels->lanes);
    attn_place_block(&w->task, block);
    pack_queries(w, q);
}

void attn_place_tile_keys(const attn_tile_walk *w, attn_tile_keys *key, ptrdiff_t number)
{
    key->from = number * ATTN_BLOCK_KEYS;
    key->keys = (int)attn_min(w->plan->plan.problem->kv_len - key->from, ATTN_BLOCK_KEYS);
}

void attn_read_tile_keys(attn_tile_walk *w, attn_tile_keys *key)
{
    const attn_tile_plan *plan = w->plan;
    const attn_problem *p = plan->plan.problem;
    attn_key_block block = {.max_norm = 0};
    attn_load_tile_keys(w, &w->task.key, &p->key, key, p->head_dim, plan->plan.features, key->key);
    w->task.key_copy = key->key;
    if (plan->plan.score->prepare_keys) plan->plan.score->prepare_keys(&w->task, &block, key->keys);
    key->max_norm = block.max_norm;
}

/* Tiles -------------------------------------------------------------------------------------------------------------
 */

const void *attn_score_part(const attn_tile_walk *w, const attn_tile_queries *q, int r, const attn_tile_keys *key,
                            int keys)
{
    const attn_tile_plan *plan = w->plan;
    const attn_key_block block = {.data = key->key,
                                  .element = attn_reals(plan->plan.kernels),
                                  .stride = plan->plan.features,
                                  .max_norm = key->max_norm};
    plan->plan.score->tile(&w->task, part_at(w, q, r), &block, keys, &attn_no_epilogue, w->scores);
    return plan->unscaled ? w->no_scores : w->scores;
}

int attn_place_tile(const attn_tile_walk *w, const attn_block *block, ptrdiff_t from, int keys, attn_tile_place *at)
{
    const attn_problem *p = w->plan->plan.problem;
    void *bias;
    at->from = from;
    at->keys = keys;
    at->width = (ptrdiff_t)block->vectors * w->plan->plan.kernels->lanes;
    const attn_tile_kind kind = attn_read_masks(&w->task, block, from, keys, &bias);
    if (kind == ATTN_TILE_MASKED) return 0;
    if (kind == ATTN_TILE_FREE) bias = NULL;
    int limited = from < block->max_first || from + keys > block->min_last;
    attn_limit_keys(block, from, keys, at->first, at->last);
    if (limited && from + keys > p->maskable_len) { /* visible keys are not one interval */
        attn_limit_by_bias(&w->task, block, from, keys, at->first, at->last, bias != NULL);
        bias = w->task.bias;
        limited = 0;
    }
    at->epilogue = (attn_score_epilogue){.bias = bias, .first = limited ? at->first : NULL, .last = at->last};
    return 1;
}

static int is_visible(const attn_tile_walk *w, const attn_tile_place *at, int r, int n)
{
    return n >= at->first[r] && n < at->last[r] &&
           !(at->epilogue.bias &&
             attn_real_at(at->epilogue.bias, n * at->width + r, w->plan->plan.kernels->size) == -(double)INFINITY);
}

attn_score_epilogue attn_part_epilogue(const attn_tile_walk *w, const attn_tile_place *at, int r)
{
    const attn_score_epilogue *all = &at->epilogue;
    return (attn_score_epilogue){.bias = all->bias ? (const char *)all->bias + r * w->plan->plan.kernels->size : NULL,
                                 .first = all->first ? all->first + r : NULL,
                                 .last = all->last + r};
}

const void *attn_tile_drops(const attn_tile_walk *w, const attn_block *block, const attn_tile_place *at, double *kept)
{
    const attn_problem *p = w->plan->plan.problem;
    *kept = 1;
    if (!p->drops) return NULL;
    const attn_tile_kind kind = attn_read_drops(&w->task, block, at->from, at->keys);
    for (ptrdiff_t n = 0; kind == ATTN_TILE_MASKED && n < at->keys * at->width; n++)
        attn_put_real(w->task.drop_mask, n, w->plan->plan.kernels->size, -(double)INFINITY);
    *kept = p->dropout_p == 1 ? 0 : 1 / (1 - p->dropout_p);
    return kind == ATTN_TILE_FREE ? NULL : w->task.drop_mask;
}

void attn_add_nonfinite_rows(const attn_tile_walk *w, const attn_block *block, const attn_tile_place *at, uint64_t bits,
                             const attn_source *source, const attn_operand *operand, ptrdiff_t columns, double times,
                             const void *tile, void *sum, ptrdiff_t padded)
{
    const int rows = source == NULL;
    const int size = w->plan->plan.kernels->size;
    void *row[ATTN_MAX_WIDTH];
    if (rows) attn_row_addresses(&w->task, operand, block, row);
    for (int n = 0; n < at->keys; n++)
        for (int r = 0; r < block->rows; r++) {
            if (!(bits >> (rows ? r : n) & 1) || !is_visible(w, at, r, n)) continue;
            const char *from = rows ? row[r] : attn_rows_at(source, operand, at->from) + n * operand->row;
            const double weight = attn_real_at(tile, n * at->width + r, size);
            for (ptrdiff_t d = 0; d < columns; d++) {
                if (attn_is_finite_at(from + d * operand->column, operand->dtype)) continue;
                const ptrdiff_t to = (rows ? n : r) * padded + d;
                const double x = attn_stored_at(from + d * operand->column, operand->dtype);
                attn_put_real(sum, to, size, attn_real_at(sum, to, size) + weight * x * times);
            }
        }
}

/* Shifts ------------------------------------------------------------------------------------------------------------
 */

/* Where 2^(score - lse) would not be exact enough: a logsumexp is rounded, and 2^(its error) is the error of all
 * weights of its row. A mask of -1e9 on every key, say, leaves no digit. */
static int is_coarse(double lse) { return fabs(lse) > 64 && isfinite(lse); }

static void set_row(const attn_tile_plan *plan, const attn_tile_queries *q, int r, double shift, double factor)
{
    const int size = plan->plan.kernels->size;
    attn_put_real(q->shift, r, size, shift);
    const double left = attn_real_at(q->shift, r, size) - shift; /* what rounding the shift changed */
    attn_put_real(q->factor, r, size, isfinite(left) ? factor * (1 + left * 0.6931471805599453) : factor);
}

/* 2^x for x <= 0, with the same bits on every machine. */
static double power_of_two(double x)
{
    double y;
    attn_kernels_for(ATTN_F64)->exp2_array(1, &x, &y);
    return y;
}

/* Takes the maximum and sum of coarse rows from their scores: all keys are walked once more. */
static void find_sums(attn_tile_walk *w, attn_tile_queries *q, attn_tile_keys *key)
{
    const attn_tile_plan *plan = w->plan;
    const attn_problem *p = plan->plan.problem;
    const attn_kernels *k = plan->plan.kernels;
    const int size = k->size;
    double most[QUERIES], sum[QUERIES] = {0};
    for (int r = 0; r < QUERIES; r++) most[r] = -(double)INFINITY;
    for (ptrdiff_t from = 0; from < p->kv_len; from += ATTN_BLOCK_KEYS) {
        const int keys = attn_keys_seen(p, &q->block, from, p->kv_len);
        attn_tile_place at;
        if (keys == 0 || !attn_place_tile(w, &q->block, from, keys, &at)) continue;
        key->from = from;
        key->keys = keys;
        attn_read_tile_keys(w, key);
        for (int part = 0; part < q->block.rows; part += k->width) {
            const int lanes = k->lanes * attn_tile_vectors(w, &q->block, part);
            const void *const scores = attn_score_part(w, q, part, key, keys);
            for (int r = part; r < q->block.rows && r < part + lanes; r++)
                for (int n = 0; n < keys; n++) {
                    if (!is_visible(w, &at, r, n)) continue;
                    double s = attn_real_at(scores, n * lanes + r - part, size);
                    if (at.epilogue.bias) { /* rounded, as the kernels do */
                        double rounded;
                        attn_put_real(&rounded, 0, size, s + attn_real_at(at.epilogue.bias, n * at.width + r, size));
                        s = attn_real_at(&rounded, 0, size);
                    }
                    if (s > most[r]) {
                        sum[r] *= power_of_two(most[r] - s);
                        most[r] = s;
                    }
                    sum[r] += s == most[r] ? 1 : power_of_two(s - most[r]);
                }
        }
    }
    for (int r = 0; r < q->block.rows; r++) {
        void *lse[ATTN_MAX_WIDTH];
        attn_row_addresses(&w->task, &plan->lse, &q->block, lse);
        if (is_coarse(attn_real_at(lse[r], 0, size)) && sum[r] > 0) set_row(plan, q, r, most[r], 1 / sum[r]);
    }
}

void attn_find_shifts(attn_tile_walk *w, attn_tile_queries *q, attn_tile_keys *key)
{
    const int size = w->plan->plan.kernels->size;
    int coarse = 0;
    void *lse[ATTN_MAX_WIDTH];
    attn_row_addresses(&w->task, &w->plan->lse, &q->block, lse);
    for (int r = 0; r < q->block.rows; r++) {
        const double sum = attn_real_at(lse[r], 0, size);
        set_row(w->plan, q, r, sum == -(double)INFINITY ? 0 : sum * ATTN_LOG2E, 1); /* such a row sees nothing */
        coarse |= is_coarse(sum);
    }
    if (coarse) find_sums(w, q, key);
}

/* Attention: the loop nest over chunks, key blocks and query blocks of a task.
 *
 *     task         a super-block of query rows of one group of heads (decode: also some of the chunks)
 *       chunk      512 keys with a softmax state of their own, which is then folded into the running state
 *         block    64 keys: scores, mask, softmax, values, for every query block of the task
 */
#include <math.h>
#include <string.h>

#include "attend.h"
#include "dropout.h"

/* Keys and values ---------------------------------------------------------------------------------------------------
 */

const char *attn_rows_at(const attn_source *source, const attn_operand *operand, ptrdiff_t from)
{
    if (source->pages == NULL) return source->first + from * operand->row;
    const ptrdiff_t page = attn_min(from / ATTN_PAGE_KEYS, source->page_count - 1);
    return (const char *)source->pages[page] + source->offset;
}

static attn_key_block block_of(const attn_kernels *k, const attn_source *source, const attn_operand *operand,
                               ptrdiff_t from, int keys, ptrdiff_t columns, ptrdiff_t padded, void *copy)
{
    const char *at = attn_rows_at(source, operand, from), *next = attn_rows_at(source, operand, from + ATTN_BLOCK_KEYS);
    const ptrdiff_t size = attn_size_of_real(operand->dtype);
    if (copy == NULL) return (attn_key_block){at, next, (attn_element)operand->dtype, operand->row / size, 0};
    k->load_block((attn_element)operand->dtype, keys, columns, at, operand->row, operand->column, padded, copy);
    return (attn_key_block){copy, (char *)copy + ATTN_BLOCK_KEYS * padded * k->size, attn_reals(k), padded, 0};
}

/* Keys in the form that the score function reads. */
static attn_key_block keys_of(const attn_task *task, ptrdiff_t from, int keys)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;
    attn_key_block block = block_of(plan->kernels, &task->key, &p->key, from, keys, p->head_dim, plan->features,
                                    plan->copy_keys ? task->key_copy : NULL);
    if (plan->score->prepare_keys) plan->score->prepare_keys(task, &block, keys);
    return block;
}

/* One key block for one query block ---------------------------------------------------------------------------------
 */

static void begin_state(const attn_plan *plan, const attn_block *block, attn_state *state)
{
    const int rows = plan->decode ? block->rows : block->vectors * plan->kernels->lanes;
    memset(state->sum, 0, (size_t)(rows * plan->kernels->size));
    for (int r = 0; r < rows; r++) {
        if (plan->kernels->size == 4)
            ((float *)state->maximum)[r] = -INFINITY;
        else
            ((double *)state->maximum)[r] = (double)-INFINITY;
    }
}

/* Where a key block's scores go: saved for the weights, a slot per block of the chunk (decode), or one shared tile. */
static void *scores_of(const attn_task *task, const attn_block *block, ptrdiff_t from)
{
    const attn_plan *plan = task->plan;
    if (block->saved_scores)
        return (char *)attn_saved_scores_of(plan, block, from / ATTN_BLOCK_KEYS) + plan->saved_block_bytes -
               plan->scores_bytes;
    if (!plan->decode) return task->scores;
    return (char *)task->scores +
           (size_t)((plan->problem->key_start + from) % ATTN_CHUNK_KEYS / ATTN_BLOCK_KEYS) * plan->scores_bytes;
}

int attn_keys_seen(const attn_problem *p, const attn_block *block, ptrdiff_t from, ptrdiff_t to)
{
    const int keys = to - from < ATTN_BLOCK_KEYS ? (int)(to - from) : ATTN_BLOCK_KEYS;
    if (from + keys > p->maskable_len) return keys;
    if (from >= block->max_last || from + keys <= block->min_first) return 0;
    return block->max_last - from < keys ? (int)(block->max_last - from) : keys;
}

/* `key` is unused in the decode layout, where decode_chunk has already computed the scores. */
static void attend_block(attn_task *task, attn_block *block, ptrdiff_t from, int keys, const attn_key_block *key,
                         attn_key_block value)
{
    const attn_plan *plan = task->plan;
    const attn_kernels *k = plan->kernels;
    const attn_problem *p = plan->problem;
    int32_t first[ATTN_MAX_WIDTH], last[ATTN_MAX_WIDTH];
    void *bias, *scores = scores_of(task, block, from);

    /* 1. which pairs: nothing to do, all, or some */
    const attn_tile_kind kind = attn_read_masks(task, block, from, keys, &bias);
    if (kind == ATTN_TILE_MASKED) return;
    if (kind == ATTN_TILE_FREE) bias = NULL;
    int limited = from < block->max_first || from + keys > block->min_last;
    if (limited || bias || plan->decode || task->redoes) attn_limit_keys(block, from, keys, first, last);
    if (limited && from + keys > p->maskable_len) { /* visible keys are not one interval */
        attn_limit_by_bias(task, block, from, keys, first, last, bias != NULL);
        bias = task->bias;
        limited = 0;
    }
    if (limited || bias) block->masked = 1;
    if (!block->chunk_begun) begin_state(plan, block, &block->chunk_state);
    if (block->saved_scores) {
        attn_saved_scores *saved = attn_saved_scores_of(plan, block, from / ATTN_BLOCK_KEYS);
        saved->keys = keys;
        saved->seen = (char *)saved + ATTN_ALIGNMENT;
        saved->weights = scores;
    }

    /* 2. scores and their softmax */
    if (plan->decode) {
        const attn_score_epilogue epilogue = {.bias = bias, .first = first, .last = last};
        k->decode_softmax(block->rows, keys, &epilogue, scores, &block->chunk_state, task->correction);
    } else {
        const attn_score_epilogue epilogue = {.bias = bias, .first = limited ? first : NULL, .last = last};
        memcpy(task->maximum, block->chunk_state.maximum, (size_t)(block->vectors * k->lanes * k->size));
        plan->score->tile(task, block, key, keys, &epilogue, scores);
        k->softmax_block(block->vectors, keys, scores, task->maximum, &block->chunk_state, task->correction);
    }
    if (block->saved_scores)
        memcpy(attn_saved_scores_of(plan, block, from / ATTN_BLOCK_KEYS)->seen, block->chunk_state.maximum,
               (size_t)(block->rows * k->size));
    if (p->drops) attn_drop(task, block, from, keys, scores);

    /* 3. values */
    const ptrdiff_t row = plan->decode ? ATTN_BLOCK_KEYS : 1, step = plan->decode ? 1 : block->vectors * k->lanes;
    const int vectors = (int)(plan->columns / k->lanes);
    uint64_t nonfinite = 0;
    if (task->redoes) {
        const void *reals = value.data;
        if (value.element != attn_reals(k)) {
            k->load_block(value.element, keys, plan->columns, value.data, p->value.row, p->value.column, plan->columns,
                          task->value_copy);
            reals = task->value_copy;
            value.stride = plan->columns;
        }
        nonfinite = k->finite_values(keys, vectors, reals, value.stride, task->factor, task->value_copy);
        value = (attn_key_block){.data = task->value_copy, .element = attn_reals(k), .stride = plan->columns};
    }
    k->value_block(value.element, block->rows, keys, vectors, scores, row, step, limited ? first : NULL, last,
                   value.data, value.stride, task->correction, !block->chunk_begun, block->chunk_state.out,
                   plan->columns);
    if (nonfinite) attn_add_nonfinite(task, block, nonfinite, from, first, last, bias, scores);
    block->chunk_begun = 1;
}

/* Walking the keys --------------------------------------------------------------------------------------------------
 */

/* Folds a chunk's state into the running state. The first one is swapped in: folding into nothing changes no bit. */
void attn_fold_chunk(const attn_plan *plan, attn_block *block)
{
    if (!block->chunk_begun) return;
    if (block->running_begun) {
        plan->kernels->fold_state(block->rows, plan->columns, &block->chunk_state, &block->running_state);
    } else {
        attn_state first = block->chunk_state;
        block->chunk_state = block->running_state;
        block->running_state = first;
    }
    block->running_begun = 1;
    block->chunk_begun = 0;
}

/* Decode: scores of a whole chunk first; attn_walk_chunk then reads its values. Two long reads reach memory bandwidth;
 * alternating between keys and values every 64 rows does not (33 against 24 GB/s on Zen 4). */
static void decode_chunk(attn_task *task, const attn_block *block, ptrdiff_t from, ptrdiff_t to)
{
    const attn_problem *p = task->plan->problem;
    for (; from < to; from += ATTN_BLOCK_KEYS) {
        const int keys = attn_keys_seen(p, block, from, to);
        if (keys == 0 || attn_tile_is_masked(task, block, from, keys)) continue;
        const attn_key_block key = keys_of(task, from, keys);
        task->plan->score->decode(task, block, &key, keys, scores_of(task, block, from));
    }
}

/* All query blocks of a task against the keys [from, to) of one chunk. */
void attn_walk_chunk(attn_task *task, ptrdiff_t from, ptrdiff_t to)
{
    const attn_plan *plan = task->plan;
    const attn_problem *p = plan->problem;

    if (plan->decode) decode_chunk(task, &task->blocks[0], from, to);
    for (; from < to; from += ATTN_BLOCK_KEYS) {
        const int keys = to - from < ATTN_BLOCK_KEYS ? (int)(to - from) : ATTN_BLOCK_KEYS;
        attn_key_block key = {.data = NULL}, value = {.data = NULL};
        if (!plan->decode && attn_should_stop(task->job, task->worker)) return; /* long rows make long chunks */
        for (int n = 0; n < task->count; n++) {
            attn_block *block = &task->blocks[n];
            const int seen = attn_keys_seen(p, block, from, to);
            if (seen == 0) continue;
            if (value.data == NULL) {
                if (!plan->decode) key = keys_of(task, from, keys);
                value = block_of(plan->kernels, &task->value, &p->value, from, keys, p->v_dim, plan->columns,
                                 plan->copy_values ? task->value_copy : NULL);
            }
            attend_block(task, block, from, seen, &key, value);
        }
    }
}

void attn_visible_keys(const attn_task *task, ptrdiff_t *from, ptrdiff_t *to)
{
    *from = PTRDIFF_MAX;
    *to = 0;
    for (int n = 0; n < task->count; n++) {
        if (task->blocks[n].min_first < *from) *from = task->blocks[n].min_first;
        if (task->blocks[n].max_last > *to) *to = task->blocks[n].max_last;
    }
    const attn_problem *p = task->plan->problem;
    if (p->maskable_len == p->kv_len) return;
    *from = attn_min(*from, p->maskable_len);
    *to = p->kv_len;
}

/* All chunks, left to right. Returns 0 when the call was interrupted. */
int attn_walk_keys(attn_task *task)
{
    ptrdiff_t from, to;
    attn_visible_keys(task, &from, &to);
    for (ptrdiff_t key = 0, end; key < to; key = end) {
        end = attn_chunk_end(task->plan->problem, key);
        if (end <= from) continue;
        if (attn_should_stop(task->job, task->worker)) return 0;
        attn_walk_chunk(task, key, end < to ? end : to);
        for (int n = 0; n < task->count; n++) attn_fold_chunk(task->plan, &task->blocks[n]);
    }
    return 1;
}

/* Recomputes a block, with values times `factor`; writes `rows` and returns those still not finite. */
static uint64_t redo_block(attn_task *task, int n, ptrdiff_t number, double factor, uint64_t rows)
{
    attn_task again = *task;
    again.blocks = &task->blocks[n];
    again.count = again.redoes = 1;
    again.factor = factor;
    attn_begin_block(&again, again.blocks, number);
    return attn_walk_keys(&again) ? attn_finish_block(&again, again.blocks, rows) : rows;
}

/* Writes a block and redoes its rows that are not finite, unless that cannot help (stays_nonfinite in rows.c): first
 * because a masked pair may have added 0 * NaN, then with values scaled down, because a sum of finite values may have
 * overflowed, which an unfinished row does not repair. Numbers that are finite stay. A row that is not finite then has
 * seen a NaN or an infinity in its visible inputs. */
void attn_end_block(attn_task *task, int n, ptrdiff_t number, int masked)
{
    const double small = task->plan->problem->dtype == ATTN_F32 ? 0x1p-64 : 0x1p-512;
    uint64_t nonfinite = attn_finish_block(task, &task->blocks[n], ~(uint64_t)0);
    if (nonfinite && masked) nonfinite = redo_block(task, n, number, 1, nonfinite);
    if (nonfinite && !task->plan->problem->unfinished) redo_block(task, n, number, small, nonfinite);
}

/* Tasks -------------------------------------------------------------------------------------------------------------
 */

ptrdiff_t attn_task_of(const attn_plan *plan, ptrdiff_t number, ptrdiff_t part)
{
    const ptrdiff_t unit = attn_fast_div(number, plan->tasks_per_group);
    return number + (unit * (plan->heads_per_task - 1) + part) * plan->tasks_per_group;
}

/* in_page: byte offset of the keys, or of the values, inside a page. */
static attn_source source_of(const attn_problem *p, const attn_operand *operand, ptrdiff_t batch, ptrdiff_t head,
                             ptrdiff_t in_page)
{
    if (p->cache == NULL) return (attn_source){.first = attn_part(p, operand, batch, head)};
    const ptrdiff_t entry = (void *const *const *)(void *)attn_part(p, operand, batch, 0) - p->cache->pages;
    return (attn_source){.pages = p->cache->pages[entry],
                         .page_count = p->cache->page_count[entry],
                         .offset = in_page + head * operand->head};
}

void attn_place_task(const attn_plan *plan, ptrdiff_t batch, ptrdiff_t group, attn_task *task)
{
    const attn_problem *p = plan->problem;
    task->plan = plan;
    task->batch = batch;
    task->group = group;
    task->keep_prob =
        p->dropout_p < 1 ? 1 - p->dropout_p : (double)INFINITY; /* p = 1: outputs are 0 instead of 0 / 0 */
    if (p->drops) task->dropout = attn_dropout_of(p->dropout_p, p->dropout_seed);
    task->key_length = attn_length_of(p, &p->key_lengths, batch, p->maskable_len);
    task->query_length = attn_length_of(p, &p->query_lengths, batch, p->q_len);
}

/* Tasks are numbered by batch entry, by group of heads, then by super-block in reverse: in causal attention the last
 * super-block is the largest. Returns the first block's number. */
ptrdiff_t attn_begin_task(const attn_plan *plan, ptrdiff_t number, int worker, attn_job *job, attn_task *task)
{
    const attn_problem *p = plan->problem;
    const ptrdiff_t unit = attn_fast_div(number, plan->tasks_per_group), block = number - unit * plan->tasks_per_group;
    const ptrdiff_t first = (plan->tasks_per_group - 1 - block) * plan->blocks_per_task;

    attn_layout_scratch(plan, plan->scratch + (size_t)worker * plan->worker_bytes, task);
    task->job = job;
    task->worker = worker;
    task->redoes = 0;
    task->knows_nonfinite = 0;
    task->factor = 1;
    const ptrdiff_t batch = attn_fast_div(unit, plan->groups);
    attn_place_task(plan, batch, unit - batch * plan->groups, task);
    const ptrdiff_t head = task->group * p->group;
    task->key = source_of(p, &p->key, task->batch, attn_fast_div(head, p->key_group), 0);
    task->value = source_of(p, &p->value, task->batch, attn_fast_div(head, p->value_group),
                            p->cache ? attn_page_values(p->cache) : 0);
    task->count = (int)(plan->blocks - first < plan->blocks_per_task ? plan->blocks - first : plan->blocks_per_task);
    for (int n = 0; n < task->count; n++) attn_begin_block(task, &task->blocks[n], first + n);
    return first;
}

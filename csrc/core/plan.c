/* Cutting a problem into tasks, and laying out scratch memory for them. */
#include "arena.h"
#include "attend.h"
#include "dispatch.h"
#include "stored.h"

enum { NEAR_KEYS = 1 << 23 }; /* bytes of all keys that are probably in the cache; a shared key counts each time */

/* The first key of the next chunk. Chunks are counted from absolute key 0. */
ptrdiff_t attn_chunk_end(const attn_problem *problem, ptrdiff_t key)
{
    ptrdiff_t absolute = problem->key_start + key;
    return attn_min(problem->kv_len, key + ATTN_CHUNK_KEYS - absolute % ATTN_CHUNK_KEYS);
}

static size_t bytes_of_all_keys(const attn_problem *p, const attn_plan *plan)
{
    const size_t row = attn_saturating_mul((size_t)p->head_dim, (size_t)attn_size_of_real(p->key.dtype));
    const size_t rows = attn_saturating_mul((size_t)(p->batches * plan->groups), (size_t)p->kv_len);
    return attn_saturating_mul(row, rows);
}

static void cut_rows(const attn_problem *p, attn_plan *plan)
{
    const attn_kernels *k = plan->kernels;
    plan->groups = attn_fast_div(p->heads, p->group);
    plan->rows = p->group * p->q_len;
    plan->decode = plan->rows <= k->decode_rows && p->kv_len >= ATTN_BLOCK_KEYS / 2;
    plan->row_segment = plan->decode || p->q_len < k->width ? plan->rows : p->q_len;
    plan->blocks_per_segment =
        plan->decode ? 1 : attn_ceil_div(attn_ceil_div(plan->row_segment, k->lanes), ATTN_VECTORS);
    plan->blocks = plan->row_segment == 0 ? 0 : attn_fast_div(plan->rows, plan->row_segment) * plan->blocks_per_segment;
}

static void size_scratch(const attn_problem *p, attn_plan *plan)
{
    const attn_kernels *k = plan->kernels;
    const size_t size = (size_t)k->size, rows = (size_t)(plan->decode ? plan->rows : k->width);
    const size_t key_blocks = (size_t)attn_ceil_div(p->kv_len, ATTN_BLOCK_KEYS), lanes = attn_padded(rows * size);

    plan->packed_bytes = attn_padded(attn_saturating_mul((size_t)plan->features, rows * size));
    plan->state_bytes =
        attn_saturating_add(2 * lanes, attn_padded(attn_saturating_mul((size_t)plan->columns, rows * size)));
    plan->scores_bytes = attn_padded(rows * ATTN_BLOCK_KEYS * size);
    plan->key_bytes =
        plan->copy_keys ? attn_padded(attn_saturating_mul((size_t)plan->features, ATTN_BLOCK_KEYS * size)) : 0;
    plan->transposed_bytes = plan->decode && plan->score->transposes
                                 ? attn_padded(attn_saturating_mul((size_t)plan->features, ATTN_BLOCK_KEYS * size))
                                 : 0;
    plan->value_bytes = attn_padded(attn_saturating_mul((size_t)plan->columns, ATTN_BLOCK_KEYS * size));
    plan->query_bytes = plan->gather_queries ? plan->packed_bytes : 0;
    plan->saved_block_bytes = ATTN_ALIGNMENT + lanes + plan->scores_bytes;
    plan->mask_tile_bytes = ATTN_ALIGNMENT + plan->scores_bytes;
    plan->saved_bytes = p->weights.data ? attn_saturating_mul(key_blocks, plan->saved_block_bytes) : 0;
    const int average = p->weights.data && p->average;
    /* an odd number of cache lines, so that rows do not share cache sets */
    const int apart = average || (p->weights.data && attn_is_half(p->weights.dtype));
    plan->weights_row_bytes = apart ? attn_padded(attn_saturating_mul((size_t)p->kv_len, size)) | ATTN_ALIGNMENT : 0;
}

static int is_shared(const attn_operand *mask, int axis)
{
    return mask->data == NULL || (axis < 0 ? mask->head : mask->batch[axis]) == 0;
}

/* The groups of heads that follow one another and share their mask arrays; 1 without any. */
static ptrdiff_t sharers_of(const attn_problem *p, const attn_plan *plan)
{
    const attn_operand *one = &p->masks[ATTN_MASK], *other = &p->masks[ATTN_PADDING];
    if (plan->decode || (!one->data && !other->data) || !is_shared(one, -1) || !is_shared(other, -1)) return 1;
    ptrdiff_t sharers = plan->groups;
    for (int axis = p->batch_axes - 1; axis >= 0 && is_shared(one, axis) && is_shared(other, axis); axis--)
        sharers *= p->batch_shape[axis];
    return sharers;
}

/* The blocks per task, at most `most`, that leave every worker several of a unit's tasks. */
static ptrdiff_t cut_blocks(const attn_plan *plan, ptrdiff_t units, ptrdiff_t enough, ptrdiff_t most)
{
    while (most > 1 && units * attn_ceil_div(plan->blocks, most) < enough) most--;
    return most;
}

/* Lets heads that share their masks also share the tiles read from these: sets the heads per task and the tiles that
 * fit in the memory for them. Returns the blocks per task, at most `most`. A function of its own, as cut_tasks would
 * slow down a small call. */
static __attribute__((noinline)) ptrdiff_t share_tiles(const attn_problem *p, attn_plan *plan, ptrdiff_t sharers,
                                                       ptrdiff_t enough, ptrdiff_t most)
{
    enum { TILES_BYTES = 6 << 20 };
    const int average = p->weights.data && p->average;
    const ptrdiff_t units = p->batches * plan->groups, key_blocks = attn_ceil_div(p->kv_len, ATTN_BLOCK_KEYS);
    const ptrdiff_t tiles = (ptrdiff_t)(TILES_BYTES / plan->mask_tile_bytes) / plan->workers; /* of one worker */
    ptrdiff_t heads = average ? plan->heads_per_task : sharers;
    while (!average && heads > 1 && (sharers % heads != 0 || units / heads * plan->blocks < enough)) heads--;
    if (heads == 1 || tiles == 0) return cut_blocks(plan, units / plan->heads_per_task, enough, most);
    while (most > 1 && key_blocks > tiles / most) most--;
    plan->heads_per_task = heads;
    most = cut_blocks(plan, units / heads, enough, most);
    plan->mask_tiles = attn_min(tiles / most, key_blocks);
    return most;
}

/* Sets the blocks per task, which walk the keys together: as many as fit their packed queries and states into
 * TASK_BYTES while leaving every worker several tasks. */
static void cut_tasks(const attn_problem *p, attn_plan *plan, int num_threads)
{
    enum { TASK_BYTES = 384 << 10 };
    const int average = p->weights.data && p->average;
    const ptrdiff_t sharers = sharers_of(p, plan);
    const size_t block_bytes = attn_saturating_add(plan->packed_bytes, attn_saturating_mul(2, plan->state_bytes));
    ptrdiff_t most = p->weights.data ? 1 : attn_min(ATTN_MOST_BLOCKS, plan->blocks > 0 ? plan->blocks : 1);

    plan->workers = attn_workers(num_threads, PTRDIFF_MAX);
    plan->heads_per_task = average ? plan->groups : 1;
    plan->mask_tiles = 0;
    const ptrdiff_t units = attn_fast_div(p->batches * plan->groups, plan->heads_per_task);
    const ptrdiff_t enough = plan->workers > 1 ? 3 * (ptrdiff_t)plan->workers : 1;
    while (most > 1 && attn_saturating_mul((size_t)most, block_bytes) > TASK_BYTES) most--;
    most = sharers > 1 ? share_tiles(p, plan, sharers, enough, most) : cut_blocks(plan, units, enough, most);
    plan->tasks_per_group = attn_ceil_div(plan->blocks, most);
    plan->blocks_per_task = plan->tasks_per_group ? attn_ceil_div(plan->blocks, plan->tasks_per_group) : 1;
    plan->tasks_per_group = attn_ceil_div(plan->blocks, plan->blocks_per_task);
}

/* With too few tasks for the workers, splits the chunks, too: at a time, as many as have their states in
 * SPLIT_BYTES. */
static void cut_chunks(const attn_problem *p, attn_plan *plan)
{
    enum { SPLIT_BYTES = 4 << 20 };
    const ptrdiff_t tasks = p->batches * plan->groups * plan->tasks_per_group;
    plan->chunks = p->kv_len == 0 ? 0 : attn_ceil_div(p->key_start % ATTN_CHUNK_KEYS + p->kv_len, ATTN_CHUNK_KEYS);
    plan->kv_splits = 1;
    plan->partial_bytes = 0;
    if (plan->workers == 1 || plan->heads_per_task > 1 || p->weights.data || tasks == 0 || tasks >= 4 * plan->workers ||
        plan->chunks < 2)
        return;

    const size_t slot_bytes =
        attn_saturating_mul((size_t)(tasks * plan->blocks_per_task), plan->state_bytes + ATTN_ALIGNMENT);
    if (slot_bytes > SPLIT_BYTES / 4) return; /* too large to split */
    plan->split_batch = attn_min(plan->chunks, (ptrdiff_t)(SPLIT_BYTES / slot_bytes) - 1);
    plan->kv_splits = attn_min(plan->split_batch, attn_ceil_div(4 * plan->workers, tasks));
    plan->partial_bytes = (size_t)(plan->split_batch + 1) * slot_bytes;
}

/* Whether a cache line of a value would be evicted from L1 before all of its vectors are read. This happens when rows
 * share a few cache sets and a vector is shorter than a line; copying the values then pays (avx2 on Zen 4: 63 ms
 * instead of 91). Keys are read along their rows, so they never need it. */
static int lose_lines(const attn_kernels *k, ptrdiff_t row)
{
    return k->lanes * k->size < ATTN_ALIGNMENT && attn_aliases(row);
}

/* Whether the kernels read rows of an array where they lie: halves where each is read once. */
static int is_read_in_place(const attn_problem *p, const attn_operand *rows, ptrdiff_t columns, int once)
{
    return (rows->dtype == p->dtype || (once && attn_is_half(rows->dtype))) &&
           (columns <= 1 || rows->column == attn_size_of_real(rows->dtype));
}

/* Bytes behind copied values, which come last in a worker's memory: prefetches run on to where the next worker writes.
 * Without the gap two workers take 1.25 times as long, where values are in half precision (Zen 5). */
static size_t gap_of(const attn_plan *plan)
{
    if (!plan->copy_values || plan->workers == 1) return 0;
    return attn_saturating_mul((size_t)plan->columns, (size_t)(ATTN_ROWS_AHEAD * plan->kernels->size));
}

void attn_make_plan(const attn_problem *p, int num_threads, attn_plan *plan)
{
    const attn_kernels *k = attn_kernels_for(p->dtype);
    plan->problem = p;
    plan->kernels = k;
    plan->score = &attn_score_functions[p->score];
    plan->split_batch = plan->split_start = 0;

    cut_rows(p, plan);
    plan->columns = attn_ceil_div(p->v_dim, k->lanes) * k->lanes;
    plan->features = attn_min(p->head_dim, PTRDIFF_MAX - plan->score->extra_features) + plan->score->extra_features;
    const int prepared = plan->score->prepare_keys != NULL; /* the copy is modified */
    plan->gather_queries = prepared || !is_read_in_place(p, &p->query, p->head_dim, 0);
    plan->copy_keys = prepared || !is_read_in_place(p, &p->key, p->head_dim, plan->decode && !plan->score->transposes);
    plan->copy_values = !is_read_in_place(p, &p->value, p->v_dim, plan->decode) || plan->columns != p->v_dim ||
                        (!plan->decode && lose_lines(k, p->value.row));
    plan->prefetch = attn_prefetch_flags();
    if (plan->decode && !plan->copy_keys && bytes_of_all_keys(p, plan) > NEAR_KEYS) plan->prefetch |= ATTN_FROM_MEMORY;
    size_scratch(p, plan);
    cut_tasks(p, plan, attn_work(p) > ATTN_WORTH_THREADS ? num_threads : 1);
    cut_chunks(p, plan);

    ptrdiff_t tasks =
        attn_fast_div(p->batches * plan->groups, plan->heads_per_task) * plan->tasks_per_group * plan->kv_splits;
    plan->workers = attn_workers(plan->workers, tasks);
    attn_task unused;
    plan->worker_bytes = attn_saturating_add(attn_layout_scratch(plan, NULL, &unused), gap_of(plan));
}

size_t attn_plan_bytes(const attn_plan *plan)
{
    return attn_saturating_add(attn_saturating_mul((size_t)plan->workers, plan->worker_bytes), plan->partial_bytes);
}

static void layout_state(const attn_plan *plan, char *memory, size_t *used, attn_state *state)
{
    const size_t rows = (size_t)(plan->decode ? plan->rows : plan->kernels->width);
    const size_t size = (size_t)plan->kernels->size;
    state->maximum = attn_next_part(memory, used, rows * size);
    state->sum = attn_next_part(memory, used, rows * size);
    state->out = attn_next_part(memory, used, attn_saturating_mul((size_t)plan->columns, rows * size));
}

void attn_layout_state(const attn_plan *plan, char *memory, attn_state *state)
{
    size_t used = 0;
    layout_state(plan, memory, &used, state);
}

size_t attn_layout_scratch(const attn_plan *plan, char *memory, attn_task *task)
{
    const size_t size = (size_t)plan->kernels->size;
    const size_t rows = (size_t)(plan->decode ? plan->rows : plan->kernels->width);
    const attn_problem *p = plan->problem;
    const int masked = p->masks[ATTN_MASK].data || p->masks[ATTN_PADDING].data || p->maskable_len < p->kv_len;
    const int unscaled = plan->score->unscaled;
    size_t used = 0;

    task->scores =
        attn_next_part(memory, &used, plan->scores_bytes * (plan->decode ? ATTN_CHUNK_KEYS / ATTN_BLOCK_KEYS : 1));
    task->bias = attn_next_part(memory, &used, masked ? plan->scores_bytes : 0);
    task->drop_mask = attn_next_part(memory, &used, p->drops || p->masks[ATTN_PADDING].data ? plan->scores_bytes : 0);
    task->maximum = attn_next_part(memory, &used, rows * size);
    task->correction = attn_next_part(memory, &used, rows * size);
    task->key_copy = attn_next_part(memory, &used, plan->key_bytes);
    task->transposed_keys = attn_next_part(memory, &used, plan->transposed_bytes);
    task->nonfinite_keys =
        attn_next_part(memory, &used, plan->decode ? 0 : attn_saturating_mul((size_t)p->v_dim, 2 * sizeof(ptrdiff_t)));
    task->query_rows = attn_next_part(memory, &used, plan->query_bytes);
    task->scaled_queries = attn_next_part(memory, &used, unscaled ? plan->query_bytes : 0);
    task->weights = attn_next_part(memory, &used, attn_saturating_mul(rows, plan->weights_row_bytes));
    task->mean = attn_next_part(
        memory, &used,
        p->average && attn_is_half(p->weights.dtype) ? attn_saturating_mul(rows, plan->weights_row_bytes) : 0);
    task->blocks = attn_next_part(memory, &used, (size_t)plan->blocks_per_task * sizeof *task->blocks);
    for (ptrdiff_t n = 0; n < plan->blocks_per_task; n++) {
        attn_block unused, *block = memory ? &task->blocks[n] : &unused;
        block->packed = attn_next_part(memory, &used, plan->packed_bytes);
        block->unscaled =
            plan->decode ? task->query_rows : attn_next_part(memory, &used, unscaled ? plan->packed_bytes : 0);
        layout_state(plan, memory, &used, &block->chunk_state);
        layout_state(plan, memory, &used, &block->running_state);
        block->mask_tiles = attn_next_part(memory, &used, (size_t)plan->mask_tiles * plan->mask_tile_bytes);
        block->saved_scores = plan->saved_bytes ? attn_next_part(memory, &used, plan->saved_bytes) : NULL;
    }
    task->value_copy = attn_next_part(memory, &used, plan->value_bytes); /* last: mostly unused */
    return used;
}

attn_saved_scores *attn_saved_scores_of(const attn_plan *plan, const attn_block *block, ptrdiff_t key_block)
{
    return (attn_saved_scores *)(void *)(block->saved_scores + (size_t)key_block * plan->saved_block_bytes);
}

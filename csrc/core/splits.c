/* Splits chunks of keys among workers, for few queries and many keys.
 *
 * Chunk states are saved and then folded from left to right, so that a row is bit-identical to one worker's result.
 * This is done for split_batch chunks at a time, so that memory does not grow with the number of keys.
 */
#include <string.h>

#include "attend.h"

/* A slot: this, then the state of one block. Slot 0 holds the running state of earlier batches, slot n that of chunk
 * n. */
typedef struct {
    int begun, masked;
} slot_mark;

static char *slot_of(const attn_plan *plan, ptrdiff_t number, int block, ptrdiff_t slot)
{
    const ptrdiff_t at = (number * plan->blocks_per_task + block) * (plan->split_batch + 1) + slot;
    return plan->partials + (size_t)at * (plan->state_bytes + ATTN_ALIGNMENT);
}

static slot_mark *mark_of(char *slot) { return (slot_mark *)(void *)slot; }

static ptrdiff_t chunk_start(const attn_problem *p, ptrdiff_t chunk)
{
    return chunk == 0 ? 0 : chunk * ATTN_CHUNK_KEYS - p->key_start % ATTN_CHUNK_KEYS;
}

static ptrdiff_t split_end(const attn_plan *plan)
{
    return plan->split_batch < plan->chunks - plan->split_start ? plan->split_start + plan->split_batch : plan->chunks;
}

/* Computes some chunks of a batch for one super-block of queries. */
static void attend_split(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    const attn_plan *plan = context;
    const ptrdiff_t span = number % plan->kv_splits, whole = number / plan->kv_splits;
    const ptrdiff_t chunks = split_end(plan) - plan->split_start, to = chunks * (span + 1) / plan->kv_splits;
    attn_task task;
    attn_begin_task(plan, whole, worker, job, &task);

    for (ptrdiff_t n = chunks * span / plan->kv_splits; n < to; n++) {
        const ptrdiff_t key = chunk_start(plan->problem, plan->split_start + n);
        if (attn_should_stop(job, worker)) return;
        for (int b = 0; b < task.count; b++) {
            attn_layout_state(plan, slot_of(plan, whole, b, n + 1) + ATTN_ALIGNMENT, &task.blocks[b].chunk_state);
            task.blocks[b].chunk_begun = task.blocks[b].masked = 0;
        }
        attn_walk_chunk(&task, key, attn_chunk_end(plan->problem, key));
        for (int b = 0; b < task.count; b++)
            *mark_of(slot_of(plan, whole, b, n + 1)) = (slot_mark){task.blocks[b].chunk_begun, task.blocks[b].masked};
    }
}

/* Folds a batch of chunks into the running state of one block, which may end up in any of their slots. */
static slot_mark fold_split_batch(const attn_task *task, ptrdiff_t number, int n, attn_block *block)
{
    const attn_plan *plan = task->plan;
    char *slot = slot_of(plan, number, n, 0);
    slot_mark total = plan->split_start == 0 ? (slot_mark){0, 0} : *mark_of(slot);
    attn_layout_state(plan, slot + ATTN_ALIGNMENT, &block->running_state);
    block->running_begun = total.begun;
    if (plan->split_start == 0 && plan->problem->state.data) attn_take_up_state(task, block);
    for (ptrdiff_t chunk = plan->split_start; chunk < split_end(plan); chunk++) {
        slot = slot_of(plan, number, n, chunk - plan->split_start + 1);
        attn_layout_state(plan, slot + ATTN_ALIGNMENT, &block->chunk_state);
        block->chunk_begun = mark_of(slot)->begun;
        total.masked |= mark_of(slot)->masked;
        attn_fold_chunk(plan, block);
    }
    total.begun = block->running_begun;
    return total;
}

static void fold_splits(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    const attn_plan *plan = context;
    attn_task task;
    const ptrdiff_t first = attn_begin_task(plan, number, worker, job, &task);

    for (int n = 0; n < task.count; n++) {
        attn_block *block = &task.blocks[n];
        const slot_mark mark = fold_split_batch(&task, number, n, block);
        if (split_end(plan) < plan->chunks) {
            char *slot = slot_of(plan, number, n, 0);
            *mark_of(slot) = mark;
            if ((char *)block->running_state.maximum != slot + ATTN_ALIGNMENT)
                memcpy(slot + ATTN_ALIGNMENT, block->running_state.maximum, plan->state_bytes);
            continue;
        }
        attn_end_block(&task, n, first + n, mark.masked);
    }
}

attn_status attn_attend_splits(attn_plan *plan, ptrdiff_t tasks)
{
    attn_status status = ATTN_OK;
    for (plan->split_start = 0; status == ATTN_OK && plan->split_start < plan->chunks;
         plan->split_start = split_end(plan)) {
        status = attn_parallel_for(tasks * plan->kv_splits, plan->workers, attend_split, plan);
        if (status == ATTN_OK) status = attn_parallel_for(tasks, plan->workers, fold_splits, plan);
    }
    return status;
}

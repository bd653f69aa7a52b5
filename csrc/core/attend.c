/* Attention, from a checked problem to its results: the plan, its memory, its tasks. */
#include "arena.h"
#include "attend.h"
#include "error.h"

static void attend_whole(void *context, ptrdiff_t number, int worker, attn_job *job)
{
    const attn_plan *plan = context;
    attn_task task;
    for (ptrdiff_t part = 0; part < plan->heads_per_task; part++) {
        const ptrdiff_t first = attn_begin_task(plan, attn_task_of(plan, number, part), worker, job, &task);
        for (int n = 0; part == 0 && n < task.count; n++) attn_forget_tiles(plan, &task.blocks[n]);
        if (!attn_walk_keys(&task)) return;
        for (int n = 0; n < task.count; n++) {
            attn_end_block(&task, n, first + n, task.blocks[n].masked);
            if (task.blocks[n].saved_scores) attn_finish_weights(&task, &task.blocks[n]);
        }
    }
}

attn_status attn_attend(const attn_problem *problem, int num_threads, attn_error *error)
{
    attn_plan plan;
    attn_arena arena;
    if (problem->batches == 0 || problem->heads == 0 || problem->q_len == 0) return ATTN_OK; /* no rows */
    attn_make_plan(problem, num_threads, &plan);
    if (!attn_arena_take(&arena, attn_plan_bytes(&plan))) /* before any thread starts */
        return attn_fail(error, ATTN_NO_MEMORY, "attention needs %zu bytes of scratch memory", attn_plan_bytes(&plan));
    plan.scratch = arena.scratch;
    plan.partials = arena.scratch + (size_t)plan.workers * plan.worker_bytes;

    const ptrdiff_t tasks = attn_fast_div(problem->batches * plan.groups, plan.heads_per_task) * plan.tasks_per_group;
    const attn_status status = plan.kv_splits == 1 ? attn_parallel_for(tasks, plan.workers, attend_whole, &plan)
                                                   : attn_attend_splits(&plan, tasks);
    attn_arena_give(&arena);
    return status;
}

attn_status attn_attention(const attn_args *args, attn_tensor output, attn_tensor weights, attn_tensor lse,
                           attn_error *error)
{
    attn_problem problem;
    attn_status status = attn_check_inputs(args, &problem, error); /* the rules: check*.c */
    if (status == ATTN_OK) status = attn_check_results(args, &problem, &output, &weights, &lse, error);
    if (status == ATTN_OK) status = attn_check_outputs(args, &output, &weights, &lse, &problem, error);
    return status == ATTN_OK ? attn_attend(&problem, args->num_threads, error) : status;
}

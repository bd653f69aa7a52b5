#include "stored.h"

#include "error.h"

attn_status attn_run_with_scratch(const char *function, ptrdiff_t tasks, int workers, size_t worker_bytes,
                                  char **scratch, attn_body run, void *job, attn_error *error)
{
    attn_arena arena;
    if (worker_bytes == 0) return attn_parallel_for(tasks, workers, run, job);
    const size_t bytes = attn_saturating_mul((size_t)workers, worker_bytes);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "%s needs %zu bytes of scratch memory", function, bytes);
    *scratch = arena.scratch;
    const attn_status status = attn_parallel_for(tasks, workers, run, job);
    attn_arena_give(&arena);
    return status;
}

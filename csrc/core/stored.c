/* Reads many rows, and runs a loop with scratch memory. See stored.h. */
#include "stored.h"

#include "error.h"

void attn_load_rows(const attn_kernels *k, attn_dtype dtype, int rows, ptrdiff_t columns, ptrdiff_t column_step,
                    ptrdiff_t padded, void **row, void *to)
{
    for (int r = 0, count; r < rows; r += count) {
        const char *const from = row[r];
        const ptrdiff_t step = r + 1 < rows ? (const char *)row[r + 1] - from : 0;
        count = 1;
        while (r + count < rows && (const char *)row[r + count] - (const char *)row[r + count - 1] == step) count++;
        char *const at = (char *)to + r * padded * k->size;
        k->load_block((attn_element)dtype, count, columns, from, step, column_step, padded, at);
        for (int n = 0; n < count; n++) row[r + n] = at + n * padded * k->size;
    }
}

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

/* softmax and log_softmax of contiguous rows, in parallel over rows. */
#include "dispatch.h"
#include "error.h"
#include "parallel.h"

typedef struct {
    const attn_kernels *kernels;
    attn_row_cut cut;
    ptrdiff_t n;
    const char *x;
    char *y;
    int logarithm;
} row_job;

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const row_job *r = context;
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&r->cut, task); row < attn_first_row(&r->cut, task + 1); row++)
        r->kernels->softmax_row(r->n, r->x + row * r->n * r->kernels->size, r->y + row * r->n * r->kernels->size,
                                r->logarithm);
}

attn_status attn_softmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, void *y, int logarithm,
                         int num_threads, attn_error *error)
{
    if (dtype != ATTN_F32 && dtype != ATTN_F64) return attn_fail(error, ATTN_INVALID, "x must be float32 or float64");
    if (rows == 0 || n == 0) return ATTN_OK;

    row_job job = {attn_kernels_for(dtype), attn_cut_rows(rows, (size_t)n), n, x, y, logarithm};
    const ptrdiff_t tasks = job.cut.tasks;
    return attn_parallel_for(tasks, attn_workers(num_threads, tasks), some_rows, &job);
}

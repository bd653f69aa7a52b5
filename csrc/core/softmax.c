/* softmax and log_softmax of contiguous rows, in parallel over rows. */
#include "dispatch.h"
#include "error.h"
#include "parallel.h"

typedef struct {
    const attn_kernels *kernels;
    ptrdiff_t rows, n, rows_per_task;
    const char *x;
    char *y;
    int logarithm;
} row_job;

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const row_job *r = context;
    const ptrdiff_t from = task * r->rows_per_task, left = r->rows - from;
    const ptrdiff_t to = left < r->rows_per_task ? r->rows : from + r->rows_per_task;
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = from; row < to; row++)
        r->kernels->softmax_row(r->n, r->x + row * r->n * r->kernels->size, r->y + row * r->n * r->kernels->size,
                                r->logarithm);
}

attn_status attn_softmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, void *y, int logarithm,
                         int num_threads, attn_error *error)
{
    enum { TASK_ELEMENTS = 1 << 15 };
    if (dtype != ATTN_F32 && dtype != ATTN_F64) return attn_fail(error, ATTN_INVALID, "x must be float32 or float64");
    if (rows == 0 || n == 0) return ATTN_OK;

    row_job job = {attn_kernels_for(dtype), rows, n, n >= TASK_ELEMENTS ? 1 : TASK_ELEMENTS / n, x, y, logarithm};
    const ptrdiff_t tasks = (rows - 1) / job.rows_per_task + 1;
    const attn_status status = attn_parallel_for(tasks, attn_workers(num_threads, tasks), some_rows, &job);
    return status == ATTN_INTERRUPTED ? attn_fail(error, status, "interrupted") : status;
}

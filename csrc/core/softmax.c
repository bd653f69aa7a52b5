/* softmax and log_softmax of contiguous rows, in parallel over rows. */
#include "dispatch.h"
#include "error.h"
#include "stored.h"

typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype;
    attn_row_cut cut;
    ptrdiff_t n;
    const char *x;
    char *y, *scratch;
    int logarithm;
} row_job;

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const row_job *r = context;
    const ptrdiff_t bytes = r->n * attn_size_of_real(r->dtype);
    char *const scratch = r->scratch + (size_t)worker * attn_row_bytes(r->dtype, r->n);
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&r->cut, task); row < attn_first_row(&r->cut, task + 1); row++) {
        const void *const x = attn_read_row(r->kernels, r->dtype, r->n, r->x + row * bytes, scratch);
        void *const y = attn_target_of(r->dtype, r->y + row * bytes, scratch);
        r->kernels->softmax_row(r->n, x, y, r->logarithm);
        attn_round_row(r->kernels, r->dtype, r->n, y, r->y + row * bytes);
    }
}

attn_status attn_softmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, void *y, int logarithm,
                         int num_threads, attn_error *error)
{
    if (attn_size_of_real(dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    if (rows == 0 || n == 0) return ATTN_OK;

    row_job job = {
        attn_kernels_for(attn_computed(dtype)), dtype, attn_cut_rows(rows, (size_t)n), n, x, y, NULL, logarithm};
    return attn_run_with_scratch("softmax", job.cut.tasks, attn_workers(num_threads, job.cut.tasks),
                                 attn_row_bytes(dtype, n), &job.scratch, some_rows, &job, error);
}

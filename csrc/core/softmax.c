/* softmax and log_softmax of contiguous rows, and their gradients, in parallel over rows. */
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

/* Gradients -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype;
    attn_row_cut cut;
    ptrdiff_t n;
    const char *upstream, *y;
    char *grad_x, *scratch;
    int logarithm;
} backward_job;

static void some_rows_backward(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const backward_job *b = context;
    const attn_kernels *k = b->kernels;
    const ptrdiff_t bytes = b->n * attn_size_of_real(b->dtype);
    const size_t row_bytes = attn_row_bytes(b->dtype, b->n);
    char *const scratch = b->scratch + (size_t)worker * 2 * row_bytes;
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&b->cut, task); row < attn_first_row(&b->cut, task + 1); row++) {
        const void *const upstream = attn_read_row(k, b->dtype, b->n, b->upstream + row * bytes, scratch);
        const void *const y = attn_read_row(k, b->dtype, b->n, b->y + row * bytes, scratch + row_bytes);
        void *const grad_x = attn_target_of(b->dtype, b->grad_x + row * bytes, scratch);
        k->softmax_row_backward(b->n, upstream, y, grad_x, b->logarithm);
        attn_round_row(k, b->dtype, b->n, grad_x, b->grad_x + row * bytes);
    }
}

attn_status attn_softmax_backward(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *grad_output, const void *y,
                                  void *grad_x, int logarithm, int num_threads, attn_error *error)
{
    if (attn_size_of_real(dtype) == 0) FAIL("y must be float16, bfloat16, float32 or float64");
    if (rows == 0 || n == 0) return ATTN_OK;

    backward_job job = {.kernels = attn_kernels_for(attn_computed(dtype)),
                        .dtype = dtype,
                        .cut = attn_cut_rows(rows, (size_t)n),
                        .n = n,
                        .upstream = grad_output,
                        .y = y,
                        .grad_x = grad_x,
                        .logarithm = logarithm};
    return attn_run_with_scratch("the gradient of softmax", job.cut.tasks, attn_workers(num_threads, job.cut.tasks),
                                 attn_saturating_mul(2, attn_row_bytes(dtype, n)), &job.scratch, some_rows_backward,
                                 &job, error);
}

/* argmax and the k largest of contiguous rows, in parallel over rows. */
#include "dispatch.h"
#include "error.h"
#include "float_state.h"
#include "parallel.h"

typedef struct {
    const attn_kernels *kernels;
    attn_row_cut cut;
    ptrdiff_t n, k;
    const char *x;
    char *values; /* NULL: argmax, which needs no values */
    int64_t *indices;
} topk_job;

/* Elements between two polls for interruption: a few milliseconds when every element enters a large heap. */
enum { PART = 1 << 14 };

static void topk_row(const topk_job *c, ptrdiff_t row, int worker, attn_job *job)
{
    double one;
    const char *x = c->x + row * c->n * c->kernels->size;
    void *values = c->values ? c->values + row * c->k * c->kernels->size : (char *)&one;
    int64_t *indices = c->indices + row * c->k;
    for (ptrdiff_t from = 0; from < c->n && !attn_should_stop(job, worker); from += PART)
        c->kernels->topk(from, c->n - from < PART ? c->n : from + PART, x, c->k, values, indices);
    for (ptrdiff_t left = c->k; left > 1 && !attn_should_stop(job, worker); left -= PART)
        c->kernels->topk_order(left, left - PART, values, indices);
}

static void topk_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const topk_job *c = context;
    const attn_float_state flushing = attn_float_save();
    attn_float_keep();
    for (ptrdiff_t row = attn_first_row(&c->cut, task); row < attn_first_row(&c->cut, task + 1); row++)
        topk_row(c, row, worker, job);
    attn_float_leave(flushing);
}

static attn_status topk(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, ptrdiff_t k, void *values,
                        int64_t *indices, int num_threads, attn_error *error)
{
    if (dtype != ATTN_F32 && dtype != ATTN_F64) return attn_fail(error, ATTN_INVALID, "x must be float32 or float64");
    if (rows == 0 || k == 0) return ATTN_OK;

    topk_job job = {attn_kernels_for(dtype), attn_cut_rows(rows, (size_t)n), n, k, x, values, indices};
    const ptrdiff_t tasks = job.cut.tasks;
    return attn_parallel_for(tasks, attn_workers(num_threads, tasks), topk_rows, &job);
}

attn_status attn_argmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, int64_t *indices, int num_threads,
                        attn_error *error)
{
    if (n < 1 && rows > 0) return attn_fail(error, ATTN_INVALID, "x has empty rows, which have no largest element");
    return topk(dtype, rows, n, x, 1, NULL, indices, num_threads, error);
}

attn_status attn_top_k(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, const void *x, ptrdiff_t k, void *values,
                       int64_t *indices, int num_threads, attn_error *error)
{
    if (k < 0 || k > n)
        return attn_fail(error, ATTN_INVALID, "k is %td, expected 0 <= k <= %td: a row of x has %td elements", k, n, n);
    return topk(dtype, rows, n, x, k, values, indices, num_threads, error);
}

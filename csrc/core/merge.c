/* Combines attention computed over chunks of keys, through their logsumexps. Sums are in double, so that a chunk with a
 * weight of e^-80 relative to another still counts. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "arena.h"
#include "error.h"
#include "parallel.h"

static double real_at(attn_dtype dtype, const void *data, ptrdiff_t i)
{
    return dtype == ATTN_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void store_real(attn_dtype dtype, void *data, ptrdiff_t i, double x)
{
    if (dtype == ATTN_F32)
        ((float *)data)[i] = (float)x;
    else
        ((double *)data)[i] = x;
}

/* One row: softmax of the lses, then the weighted sum of outputs. Scratch: `share` (parts), `sum` (dim). */
static void merge_row(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t row, ptrdiff_t dim, const void *const *outputs,
                      const void *const *lses, void *output, void *lse, double *share, double *sum)
{
    /* 1. the largest logsumexp; a NaN wins */
    double top = (double)-INFINITY, total = 0;
    for (ptrdiff_t n = 0; n < parts; n++) {
        share[n] = real_at(dtype, lses[n], row);
        if (!(share[n] <= top)) top = share[n];
    }

    /* 2. each part's share; without any key, the output is 0 and lse -inf */
    for (ptrdiff_t n = 0; n < parts; n++) {
        share[n] = share[n] == (double)-INFINITY ? 0 : exp(share[n] - top);
        total += share[n];
    }
    store_real(dtype, lse, row, total == 0 ? (double)-INFINITY : top + log(total));

    /* 3. outputs; a part without a share is never read */
    memset(sum, 0, (size_t)dim * sizeof *sum);
    for (ptrdiff_t n = 0; n < parts; n++) {
        if (share[n] == 0) continue;
        const double weight = share[n] / total;
        for (ptrdiff_t d = 0; d < dim; d++) sum[d] += weight * real_at(dtype, outputs[n], row * dim + d);
    }
    for (ptrdiff_t d = 0; d < dim; d++) {
        int finite = 1;
        for (ptrdiff_t n = 0; isinf(sum[d]) && finite && n < parts; n++)
            finite = share[n] == 0 || isfinite(real_at(dtype, outputs[n], row * dim + d));
        if (isinf(sum[d]) && finite) sum[d] = copysign(DBL_MAX, sum[d]); /* shares add up to 1 and a rounding */
        store_real(dtype, output, row * dim + d, sum[d]);
    }
}

typedef struct {
    attn_dtype dtype;
    attn_row_cut cut;
    ptrdiff_t parts, dim;
    const void *const *outputs, *const *lses;
    void *output, *lse;
    char *scratch;
    size_t worker_bytes;
} merge_job;

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const merge_job *m = context;
    double *share = (double *)(void *)(m->scratch + (size_t)worker * m->worker_bytes);
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&m->cut, task); row < attn_first_row(&m->cut, task + 1); row++)
        merge_row(m->dtype, m->parts, row, m->dim, m->outputs, m->lses, m->output, m->lse, share, share + m->parts);
}

attn_status attn_merge_states(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t rows, ptrdiff_t dim,
                              const void *const *outputs, const void *const *lses, void *output, void *lse,
                              attn_error *error)
{
    const size_t row_elements = attn_saturating_add((size_t)parts, attn_saturating_mul((size_t)parts, (size_t)dim));
    const size_t bytes =
        attn_padded(attn_saturating_mul(attn_saturating_add((size_t)parts, (size_t)dim), sizeof(double)));
    attn_arena arena;
    if (dtype != ATTN_F32 && dtype != ATTN_F64)
        return attn_fail(error, ATTN_INVALID, "outputs and lses must be float32 or float64");
    if (rows == 0) return ATTN_OK;

    merge_job job = {dtype, attn_cut_rows(rows, row_elements), parts, dim, outputs, lses, output, lse, NULL, bytes};
    const int workers = attn_workers(0, job.cut.tasks);
    if (!attn_arena_take(&arena, attn_saturating_mul((size_t)workers, bytes)))
        return attn_fail(error, ATTN_NO_MEMORY, "merge_states needs %zu bytes of scratch memory",
                         attn_saturating_mul((size_t)workers, bytes));
    job.scratch = arena.scratch;
    const attn_status status = attn_parallel_for(job.cut.tasks, workers, some_rows, &job);
    attn_arena_give(&arena);
    return status;
}

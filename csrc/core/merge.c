/* Combines attention computed over chunks of keys, through their logsumexps. Sums are in double, so that a chunk with a
 * weight of e^-80 relative to another still counts. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"

typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype, computed; /* of outputs; of lses */
    attn_row_cut cut;
    ptrdiff_t parts, dim;
    const void *const *outputs, *const *lses;
    void *output, *lse;
    char *scratch;
    size_t worker_bytes;
} merge_job;

/* Scratch of a row: the share of each part, sums, and a row of an output. */
typedef struct {
    double *share, *sum;
    void *row;
} row_scratch;

static size_t layout_scratch(const merge_job *m, char *memory, row_scratch *scratch)
{
    size_t used = 0;
    scratch->share = attn_next_part(memory, &used, attn_saturating_mul((size_t)m->parts, sizeof(double)));
    scratch->sum = attn_next_part(memory, &used, attn_saturating_mul((size_t)m->dim, sizeof(double)));
    scratch->row = attn_next_part(memory, &used, attn_row_bytes(m->dtype, m->dim));
    return used;
}

/* Row `row` of part n. */
static const void *output_row(const merge_job *m, ptrdiff_t n, ptrdiff_t row, const row_scratch *scratch)
{
    const char *from = (const char *)m->outputs[n] + row * m->dim * attn_size_of_real(m->dtype);
    return attn_read_row(m->kernels, m->dtype, m->dim, from, scratch->row);
}

/* Whether all parts that have a share are finite at d, so that an infinite sum is one of roundings. */
static int is_finite_at(const merge_job *m, ptrdiff_t row, ptrdiff_t d, const row_scratch *scratch)
{
    for (ptrdiff_t n = 0; n < m->parts; n++)
        if (scratch->share[n] != 0 && !isfinite(attn_real_at(output_row(m, n, row, scratch), d, m->kernels->size)))
            return 0;
    return 1;
}

/* One row: softmax of the lses, then the weighted sum of outputs. */
static void merge_row(const merge_job *m, ptrdiff_t row, const row_scratch *scratch)
{
    double *const share = scratch->share, *const sum = scratch->sum;

    /* 1. the largest logsumexp; a NaN wins */
    double top = (double)-INFINITY, total = 0;
    for (ptrdiff_t n = 0; n < m->parts; n++) {
        share[n] = attn_real_at(m->lses[n], row, m->kernels->size);
        if (!(share[n] <= top)) top = share[n];
    }

    /* 2. each part's share; without any key, the output is 0 and lse -inf */
    for (ptrdiff_t n = 0; n < m->parts; n++) {
        share[n] = share[n] == (double)-INFINITY ? 0 : exp(share[n] - top);
        total += share[n];
    }
    attn_put_real(m->lse, row, m->kernels->size, total == 0 ? (double)-INFINITY : top + log(total));

    /* 3. outputs; a part without a share is never read */
    memset(sum, 0, (size_t)m->dim * sizeof *sum);
    for (ptrdiff_t n = 0; n < m->parts; n++) {
        if (share[n] == 0) continue;
        const double weight = share[n] / total;
        const void *const output = output_row(m, n, row, scratch);
        for (ptrdiff_t d = 0; d < m->dim; d++) sum[d] += weight * attn_real_at(output, d, m->kernels->size);
    }
    for (ptrdiff_t d = 0; m->computed == ATTN_F64 && d < m->dim; d++) /* shares add up to 1 and a rounding */
        if (isinf(sum[d]) && is_finite_at(m, row, d, scratch)) sum[d] = copysign(DBL_MAX, sum[d]);

    char *const to = (char *)m->output + row * m->dim * attn_size_of_real(m->dtype);
    void *const merged = attn_target_of(m->dtype, to, scratch->row);
    for (ptrdiff_t d = 0; d < m->dim; d++) attn_put_real(merged, d, m->kernels->size, sum[d]);
    attn_round_row(m->kernels, m->dtype, m->dim, merged, to);
}

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const merge_job *m = context;
    row_scratch scratch;
    layout_scratch(m, m->scratch + (size_t)worker * m->worker_bytes, &scratch);
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&m->cut, task); row < attn_first_row(&m->cut, task + 1); row++)
        merge_row(m, row, &scratch);
}

attn_status attn_merge_states(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t rows, ptrdiff_t dim,
                              const void *const *outputs, const void *const *lses, void *output, void *lse,
                              attn_error *error)
{
    const size_t row_elements = attn_saturating_add((size_t)parts, attn_saturating_mul((size_t)parts, (size_t)dim));
    row_scratch scratch;
    if (attn_size_of_real(dtype) == 0) FAIL("outputs must be float16, bfloat16, float32 or float64");
    if (rows == 0) return ATTN_OK;

    const attn_dtype computed = attn_computed(dtype);
    merge_job job = {.kernels = attn_kernels_for(computed),
                     .dtype = dtype,
                     .computed = computed,
                     .cut = attn_cut_rows(rows, row_elements),
                     .parts = parts,
                     .dim = dim,
                     .outputs = outputs,
                     .lses = lses,
                     .output = output,
                     .lse = lse};
    job.worker_bytes = layout_scratch(&job, NULL, &scratch);
    return attn_run_with_scratch("merge_states", job.cut.tasks, attn_workers(0, job.cut.tasks), job.worker_bytes,
                                 &job.scratch, some_rows, &job, error);
}

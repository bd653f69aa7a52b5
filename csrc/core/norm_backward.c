/* Gradients of layer and RMS normalisation, in parallel over parts of the rows.
 *
 * grad_weight and grad_bias are sums over all rows. Rows are cut into parts that depend on the sizes alone; each part
 * has sums of its own, which are added in order at the end. In a part, blocks of rows are summed first and added then,
 * so that a sum has at most rows / 4096 terms in a row, or some hundred. The bits do not depend on the number of
 * threads.
 */
#include <string.h>

#include "dispatch.h"
#include "error.h"
#include "norm.h"
#include "stored.h"

enum {
    MOST_PARTS = 64,
    LEAST_ROWS = 16, /* of a part, whose sums take as much memory as two rows */
    BLOCK_ROWS = 64,
    PIECE_COLUMNS = 4096
};

typedef struct {
    const attn_kernels *kernels;
    const attn_norm_differentials *norm;
    attn_row_cut cut; /* a task is a part */
    const void *weight;
    int sums;    /* of weight and bias: 0, 1 or 2 */
    char *parts; /* (tasks, sums, columns) */
    char *scratch;
    size_t worker_bytes;
} norm_job;

/* A worker's scratch: rows in half precision, x's being grad_x's afterwards; sums of a block of rows. */
typedef struct {
    void *x, *upstream;
    char *sums; /* (sums, columns) */
} row_scratch;

static ptrdiff_t sum_bytes(const norm_job *j) { return j->norm->columns * j->kernels->size; }

static size_t layout_scratch(const norm_job *j, char *memory, row_scratch *scratch)
{
    const attn_norm_differentials *p = j->norm;
    size_t used = 0;
    scratch->x = attn_next_part(memory, &used, attn_row_bytes(p->x.dtype, p->columns));
    scratch->upstream = attn_next_part(memory, &used, attn_row_bytes(p->grad_output.dtype, p->columns));
    scratch->sums = attn_next_part(memory, &used, attn_saturating_mul((size_t)j->sums, (size_t)sum_bytes(j)));
    return used;
}

/* Adds the row's shares to the block's sums. */
static void differentiate_row(const norm_job *j, ptrdiff_t n, const row_scratch *scratch)
{
    const attn_norm_differentials *p = j->norm;
    const attn_kernels *k = j->kernels;
    char *const grad_row = attn_row_at(&p->grad_x, n);
    const void *const x = attn_read_row(k, p->x.dtype, p->columns, attn_row_at(&p->x, n), scratch->x);
    const void *const upstream =
        attn_read_row(k, p->grad_output.dtype, p->columns, attn_row_at(&p->grad_output, n), scratch->upstream);
    void *const grad_x = attn_target_of(p->grad_x.dtype, grad_row, scratch->x);
    void *const grad_weight = p->grad_weight ? scratch->sums : NULL;
    void *const grad_bias = p->grad_bias ? scratch->sums + (p->grad_weight ? sum_bytes(j) : 0) : NULL;
    k->norm_backward_row((attn_norm_kind)p->kind, p->columns, upstream, x, j->weight, p->epsilon, grad_x, grad_weight,
                         grad_bias);
    attn_round_row(k, p->grad_x.dtype, p->columns, grad_x, grad_row);
}

static void one_part(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const norm_job *j = context;
    const ptrdiff_t first = attn_first_row(&j->cut, task), last = attn_first_row(&j->cut, task + 1);
    const size_t bytes = (size_t)(j->sums * sum_bytes(j));
    char *const part = j->sums ? j->parts + (size_t)task * bytes : NULL;
    row_scratch scratch;
    layout_scratch(j, j->scratch + (size_t)worker * j->worker_bytes, &scratch);
    if (j->sums) memset(part, 0, bytes);
    for (ptrdiff_t from = first; from < last; from += BLOCK_ROWS) {
        if (attn_should_stop(job, worker)) return;
        if (j->sums) memset(scratch.sums, 0, bytes);
        for (ptrdiff_t n = from; n < attn_min(last, from + BLOCK_ROWS); n++) differentiate_row(j, n, &scratch);
        if (j->sums) j->kernels->scale_row(j->sums * j->norm->columns, scratch.sums, 1, part, part);
    }
}

/* Adds the parts' sums of some columns, in order. */
static void add_columns(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const norm_job *j = context;
    const attn_norm_differentials *p = j->norm;
    void *const to[] = {p->grad_weight ? p->grad_weight : p->grad_bias, p->grad_bias};
    const ptrdiff_t from = task * PIECE_COLUMNS, count = attn_min(PIECE_COLUMNS, p->columns - from);
    if (attn_should_stop(job, worker)) return;
    for (int sum = 0; sum < j->sums; sum++) {
        char *const out = (char *)to[sum] + from * j->kernels->size;
        memset(out, 0, (size_t)(count * j->kernels->size));
        for (ptrdiff_t part = 0; part < j->cut.tasks; part++)
            j->kernels->scale_row(count, j->parts + (part * j->sums + sum) * sum_bytes(j) + from * j->kernels->size, 1,
                                  out, out);
    }
}

static attn_row_cut cut_rows(ptrdiff_t rows, ptrdiff_t columns, int sums)
{
    const attn_row_cut cut = attn_cut_rows(rows, (size_t)columns);
    const ptrdiff_t least = attn_max(LEAST_ROWS, attn_ceil_div(rows, MOST_PARTS));
    if (!sums || rows == 0 || attn_ceil_div(rows, cut.tasks) >= least) return cut;
    const ptrdiff_t per_task = attn_min(least, rows);
    return (attn_row_cut){rows, per_task, attn_ceil_div(rows, per_task)};
}

attn_status attn_normalize_rows_backward(const attn_norm_differentials *norm, int num_threads, attn_error *error)
{
    const ptrdiff_t columns = norm->columns;
    const int sums = (norm->grad_weight != NULL) + (norm->grad_bias != NULL);
    if (columns == 0 || (norm->rows == 0 && !sums)) return ATTN_OK;
    norm_job job = {.kernels = attn_kernels_for(attn_computed(norm->x.dtype)),
                    .norm = norm,
                    .cut = cut_rows(norm->rows, columns, sums),
                    .weight = norm->weight.data,
                    .sums = sums};
    row_scratch scratch;
    job.worker_bytes = layout_scratch(&job, NULL, &scratch);

    /* a weight in half precision is read once */
    const size_t weight_bytes = norm->weight.data ? attn_row_bytes(norm->weight.dtype, columns) : 0;
    const size_t part_bytes = attn_saturating_mul((size_t)sums, (size_t)sum_bytes(&job));
    const size_t bytes = attn_saturating_add(weight_bytes, attn_saturating_mul((size_t)job.cut.tasks, part_bytes));
    attn_arena arena = {.base = NULL};
    if (bytes > 0 && !attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "the gradient of a normalization needs %zu bytes of scratch memory",
                         bytes);
    if (weight_bytes > 0)
        job.weight = attn_read_outside(job.kernels, norm->weight.dtype, columns, norm->weight.data, arena.scratch);
    job.parts = sums ? arena.scratch + weight_bytes : NULL;

    attn_status status = attn_run_with_scratch("the gradient of a normalization", job.cut.tasks,
                                               attn_workers(num_threads, job.cut.tasks), job.worker_bytes, &job.scratch,
                                               one_part, &job, error);
    const ptrdiff_t pieces = sums ? attn_ceil_div(columns, PIECE_COLUMNS) : 0;
    if (status == ATTN_OK && sums)
        status = attn_parallel_for(pieces, attn_workers(num_threads, pieces), add_columns, &job);
    if (bytes > 0) attn_arena_give(&arena);
    return status;
}

/* Rules ------------------------------------------------------------------------------------------------------------ */

attn_status attn_check_norm_backward(const attn_norm_backward_args *args, attn_error *error)
{
    const attn_norm_args forward = {.kind = args->kind, .x = args->x, .weight = args->weight, .epsilon = args->epsilon};
    const attn_status status = attn_check_norm(&forward, error);
    if (status != ATTN_OK) return status;
    return attn_check_rows("grad_output", &args->grad_output, &args->x, attn_last_size(&args->x), error);
}

/* Where a sum over rows goes; NULL where it is left out. */
static attn_status check_sum(const char *name, const attn_tensor *sum, const attn_tensor *x, void **to,
                             attn_error *error)
{
    *to = sum->data;
    if (sum->data == NULL) return ATTN_OK;
    if (sum->dtype != attn_computed(x->dtype))
        FAIL("%s must be %s", name, attn_computed(x->dtype) == ATTN_F64 ? "float64" : "float32");
    return attn_check_vector(name, sum, x, error);
}

attn_status attn_layout_norm_backward(const attn_norm_backward_args *args, const attn_norm_gradients *gradients,
                                      attn_norm_differentials *norm, attn_error *error)
{
    const attn_tensor *x = &args->x;
    attn_status status = attn_check_norm_backward(args, error);
    if (status == ATTN_OK) status = attn_check_rows("the gradient of x", &gradients->x, x, attn_last_size(x), error);
    if (status != ATTN_OK) return status;
    if (gradients->x.dtype != x->dtype) FAIL("the gradient of x has another dtype than x");
    if ((status = check_sum("the gradient of weight", &gradients->weight, x, &norm->grad_weight, error)) != ATTN_OK)
        return status;
    if ((status = check_sum("the gradient of bias", &gradients->bias, x, &norm->grad_bias, error)) != ATTN_OK)
        return status;

    norm->kind = args->kind;
    norm->rows = attn_count_rows(x, attn_last_size(x));
    norm->columns = attn_last_size(x);
    attn_rows_of(&args->grad_output, &norm->grad_output);
    attn_rows_of(x, &norm->x);
    attn_rows_of(&gradients->x, &norm->grad_x);
    norm->weight = args->weight;
    norm->epsilon = args->epsilon;
    return ATTN_OK;
}

attn_status attn_normalize_backward(const attn_norm_backward_args *args, const attn_norm_gradients *gradients,
                                    attn_error *error)
{
    attn_norm_differentials norm;
    const attn_status status = attn_layout_norm_backward(args, gradients, &norm, error);
    return status == ATTN_OK ? attn_normalize_rows_backward(&norm, args->num_threads, error) : status;
}

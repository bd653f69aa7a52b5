/* Layer and RMS normalisation of rows, in parallel over rows. */
#include "norm.h"

#include <math.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"

_Static_assert((int)ATTN_NORM_KIND_LAYER == (int)ATTN_NORM_LAYER && (int)ATTN_NORM_KIND_RMS == (int)ATTN_NORM_RMS,
               "the kernels' numbers for normalisations are attn.h's");

typedef struct {
    const attn_kernels *kernels;
    const attn_normalization *norm;
    attn_row_cut cut;
    const void *weight, *bias;
    char *scratch;
    size_t worker_bytes;
} norm_job;

/* Scratch for rows in half precision: x and then the sum; the residual and then y. */
typedef struct {
    void *first, *second;
} row_scratch;

static size_t layout_scratch(const attn_normalization *p, char *memory, row_scratch *scratch)
{
    const int first = attn_is_half(p->x.dtype) || attn_is_half(p->sum.dtype),
              second = attn_is_half(p->y.dtype) || attn_is_half(p->residual.dtype);
    const size_t bytes = attn_row_bytes(ATTN_F16, p->columns);
    size_t used = 0;
    scratch->first = attn_next_part(memory, &used, first ? bytes : 0);
    scratch->second = attn_next_part(memory, &used, second ? bytes : 0);
    return used;
}

static void normalize_row(const norm_job *j, ptrdiff_t n, const row_scratch *scratch)
{
    const attn_normalization *p = j->norm;
    const attn_kernels *k = j->kernels;
    const ptrdiff_t columns = p->columns;
    char *const y_row = attn_row_at(&p->y, n);
    char *const sum_row = p->sum.data && p->residual.data ? attn_row_at(&p->sum, n) : NULL;
    const void *const x = attn_read_row(k, p->x.dtype, columns, attn_row_at(&p->x, n), scratch->first);
    const void *const residual =
        p->residual.data ? attn_read_row(k, p->residual.dtype, columns, attn_row_at(&p->residual, n), scratch->second)
                         : NULL;
    void *const y = attn_target_of(p->y.dtype, y_row, scratch->second);
    void *const sum = sum_row ? attn_target_of(p->sum.dtype, sum_row, scratch->first) : y;
    k->norm_row((attn_norm_kind)p->kind, columns, x, residual, j->weight, j->bias, p->epsilon, sum, y);
    attn_round_row(k, p->y.dtype, columns, y, y_row);
    if (sum_row) attn_round_row(k, p->sum.dtype, columns, sum, sum_row);
}

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const norm_job *j = context;
    row_scratch scratch;
    layout_scratch(j->norm, j->scratch + (size_t)worker * j->worker_bytes, &scratch);
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t n = attn_first_row(&j->cut, task); n < attn_first_row(&j->cut, task + 1); n++)
        normalize_row(j, n, &scratch);
}

attn_status attn_normalize_rows(const attn_normalization *norm, int num_threads, attn_error *error)
{
    if (norm->rows == 0 || norm->columns == 0) return ATTN_OK;
    const attn_row_cut cut = attn_cut_rows(norm->rows, (size_t)norm->columns);
    norm_job job = {.kernels = attn_kernels_for(attn_computed(norm->y.dtype)),
                    .norm = norm,
                    .cut = cut,
                    .weight = norm->weight.data,
                    .bias = norm->bias.data};
    row_scratch scratch;
    job.worker_bytes = layout_scratch(norm, NULL, &scratch);

    /* factors in half precision are read once */
    const attn_tensor *const factors[] = {&norm->weight, &norm->bias};
    const void **const read[] = {&job.weight, &job.bias};
    const size_t each = attn_row_bytes(ATTN_F16, norm->columns), both = attn_saturating_mul(2, each);
    attn_arena arena = {.base = NULL};
    const int any = attn_is_half(norm->weight.dtype) || attn_is_half(norm->bias.dtype);
    if (any && !attn_arena_take(&arena, both))
        return attn_fail(error, ATTN_NO_MEMORY, "a normalization needs %zu bytes of scratch memory", both);
    for (int n = 0; n < 2; n++)
        if (factors[n]->data)
            *read[n] = attn_read_outside(job.kernels, factors[n]->dtype, norm->columns, factors[n]->data,
                                         arena.scratch + (size_t)n * each);

    const attn_status status = attn_run_with_scratch("a normalization", cut.tasks, attn_workers(num_threads, cut.tasks),
                                                     job.worker_bytes, &job.scratch, some_rows, &job, error);
    if (any) attn_arena_give(&arena);
    return status;
}

/* Rules ------------------------------------------------------------------------------------------------------------ */

attn_status attn_check_norm(const attn_norm_args *args, attn_error *error)
{
    const attn_tensor *x = &args->x;
    attn_status status;
    if (x->ndim < 1 || x->ndim > ATTN_MAX_AXES) FAIL("x has %d axes, expected (..., features)", x->ndim);
    if (attn_size_of_real(x->dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    if (attn_count_rows(x, attn_last_size(x)) < 0)
        FAIL("x is too large for memory: %s", attn_shape_text(x->ndim, x->shape));
    if ((status = attn_check_rows("x", x, x, attn_last_size(x), error)) != ATTN_OK) return status;
    if (args->residual.data &&
        (status = attn_check_rows("residual", &args->residual, x, attn_last_size(x), error)) != ATTN_OK)
        return status;
    if (args->weight.data && (status = attn_check_vector("weight", &args->weight, x, error)) != ATTN_OK) return status;
    if (args->bias.data && (status = attn_check_vector("bias", &args->bias, x, error)) != ATTN_OK) return status;
    if (!(args->epsilon >= 0) || isinf(args->epsilon)) FAIL("eps is %g, expected 0 or more", args->epsilon);
    return ATTN_OK;
}

attn_status attn_layout_norm(const attn_norm_args *args, attn_tensor sum, attn_tensor y, attn_normalization *norm,
                             attn_error *error)
{
    const attn_tensor *x = &args->x;
    attn_status status = attn_check_norm(args, error);
    if (status == ATTN_OK) status = attn_check_rows("y", &y, x, attn_last_size(x), error);
    if (status == ATTN_OK && sum.data) status = attn_check_rows("sum", &sum, x, attn_last_size(x), error);
    if (status != ATTN_OK) return status;
    if (sum.data && sum.dtype != y.dtype) FAIL("sum has another dtype than y");

    norm->kind = args->kind;
    norm->rows = attn_count_rows(x, attn_last_size(x));
    norm->columns = attn_last_size(x);
    attn_rows_of(x, &norm->x);
    attn_rows_of(&args->residual, &norm->residual);
    attn_rows_of(&sum, &norm->sum);
    attn_rows_of(&y, &norm->y);
    norm->weight = args->weight;
    norm->bias = args->bias;
    norm->epsilon = args->epsilon;
    return ATTN_OK;
}

attn_status attn_normalize(const attn_norm_args *args, attn_tensor sum, attn_tensor y, attn_error *error)
{
    attn_normalization norm;
    const attn_status status = attn_layout_norm(args, sum, y, &norm, error);
    return status == ATTN_OK ? attn_normalize_rows(&norm, args->num_threads, error) : status;
}

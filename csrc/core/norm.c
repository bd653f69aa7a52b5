/* Layer and RMS normalisation of rows, in parallel over rows. */
#include "norm.h"

#include <math.h>

#include "dispatch.h"
#include "error.h"
#include "parallel.h"

_Static_assert((int)ATTN_NORM_KIND_LAYER == (int)ATTN_NORM_LAYER && (int)ATTN_NORM_KIND_RMS == (int)ATTN_NORM_RMS,
               "the kernels' numbers for normalisations are attn.h's");

typedef struct {
    const attn_kernels *kernels;
    const attn_normalization *norm;
    attn_row_cut cut;
} norm_job;

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const norm_job *j = context;
    const attn_normalization *p = j->norm;
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t n = attn_first_row(&j->cut, task); n < attn_first_row(&j->cut, task + 1); n++) {
        char *const y = attn_row_at(&p->y, n);
        j->kernels->norm_row((attn_norm_kind)p->kind, p->columns, attn_row_at(&p->x, n),
                             p->residual.data ? attn_row_at(&p->residual, n) : NULL, p->weight, p->bias, p->epsilon,
                             p->sum.data ? attn_row_at(&p->sum, n) : y, y);
    }
}

attn_status attn_normalize_rows(const attn_normalization *norm, int num_threads)
{
    if (norm->rows == 0 || norm->columns == 0) return ATTN_OK;
    norm_job job = {attn_kernels_for(norm->dtype), norm, attn_cut_rows(norm->rows, (size_t)norm->columns)};
    const ptrdiff_t tasks = job.cut.tasks;
    return attn_parallel_for(tasks, attn_workers(num_threads, tasks), some_rows, &job);
}

/* Rules ------------------------------------------------------------------------------------------------------------ */

static attn_status check_factor(const char *name, const attn_tensor *factor, const attn_tensor *x, attn_error *error)
{
    if (factor->data == NULL) return ATTN_OK;
    if (factor->ndim != 1 || factor->shape[0] != attn_last_size(x))
        FAIL("%s has shape %s, expected (%td,): x has shape %s", name, attn_shape_text(factor->ndim, factor->shape),
             attn_last_size(x), attn_shape_text(x->ndim, x->shape));
    if (factor->dtype != x->dtype) FAIL("%s has another dtype than x", name);
    if (factor->shape[0] > 1 && factor->strides[0] != (x->dtype == ATTN_F64 ? 8 : 4))
        FAIL("%s must be contiguous", name);
    return ATTN_OK;
}

attn_status attn_check_norm(const attn_norm_args *args, attn_error *error)
{
    const attn_tensor *x = &args->x;
    attn_status status;
    if (x->ndim < 1 || x->ndim > ATTN_MAX_AXES) FAIL("x has %d axes, expected (..., features)", x->ndim);
    if (x->dtype != ATTN_F32 && x->dtype != ATTN_F64) FAIL("x must be float32 or float64");
    if (attn_count_rows(x, attn_last_size(x)) < 0)
        FAIL("x is too large for memory: %s", attn_shape_text(x->ndim, x->shape));
    if ((status = attn_check_rows("x", x, x, attn_last_size(x), error)) != ATTN_OK) return status;
    if (args->residual.data &&
        (status = attn_check_rows("residual", &args->residual, x, attn_last_size(x), error)) != ATTN_OK)
        return status;
    if ((status = check_factor("weight", &args->weight, x, error)) != ATTN_OK) return status;
    if ((status = check_factor("bias", &args->bias, x, error)) != ATTN_OK) return status;
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

    norm->dtype = x->dtype;
    norm->kind = args->kind;
    norm->rows = attn_count_rows(x, attn_last_size(x));
    norm->columns = attn_last_size(x);
    attn_rows_of(x, &norm->x);
    attn_rows_of(&args->residual, &norm->residual);
    attn_rows_of(&sum, &norm->sum);
    attn_rows_of(&y, &norm->y);
    norm->weight = args->weight.data;
    norm->bias = args->bias.data;
    norm->epsilon = args->epsilon;
    return ATTN_OK;
}

attn_status attn_normalize(const attn_norm_args *args, attn_tensor sum, attn_tensor y, attn_error *error)
{
    attn_normalization norm;
    const attn_status status = attn_layout_norm(args, sum, y, &norm, error);
    return status == ATTN_OK ? attn_normalize_rows(&norm, args->num_threads) : status;
}

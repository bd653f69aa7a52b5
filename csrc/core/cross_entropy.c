/* Cross entropy of rows and its gradient, in parallel over rows; the mean is a sum in the order of the rows. */
#include <string.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"

typedef struct {
    const attn_kernels *kernels;
    const attn_cross_entropy_args *args;
    attn_row_cut cut;
    attn_tensor x, target, gradient;
    const int64_t *ids;    /* NULL: target holds probabilities */
    const void *weight;    /* contiguous reals, or NULL */
    attn_target_row share; /* of every row, but for its target and label */
    void *losses;          /* reals, or NULL */
    double *row_losses;
    char *scratch;
    size_t worker_bytes;
} loss_job;

static ptrdiff_t classes_of(const attn_cross_entropy_args *args) { return attn_last_size(&args->x); }

static void loss_of_row(const loss_job *j, ptrdiff_t row, void *scratch)
{
    const attn_kernels *k = j->kernels;
    const ptrdiff_t classes = classes_of(j->args);
    void *const gradient = attn_row_at(&j->gradient, row);
    attn_target_row target = j->share;
    double loss = 0;
    if (j->ids && j->ids[row] == j->args->ignore_index) {
        memset(gradient, 0, (size_t)classes * (size_t)k->size);
    } else {
        if (j->ids)
            target.label = (ptrdiff_t)j->ids[row];
        else
            target.target = attn_read_row(k, j->target.dtype, classes, attn_row_at(&j->target, row), scratch);
        const void *const x = attn_read_row(k, j->x.dtype, classes, attn_row_at(&j->x, row), gradient);
        loss = k->cross_entropy_row(&target, classes, x, gradient);
    }
    j->row_losses[row] = loss;
    if (j->losses) attn_put_real(j->losses, row, k->size, loss);
}

static void some_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const loss_job *j = context;
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&j->cut, task); row < attn_first_row(&j->cut, task + 1); row++)
        loss_of_row(j, row, j->scratch + (size_t)worker * j->worker_bytes);
}

/* What the sum of the losses is divided by: rows that count, each with its class's weight. */
static double count_losses(const loss_job *j, ptrdiff_t rows)
{
    double count = 0;
    if (j->args->reduction != ATTN_REDUCE_MEAN) return 1;
    if (j->ids == NULL) return (double)rows;
    for (ptrdiff_t row = 0; row < rows; row++) {
        if (j->ids[row] == j->args->ignore_index) continue;
        count += j->weight ? attn_real_at(j->weight, (ptrdiff_t)j->ids[row], j->kernels->size) : 1;
    }
    return count;
}

/* Everything that a task reads. The weight, if it is in half precision, is read once, to `weight`. */
static void layout_job(const attn_cross_entropy_args *args, attn_tensor gradient, void *weight, loss_job *j)
{
    const ptrdiff_t classes = classes_of(args);
    attn_rows_of(&args->x, &j->x);
    attn_rows_of(&args->target, &j->target);
    attn_rows_of(&gradient, &j->gradient);
    j->ids = args->ids.data;
    j->weight = args->weight.data
                    ? attn_read_outside(j->kernels, args->weight.dtype, classes, args->weight.data, weight)
                    : NULL;
    j->share = (attn_target_row){
        .weight = j->weight, .on = 1 - args->label_smoothing, .off = args->label_smoothing / (double)classes};
}

static attn_status compute(const attn_cross_entropy_args *args, attn_tensor losses, attn_tensor gradient, double *loss,
                           attn_error *error)
{
    const ptrdiff_t rows = attn_count_rows(&args->x, classes_of(args)), classes = classes_of(args);
    loss_job job = {.kernels = attn_kernels_for(attn_computed(args->x.dtype)),
                    .args = args,
                    .cut = attn_cut_rows(rows, (size_t)classes),
                    .losses = losses.data,
                    .worker_bytes = args->target.data ? attn_row_bytes(args->target.dtype, classes) : 0};
    const size_t of_rows = attn_padded(attn_saturating_mul((size_t)rows, sizeof(double))),
                 of_weight = args->weight.data ? attn_row_bytes(args->weight.dtype, classes) : 0,
                 bytes = attn_saturating_add(of_rows, of_weight);
    attn_arena arena;
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "cross entropy needs %zu bytes of scratch memory", bytes);
    job.row_losses = (double *)(void *)arena.scratch;

    const attn_float_state before = attn_float_enter(); /* 1 / 0 raises a flag */
    layout_job(args, gradient, of_weight > 0 ? arena.scratch + of_rows : NULL, &job);
    const double count = count_losses(&job, rows);
    job.share.scale = 1 / count;
    attn_float_leave(before);
    const attn_status status =
        attn_run_with_scratch("cross entropy", job.cut.tasks, attn_workers(args->num_threads, job.cut.tasks),
                              job.worker_bytes, &job.scratch, some_rows, &job, error);
    if (status == ATTN_OK) {
        const attn_float_state outside = attn_float_enter();
        double sum = 0;
        for (ptrdiff_t row = 0; row < rows; row++) sum += job.row_losses[row];
        *loss = sum / count;
        attn_float_leave(outside);
    }
    attn_arena_give(&arena);
    return status;
}

/* Rules ------------------------------------------------------------------------------------------------------------ */

/* Checks that an array is contiguous, and has x's shape without the last axis. */
static attn_status check_per_row(const char *name, const attn_tensor *tensor, const attn_tensor *x, attn_dtype dtype,
                                 const char *dtype_name, attn_error *error)
{
    ptrdiff_t step = dtype == ATTN_F32 ? 4 : 8;
    int same = tensor->ndim == x->ndim - 1, contiguous = 1;
    for (int n = tensor->ndim - 1; same && n >= 0; n--) {
        same = tensor->shape[n] == x->shape[n];
        contiguous = contiguous && (tensor->shape[n] <= 1 || tensor->strides[n] == step);
        step *= same ? x->shape[n] : 1;
    }
    if (!same)
        FAIL("%s has shape %s, expected %s: x has shape %s", name, attn_shape_text(tensor->ndim, tensor->shape),
             attn_shape_text(x->ndim - 1, x->shape), attn_shape_text(x->ndim, x->shape));
    if (tensor->dtype != dtype) FAIL("%s must hold %s", name, dtype_name);
    if (!contiguous && step > 0) FAIL("%s must be contiguous", name);
    return ATTN_OK;
}

static attn_status check_ids(const attn_cross_entropy_args *args, ptrdiff_t rows, attn_error *error)
{
    const int64_t *const ids = args->ids.data;
    const ptrdiff_t classes = classes_of(args);
    for (ptrdiff_t row = 0; row < rows; row++)
        if ((ids[row] < 0 || ids[row] >= classes) && ids[row] != args->ignore_index)
            FAIL("target holds %lld in row %td, expected 0 <= id < %td, the number of classes, or ignore_index, %lld",
                 (long long)ids[row], row, classes, (long long)args->ignore_index);
    return ATTN_OK;
}

static attn_status check(const attn_cross_entropy_args *args, const attn_tensor *losses, const attn_tensor *gradient,
                         attn_error *error)
{
    const attn_tensor *x = &args->x;
    const attn_dtype computed = attn_computed(x->dtype);
    attn_status status;
    if (x->ndim < 1 || x->ndim > ATTN_MAX_AXES) FAIL("x has %d axes, expected (..., classes)", x->ndim);
    if (attn_size_of_real(x->dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    const ptrdiff_t rows = attn_count_rows(x, attn_last_size(x));
    if (rows < 0) FAIL("x is too large for memory: %s", attn_shape_text(x->ndim, x->shape));
    if ((status = attn_check_rows("x", x, x, attn_last_size(x), error)) != ATTN_OK) return status;
    if ((status = attn_check_rows("gradient", gradient, x, attn_last_size(x), error)) != ATTN_OK) return status;
    if (gradient->dtype != computed) FAIL("gradient must be float32, or float64 where x is");
    if (losses->data &&
        (status = check_per_row("losses", losses, x, computed, "float32, or float64 where x does", error)) != ATTN_OK)
        return status;
    if (args->weight.data && (status = attn_check_vector("weight", &args->weight, x, error)) != ATTN_OK) return status;
    if (!(args->label_smoothing >= 0 && args->label_smoothing <= 1))
        FAIL("label_smoothing is %g, expected 0 <= label_smoothing <= 1", args->label_smoothing);
    if ((args->ids.data == NULL) == (args->target.data == NULL)) FAIL("either ids or target must be given");
    if (args->target.data) return attn_check_rows("target", &args->target, x, attn_last_size(x), error);
    if ((status = check_per_row("ids", &args->ids, x, ATTN_I64, "int64", error)) != ATTN_OK) return status;
    return check_ids(args, rows, error);
}

attn_status attn_cross_entropy(const attn_cross_entropy_args *args, attn_tensor losses, attn_tensor gradient,
                               double *loss, attn_error *error)
{
    const attn_status status = check(args, &losses, &gradient, error);
    return status == ATTN_OK ? compute(args, losses, gradient, loss, error) : status;
}

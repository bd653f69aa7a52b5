/* The gradient of an embedding's table: rows are added to the rows of their ids, in parallel over columns.
 *
 * Each element of the table belongs to one task, which walks all ids in order. So its sum has the same order, and the
 * same bits, for any number of threads, and needs no memory but the table.
 */
#include <stdio.h>
#include <string.h>

#include "dispatch.h"
#include "embedding.h"
#include "error.h"
#include "stored.h"

enum { LINE = 16, TASK_ELEMENTS = 1 << 15, ROWS_BETWEEN_POLLS = 64 };

typedef struct {
    const attn_scatter *scatter;
    const attn_kernels *kernels;
    ptrdiff_t columns; /* of a task */
    char *scratch;
    size_t worker_bytes;
} scatter_job;

static void add_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const scatter_job *j = context;
    const attn_scatter *s = j->scatter;
    const attn_kernels *k = j->kernels;
    const ptrdiff_t from = task * j->columns, count = attn_min(j->columns, s->dim - from);
    const ptrdiff_t offset = from * attn_size_of_real(s->grad_output.dtype);
    void *const scratch = j->scratch + (size_t)worker * j->worker_bytes;
    for (ptrdiff_t row = 0; row < s->count; row++) {
        if (row % ROWS_BETWEEN_POLLS == 0 && attn_should_stop(job, worker)) return;
        memset(attn_row_at(&s->grad_weight, row) + from * k->size, 0, (size_t)(count * k->size));
    }
    for (ptrdiff_t row = 0; row < s->rows; row++) {
        if (row % ROWS_BETWEEN_POLLS == 0 && attn_should_stop(job, worker)) return;
        const ptrdiff_t id = (ptrdiff_t)attn_id_at(&s->ids, row);
        if (id == s->padding) continue;
        const void *const x =
            attn_read_row(k, s->grad_output.dtype, count, attn_row_at(&s->grad_output, row) + offset, scratch);
        void *const sum = attn_row_at(&s->grad_weight, id) + from * k->size;
        k->scale_row(count, x, s->scale, sum, sum);
    }
}

attn_status attn_scatter_add(const attn_scatter *scatter, int num_threads, attn_error *error)
{
    if (scatter->count == 0 || scatter->dim == 0) return ATTN_OK;
    const attn_dtype dtype = scatter->grad_output.dtype;
    const ptrdiff_t rows_each = attn_max(1, TASK_ELEMENTS / scatter->dim); /* rows that are worth a task */
    const ptrdiff_t worth = attn_ceil_div(scatter->rows, rows_each) + attn_ceil_div(scatter->count, rows_each);
    const ptrdiff_t lines = attn_ceil_div(scatter->dim, LINE);
    const ptrdiff_t workers = attn_workers(num_threads, attn_min(worth, lines));
    scatter_job job = {.scatter = scatter,
                       .kernels = attn_kernels_for(attn_computed(dtype)),
                       .columns = attn_ceil_div(lines, workers) * LINE};
    job.worker_bytes = attn_row_bytes(dtype, attn_min(job.columns, scatter->dim));
    const ptrdiff_t tasks = attn_ceil_div(scatter->dim, job.columns);
    return attn_run_with_scratch("the gradient of an embedding", tasks, attn_workers(num_threads, tasks),
                                 job.worker_bytes, &job.scratch, add_rows, &job, error);
}

/* Rules ------------------------------------------------------------------------------------------------------------ */

attn_status attn_check_embedding_backward(const attn_embedding_backward_args *args, attn_error *error)
{
    const attn_tensor *ids = &args->ids, *upstream = &args->grad_output;
    int same = upstream->ndim == ids->ndim + 1;
    if (ids->ndim >= ATTN_MAX_AXES) FAIL("ids has %d axes, expected at most %d", ids->ndim, (int)ATTN_MAX_AXES - 1);
    if (ids->data == NULL || ids->dtype != ATTN_I64) FAIL("ids must be int64");
    if (attn_size_of_real(upstream->dtype) == 0) FAIL("grad_output must be float16, bfloat16, float32 or float64");
    for (int n = 0; same && n < ids->ndim; n++) same = upstream->shape[n] == ids->shape[n];
    if (!same)
        FAIL("grad_output has shape %s, expected (..., dim) with the axes of ids, %s",
             attn_shape_text(upstream->ndim, upstream->shape), attn_shape_text(ids->ndim, ids->shape));
    if (attn_count_rows(upstream, attn_last_size(upstream)) < 0)
        FAIL("grad_output is too large for memory: %s", attn_shape_text(upstream->ndim, upstream->shape));
    return attn_check_rows("grad_output", upstream, upstream, attn_last_size(upstream), error);
}

attn_status attn_layout_embedding_backward(const attn_embedding_backward_args *args, attn_tensor grad_weight,
                                           attn_scatter *scatter, attn_error *error)
{
    const attn_tensor *upstream = &args->grad_output;
    char reason[64];
    attn_status status = attn_check_embedding_backward(args, error);
    if (status != ATTN_OK) return status;
    const ptrdiff_t dim = attn_last_size(upstream);
    if (grad_weight.ndim != 2 || grad_weight.shape[1] != dim)
        FAIL("the gradient of the weight has shape %s, expected (num_embeddings, %td)",
             attn_shape_text(grad_weight.ndim, grad_weight.shape), dim);
    if (grad_weight.dtype != attn_computed(upstream->dtype))
        FAIL("the gradient of the weight must be %s",
             attn_computed(upstream->dtype) == ATTN_F64 ? "float64" : "float32");
    const ptrdiff_t count = grad_weight.shape[0];
    if (count > 0 && dim > 1 && grad_weight.strides[1] != attn_size_of_real(grad_weight.dtype))
        FAIL("the gradient of the weight must have a contiguous last axis");
    if (args->has_padding && (args->padding_idx < 0 || args->padding_idx >= count))
        FAIL("padding_idx is %td, expected 0 <= padding_idx < %td", args->padding_idx, count);
    snprintf(reason, sizeof reason, "num_embeddings is %td", count);
    if ((status = attn_check_ids("ids", &args->ids, count, reason, error)) != ATTN_OK) return status;

    scatter->rows = attn_count_rows(upstream, dim);
    scatter->dim = dim;
    scatter->count = count;
    scatter->ids = attn_rows_of_ids(&args->ids);
    attn_rows_of(upstream, &scatter->grad_output);
    scatter->grad_weight = grad_weight;
    scatter->padding = args->has_padding ? args->padding_idx : -1;
    scatter->scale = args->scale;
    return ATTN_OK;
}

attn_status attn_embedding_backward(const attn_embedding_backward_args *args, attn_tensor grad_weight,
                                    attn_error *error)
{
    attn_scatter scatter;
    const attn_status status = attn_layout_embedding_backward(args, grad_weight, &scatter, error);
    return status == ATTN_OK ? attn_scatter_add(&scatter, args->num_threads, error) : status;
}

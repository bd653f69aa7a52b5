/* Embeddings: rows of a table, looked up by id, scaled, with a residual row added in the same pass.
 *
 * Ids and residual are given y's shape; broadcast axes have stride 0, so nothing is copied.
 */
#include "embedding.h"

#include <stdio.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"

/* Starts a tensor of y's shape (..., dim), for ids (...); all strides are 0 for now. */
static attn_tensor begin_spread(const attn_embedding_args *args)
{
    attn_tensor spread = {.dtype = args->weight.dtype, .ndim = args->ids.ndim + 1};
    for (int n = 0; n < spread.ndim; n++)
        spread.shape[n] = n < spread.ndim - 1 ? args->ids.shape[n] : args->weight.shape[1];
    return spread;
}

/* Broadcasts a tensor to the spread's axes, but for the last `behind`; returns 0 when its sizes do not fit. */
static int broadcast(const attn_tensor *tensor, int behind, attn_tensor *spread)
{
    const int ahead = spread->ndim - behind - tensor->ndim;
    spread->data = tensor->data;
    spread->dtype = tensor->dtype;
    if (ahead < 0) return 0;
    for (int n = 0; n < tensor->ndim; n++) {
        if (tensor->shape[n] != 1 && tensor->shape[n] != spread->shape[ahead + n]) return 0;
        if (tensor->shape[n] != 1) spread->strides[ahead + n] = tensor->strides[n];
    }
    return 1;
}

/* The number of rows; -1 when it, or the size of the result in bytes, overflows. */
static ptrdiff_t count_rows(const attn_embedding_args *args)
{
    const attn_tensor spread = begin_spread(args);
    return attn_count_rows(&spread, args->weight.shape[1]);
}

attn_status attn_check_embedding_shapes(const attn_embedding_args *args, attn_error *error)
{
    const attn_tensor *ids = &args->ids, *weight = &args->weight, *residual = &args->residual;
    if (ids->ndim >= ATTN_MAX_AXES) FAIL("input has %d axes, expected at most %d", ids->ndim, (int)ATTN_MAX_AXES - 1);
    if (ids->data == NULL || ids->dtype != ATTN_I64) FAIL("input must be int64");
    if (weight->ndim != 2)
        FAIL("weight has shape %s, expected 2 axes: (num_embeddings, embedding_dim)",
             attn_shape_text(weight->ndim, weight->shape));
    if (attn_size_of_real(weight->dtype) == 0) FAIL("weight must be float16, bfloat16, float32 or float64");
    if (count_rows(args) < 0)
        FAIL("the result is too large for memory: input %s, weight %s", attn_shape_text(ids->ndim, ids->shape),
             attn_shape_text(weight->ndim, weight->shape));
    if (residual->data == NULL) return ATTN_OK;
    attn_tensor spread = begin_spread(args);
    if (!broadcast(residual, 0, &spread))
        FAIL("residual has shape %s, which does not broadcast to %s: input has shape %s, weight %s",
             attn_shape_text(residual->ndim, residual->shape), attn_shape_text(spread.ndim, spread.shape),
             attn_shape_text(ids->ndim, ids->shape), attn_shape_text(weight->ndim, weight->shape));
    if (!attn_go_together(residual->dtype, weight->dtype)) FAIL("residual has another dtype than weight");
    return ATTN_OK;
}

/* The rows of ids, residual or y, in y's shape. */
static attn_tensor rows_of(const attn_embedding_args *args, const attn_tensor *tensor, int behind)
{
    attn_tensor spread = begin_spread(args), rows;
    if (tensor->data != NULL) broadcast(tensor, behind, &spread);
    attn_rows_of(&spread, &rows);
    return rows;
}

static attn_status refuse_id(const char *name, const attn_tensor *ids, ptrdiff_t row, int64_t id, ptrdiff_t count,
                             const char *reason, attn_error *error)
{
    ptrdiff_t place[ATTN_MAX_AXES];
    for (int n = ids->ndim - 1; n >= 0; n--) {
        place[n] = row % ids->shape[n];
        row /= ids->shape[n];
    }
    if (ids->ndim == 0) FAIL("%s is %lld, expected 0 <= id < %td: %s", name, (long long)id, count, reason);
    FAIL("%s holds %lld at index %s, expected 0 <= id < %td: %s", name, (long long)id,
         attn_shape_text(ids->ndim, place), count, reason);
}

attn_tensor attn_rows_of_ids(const attn_tensor *ids)
{
    attn_tensor each = *ids, rows;
    each.shape[each.ndim] = 1;
    each.strides[each.ndim++] = sizeof(int64_t);
    attn_rows_of(&each, &rows);
    return rows;
}

attn_status attn_check_ids(const char *name, const attn_tensor *ids, ptrdiff_t count, const char *reason,
                           attn_error *error)
{
    const attn_tensor each = attn_rows_of_ids(ids);
    const ptrdiff_t rows = attn_count_rows(&each, 1);
    for (ptrdiff_t row = 0; row < rows; row++) {
        const int64_t id = attn_id_at(&each, row);
        if (id < 0 || id >= count) return refuse_id(name, ids, row, id, count, reason, error);
    }
    return ATTN_OK;
}

static attn_status check_ids(const attn_embedding_args *args, attn_error *error)
{
    char reason[128];
    snprintf(reason, sizeof reason, "weight has shape %s", attn_shape_text(args->weight.ndim, args->weight.shape));
    return attn_check_ids("input", &args->ids, args->weight.shape[0], reason, error);
}

attn_status attn_check_embedding(const attn_embedding_args *args, attn_error *error)
{
    const attn_status status = attn_check_embedding_shapes(args, error);
    return status == ATTN_OK ? check_ids(args, error) : status;
}

attn_status attn_layout_embedding(const attn_embedding_args *args, attn_tensor y, attn_lookup *lookup,
                                  attn_error *error)
{
    attn_status status = attn_check_embedding(args, error);
    if (status != ATTN_OK) return status;
    const attn_tensor like_y = begin_spread(args);
    if ((status = attn_check_rows("y", &y, &like_y, args->weight.shape[1], error)) != ATTN_OK) return status;

    lookup->dtype = args->weight.dtype;
    lookup->rows = count_rows(args);
    lookup->dim = args->weight.shape[1];
    lookup->ids = rows_of(args, &args->ids, 1);
    lookup->residual = rows_of(args, &args->residual, 0);
    lookup->y = rows_of(args, &y, 0);
    lookup->weight = args->weight.data;
    lookup->weight_row = args->weight.strides[0];
    lookup->weight_column = args->weight.strides[1];
    lookup->scale = args->scale;
    return ATTN_OK;
}

typedef struct {
    const attn_lookup *lookup;
    const attn_kernels *kernels;
    attn_row_cut cut;
    char *scratch;
    size_t worker_bytes;
} lookup_job;

/* Scratch for a row of the weight, and then of y, and for one of the residual. */
typedef struct {
    void *row, *residual;
} row_scratch;

static size_t layout_scratch(const attn_lookup *l, char *memory, row_scratch *scratch)
{
    const size_t read = attn_strided_bytes(l->dtype, l->dim, l->weight_column),
                 written = attn_row_bytes(l->y.dtype, l->dim);
    size_t used = 0;
    scratch->row = attn_next_part(memory, &used, read > written ? read : written);
    scratch->residual = attn_next_part(
        memory, &used,
        l->residual.data ? attn_strided_bytes(l->residual.dtype, l->dim, attn_last_stride(&l->residual)) : 0);
    return used;
}

static void look_up_row(const lookup_job *j, ptrdiff_t row, const row_scratch *scratch)
{
    const attn_lookup *l = j->lookup;
    const attn_kernels *k = j->kernels;
    const char *from = l->weight + (ptrdiff_t)attn_id_at(&l->ids, row) * l->weight_row;
    char *const y = attn_row_at(&l->y, row);
    const int plain = l->residual.data == NULL && l->scale == 1; /* arithmetic would flush denormals */
    if (plain && l->y.dtype == l->dtype) {
        attn_gather(attn_size_of_real(l->dtype), l->dim, from, l->weight_column, y);
        return;
    }
    if (plain && !attn_is_half(l->y.dtype)) {
        k->load_block((attn_element)l->dtype, 1, l->dim, from, 0, l->weight_column, l->dim, y);
        return;
    }
    const void *const x = attn_read_strided(k, l->dtype, l->dim, from, l->weight_column, scratch->row);
    const void *const residual = l->residual.data
                                     ? attn_read_strided(k, l->residual.dtype, l->dim, attn_row_at(&l->residual, row),
                                                         attn_last_stride(&l->residual), scratch->residual)
                                     : NULL;
    void *const target = attn_target_of(l->y.dtype, y, scratch->row);
    k->scale_row(l->dim, x, l->scale, residual, target);
    attn_round_row(k, l->y.dtype, l->dim, target, y);
}

static void look_up_rows(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const lookup_job *j = context;
    row_scratch scratch;
    layout_scratch(j->lookup, j->scratch + (size_t)worker * j->worker_bytes, &scratch);
    if (attn_should_stop(job, worker)) return;
    for (ptrdiff_t row = attn_first_row(&j->cut, task); row < attn_first_row(&j->cut, task + 1); row++)
        look_up_row(j, row, &scratch);
}

attn_status attn_look_up(const attn_lookup *lookup, int num_threads, attn_error *error)
{
    row_scratch scratch;
    if (lookup->rows == 0 || lookup->dim == 0) return ATTN_OK;
    lookup_job job = {lookup, attn_kernels_for(attn_computed(lookup->dtype)),
                      attn_cut_rows(lookup->rows, (size_t)lookup->dim), NULL, 0};
    job.worker_bytes = layout_scratch(lookup, NULL, &scratch);
    return attn_run_with_scratch("embedding", job.cut.tasks, attn_workers(num_threads, job.cut.tasks), job.worker_bytes,
                                 &job.scratch, look_up_rows, &job, error);
}

attn_status attn_embedding(const attn_embedding_args *args, attn_tensor y, attn_error *error)
{
    attn_lookup lookup;
    const attn_status status = attn_layout_embedding(args, y, &lookup, error);
    return status == ATTN_OK ? attn_look_up(&lookup, args->num_threads, error) : status;
}

/* Multi-head attention: three projections, attention, and a projection of the heads' output.
 *
 * q, k and v are written in the layout that attention reads, (batch, length, heads, dim). Scratch memory holds them and
 * the heads' output, besides attention's own; many queries are processed in parts, with q and the heads' output for one
 * part at a time. With a cache, k and v are copied to its pages, and attention reads those.
 */
#include "multihead.h"

#include <string.h>

#include "check.h"
#include "dispatch.h"
#include "error.h"
#include "float_state.h"
#include "linear.h"
#include "parallel.h"
#include "rotary.h"

enum { Q = ATTN_Q, K = ATTN_K, V = ATTN_V };

/* The output's last axis. */
static ptrdiff_t out_dim(const attn_multihead_plan *m)
{
    return m->args->out_weight.data ? m->args->out_weight.shape[0] : m->heads.features;
}

/* Memory ----------------------------------------------------------------------------------------------------------- */

/* Row stride for `features` elements: an odd number of cache lines. Returns the bytes of all rows. */
static size_t layout_rows(const attn_multihead_plan *m, ptrdiff_t length, ptrdiff_t features, ptrdiff_t *row)
{
    const size_t bytes = attn_padded(attn_saturating_mul((size_t)features, (size_t)m->size)) | ATTN_ALIGNMENT;
    *row = (ptrdiff_t)bytes;
    return attn_saturating_mul(attn_saturating_mul((size_t)m->batches, (size_t)length), bytes);
}

/* Lays out scratch memory; with memory == NULL it only counts the bytes, which it returns. */
static size_t layout_scratch(attn_multihead_plan *m, char *memory)
{
    size_t used = 0;
    for (int n = Q; n < m->projections; n++) {
        attn_projection *part = &m->part[n];
        if (m->joined[n]) {
            part->data = part[-1].data ? part[-1].data + part[-1].features * m->size : NULL;
            part->row = part[-1].row;
            continue;
        }
        ptrdiff_t features = part->features;
        for (int next = n + 1; next < m->projections && m->joined[next]; next++) features += m->part[next].features;
        const size_t bytes = layout_rows(m, part->length, features, &part->row);
        part->data = attn_next_part(memory, &used, bytes);
    }
    if (m->args->out_weight.data) {
        const size_t bytes = layout_rows(m, m->heads.length, m->heads.features, &m->heads.row);
        m->heads.data = attn_next_part(memory, &used, bytes);
    }
    if (m->cuts > 1) m->queries = attn_next_part(memory, &used, sizeof *m->queries);
    return used;
}

/* A tensor (batch..., length, features), or (batch..., length, heads, features / heads) when heads > 0. */
static attn_tensor tensor_of(const attn_multihead_plan *m, const attn_projection *part, ptrdiff_t length,
                             ptrdiff_t features, ptrdiff_t heads)
{
    const ptrdiff_t size = attn_size_of_real(part->dtype);
    attn_tensor t = {.data = part->data, .dtype = part->dtype, .ndim = m->batch_axes};
    ptrdiff_t step = part->length * part->row;
    for (int axis = m->batch_axes - 1; axis >= 0; axis--) {
        t.shape[axis] = m->batch_shape[axis];
        t.strides[axis] = step;
        step *= m->batch_shape[axis];
    }
    t.shape[t.ndim] = length;
    t.strides[t.ndim++] = part->row;
    if (heads > 0) {
        t.shape[t.ndim] = heads;
        t.strides[t.ndim++] = features / heads * size;
        features /= heads;
    }
    t.shape[t.ndim] = features;
    t.strides[t.ndim++] = size;
    return t;
}

static ptrdiff_t heads_of(const attn_multihead_args *args, int n) { return n == Q ? args->heads : args->kv_heads; }

/* Steps ------------------------------------------------------------------------------------------------------------ */

/* One product for this projection and those joined to it. */
static attn_status project(const attn_multihead_plan *m, int n, attn_error *error)
{
    const attn_multihead_args *args = m->args;
    attn_linear_args linear = {.x = *attn_input_of(args, n),
                               .weight = *attn_weight_of(args, n),
                               .bias = *attn_bias_of(args, n),
                               .num_threads = args->attention.num_threads};
    ptrdiff_t features = m->part[n].features;
    attn_product product;
    for (int next = n + 1; next < m->projections && m->joined[next]; next++) features += m->part[next].features;
    linear.weight.shape[0] = linear.bias.shape[0] = features;
    const ptrdiff_t length = attn_input_of(args, n)->shape[m->batch_axes];
    const attn_tensor y = tensor_of(m, &m->part[n], length, features, 0);
    const attn_status status = attn_layout_linear(&linear, &y, &product, error);
    return status == ATTN_OK ? attn_multiply(&product, linear.num_threads, error) : status;
}

/* Writes the extra keys and values behind those of `key`: the given pair, then a pair of zeros. */
static void append_extra(const attn_multihead_plan *m)
{
    const attn_float_state before = attn_float_enter();
    const attn_tensor *given[] = {&m->args->extra_key, &m->args->extra_value};
    for (int n = 0; n < 2; n++) {
        const attn_projection *part = &m->part[K + n];
        const size_t bytes = (size_t)(part->features * m->size);
        for (ptrdiff_t b = 0; b < m->batches; b++) {
            char *row = part->data + ((b + 1) * part->length - m->extra) * part->row;
            if (given[n]->data) {
                attn_kernels_for(m->dtype)->load_block((attn_element)given[n]->dtype, 1, part->features, given[n]->data,
                                                       0, given[n]->strides[0], part->features, row);
                row += part->row;
            }
            if (m->args->add_zero) memset(row, 0, bytes);
        }
    }
    attn_float_leave(before);
}

/* Arguments of the inner attention. */
static attn_args middle_of(const attn_multihead_plan *m)
{
    const attn_multihead_args *args = m->args;
    attn_args middle = args->attention;
    attn_tensor *const tensors[] = {&middle.query, &middle.key, &middle.value};
    for (int n = Q; n < m->projections; n++)
        *tensors[n] = tensor_of(m, &m->part[n], m->part[n].length, m->part[n].features, heads_of(args, n));
    middle.layout = ATTN_LAYOUT_BSHD;
    middle.enable_gqa = 1;
    middle.extra_keys = m->extra;
    return middle;
}

/* Arguments that rotate q or k in place. */
static attn_rotary_args rope_args_of(const attn_multihead_plan *m, int n)
{
    attn_rotary_args rotary = m->args->rotary;
    const ptrdiff_t length = attn_input_of(m->args, n)->shape[m->batch_axes];
    rotary.x = tensor_of(m, &m->part[n], length, m->part[n].features, heads_of(m->args, n));
    rotary.layout = ATTN_LAYOUT_BSHD;
    rotary.num_threads = m->args->attention.num_threads;
    return rotary;
}

static int uses_rope(const attn_multihead_plan *m, int n)
{
    return m->args->rotary.inv_freq.data != NULL && n < m->projections;
}

static attn_status apply_rope(const attn_multihead_plan *m, int n, attn_error *error)
{
    attn_rope rope;
    if (!uses_rope(m, n)) return ATTN_OK;
    const attn_rotary_args rotary = rope_args_of(m, n);
    const attn_status status = attn_layout_rotary(&rotary, rotary.x, &rope, error);
    return status == ATTN_OK ? attn_apply_rope(&rope, rotary.num_threads, error) : status;
}

/* Whether new keys and values go into a cache. */
static int stores(const attn_multihead_plan *m) { return m->args->attention.cache != NULL && m->projections > K; }

static attn_status project_output(const attn_multihead_plan *m, attn_tensor output, attn_error *error)
{
    const attn_multihead_args *args = m->args;
    attn_product product;
    const attn_linear_args linear = {.x = tensor_of(m, &m->heads, m->heads.length, m->heads.features, 0),
                                     .weight = args->out_weight,
                                     .bias = args->out_bias,
                                     .residual = args->residual,
                                     .num_threads = args->attention.num_threads};
    const attn_status status = attn_layout_linear(&linear, &output, &product, error);
    return status == ATTN_OK ? attn_multiply(&product, linear.num_threads, error) : status;
}

/* Multiply-adds of the projections. */
static size_t projections_work(const attn_multihead_plan *m)
{
    size_t work = 0;
    for (int n = Q; n < m->projections; n++) {
        const size_t rows = attn_saturating_mul((size_t)m->batches, (size_t)m->part[n].length);
        work = attn_saturating_add(
            work, attn_saturating_mul(rows, attn_saturating_mul((size_t)m->part[n].features,
                                                                (size_t)attn_weight_of(m->args, n)->shape[1])));
    }
    const size_t rows = attn_saturating_mul((size_t)m->batches, (size_t)m->heads.length);
    return attn_saturating_add(
        work, attn_saturating_mul(rows, attn_saturating_mul((size_t)m->heads.features, (size_t)out_dim(m))));
}

attn_status attn_multihead_shapes(const attn_multihead_args *args, attn_shapes *shapes, attn_error *error)
{
    attn_multihead_plan m;
    attn_status status = attn_check_multihead(args, &m, error);
    if (status != ATTN_OK) return status;
    layout_scratch(&m, NULL);
    for (int n = Q; n <= K; n++) {
        if (!uses_rope(&m, n)) continue;
        const attn_rotary_args rotary = rope_args_of(&m, n);
        if ((status = attn_check_rotary(&rotary, error)) != ATTN_OK) return status;
    }
    const attn_args middle = middle_of(&m);
    if (stores(&m) && (status = attn_check_append(middle.cache, args->cache_first, args->cache_count, &middle.key,
                                                  &middle.value, middle.layout, error)) != ATTN_OK)
        return status;
    if ((status = attn_attention_shapes(&middle, shapes, error)) != ATTN_OK) return status;
    shapes->ndim = args->query.ndim;
    memcpy(shapes->output, args->query.shape, (size_t)shapes->ndim * sizeof *shapes->output);
    shapes->output[shapes->ndim - 1] = out_dim(&m);
    shapes->work = attn_saturating_add(shapes->work, projections_work(&m));
    return ATTN_OK;
}

/* Without an output projection, the heads write straight into columns of the caller's array. */
static attn_projection heads_in(const attn_multihead_plan *m, attn_tensor output)
{
    attn_projection heads = m->heads;
    heads.data = output.data;
    heads.dtype = output.dtype;
    heads.row = heads.features * attn_size_of_real(output.dtype);
    return heads;
}

/* Without out_weight, output must be contiguous: heads are written as its columns. Strides of empty arrays vary. */
static attn_status check_contiguous(const attn_multihead_plan *m, const attn_tensor *output, attn_error *error)
{
    ptrdiff_t step = attn_size_of_real(output->dtype);
    int fits = output->ndim == m->args->query.ndim && step > 0 && attn_computed(output->dtype) == m->dtype;
    int contiguous = 1;
    for (int axis = output->ndim - 1; fits && axis >= 0; axis--) {
        const ptrdiff_t size = axis == output->ndim - 1 ? m->heads.features : m->args->query.shape[axis];
        fits = output->shape[axis] == size;
        if (size > 1 && output->strides[axis] != step) contiguous = 0;
        step *= size;
    }
    if (!fits || (step != 0 && !contiguous))
        FAIL("output must be contiguous, of a dtype that goes with query's and of its leading axes, with %td features",
             m->heads.features);
    return ATTN_OK;
}

/* The projections of the whole call: k and v, and q unless queries are processed in parts. */
static attn_status project_all(const attn_multihead_plan *m, attn_error *error)
{
    const int first = m->cuts > 1 ? K : Q;
    attn_status status;
    for (int n = first; n < m->projections; n++)
        if (!m->joined[n] && (status = project(m, n, error)) != ATTN_OK) return status;
    if (m->extra > 0) append_extra(m);
    for (int n = first; n <= K; n++)
        if ((status = apply_rope(m, n, error)) != ATTN_OK) return status;
    return ATTN_OK;
}

/* Inner attention, once q, k and v are projected. */
static attn_status attend_heads(const attn_multihead_plan *m, attn_tensor output, attn_tensor weights,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    const attn_args middle = middle_of(m);
    if (stores(m) && weights.data) { /* before anything is stored */
        attn_shapes shapes;
        status = attn_attention_shapes(&middle, &shapes, error);
        if (status == ATTN_OK)
            status = attn_check_result("weights", &weights, shapes.weights_ndim, shapes.weights, m->args->query.dtype,
                                       error);
        if (status != ATTN_OK) return status;
    }
    if (stores(m) && (status = attn_cache_append(middle.cache, m->args->cache_first, m->args->cache_count, middle.key,
                                                 middle.value, middle.layout, error)) != ATTN_OK)
        return status;
    const attn_projection into = m->args->out_weight.data ? m->heads : heads_in(m, output);
    const attn_tensor heads = tensor_of(m, &into, into.length, into.features, m->args->heads);
    return attn_attention(&middle, heads, weights, attn_none, error);
}

/* Inner attention and the output projection. */
static attn_status attend(const attn_multihead_plan *m, attn_tensor output, attn_tensor weights, attn_error *error)
{
    const attn_status status = attend_heads(m, output, weights, error);
    return status == ATTN_OK && m->args->out_weight.data ? project_output(m, output, error) : status;
}

/* Query projection, attention and output projection for one part of the queries. */
static attn_status attend_part(const attn_multihead_plan *m, attn_tensor output, attn_tensor weights, ptrdiff_t number,
                               attn_error *error)
{
    attn_queries *const part = m->queries;
    attn_status status;
    attn_take_queries(m, output, weights, number, part);
    if ((status = project(&part->plan, Q, error)) != ATTN_OK) return status;
    if ((status = apply_rope(&part->plan, Q, error)) != ATTN_OK) return status;
    return attend(&part->plan, part->output, part->weights, error);
}

static attn_status run(const attn_multihead_plan *m, attn_tensor output, attn_tensor weights, attn_error *error)
{
    attn_status status = project_all(m, error);
    if (status == ATTN_OK && m->cuts == 1) return attend(m, output, weights, error);
    for (ptrdiff_t n = 0; status == ATTN_OK && n < m->cuts; n++) status = attend_part(m, output, weights, n, error);
    return status;
}

attn_status attn_multihead(const attn_multihead_args *args, attn_tensor output, attn_tensor weights, attn_error *error)
{
    attn_multihead_plan m;
    attn_arena arena;
    attn_status status = attn_check_multihead(args, &m, error);
    if (status != ATTN_OK) return status;
    status = args->out_weight.data ? attn_check_rows("output", &output, &args->query, out_dim(&m), error)
                                   : check_contiguous(&m, &output, error);
    if (status != ATTN_OK) return status;
    if ((status = attn_cut_queries(&m, &weights, error)) != ATTN_OK) return status;
    const size_t bytes = layout_scratch(&m, NULL);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "multi-head attention needs %zu bytes of scratch memory", bytes);
    layout_scratch(&m, arena.scratch);
    status = run(&m, output, weights, error);
    attn_arena_give(&arena);
    return status;
}

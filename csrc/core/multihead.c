/* Multi-head attention: three projections, attention, and a projection of what the heads give.
 *
 * q, k and v are written where attention reads them: rows of all heads side by side, (batch, length, heads, dim), a head
 * being a few columns. They and the heads' output are all the memory that a call takes besides attention's own.
 */
#include <string.h>

#include "arena.h"
#include "copy.h"
#include "error.h"
#include "linear.h"
#include "problem.h"

#define FAIL(...) return attn_fail(error, ATTN_INVALID, __VA_ARGS__)

enum { Q, K, V, PROJECTIONS };

/* A view with its own shape and strides. */
typedef struct {
    attn_view view;
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
} own_view;

/* (batch, length, features) in scratch memory. */
typedef struct {
    char *data;
    ptrdiff_t length, features, row; /* row: in bytes, from one to the next */
} projection;

typedef struct {
    const attn_multihead_args *args;
    attn_dtype dtype;
    ptrdiff_t size, batches, extra; /* extra: keys behind those of `key` */
    int batch_axes;
    const ptrdiff_t *batch_shape;
    projection part[PROJECTIONS], heads;
    int joined[PROJECTIONS]; /* with the one before it: one product gives both */
} multihead;

static const attn_view *input_of(const attn_multihead_args *args, int n)
{
    return n == Q ? &args->query : n == K ? &args->key : &args->value;
}
static const attn_view *weight_of(const attn_multihead_args *args, int n)
{
    return n == Q ? &args->q_weight : n == K ? &args->k_weight : &args->v_weight;
}
static const attn_view *bias_of(const attn_multihead_args *args, int n)
{
    return n == Q ? &args->q_bias : n == K ? &args->k_bias : &args->v_bias;
}

/* Rules ------------------------------------------------------------------------------------------------------------ */

static attn_status check_inputs(const attn_multihead_args *args, multihead *m, attn_error *error)
{
    static const char *const names[] = {"query", "key", "value"};
    const int axes = args->query.axes;
    for (int n = Q; n < PROJECTIONS; n++) {
        const attn_view *x = input_of(args, n);
        int same = x->axes == axes && axes >= 2 && axes < ATTN_MAX_AXES;
        for (int axis = 0; same && axis < axes - 2; axis++) same = x->shape[axis] == args->query.shape[axis];
        if (!same)
            FAIL("%s has shape %s, expected (..., length, features) with the leading axes of query, which has shape %s",
                 names[n], attn_shape_text(x->axes, x->shape), attn_shape_text(axes, args->query.shape));
        if (x->dtype != args->query.dtype) FAIL("%s has another dtype than query", names[n]);
    }
    if (args->value.shape[axes - 2] != args->key.shape[axes - 2])
        FAIL("value has length %td but key has %td", args->value.shape[axes - 2], args->key.shape[axes - 2]);
    if (args->query.dtype != ATTN_F32 && args->query.dtype != ATTN_F64) FAIL("query must be float32 or float64");
    m->dtype = args->query.dtype;
    m->size = m->dtype == ATTN_F64 ? 8 : 4;
    m->batch_axes = axes - 2;
    m->batch_shape = args->query.shape;
    m->batches = 1;
    for (int axis = 0; axis < axes - 2; axis++)
        if (__builtin_mul_overflow(m->batches, args->query.shape[axis], &m->batches))
            FAIL("query is too large for memory: %s", attn_shape_text(axes, args->query.shape));
    return ATTN_OK;
}

static attn_status check_bias(const char *name, const attn_view *bias, const char *weight_name, const attn_view *weight,
                              attn_error *error)
{
    if (weight->dtype != bias->dtype || bias->axes != 1 || bias->shape[0] != weight->shape[0])
        FAIL("%s has shape %s, expected (%td,), in query's dtype: %s has shape %s", name,
             attn_shape_text(bias->axes, bias->shape), weight->shape[0], weight_name,
             attn_shape_text(weight->axes, weight->shape));
    return ATTN_OK;
}

static attn_status check_weights(const attn_multihead_args *args, multihead *m, attn_error *error)
{
    static const char *const names[] = {"q_weight", "k_weight", "v_weight"};
    static const char *const biases[] = {"q_bias", "k_bias", "v_bias"};
    const int last = args->query.axes - 1;
    if (args->heads < 1 || args->kv_heads < 1 || args->heads % args->kv_heads != 0)
        FAIL("there are %td heads and %td kv_heads, expected 1 or more, and a multiple", args->heads, args->kv_heads);
    for (int n = Q; n < PROJECTIONS; n++) {
        const attn_view *weight = weight_of(args, n), *x = input_of(args, n);
        const ptrdiff_t heads = n == Q ? args->heads : args->kv_heads;
        if (weight->axes != 2 || weight->shape[1] != x->shape[last] || weight->shape[0] % heads != 0)
            FAIL("%s has shape %s, expected (%td * head_dim, %td)", names[n],
                 attn_shape_text(weight->axes, weight->shape), heads, x->shape[last]);
        m->part[n].features = weight->shape[0];
        if (weight->dtype != m->dtype) FAIL("%s has another dtype than query", names[n]);
        const attn_view *bias = bias_of(args, n);
        if (bias->data && check_bias(biases[n], bias, names[n], weight, error) != ATTN_OK) return ATTN_INVALID;
    }
    if (m->part[Q].features / args->heads != m->part[K].features / args->kv_heads)
        FAIL("q_weight has head_dim %td but k_weight has %td", m->part[Q].features / args->heads,
             m->part[K].features / args->kv_heads);
    return ATTN_OK;
}

static attn_status check_extra(const attn_multihead_args *args, const multihead *m, attn_error *error)
{
    const attn_view *extra[] = {&args->extra_key, &args->extra_value};
    static const char *const names[] = {"extra_key", "extra_value"};
    for (int n = 0; n < 2; n++) {
        const ptrdiff_t features = m->part[K + n].features;
        if ((extra[n]->data == NULL) != (extra[0]->data == NULL)) FAIL("extra_key and extra_value come together");
        if (extra[n]->data == NULL) continue;
        if (extra[n]->axes != 1 || extra[n]->shape[0] != features || extra[n]->dtype != m->dtype)
            FAIL("%s has shape %s, expected (%td,), in query's dtype", names[n],
                 attn_shape_text(extra[n]->axes, extra[n]->shape), features);
    }
    return ATTN_OK;
}

static attn_status check_output(const attn_multihead_args *args, const multihead *m, attn_error *error)
{
    const attn_view *weight = &args->out_weight, *bias = &args->out_bias;
    if (bias->data && !weight->data) FAIL("out_bias comes with out_weight");
    if (args->residual.data && !weight->data) FAIL("residual comes with out_weight");
    if (!weight->data) return ATTN_OK;
    if (weight->axes != 2 || weight->shape[1] != m->heads.features)
        FAIL("out_weight has shape %s, expected (out_dim, %td)", attn_shape_text(weight->axes, weight->shape),
             m->heads.features);
    if (weight->dtype != m->dtype) FAIL("out_weight has another dtype than query");
    if (bias->data && check_bias("out_bias", bias, "out_weight", weight, error) != ATTN_OK) return ATTN_INVALID;
    return args->residual.data ? attn_check_rows("residual", &args->residual, &args->query, weight->shape[0], error)
                               : ATTN_OK;
}

/* The output's last axis. */
static ptrdiff_t out_dim(const multihead *m)
{
    return m->args->out_weight.data ? m->args->out_weight.shape[0] : m->heads.features;
}

/* Two products are one where the same rows meet weights that follow one another in memory. */
static int joins(const attn_multihead_args *args, int n)
{
    const attn_view *x = input_of(args, n), *before = input_of(args, n - 1);
    const attn_view *weight = weight_of(args, n), *upper = weight_of(args, n - 1);
    const attn_view *bias = bias_of(args, n), *left = bias_of(args, n - 1);
    const size_t axes = (size_t)x->axes * sizeof *x->shape;
    if (x->data != before->data || memcmp(x->shape, before->shape, axes) != 0 ||
        memcmp(x->strides, before->strides, axes) != 0)
        return 0;
    if (weight->dtype != upper->dtype || memcmp(weight->strides, upper->strides, 2 * sizeof *weight->strides) != 0 ||
        (char *)weight->data != (char *)upper->data + upper->shape[0] * upper->strides[0])
        return 0;
    if (bias->data == NULL || left->data == NULL) return bias->data == left->data;
    return bias->axes == 1 && left->axes == 1 && bias->dtype == left->dtype &&
           (char *)bias->data == (char *)left->data + left->shape[0] * left->strides[0];
}

static attn_status check(const attn_multihead_args *args, multihead *m, attn_error *error)
{
    attn_status status;
    *m = (multihead){.args = args};
    if ((status = check_inputs(args, m, error)) != ATTN_OK) return status;
    if ((status = check_weights(args, m, error)) != ATTN_OK) return status;
    if ((status = check_extra(args, m, error)) != ATTN_OK) return status;
    const int length = args->query.axes - 2;
    m->extra = (args->extra_key.data != NULL) + (args->add_zero != 0);
    m->part[Q].length = m->heads.length = args->query.shape[length];
    m->part[K].length = m->part[V].length = args->key.shape[length] + m->extra;
    m->heads.features = m->part[V].features / args->kv_heads * args->heads;
    m->joined[K] = joins(args, K) && m->extra == 0;
    m->joined[V] = joins(args, V);
    return check_output(args, m, error);
}

/* Memory ----------------------------------------------------------------------------------------------------------- */

/* Rows an odd number of cache lines apart, as many bytes as `features` of them. Returns the bytes of all. */
static size_t lay_rows(const multihead *m, ptrdiff_t length, ptrdiff_t features, ptrdiff_t *row)
{
    const size_t bytes = attn_padded(attn_times((size_t)features, (size_t)m->size)) | ATTN_ALIGNMENT;
    *row = (ptrdiff_t)bytes;
    return attn_times(attn_times((size_t)m->batches, (size_t)length), bytes);
}

/* From NULL it only counts. */
static size_t lay_out(multihead *m, char *memory)
{
    size_t used = 0;
    for (int n = Q; n < PROJECTIONS; n++) {
        projection *part = &m->part[n];
        if (m->joined[n]) {
            part->data = part[-1].data ? part[-1].data + part[-1].features * m->size : NULL;
            part->row = part[-1].row;
            continue;
        }
        ptrdiff_t features = part->features;
        for (int next = n + 1; next < PROJECTIONS && m->joined[next]; next++) features += m->part[next].features;
        const size_t bytes = lay_rows(m, part->length, features, &part->row);
        part->data = attn_next_part(memory, &used, bytes);
    }
    if (m->args->out_weight.data) {
        const size_t bytes = lay_rows(m, m->heads.length, m->heads.features, &m->heads.row);
        m->heads.data = attn_next_part(memory, &used, bytes);
    }
    return used;
}

/* (batch..., length, features), or (batch..., length, heads, features / heads) where heads > 0. */
static const attn_view *view_of(const multihead *m, const projection *part, ptrdiff_t length, ptrdiff_t features,
                                ptrdiff_t heads, own_view *own)
{
    int axes = m->batch_axes;
    ptrdiff_t step = part->length * part->row;
    for (int axis = axes - 1; axis >= 0; axis--) {
        own->shape[axis] = m->batch_shape[axis];
        own->strides[axis] = step;
        step *= m->batch_shape[axis];
    }
    own->shape[axes] = length;
    own->strides[axes++] = part->row;
    if (heads > 0) {
        own->shape[axes] = heads;
        own->strides[axes++] = features / heads * m->size;
        features /= heads;
    }
    own->shape[axes] = features;
    own->strides[axes++] = m->size;
    own->view = (attn_view){part->data, m->dtype, axes, own->shape, own->strides};
    return &own->view;
}

/* Steps ------------------------------------------------------------------------------------------------------------ */

/* One product for this projection and those joined to it. */
static attn_status project(const multihead *m, int n, attn_error *error)
{
    const attn_multihead_args *args = m->args;
    attn_linear_args linear = {.x = *input_of(args, n),
                               .weight = *weight_of(args, n),
                               .bias = *bias_of(args, n),
                               .num_threads = args->attention.num_threads};
    ptrdiff_t features = m->part[n].features, shape[2] = {features, linear.weight.shape[1]};
    own_view y;
    attn_product product;
    for (int next = n + 1; next < PROJECTIONS && m->joined[next]; next++) features += m->part[next].features;
    shape[0] = features;
    linear.weight.shape = linear.bias.shape = shape;
    const ptrdiff_t length = input_of(args, n)->shape[m->batch_axes];
    view_of(m, &m->part[n], length, features, 0, &y);
    const attn_status status = attn_lay_linear(&linear, y.view, &product, error);
    return status == ATTN_OK ? attn_multiply(&product, linear.num_threads, error) : status;
}

/* The keys and values behind those of `key`: given ones, then zeros. */
static void append_extra(const multihead *m)
{
    const attn_view *given[] = {&m->args->extra_key, &m->args->extra_value};
    for (int n = 0; n < 2; n++) {
        const projection *part = &m->part[K + n];
        const size_t bytes = (size_t)(part->features * m->size);
        for (ptrdiff_t b = 0; b < m->batches; b++) {
            char *row = part->data + ((b + 1) * part->length - m->extra) * part->row;
            if (given[n]->data) {
                attn_copy_row(row, given[n]->data, given[n]->strides[0], part->features, part->features, (int)m->size);
                row += part->row;
            }
            if (m->args->add_zero) memset(row, 0, bytes);
        }
    }
}

/* Arguments of the attention in the middle. `own` keeps the views' shapes. */
static attn_args middle_of(const multihead *m, own_view own[PROJECTIONS])
{
    const attn_multihead_args *args = m->args;
    attn_args middle = args->attention;
    middle.query = *view_of(m, &m->part[Q], m->part[Q].length, m->part[Q].features, args->heads, &own[Q]);
    middle.key = *view_of(m, &m->part[K], m->part[K].length, m->part[K].features, args->kv_heads, &own[K]);
    middle.value = *view_of(m, &m->part[V], m->part[V].length, m->part[V].features, args->kv_heads, &own[V]);
    middle.layout = ATTN_LAYOUT_BSHD;
    middle.enable_gqa = 1;
    middle.extra_keys = m->extra;
    return middle;
}

static attn_status project_output(const multihead *m, attn_view output, attn_error *error)
{
    const attn_multihead_args *args = m->args;
    own_view x;
    attn_product product;
    view_of(m, &m->heads, m->heads.length, m->heads.features, 0, &x);
    const attn_linear_args linear = {.x = x.view,
                                     .weight = args->out_weight,
                                     .bias = args->out_bias,
                                     .residual = args->residual,
                                     .num_threads = args->attention.num_threads};
    const attn_status status = attn_lay_linear(&linear, output, &product, error);
    return status == ATTN_OK ? attn_multiply(&product, linear.num_threads, error) : status;
}

/* Multiply-adds of the projections. */
static size_t projections_work(const multihead *m)
{
    size_t work = 0;
    for (int n = Q; n < PROJECTIONS; n++) {
        const size_t rows = attn_times((size_t)m->batches, (size_t)m->part[n].length);
        work = attn_plus(
            work, attn_times(rows, attn_times((size_t)m->part[n].features, (size_t)weight_of(m->args, n)->shape[1])));
    }
    const size_t rows = attn_times((size_t)m->batches, (size_t)m->heads.length);
    return attn_plus(work, attn_times(rows, attn_times((size_t)m->heads.features, (size_t)out_dim(m))));
}

attn_status attn_multihead_shapes(const attn_multihead_args *args, attn_shapes *shapes, attn_error *error)
{
    multihead m;
    own_view own[PROJECTIONS];
    attn_status status = check(args, &m, error);
    if (status != ATTN_OK) return status;
    lay_out(&m, NULL);
    const attn_args middle = middle_of(&m, own);
    if ((status = attn_attention_shapes(&middle, shapes, error)) != ATTN_OK) return status;
    shapes->axes = args->query.axes;
    memcpy(shapes->output, args->query.shape, (size_t)shapes->axes * sizeof *shapes->output);
    shapes->output[shapes->axes - 1] = out_dim(&m);
    shapes->work = attn_plus(shapes->work, projections_work(&m));
    return ATTN_OK;
}

/* The heads' output where there is no projection of it: columns of the caller's array. */
static projection heads_in(const multihead *m, attn_view output)
{
    projection heads = m->heads;
    heads.data = output.data;
    heads.row = heads.features * m->size;
    return heads;
}

/* Only the shape of a contiguous output is looked at. */
static attn_status check_contiguous(const multihead *m, const attn_view *output, attn_error *error)
{
    ptrdiff_t step = m->size;
    int fits = output->axes == m->args->query.axes && output->dtype == m->dtype;
    for (int axis = output->axes - 1; fits && axis >= 0; axis--) {
        const ptrdiff_t size = axis == output->axes - 1 ? m->heads.features : m->args->query.shape[axis];
        fits = output->shape[axis] == size && (size <= 1 || output->strides[axis] == step);
        step *= size;
    }
    if (!fits)
        FAIL("output must be contiguous, of query's dtype and leading axes, with %td features", m->heads.features);
    return ATTN_OK;
}

static attn_status run(multihead *m, attn_view output, attn_view weights, attn_error *error)
{
    static const attn_view none = {.data = NULL};
    own_view own[PROJECTIONS], heads;
    attn_status status;
    for (int n = Q; n < PROJECTIONS; n++)
        if (!m->joined[n] && (status = project(m, n, error)) != ATTN_OK) return status;
    if (m->extra > 0) append_extra(m);

    const attn_args middle = middle_of(m, own);
    const projection into = m->args->out_weight.data ? m->heads : heads_in(m, output);
    view_of(m, &into, into.length, into.features, m->args->heads, &heads);
    if ((status = attn_attention(&middle, heads.view, weights, none, error)) != ATTN_OK) return status;
    return m->args->out_weight.data ? project_output(m, output, error) : ATTN_OK;
}

attn_status attn_multihead(const attn_multihead_args *args, attn_view output, attn_view weights, attn_error *error)
{
    multihead m;
    attn_arena arena;
    attn_status status = check(args, &m, error);
    if (status != ATTN_OK) return status;
    if (args->out_weight.data == NULL && (status = check_contiguous(&m, &output, error)) != ATTN_OK) return status;
    const size_t bytes = lay_out(&m, NULL);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "multi-head attention needs %zu bytes of scratch memory", bytes);
    lay_out(&m, arena.scratch);
    status = run(&m, output, weights, error);
    attn_arena_give(&arena);
    return status;
}

/* All rules on multi-head attention that are its own. */
#include "multihead.h"

#include <string.h>

#include "error.h"

enum { Q = ATTN_Q, K = ATTN_K, V = ATTN_V };

static attn_status check_inputs(const attn_multihead_args *args, attn_multihead_plan *m, attn_error *error)
{
    static const char *const names[] = {"query", "key", "value"};
    const int axes = args->query.ndim;
    for (int n = Q; n < m->projections; n++) {
        const attn_tensor *x = attn_input_of(args, n);
        int same = x->ndim == axes && axes >= 2 && axes < ATTN_MAX_AXES;
        for (int axis = 0; same && axis < axes - 2; axis++) same = x->shape[axis] == args->query.shape[axis];
        if (!same)
            FAIL("%s has shape %s, expected (..., length, features) with the leading axes of query, which has shape %s",
                 names[n], attn_shape_text(x->ndim, x->shape), attn_shape_text(axes, args->query.shape));
        if (!attn_go_together(x->dtype, args->query.dtype)) FAIL("%s has another dtype than query", names[n]);
    }
    if (m->projections > V && args->value.shape[axes - 2] != args->key.shape[axes - 2])
        FAIL("value has length %td but key has %td", args->value.shape[axes - 2], args->key.shape[axes - 2]);
    if (attn_size_of_real(args->query.dtype) == 0) FAIL("query must be float16, bfloat16, float32 or float64");
    m->dtype = attn_computed(args->query.dtype);
    m->size = attn_size_of_real(m->dtype);
    m->batch_axes = axes - 2;
    m->batch_shape = args->query.shape;
    m->batches = 1;
    for (int axis = 0; axis < axes - 2; axis++)
        if (__builtin_mul_overflow(m->batches, args->query.shape[axis], &m->batches))
            FAIL("query is too large for memory: %s", attn_shape_text(axes, args->query.shape));
    return ATTN_OK;
}

/* Batch, heads and dtype of the cache must match those of the call. */
static attn_status check_cache(const attn_multihead_args *args, const attn_multihead_plan *m, attn_error *error)
{
    const attn_cache *cache = args->attention.cache;
    if (cache == NULL) return ATTN_OK;
    if (m->batch_axes != 1 || m->batches != cache->batches)
        FAIL("query has shape %s, expected (%td, length, features): the cache has %td batch entries",
             attn_shape_text(args->query.ndim, args->query.shape), cache->batches, cache->batches);
    if (cache->kv_heads != args->kv_heads)
        FAIL("the cache has %td heads but kv_heads is %td", cache->kv_heads, args->kv_heads);
    if (!attn_go_together(cache->dtype, m->dtype)) FAIL("the cache has another dtype than query");
    if (args->extra_key.data || args->add_zero) FAIL("extra_key and add_zero cannot be used with a cache");
    if (args->key.data && args->cache_first == NULL) FAIL("cache_first is missing: new keys need a position");
    return ATTN_OK;
}

static attn_status check_bias(const char *name, const attn_tensor *bias, const char *weight_name,
                              const attn_tensor *weight, attn_error *error)
{
    if (!attn_go_together(weight->dtype, bias->dtype)) FAIL("%s has another dtype than %s", name, weight_name);
    if (bias->ndim != 1 || bias->shape[0] != weight->shape[0])
        FAIL("%s has shape %s, expected (%td,): %s has shape %s", name, attn_shape_text(bias->ndim, bias->shape),
             weight->shape[0], weight_name, attn_shape_text(weight->ndim, weight->shape));
    if (bias->shape[0] > 1 && bias->strides[0] != attn_size_of_real(bias->dtype)) FAIL("%s must be contiguous", name);
    return ATTN_OK;
}

/* head_dim must agree between the weights, and with the cache. */
static attn_status check_sizes(const attn_multihead_args *args, const attn_multihead_plan *m, attn_error *error)
{
    const attn_cache *cache = args->attention.cache;
    const ptrdiff_t q = m->part[Q].features / args->heads;
    const ptrdiff_t k = m->part[K].features / args->kv_heads, v = m->part[V].features / args->kv_heads;
    if (m->projections > K && q != k) FAIL("q_weight has head_dim %td but k_weight has %td", q, k);
    if (cache && q != cache->head_dim) FAIL("q_weight has head_dim %td but the cache has %td", q, cache->head_dim);
    if (cache && m->projections > V && v != cache->v_dim)
        FAIL("v_weight has head_dim %td but the cache has %td for values", v, cache->v_dim);
    return ATTN_OK;
}

static attn_status check_weights(const attn_multihead_args *args, attn_multihead_plan *m, attn_error *error)
{
    static const char *const names[] = {"q_weight", "k_weight", "v_weight"};
    static const char *const biases[] = {"q_bias", "k_bias", "v_bias"};
    const int last = args->query.ndim - 1;
    if (args->heads < 1 || args->kv_heads < 1 || args->heads % args->kv_heads != 0)
        FAIL("heads is %td and kv_heads %td: heads must be a multiple of kv_heads, both 1 or more", args->heads,
             args->kv_heads);
    for (int n = Q; n < m->projections; n++) {
        const attn_tensor *weight = attn_weight_of(args, n), *x = attn_input_of(args, n);
        const ptrdiff_t heads = n == Q ? args->heads : args->kv_heads;
        if (weight->ndim != 2 || weight->shape[1] != x->shape[last] || weight->shape[0] % heads != 0)
            FAIL("%s has shape %s, expected (%td * head_dim, %td)", names[n],
                 attn_shape_text(weight->ndim, weight->shape), heads, x->shape[last]);
        m->part[n].features = weight->shape[0];
        if (!attn_go_together(weight->dtype, args->query.dtype)) FAIL("%s has another dtype than query", names[n]);
        const attn_tensor *bias = attn_bias_of(args, n);
        if (bias->data && check_bias(biases[n], bias, names[n], weight, error) != ATTN_OK) return ATTN_INVALID;
    }
    return check_sizes(args, m, error);
}

static attn_status check_extra(const attn_multihead_args *args, const attn_multihead_plan *m, attn_error *error)
{
    const attn_tensor *extra[] = {&args->extra_key, &args->extra_value};
    static const char *const names[] = {"extra_key", "extra_value"};
    for (int n = 0; n < 2; n++) {
        const ptrdiff_t features = m->part[K + n].features;
        if ((extra[n]->data == NULL) != (extra[0]->data == NULL))
            FAIL("extra_key and extra_value must be given together");
        if (extra[n]->data == NULL) continue;
        if (!attn_go_together(extra[n]->dtype, args->query.dtype)) FAIL("%s has another dtype than query", names[n]);
        if (extra[n]->ndim != 1 || extra[n]->shape[0] != features)
            FAIL("%s has shape %s, expected (%td,)", names[n], attn_shape_text(extra[n]->ndim, extra[n]->shape),
                 features);
    }
    return ATTN_OK;
}

static attn_status check_output(const attn_multihead_args *args, const attn_multihead_plan *m, attn_error *error)
{
    const attn_tensor *weight = &args->out_weight, *bias = &args->out_bias;
    if (bias->data && !weight->data) FAIL("out_bias needs out_weight");
    if (args->residual.data && !weight->data) FAIL("residual needs out_weight");
    if (!weight->data) return ATTN_OK;
    if (weight->ndim != 2 || weight->shape[1] != m->heads.features)
        FAIL("out_weight has shape %s, expected (out_dim, %td)", attn_shape_text(weight->ndim, weight->shape),
             m->heads.features);
    if (!attn_go_together(weight->dtype, args->query.dtype)) FAIL("out_weight has another dtype than query");
    if (bias->data && check_bias("out_bias", bias, "out_weight", weight, error) != ATTN_OK) return ATTN_INVALID;
    if (!args->residual.data) return ATTN_OK;
    return attn_check_rows("residual", &args->residual, &args->query, weight->shape[0], error);
}

/* Two projections become one product when they share their input and their weights are adjacent in memory. */
static int joins(const attn_multihead_args *args, int n)
{
    const attn_tensor *x = attn_input_of(args, n), *before = attn_input_of(args, n - 1);
    const attn_tensor *weight = attn_weight_of(args, n), *upper = attn_weight_of(args, n - 1);
    const attn_tensor *bias = attn_bias_of(args, n), *left = attn_bias_of(args, n - 1);
    const size_t axes = (size_t)x->ndim * sizeof *x->shape;
    if (x->data != before->data || x->dtype != before->dtype || memcmp(x->shape, before->shape, axes) != 0 ||
        memcmp(x->strides, before->strides, axes) != 0)
        return 0;
    if (weight->dtype != upper->dtype || memcmp(weight->strides, upper->strides, 2 * sizeof *weight->strides) != 0 ||
        (char *)weight->data != (char *)upper->data + upper->shape[0] * upper->strides[0])
        return 0;
    if (bias->data == NULL || left->data == NULL) return bias->data == left->data;
    /* a bias of one element may have any stride; several are read as contiguous */
    const ptrdiff_t size = attn_size_of_real(bias->dtype);
    return bias->ndim == 1 && left->ndim == 1 && bias->dtype == left->dtype && bias->strides[0] == size &&
           left->strides[0] == size && (char *)bias->data == (char *)left->data + left->shape[0] * size;
}

attn_status attn_check_multihead(const attn_multihead_args *args, attn_multihead_plan *m, attn_error *error)
{
    const attn_cache *cache = args->attention.cache;
    attn_status status;
    *m = (attn_multihead_plan){.args = args, .projections = cache && !args->key.data ? K : ATTN_PROJECTIONS};
    if (args->attention.state.data || args->attention.unfinished)
        FAIL("multi-head attention takes no part of the keys");
    if ((status = check_inputs(args, m, error)) != ATTN_OK) return status;
    if ((status = check_cache(args, m, error)) != ATTN_OK) return status;
    if ((status = check_weights(args, m, error)) != ATTN_OK) return status;
    if ((status = check_extra(args, m, error)) != ATTN_OK) return status;
    const int length = args->query.ndim - 2;
    const ptrdiff_t v_dim = cache ? cache->v_dim : m->part[V].features / args->kv_heads;
    for (int n = Q; n < ATTN_PROJECTIONS; n++) m->part[n].dtype = m->dtype;
    m->heads.dtype = m->dtype;
    m->part[Q].length = m->heads.length = args->query.shape[length];
    if (__builtin_mul_overflow(v_dim, args->heads, &m->heads.features))
        FAIL("%td heads of %td features are too many for memory", args->heads, v_dim);
    if (m->projections > K) {
        m->extra = (args->extra_key.data != NULL) + (args->add_zero != 0);
        m->part[K].length = m->part[V].length = args->key.shape[length] + m->extra;
        m->joined[K] = joins(args, K) && m->extra == 0;
        m->joined[V] = joins(args, V);
    }
    return check_output(args, m, error);
}

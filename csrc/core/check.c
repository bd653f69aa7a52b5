/* All rules on the shapes, dtypes and values of an attention call. */
#include "check.h"
#include "error.h"
#include "kernels.h"

static const char *axes_text(const attn_axis_places *at)
{
    return at->heads == 0   ? "(..., length, dim)"
           : at->heads == 3 ? "(..., heads, length, dim)"
                            : "(..., length, heads, dim)";
}

/* The size of one axis after broadcasting; -1 when the sizes disagree. */
static ptrdiff_t broadcast(ptrdiff_t a, ptrdiff_t b) { return a == b || b == 1 ? a : a == 1 ? b : -1; }

static attn_status check_ranks(const attn_args *args, attn_axis_places *at, int *rank, attn_error *error)
{
    const attn_tensor *arrays[] = {&args->query, &args->key, &args->value};
    static const char *const names[] = {"query", "key", "value"};

    *rank = 0;
    for (int n = 0; n < 3; n++) {
        if (arrays[n]->ndim > ATTN_MAX_AXES)
            FAIL("%s has %d axes, expected at most %d", names[n], arrays[n]->ndim, (int)ATTN_MAX_AXES);
        if (arrays[n]->ndim < 2)
            FAIL("%s has shape %s, expected at least 2 axes: (..., length, dim)%s", names[n],
                 attn_shape_text(arrays[n]->ndim, arrays[n]->shape),
                 n == 0 && arrays[n]->ndim == 1 ? "; for a single query, pass numpy.atleast_2d(query)" : "");
        for (int axis = 0; axis < arrays[n]->ndim; axis++)
            if (arrays[n]->shape[axis] < 0)
                FAIL("%s has shape %s, expected sizes of 0 or more", names[n],
                     attn_shape_text(arrays[n]->ndim, arrays[n]->shape));
        if (arrays[n]->ndim > *rank) *rank = arrays[n]->ndim;
    }
    const attn_dtype query = args->query.dtype, key = args->key.dtype, value = args->value.dtype;
    if (attn_size_of_real(query) == 0) FAIL("query must be float16, bfloat16, float32 or float64");
    if (!attn_go_together(key, query)) FAIL("key has another dtype than query");
    if (!attn_go_together(value, query)) FAIL("value has another dtype than query");
    if (!attn_go_together(value, key)) FAIL("value has another dtype than key");

    const int has_heads = *rank >= 4 || args->enable_gqa;
    const int length_first = has_heads && args->layout == ATTN_LAYOUT_BSHD;
    *at = attn_places_of(args->layout, has_heads);
    if (!has_heads && args->layout == ATTN_LAYOUT_BSHD)
        FAIL("layout='bshd' needs 4 axes, (batch, length, heads, dim). For (length, heads, dim), pass query[None], "
             "key[None] and value[None], or enable_gqa=True. Given: query %s, key %s, value %s",
             attn_shape_text(args->query.ndim, args->query.shape), attn_shape_text(args->key.ndim, args->key.shape),
             attn_shape_text(args->value.ndim, args->value.shape));
    for (int n = 0; n < 3; n++)
        if (arrays[n]->ndim < 3 && has_heads && (length_first || args->enable_gqa))
            FAIL("%s has shape %s, expected at least 3 axes: %s", names[n],
                 attn_shape_text(arrays[n]->ndim, arrays[n]->shape), axes_text(at));
    return ATTN_OK;
}

static attn_status check_lengths_and_dims(const attn_args *args, const attn_axis_places *at, attn_problem *p,
                                          attn_error *error)
{
    p->q_len = attn_size_of(&args->query, at->length);
    p->kv_len = attn_size_of(&args->key, at->length);
    p->head_dim = attn_size_of(&args->query, 1);
    p->v_dim = attn_size_of(&args->value, 1);
    if (attn_size_of(&args->key, 1) != p->head_dim)
        FAIL("key has head_dim %td but query has %td; both are %s. Given: query %s, key %s%s",
             attn_size_of(&args->key, 1), p->head_dim, axes_text(at),
             attn_shape_text(args->query.ndim, args->query.shape), attn_shape_text(args->key.ndim, args->key.shape),
             attn_size_of(&args->key, 2) == p->head_dim ? "; if key is transposed, swap its last two axes" : "");
    if (attn_size_of(&args->value, at->length) != p->kv_len)
        FAIL("value has length %td but key has %td; both are %s. Given: key %s, value %s",
             attn_size_of(&args->value, at->length), p->kv_len, axes_text(at),
             attn_shape_text(args->key.ndim, args->key.shape), attn_shape_text(args->value.ndim, args->value.shape));
    return ATTN_OK;
}

static ptrdiff_t common_divisor(ptrdiff_t a, ptrdiff_t b)
{
    while (b != 0) {
        ptrdiff_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The number of heads of the result; -1 when it is not a multiple of key's and value's. */
static ptrdiff_t heads_of(ptrdiff_t query, ptrdiff_t key, ptrdiff_t value)
{
    const ptrdiff_t heads = query == 1 ? broadcast(key, value) : query;
    if (heads > 0 && (key == 0 || value == 0)) return -1;
    return (key > 0 && heads % key != 0) || (value > 0 && heads % value != 0) ? -1 : heads;
}

/* A hint for the message when the shapes would fit in the other layout. */
static const char *layout_hint(const attn_args *args, const attn_axis_places *at)
{
    const ptrdiff_t heads = heads_of(attn_size_of(&args->query, at->length), attn_size_of(&args->key, at->length),
                                     attn_size_of(&args->value, at->length));
    if (heads < 0 || attn_size_of(&args->key, at->heads) != attn_size_of(&args->value, at->heads)) return "";
    return args->layout == ATTN_LAYOUT_BHSD ? "; " ATTN_OTHER_LAYOUT
                                            : "; if the axes are (..., heads, length, dim), leave layout='bshd' out";
}

static attn_status check_heads(const attn_args *args, const attn_axis_places *at, attn_problem *p, attn_error *error)
{
    p->heads = p->group = p->key_group = p->value_group = 1;
    if (at->heads == 0) return ATTN_OK;

    const ptrdiff_t query = attn_size_of(&args->query, at->heads), key = attn_size_of(&args->key, at->heads);
    const ptrdiff_t value = attn_size_of(&args->value, at->heads);
    p->heads = heads_of(query, key, value);
    if (p->heads < 0)
        FAIL("query has %td heads, key %td and value %td; query heads must be a multiple of key and value heads (axis "
             "%d, %s). Given: query %s, key %s, value %s%s",
             query, key, value, -at->heads, axes_text(at), attn_shape_text(args->query.ndim, args->query.shape),
             attn_shape_text(args->key.ndim, args->key.shape), attn_shape_text(args->value.ndim, args->value.shape),
             layout_hint(args, at));
    p->key_group = key > 0 ? p->heads / key : 1;
    p->value_group = value > 0 ? p->heads / value : 1;
    if (p->heads == 0) p->key_group = p->value_group = 1;
    p->group = args->average_weights ? 1 : common_divisor(p->key_group, p->value_group); /* one head at a time */
    return ATTN_OK;
}

static attn_status check_batch(const attn_args *args, const attn_axis_places *at, int rank, attn_problem *p,
                               attn_error *error)
{
    p->has_heads = at->heads != 0;
    p->batch_axes = rank - at->batch + 1;
    for (int n = 0; n < p->batch_axes; n++) {
        const int axis = rank - n; /* from the right */
        ptrdiff_t size = broadcast(attn_size_of(&args->query, axis), attn_size_of(&args->key, axis));
        if (size >= 0) size = broadcast(size, attn_size_of(&args->value, axis));
        if (size < 0)
            FAIL("query %s, key %s and value %s do not broadcast: axis %d has sizes %td, %td and %td%s",
                 attn_shape_text(args->query.ndim, args->query.shape), attn_shape_text(args->key.ndim, args->key.shape),
                 attn_shape_text(args->value.ndim, args->value.shape), -axis, attn_size_of(&args->query, axis),
                 attn_size_of(&args->key, axis), attn_size_of(&args->value, axis),
                 rank == 3 && axis == 3 ? "; if it holds heads that share keys, pass enable_gqa=True" : "");
        p->batch_shape[n] = size;
    }
    return ATTN_OK;
}

/* The size in bytes of every result must fit in ptrdiff_t. */
static attn_status check_sizes(const attn_args *args, attn_problem *p, attn_error *error)
{
    ptrdiff_t count = p->heads, weights, columns;
    int over = 0;
    p->batches = 1;
    for (int n = 0; n < p->batch_axes; n++) over |= __builtin_mul_overflow(p->batches, p->batch_shape[n], &p->batches);
    over |= __builtin_mul_overflow(count, p->batches, &count);
    over |= __builtin_mul_overflow(count, p->q_len, &count);
    over |= __builtin_mul_overflow(count, (ptrdiff_t)sizeof(double), &count);
    over |= __builtin_mul_overflow(count, p->kv_len, &weights);
    over |= __builtin_add_overflow(p->v_dim, args->unfinished ? ATTN_STATE_EXTRA : p->v_dim == 0, &columns);
    over |= __builtin_mul_overflow(count, columns, &count);
    if (over)
        FAIL("the result is too large for memory: query %s, key %s, value %s",
             attn_shape_text(args->query.ndim, args->query.shape), attn_shape_text(args->key.ndim, args->key.shape),
             attn_shape_text(args->value.ndim, args->value.shape));
    return ATTN_OK;
}

static attn_status check_score(const attn_args *args, attn_problem *p, attn_error *error)
{
    const attn_tensor *weight = &args->score_weight;
    p->score = args->score;
    p->score_weight = weight->data;
    if ((unsigned)args->score > ATTN_SCORE_ADDITIVE) FAIL("score is %d, expected an attn_score", (int)args->score);
    if (args->score != ATTN_SCORE_ADDITIVE) {
        if (weight->data == NULL) return ATTN_OK;
        FAIL("score='%s' takes no score_weight: leave it out, or pass score='bilinear' or score='additive'",
             (const char *const[]){"dot", "cosine", "distance"}[args->score]);
    }
    if (weight->data == NULL)
        FAIL("score='additive' needs score_weight, an array of shape (%td,): query has head_dim %td", p->head_dim,
             p->head_dim);
    if (weight->ndim != 1 || weight->shape[0] != p->head_dim)
        FAIL("score_weight has shape %s, expected (%td,): query has head_dim %td",
             attn_shape_text(weight->ndim, weight->shape), p->head_dim, p->head_dim);
    if (weight->dtype != p->dtype) FAIL("score_weight has another dtype than query");
    if (p->head_dim > 1 && weight->strides[0] != attn_size_of_real(p->dtype)) FAIL("score_weight must be contiguous");
    return ATTN_OK;
}

/* The rules on a part of the keys that takes up a state, or leaves one. */
static attn_status check_part(const attn_args *args, const attn_axis_places *at, attn_problem *p, attn_error *error)
{
    const attn_tensor *state = &args->state;
    attn_shapes want;
    p->unfinished = args->unfinished != 0;
    p->state.data = NULL;
    if (state->data == NULL && !p->unfinished) return ATTN_OK;

    const ptrdiff_t end = args->key_start + p->kv_len;
    if (args->cache != NULL) FAIL("parts of the keys of a cache: pass its keys and values as arrays");
    if (state->data != NULL && args->key_start % ATTN_CHUNK_KEYS != 0)
        FAIL("key_start is %td, expected a multiple of %d with a state", args->key_start, (int)ATTN_CHUNK_KEYS);
    if (p->unfinished && end % ATTN_CHUNK_KEYS != 0)
        FAIL("a part of the keys ends at %td, expected a multiple of %d: only the last part may end elsewhere", end,
             (int)ATTN_CHUNK_KEYS);
    if (state->data == NULL) return ATTN_OK;

    attn_describe(args, p, &want);
    want.output[want.ndim - 1] = p->v_dim + ATTN_STATE_EXTRA;
    const attn_status status = attn_check_result("state", state, want.ndim, want.output, p->dtype, error);
    if (status != ATTN_OK) return status;
    const int filled = p->batches > 0 && p->heads > 0 && p->q_len > 0; /* empty arrays may have any strides */
    if (state->dtype != p->dtype || (filled && attn_last_stride(state) != attn_size_of_real(p->dtype)))
        FAIL("state must be float64 for float64, else float32, with a contiguous last axis");
    attn_resolve(state, at, p, &p->state);
    return ATTN_OK;
}

static attn_status check_arrays(const attn_args *args, attn_problem *p, attn_error *error)
{
    attn_status status;
    attn_axis_places at = {.heads = 0};
    int rank = 0;

    if ((status = check_ranks(args, &at, &rank, error)) != ATTN_OK) return status;
    if ((status = check_lengths_and_dims(args, &at, p, error)) != ATTN_OK) return status;
    if ((status = check_heads(args, &at, p, error)) != ATTN_OK) return status;
    if ((status = check_batch(args, &at, rank, p, error)) != ATTN_OK) return status;
    if ((status = check_sizes(args, p, error)) != ATTN_OK) return status;
    if ((status = attn_check_masks(args, p, error)) != ATTN_OK) return status;

    p->dtype = attn_computed(args->query.dtype);
    p->has_scale = args->has_scale;
    p->scale = args->scale;
    if ((status = check_score(args, p, error)) != ATTN_OK) return status;
    p->empty = args->empty;
    p->average = args->average_weights && p->has_heads;
    attn_resolve(&args->query, &at, p, &p->query);
    attn_resolve(&args->key, &at, p, &p->key);
    attn_resolve(&args->value, &at, p, &p->value);
    return check_part(args, &at, p, error);
}

attn_status attn_check_inputs(const attn_args *args, attn_problem *p, attn_error *error)
{
    attn_status status;
    p->cache = args->cache;
    if (args->cache == NULL) return check_arrays(args, p, error);

    attn_args arrays = *args;
    if (args->extra_keys != 0) FAIL("extra_keys is %td, expected 0 with a cache", args->extra_keys);
    status = attn_cache_tensors(args->cache, args->layout, &arrays.key, &arrays.value, error);
    if (status != ATTN_OK) return status;
    status = check_arrays(&arrays, p, error);
    return status == ATTN_OK ? attn_check_pages(p, error) : status;
}

/* All rules on the shapes, dtypes and values of an attention call. Each mistake is named where it can be seen. */
#include <string.h>

#include "error.h"
#include "kernels.h"
#include "problem.h"

#define FAIL(...) return attn_fail(error, ATTN_INVALID, __VA_ARGS__)

/* Axes are counted from the right, the last is 1. An axis that is not there has size 1. */
static ptrdiff_t size_of(const attn_view *view, int axis)
{
    return axis <= view->axes ? view->shape[view->axes - axis] : 1;
}
/* 0 where the axis is broadcast. */
static ptrdiff_t stride_of(const attn_view *view, int axis)
{
    return axis <= view->axes && view->shape[view->axes - axis] != 1 ? view->strides[view->axes - axis] : 0;
}

/* Where the named axes lie, counted from the right. */
typedef struct {
    int length, heads, batch; /* batch: the rightmost batch axis; heads is 0 when there is none */
} axis_places;

static const char *axes_text(const axis_places *at)
{
    return at->heads == 0   ? "(..., length, dim)"
           : at->heads == 3 ? "(..., heads, length, dim)"
                            : "(..., length, heads, dim)";
}

/* Where the axes of query, key, value and output lie. */
static axis_places places_of(attn_layout layout, int has_heads)
{
    axis_places at = {.length = 2, .heads = has_heads ? 3 : 0, .batch = 3 + has_heads};
    if (has_heads && layout == ATTN_LAYOUT_BSHD) {
        at.length = 3;
        at.heads = 2;
    }
    return at;
}

/* The dimension of one axis after broadcasting; -1 when the sizes do not go together. */
static ptrdiff_t broadcast(ptrdiff_t a, ptrdiff_t b) { return a == b || b == 1 ? a : a == 1 ? b : -1; }

static attn_status check_ranks(const attn_args *args, axis_places *at, int *rank, attn_error *error)
{
    const attn_view *arrays[] = {&args->query, &args->key, &args->value};
    static const char *const names[] = {"query", "key", "value"};

    *rank = 0;
    for (int n = 0; n < 3; n++) {
        if (arrays[n]->axes < 2 || arrays[n]->axes > ATTN_MAX_AXES)
            FAIL("%s has %d axes, expected at least 2: (..., length, dim)", names[n], arrays[n]->axes);
        for (int axis = 0; axis < arrays[n]->axes; axis++)
            if (arrays[n]->shape[axis] < 0)
                FAIL("%s has shape %s, expected sizes of 0 or more", names[n],
                     attn_shape_text(arrays[n]->axes, arrays[n]->shape));
        if (arrays[n]->axes > *rank) *rank = arrays[n]->axes;
        if (arrays[n]->dtype != args->query.dtype) FAIL("%s has another dtype than query", names[n]);
    }
    if (args->query.dtype != ATTN_F32 && args->query.dtype != ATTN_F64) FAIL("query must be float32 or float64");

    const int has_heads = *rank >= 4 || args->enable_gqa;
    const int length_first = has_heads && args->layout == ATTN_LAYOUT_BSHD;
    *at = places_of(args->layout, has_heads);
    for (int n = 0; n < 3; n++)
        if (arrays[n]->axes < 3 && has_heads && (length_first || args->enable_gqa))
            FAIL("%s has shape %s, expected at least 3 axes: %s", names[n],
                 attn_shape_text(arrays[n]->axes, arrays[n]->shape), axes_text(at));
    return ATTN_OK;
}

static attn_status check_lengths_and_dims(const attn_args *args, const axis_places *at, attn_problem *p,
                                          attn_error *error)
{
    p->q_len = size_of(&args->query, at->length);
    p->kv_len = size_of(&args->key, at->length);
    p->head_dim = size_of(&args->query, 1);
    p->v_dim = size_of(&args->value, 1);
    if (size_of(&args->key, 1) != p->head_dim)
        FAIL("key has head_dim %td but query has %td; both are %s. Given: query %s, key %s", size_of(&args->key, 1),
             p->head_dim, axes_text(at), attn_shape_text(args->query.axes, args->query.shape),
             attn_shape_text(args->key.axes, args->key.shape));
    if (size_of(&args->value, at->length) != p->kv_len)
        FAIL("value has length %td but key has %td; both are %s. Given: key %s, value %s",
             size_of(&args->value, at->length), p->kv_len, axes_text(at),
             attn_shape_text(args->key.axes, args->key.shape), attn_shape_text(args->value.axes, args->value.shape));
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

static attn_status check_heads(const attn_args *args, const axis_places *at, attn_problem *p, attn_error *error)
{
    p->heads = p->group = p->key_group = p->value_group = 1;
    if (at->heads == 0) return ATTN_OK;

    const ptrdiff_t query = size_of(&args->query, at->heads), key = size_of(&args->key, at->heads);
    const ptrdiff_t value = size_of(&args->value, at->heads);
    p->heads = query == 1 ? broadcast(key, value) : query;
    if (p->heads < 0 || (p->heads > 0 && (key == 0 || value == 0)) || (key > 0 && p->heads % key != 0) ||
        (value > 0 && p->heads % value != 0))
        FAIL("query has %td heads, key %td and value %td; query heads must be a multiple of key and value heads (axis "
             "%d, %s). Given: query %s, key %s, value %s",
             query, key, value, -at->heads, axes_text(at), attn_shape_text(args->query.axes, args->query.shape),
             attn_shape_text(args->key.axes, args->key.shape), attn_shape_text(args->value.axes, args->value.shape));
    p->key_group = key > 0 ? p->heads / key : 1;
    p->value_group = value > 0 ? p->heads / value : 1;
    if (p->heads == 0) p->key_group = p->value_group = 1;
    p->group = args->average_weights ? 1 : common_divisor(p->key_group, p->value_group); /* heads go in order then */
    return ATTN_OK;
}

static attn_status check_batch(const attn_args *args, const axis_places *at, int rank, attn_problem *p,
                               attn_error *error)
{
    p->has_heads = at->heads != 0;
    p->batch_axes = rank - at->batch + 1;
    for (int n = 0; n < p->batch_axes; n++) {
        const int axis = rank - n; /* from the right */
        ptrdiff_t size = broadcast(size_of(&args->query, axis), size_of(&args->key, axis));
        if (size >= 0) size = broadcast(size, size_of(&args->value, axis));
        if (size < 0)
            FAIL("query %s, key %s and value %s do not broadcast: axis %d has sizes %td, %td and %td%s",
                 attn_shape_text(args->query.axes, args->query.shape), attn_shape_text(args->key.axes, args->key.shape),
                 attn_shape_text(args->value.axes, args->value.shape), -axis, size_of(&args->query, axis),
                 size_of(&args->key, axis), size_of(&args->value, axis),
                 rank == 3 && axis == 3 ? "; if it holds heads that share keys, pass enable_gqa=True" : "");
        p->batch_shape[n] = size;
    }
    return ATTN_OK;
}

/* The number of elements of every result must be a number of bytes that fits. */
static attn_status check_sizes(const attn_args *args, attn_problem *p, attn_error *error)
{
    ptrdiff_t count = p->heads, weights;
    int over = 0;
    p->batches = 1;
    for (int n = 0; n < p->batch_axes; n++) over |= __builtin_mul_overflow(p->batches, p->batch_shape[n], &p->batches);
    over |= __builtin_mul_overflow(count, p->batches, &count);
    over |= __builtin_mul_overflow(count, p->q_len, &count);
    over |= __builtin_mul_overflow(count, (ptrdiff_t)sizeof(double), &count);
    over |= __builtin_mul_overflow(count, p->kv_len, &weights);
    over |= __builtin_mul_overflow(count, p->v_dim > 0 ? p->v_dim : 1, &count);
    if (over)
        FAIL("the result is too large for memory: query %s, key %s, value %s",
             attn_shape_text(args->query.axes, args->query.shape), attn_shape_text(args->key.axes, args->key.shape),
             attn_shape_text(args->value.axes, args->value.shape));
    return ATTN_OK;
}

static void resolve(const attn_view *view, const axis_places *at, const attn_problem *p, attn_operand *operand)
{
    operand->data = view->data;
    operand->column = stride_of(view, 1);
    operand->row = stride_of(view, at->length);
    operand->head = at->heads ? stride_of(view, at->heads) : 0;
    for (int n = 0; n < p->batch_axes; n++) operand->batch[n] = stride_of(view, at->batch + p->batch_axes - 1 - n);
}

static attn_status check_mask(const attn_args *args, attn_problem *p, attn_error *error)
{
    const attn_view *mask = &args->mask;
    const axis_places at = places_of(ATTN_LAYOUT_BHSD, p->has_heads); /* in every layout */
    p->mask.data = NULL;
    if (mask->data == NULL) return ATTN_OK;

    ptrdiff_t expected[ATTN_MAX_AXES + 2];
    const int rank = p->batch_axes + p->has_heads + 2;
    memcpy(expected, p->batch_shape, (size_t)p->batch_axes * sizeof *expected);
    if (p->has_heads) expected[rank - 3] = p->heads;
    expected[rank - 2] = p->q_len;
    expected[rank - 1] = p->kv_len;
    int fits = mask->axes <= rank;
    for (int axis = 1; fits && axis <= mask->axes; axis++)
        fits = size_of(mask, axis) == 1 || size_of(mask, axis) == expected[rank - axis];
    if (!fits)
        FAIL("attn_mask has shape %s, which does not broadcast to %s: %s", attn_shape_text(mask->axes, mask->shape),
             attn_shape_text(rank, expected), p->has_heads ? "(..., heads, q_len, kv_len)" : "(..., q_len, kv_len)");
    if (mask->dtype == ATTN_I64) FAIL("attn_mask must be bool (True = attend) or float (added to the scores)");
    p->mask_dtype = mask->dtype;
    resolve(mask, &at, p, &p->mask);
    return ATTN_OK;
}

/* key_lengths or query_lengths: one integer for each batch entry, 0 <= n <= most. */
static attn_status check_lengths(const attn_view *lengths, const char *name, const char *axis_name, ptrdiff_t most,
                                 const attn_problem *p, attn_operand *operand, attn_error *error)
{
    operand->data = NULL;
    if (lengths->data == NULL) return ATTN_OK;

    int fits = lengths->axes <= p->batch_axes && lengths->dtype == ATTN_I64;
    for (int axis = 1; fits && axis <= lengths->axes; axis++)
        fits = size_of(lengths, axis) == 1 || size_of(lengths, axis) == p->batch_shape[p->batch_axes - axis];
    if (!fits)
        FAIL("%s has shape %s, which does not broadcast to the batch axes %s", name,
             attn_shape_text(lengths->axes, lengths->shape), attn_shape_text(p->batch_axes, p->batch_shape));

    operand->data = lengths->data;
    operand->head = operand->row = operand->column = 0;
    for (int n = 0; n < p->batch_axes; n++) operand->batch[n] = stride_of(lengths, p->batch_axes - n);
    for (ptrdiff_t b = 0; b < p->batches; b++) {
        const int64_t n = *(const int64_t *)(const void *)attn_part(p, operand, b, 0);
        if (n < 0 || n > most) FAIL("%s holds %lld, expected 0 <= n <= %td (%s)", name, (long long)n, most, axis_name);
    }
    return ATTN_OK;
}

/* Positions and distances stay below this, so that sums of a few of them fit. */
#define FAR (PTRDIFF_MAX / 8)

/* One side of a window; beyond any array it is unbounded. */
static ptrdiff_t reach_of(ptrdiff_t side) { return side == ATTN_UNBOUNDED || side > FAR ? PTRDIFF_MAX : side; }

static attn_status check_visibility(const attn_args *args, attn_problem *p, attn_error *error)
{
    static const char *const wide = "  upper_left   lower_right\n    x . . .       x x x .\n    x x . .       x x x x";
    static const char *const tall = "  upper_left   lower_right\n    x .           . .\n    x x           . .\n"
                                    "    x x           x .\n    x x           x x";
    const int windowed = args->window_left != ATTN_UNBOUNDED || args->window_right != ATTN_UNBOUNDED;

    if (args->window_left < ATTN_UNBOUNDED || args->window_right < ATTN_UNBOUNDED)
        FAIL("window is (%td, %td), expected two sizes of 0 or more, or None for unbounded", args->window_left,
             args->window_right);
    if ((args->is_causal || windowed) && p->q_len != p->kv_len && args->align == ATTN_ALIGN_UNSAID)
        FAIL("%s with %td queries and %td keys needs align='upper_left' (torch, JAX) or align='lower_right' "
             "(FlashAttention; decoding with a cache). For %s, x = up to the query's own position:\n%s",
             args->is_causal ? "is_causal=True" : "window", p->q_len, p->kv_len,
             p->q_len < p->kv_len ? "2 queries and 4 keys" : "4 queries and 2 keys",
             p->q_len < p->kv_len ? wide : tall);

    if (args->key_start < 0 || args->query_start < 0 || args->key_start > FAR || args->query_start > FAR)
        FAIL("query_start is %td and key_start %td, expected positions from 0 to %td", args->query_start,
             args->key_start, FAR);
    if (args->key_start % ATTN_BLOCK_KEYS != 0)
        FAIL("key_start is %td, expected a multiple of %d", args->key_start, (int)ATTN_BLOCK_KEYS);

    p->before = reach_of(args->window_left);
    p->after = reach_of(args->window_right);
    if (args->is_causal) p->after = 0;
    p->lower_right = args->align == ATTN_ALIGN_LOWER_RIGHT;
    p->key_start = args->key_start;
    p->offset = args->query_start - args->key_start;
    return ATTN_OK;
}

attn_status attn_check_inputs(const attn_args *args, attn_problem *p, attn_error *error)
{
    attn_status status;
    axis_places at;
    int rank;

    if ((status = check_ranks(args, &at, &rank, error)) != ATTN_OK) return status;
    if ((status = check_lengths_and_dims(args, &at, p, error)) != ATTN_OK) return status;
    if ((status = check_heads(args, &at, p, error)) != ATTN_OK) return status;
    if ((status = check_batch(args, &at, rank, p, error)) != ATTN_OK) return status;
    if ((status = check_sizes(args, p, error)) != ATTN_OK) return status;
    if ((status = check_mask(args, p, error)) != ATTN_OK) return status;
    if ((status = check_visibility(args, p, error)) != ATTN_OK) return status;
    if ((status = check_lengths(&args->key_lengths, "key_lengths", "the length of key", p->kv_len, p, &p->key_lengths,
                                error)) != ATTN_OK)
        return status;
    if ((status = check_lengths(&args->query_lengths, "query_lengths", "the length of query", p->q_len, p,
                                &p->query_lengths, error)) != ATTN_OK)
        return status;

    p->dtype = args->query.dtype;
    p->has_scale = args->has_scale;
    p->scale = args->scale;
    p->empty = args->empty;
    p->average = args->average_weights && p->has_heads;
    resolve(&args->query, &at, p, &p->query);
    resolve(&args->key, &at, p, &p->key);
    resolve(&args->value, &at, p, &p->value);
    return ATTN_OK;
}

/* A float mask whose first and last row (of the first slice) hold zeros and ones, and not zeros alone. */
static int looks_like_ones(const attn_problem *p)
{
    if (p->mask.data == NULL || p->mask_dtype == ATTN_BOOL || p->q_len == 0 || p->kv_len == 0) return 0;
    if (p->batches == 0 || p->heads == 0) return 0;
    const ptrdiff_t columns = p->mask.column == 0 ? 1 : p->kv_len < 2048 ? p->kv_len : 2048;
    int ones = 0;
    for (int last = 0; last < 2; last++) {
        const char *at = p->mask.data + (last ? (p->q_len - 1) * p->mask.row : 0);
        for (ptrdiff_t j = 0; j < columns; j++, at += p->mask.column) {
            double x;
            switch (p->mask_dtype) {
            case ATTN_F16:
                x = *(const uint16_t *)(const void *)at == 0x3c00  ? 1
                    : *(const uint16_t *)(const void *)at & 0x7fff ? 2
                                                                   : 0;
                break;
            case ATTN_F32: x = *(const float *)(const void *)at; break;
            case ATTN_F64: x = *(const double *)(const void *)at; break;
            default: x = (double)*(const long double *)(const void *)at; break;
            }
            if (x != 0 && x != 1) return 0;
            ones |= x == 1;
        }
    }
    return ones;
}

void attn_describe(const attn_args *args, const attn_problem *p, attn_shapes *shapes)
{
    const int n = p->batch_axes, length_first = p->has_heads && args->layout == ATTN_LAYOUT_BSHD;
    const size_t batch_bytes = (size_t)n * sizeof *p->batch_shape;
    memcpy(shapes->output, p->batch_shape, batch_bytes);
    memcpy(shapes->weights, p->batch_shape, batch_bytes);
    memcpy(shapes->lse, p->batch_shape, batch_bytes);
    shapes->axes = n + p->has_heads + 2;
    shapes->weights_axes = shapes->axes - p->average;
    shapes->lse_axes = shapes->axes - 1;
    if (p->has_heads) {
        shapes->output[n + length_first] = p->heads;
        if (!p->average) shapes->weights[n] = p->heads;
        shapes->lse[n] = p->heads;
    }
    shapes->output[n + (p->has_heads && !length_first)] = p->q_len;
    shapes->output[shapes->axes - 1] = p->v_dim;
    shapes->weights[shapes->weights_axes - 2] = shapes->lse[shapes->lse_axes - 1] = p->q_len;
    shapes->weights[shapes->weights_axes - 1] = p->kv_len;
    shapes->mask_looks_like_ones = looks_like_ones(p);
    shapes->heads_look_like_length = p->has_heads && p->heads > 512 && p->q_len <= 64;
    shapes->heads = p->heads;
    shapes->q_len = p->q_len;
}

attn_status attn_attention_shapes(const attn_args *args, attn_shapes *shapes, attn_error *error)
{
    attn_problem problem;
    const attn_status status = attn_check_inputs(args, &problem, error);
    if (status == ATTN_OK) attn_describe(args, &problem, shapes);
    return status;
}

static attn_status check_result(const char *name, const attn_view *view, int axes, const ptrdiff_t *shape,
                                attn_dtype dtype, attn_error *error)
{
    if (view->data == NULL) return ATTN_OK;
    int same = view->axes == axes;
    for (int n = 0; same && n < axes; n++) same = view->shape[n] == shape[n];
    if (!same)
        FAIL("%s has shape %s, expected %s", name, attn_shape_text(view->axes, view->shape),
             attn_shape_text(axes, shape));
    if (view->dtype != dtype) FAIL("%s must have query's dtype", name);
    return ATTN_OK;
}

attn_status attn_check_results(const attn_args *args, const attn_problem *p, const attn_view *output,
                               const attn_view *weights, const attn_view *lse, attn_error *error)
{
    attn_shapes want;
    attn_status status;
    attn_describe(args, p, &want);
    if ((status = check_result("output", output, want.axes, want.output, p->dtype, error)) != ATTN_OK) return status;
    status = check_result("weights", weights, want.weights_axes, want.weights, p->dtype, error);
    return status != ATTN_OK ? status : check_result("lse", lse, want.lse_axes, want.lse, p->dtype, error);
}

attn_status attn_check_outputs(const attn_args *args, attn_view output, attn_view weights, attn_view lse,
                               attn_problem *p, attn_error *error)
{
    const axis_places at = places_of(args->layout, p->has_heads);
    const axis_places weights_at = places_of(ATTN_LAYOUT_BHSD, p->has_heads && !p->average);
    const axis_places lse_at = {.length = 1, .heads = p->has_heads ? 2 : 0, .batch = 2 + p->has_heads};
    const ptrdiff_t size = p->dtype == ATTN_F64 ? 8 : 4;

    if (output.data == NULL || output.dtype != p->dtype) FAIL("output must be given, in query's dtype");
    const int written = p->batches > 0 && p->heads > 0 && p->q_len > 0; /* else strides say nothing */
    if (written && p->v_dim > 1 && stride_of(&output, 1) != size) FAIL("output's last axis must be contiguous");
    if (written && weights.data != NULL && p->kv_len > 1 && stride_of(&weights, 1) != size)
        FAIL("the last axis of weights must be contiguous");
    resolve(&output, &at, p, &p->output);
    p->weights.data = p->lse.data = NULL;
    if (weights.data != NULL) resolve(&weights, &weights_at, p, &p->weights);
    if (lse.data != NULL) resolve(&lse, &lse_at, p, &p->lse);
    return ATTN_OK;
}

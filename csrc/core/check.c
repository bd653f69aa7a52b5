/* All rules on the shapes, dtypes and values of an attention call. Each mistake is named where it can be seen. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "error.h"
#include "kernels.h"

static const char *axes_text(const attn_axis_places *at)
{
    return at->heads == 0   ? "(..., length, dim)"
           : at->heads == 3 ? "(..., heads, length, dim)"
                            : "(..., length, heads, dim)";
}

/* The dimension of one axis after broadcasting; -1 when the sizes do not go together. */
static ptrdiff_t broadcast(ptrdiff_t a, ptrdiff_t b) { return a == b || b == 1 ? a : a == 1 ? b : -1; }

static attn_status check_ranks(const attn_args *args, attn_axis_places *at, int *rank, attn_error *error)
{
    const attn_view *arrays[] = {&args->query, &args->key, &args->value};
    static const char *const names[] = {"query", "key", "value"};

    *rank = 0;
    for (int n = 0; n < 3; n++) {
        if (arrays[n]->axes > ATTN_MAX_AXES)
            FAIL("%s has %d axes, expected at most %d", names[n], arrays[n]->axes, (int)ATTN_MAX_AXES);
        if (arrays[n]->axes < 2)
            FAIL("%s has shape %s, expected at least 2 axes: (..., length, dim)", names[n],
                 attn_shape_text(arrays[n]->axes, arrays[n]->shape));
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
    *at = attn_places_of(args->layout, has_heads);
    if (!has_heads && args->layout == ATTN_LAYOUT_BSHD)
        FAIL("layout='bshd' with fewer than 4 axes: there is no heads axis. If axis -2 holds heads, pass "
             "enable_gqa=True; if not, leave layout out. Given: query %s, key %s, value %s",
             attn_shape_text(args->query.axes, args->query.shape), attn_shape_text(args->key.axes, args->key.shape),
             attn_shape_text(args->value.axes, args->value.shape));
    for (int n = 0; n < 3; n++)
        if (arrays[n]->axes < 3 && has_heads && (length_first || args->enable_gqa))
            FAIL("%s has shape %s, expected at least 3 axes: %s", names[n],
                 attn_shape_text(arrays[n]->axes, arrays[n]->shape), axes_text(at));
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
        FAIL("key has head_dim %td but query has %td; both are %s. Given: query %s, key %s",
             attn_size_of(&args->key, 1), p->head_dim, axes_text(at),
             attn_shape_text(args->query.axes, args->query.shape), attn_shape_text(args->key.axes, args->key.shape));
    if (attn_size_of(&args->value, at->length) != p->kv_len)
        FAIL("value has length %td but key has %td; both are %s. Given: key %s, value %s",
             attn_size_of(&args->value, at->length), p->kv_len, axes_text(at),
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

/* The heads of the result, or -1 where those of key and value do not go into query's. */
static ptrdiff_t heads_of(ptrdiff_t query, ptrdiff_t key, ptrdiff_t value)
{
    const ptrdiff_t heads = query == 1 ? broadcast(key, value) : query;
    if (heads > 0 && (key == 0 || value == 0)) return -1;
    return (key > 0 && heads % key != 0) || (value > 0 && heads % value != 0) ? -1 : heads;
}

/* What to add when heads and lengths would go together in the other layout. */
static const char *layout_hint(const attn_args *args, const attn_axis_places *at)
{
    const ptrdiff_t heads = heads_of(attn_size_of(&args->query, at->length), attn_size_of(&args->key, at->length),
                                     attn_size_of(&args->value, at->length));
    if (heads < 0 || attn_size_of(&args->key, at->heads) != attn_size_of(&args->value, at->heads)) return "";
    return args->layout == ATTN_LAYOUT_BHSD ? "; if the axes are (..., length, heads, dim), pass layout='bshd'"
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
             query, key, value, -at->heads, axes_text(at), attn_shape_text(args->query.axes, args->query.shape),
             attn_shape_text(args->key.axes, args->key.shape), attn_shape_text(args->value.axes, args->value.shape),
             layout_hint(args, at));
    p->key_group = key > 0 ? p->heads / key : 1;
    p->value_group = value > 0 ? p->heads / value : 1;
    if (p->heads == 0) p->key_group = p->value_group = 1;
    p->group = args->average_weights ? 1 : common_divisor(p->key_group, p->value_group); /* heads go in order then */
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
                 attn_shape_text(args->query.axes, args->query.shape), attn_shape_text(args->key.axes, args->key.shape),
                 attn_shape_text(args->value.axes, args->value.shape), -axis, attn_size_of(&args->query, axis),
                 attn_size_of(&args->key, axis), attn_size_of(&args->value, axis),
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

/* Does a shape of `axes` sizes, without the one at `left_out`, broadcast to another? */
static int broadcasts_to(int axes, const ptrdiff_t *shape, int left_out, int rank, const ptrdiff_t *expected)
{
    for (int n = axes - 1, at = rank - 1; n >= 0; n--) {
        if (n == left_out) continue;
        if (at < 0 || (shape[n] != 1 && shape[n] != expected[at])) return 0;
        at--;
    }
    return 1;
}

/* What to add when the mask has an axis of size 1 too many, as one for heads where there are none. */
static const char *squeeze_hint(const attn_view *mask, int rank, const ptrdiff_t *expected)
{
    static _Thread_local char hint[48];
    for (int n = 0; n < mask->axes && mask->axes <= rank + 1; n++)
        if (mask->shape[n] == 1 && broadcasts_to(mask->axes, mask->shape, n, rank, expected)) {
            snprintf(hint, sizeof hint, "; attn_mask.squeeze(%d) does", n - mask->axes);
            return hint;
        }
    return "";
}

static attn_status check_mask(const attn_args *args, attn_problem *p, attn_error *error)
{
    const attn_view *mask = &args->mask;
    const attn_axis_places at = attn_places_of(ATTN_LAYOUT_BHSD, p->has_heads); /* in every layout */
    p->mask.data = NULL;
    if (mask->data == NULL) return ATTN_OK;

    ptrdiff_t expected[ATTN_MAX_AXES + 2];
    const int rank = p->batch_axes + p->has_heads + 2;
    memcpy(expected, p->batch_shape, (size_t)p->batch_axes * sizeof *expected);
    if (p->has_heads) expected[rank - 3] = p->heads;
    expected[rank - 2] = p->q_len;
    expected[rank - 1] = p->kv_len;
    if (!broadcasts_to(mask->axes, mask->shape, -1, rank, expected))
        FAIL("attn_mask has shape %s, which does not broadcast to %s: %s%s", attn_shape_text(mask->axes, mask->shape),
             attn_shape_text(rank, expected), p->has_heads ? "(..., heads, q_len, kv_len)" : "(..., q_len, kv_len)",
             squeeze_hint(mask, rank, expected));
    if (mask->dtype == ATTN_I64) FAIL("attn_mask must be bool (True = attend) or float (added to the scores)");
    p->mask_dtype = mask->dtype;
    attn_resolve(mask, &at, p, &p->mask);
    return ATTN_OK;
}

/* The first integer out of range, or NULL. Elements are read once each, not once for each batch entry that sees them:
 * there may be far more of those. */
static const int64_t *out_of_range(const attn_view *lengths, ptrdiff_t most)
{
    ptrdiff_t count = 1;
    for (int axis = 1; axis <= lengths->axes; axis++)
        if (attn_stride_of(lengths, axis) != 0) count *= attn_size_of(lengths, axis);
    for (ptrdiff_t n = 0; n < count; n++) {
        const char *at = lengths->data;
        ptrdiff_t rest = n;
        for (int axis = 1; axis <= lengths->axes && rest > 0; axis++) {
            if (attn_stride_of(lengths, axis) == 0) continue;
            at += rest % attn_size_of(lengths, axis) * attn_stride_of(lengths, axis);
            rest /= attn_size_of(lengths, axis);
        }
        const int64_t *length = (const int64_t *)(const void *)at;
        if (*length < 0 || *length > most) return length;
    }
    return NULL;
}

/* key_lengths or query_lengths: one integer for each batch entry, 0 <= n <= most. */
static attn_status check_lengths(const attn_view *lengths, const char *name, const char *axis_name, ptrdiff_t most,
                                 const attn_problem *p, attn_operand *operand, attn_error *error)
{
    operand->data = NULL;
    if (lengths->data == NULL) return ATTN_OK;

    if (lengths->dtype != ATTN_I64 || !broadcasts_to(lengths->axes, lengths->shape, -1, p->batch_axes, p->batch_shape))
        FAIL("%s has shape %s, which does not broadcast to the batch axes %s", name,
             attn_shape_text(lengths->axes, lengths->shape), attn_shape_text(p->batch_axes, p->batch_shape));

    operand->data = lengths->data;
    operand->head = operand->row = operand->column = 0;
    for (int n = 0; n < p->batch_axes; n++) operand->batch[n] = attn_stride_of(lengths, p->batch_axes - n);
    const int64_t *wrong = p->batches == 0 ? NULL : out_of_range(lengths, most);
    if (wrong != NULL) FAIL("%s holds %lld, expected 0 <= n <= %td (%s)", name, (long long)*wrong, most, axis_name);
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
    attn_axis_places at = {.heads = 0};
    int rank = 0;

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
    attn_resolve(&args->query, &at, p, &p->query);
    attn_resolve(&args->key, &at, p, &p->key);
    attn_resolve(&args->value, &at, p, &p->value);
    return ATTN_OK;
}

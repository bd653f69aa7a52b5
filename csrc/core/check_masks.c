/* The rules on masks, dropout, lengths, causal masks and windows. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "dropout.h"
#include "error.h"

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

/* Does the mask fit once its axes -3 and -2, of lengths and heads, are swapped? */
static int fits_swapped(const attn_tensor *mask, int rank, const ptrdiff_t *expected)
{
    ptrdiff_t shape[ATTN_MAX_AXES + 2];
    if (rank < 4 || mask->ndim < 4 || mask->ndim > rank) return 0;
    memcpy(shape, mask->shape, (size_t)mask->ndim * sizeof *shape);
    shape[mask->ndim - 3] = mask->shape[mask->ndim - 2];
    shape[mask->ndim - 2] = mask->shape[mask->ndim - 3];
    return broadcasts_to(mask->ndim, shape, -1, rank, expected);
}

/* Does the mask fit if the arrays are (..., length, heads, dim), and layout='bshd' was left out? */
static int fits_other_layout(const attn_args *args, const attn_tensor *mask, int rank, const ptrdiff_t *expected)
{
    ptrdiff_t shape[ATTN_MAX_AXES + 2];
    if (args->layout != ATTN_LAYOUT_BHSD || rank < 4) return 0;
    memcpy(shape, expected, (size_t)rank * sizeof *shape);
    shape[rank - 3] = attn_size_of(&args->query, 2);
    shape[rank - 2] = attn_size_of(&args->query, 3);
    shape[rank - 1] = attn_size_of(&args->key, 3);
    return broadcasts_to(mask->ndim, mask->shape, -1, rank, shape);
}

/* A hint for the message when the mask fits with other axes: one of size 1 too many, such as a heads axis, none for
 * heads or queries, or those of the other layout. */
static const char *axes_hint(const attn_args *args, const char *name, const attn_tensor *mask, int rank,
                             const ptrdiff_t *expected)
{
    static _Thread_local char hint[128];
    for (int n = 0; n < mask->ndim && mask->ndim <= rank + 1; n++)
        if (mask->shape[n] == 1 && broadcasts_to(mask->ndim, mask->shape, n, rank, expected)) {
            snprintf(hint, sizeof hint, "; pass %s.squeeze(%d)", name, n - mask->ndim);
            return hint;
        }
    const int of_batch = mask->ndim >= 2 && (rank == 3 || rank == 4) && mask->shape[0] == expected[0];
    if (of_batch && mask->ndim == 2 && mask->shape[1] == expected[rank - 1]) {
        snprintf(hint, sizeof hint, "; for (batch, kv_len), pass %s[:, %sNone, :]", name, rank == 3 ? "" : "None, ");
        return hint;
    }
    if (of_batch && mask->ndim == 3 && rank == 4 && broadcasts_to(2, mask->shape + 1, -1, 2, expected + 2)) {
        snprintf(hint, sizeof hint, "; for (batch, q_len, kv_len), pass %s[:, None]", name);
        return hint;
    }
    if (fits_swapped(mask, rank, expected)) {
        snprintf(hint, sizeof hint, "; masks have heads before q_len in every layout: pass %s.swapaxes(-3, -2)", name);
        return hint;
    }
    if (fits_other_layout(args, mask, rank, expected)) {
        snprintf(hint, sizeof hint, "; %s", ATTN_OTHER_LAYOUT);
        return hint;
    }
    return "";
}

_Static_assert((int)ATTN_ELEMENT_BOOL == (int)ATTN_BOOL && (int)ATTN_ELEMENT_F16 == (int)ATTN_F16 &&
                   (int)ATTN_ELEMENT_BF16 == (int)ATTN_BF16 && (int)ATTN_ELEMENT_F32 == (int)ATTN_F32 &&
                   (int)ATTN_ELEMENT_F64 == (int)ATTN_F64 && (int)ATTN_ELEMENT_LONG == (int)ATTN_LONG_DOUBLE,
               "the kernels' numbers for dtypes are attn.h's");

/* Fills the shape that masks broadcast to, (..., heads, q_len, last), and returns its number of axes. */
static int shape_of_pairs(const attn_problem *p, ptrdiff_t last, ptrdiff_t *shape)
{
    const int axes = p->batch_axes + p->has_heads + 2;
    memcpy(shape, p->batch_shape, (size_t)p->batch_axes * sizeof *shape);
    if (p->has_heads) shape[axes - 3] = p->heads;
    shape[axes - 2] = p->q_len;
    shape[axes - 1] = last;
    return axes;
}

static attn_status check_mask(const attn_args *args, const attn_tensor *mask, int which, attn_problem *p,
                              attn_error *error)
{
    static const char *const names[] = {"attn_mask", "key_padding_mask", "keep_mask"};
    const attn_axis_places at = attn_places_of(ATTN_LAYOUT_BHSD, p->has_heads); /* in every layout */
    const int blocked = which == ATTN_MASK ? args->mask_blocked : which == ATTN_PADDING && args->padding_blocked;
    ptrdiff_t expected[ATTN_MAX_AXES + 2];
    const int rank = shape_of_pairs(p, which == ATTN_KEEP ? p->kv_len : p->maskable_len, expected);
    if (!broadcasts_to(mask->ndim, mask->shape, -1, rank, expected))
        FAIL("%s has shape %s, which does not broadcast to %s: %s%s", names[which],
             attn_shape_text(mask->ndim, mask->shape), attn_shape_text(rank, expected),
             p->has_heads ? "(..., heads, q_len, kv_len)" : "(..., q_len, kv_len)",
             axes_hint(args, names[which], mask, rank, expected));
    if (which == ATTN_KEEP && mask->dtype != ATTN_BOOL) FAIL("keep_mask must be bool (True = kept)");
    if (mask->dtype == ATTN_I64) FAIL("%s must be bool or float (added to the scores)", names[which]);
    p->mask_dtypes[which] = mask->dtype == ATTN_BOOL && blocked ? ATTN_ELEMENT_BLOCKED : (attn_element)mask->dtype;
    attn_resolve(mask, &at, p, &p->masks[which]);
    return ATTN_OK;
}

/* The numbers of batch entries and heads in a longer problem, as dropout counts them. */
static attn_status check_units(const attn_tensor *units, attn_problem *p, attn_error *error)
{
    const int64_t most = ((int64_t)1 << 32) - 1; /* a 32-bit counter */
    ptrdiff_t expected[ATTN_MAX_AXES + 2];
    const int rank = shape_of_pairs(p, 1, expected) - 2;
    p->units.data = NULL;
    if (units->data == NULL) return ATTN_OK;
    if (units->dtype != ATTN_I64 || !broadcasts_to(units->ndim, units->shape, -1, rank, expected))
        FAIL("units has shape %s, which does not broadcast to %s: an int64 for each batch entry and head",
             attn_shape_text(units->ndim, units->shape), attn_shape_text(rank, expected));
    const int64_t *wrong = p->batches == 0 || p->heads == 0 ? NULL : attn_out_of_range(units, 0, most);
    if (wrong != NULL) FAIL("units holds %lld, expected 0 <= n < 2**32", (long long)*wrong);

    const int heads = p->has_heads;
    p->units.data = units->data;
    p->units.head = heads ? attn_stride_of(units, 1) : 0;
    for (int n = 0; n < p->batch_axes; n++) p->units.batch[n] = attn_stride_of(units, heads + p->batch_axes - n);
    return ATTN_OK;
}

static attn_status check_dropout(const attn_args *args, attn_problem *p, attn_error *error)
{
    const attn_status status = check_units(&args->units, p, error);
    if (status != ATTN_OK) return status;
    p->dropout_p = args->dropout_p;
    p->dropout_seed = args->dropout_seed;
    p->drops = args->keep_mask.data != NULL || args->dropout_p > 0;
    if (args->keep_mask.data != NULL) return attn_check_dropout(args->dropout_p, 0, 0, 0, error); /* not drawn */
    return attn_check_dropout(args->dropout_p, p->batches * p->heads, args->query_start + p->q_len,
                              args->key_start + p->kv_len, error);
}

/* Values are not checked: they only narrow what a row sees. */
static attn_status check_limits(const attn_tensor *limits, attn_problem *p, attn_error *error)
{
    p->key_limits.data = NULL;
    if (limits->data == NULL) return ATTN_OK;

    const attn_axis_places at = attn_places_of(ATTN_LAYOUT_BHSD, p->has_heads); /* in every layout */
    ptrdiff_t expected[ATTN_MAX_AXES + 2];
    const int rank = shape_of_pairs(p, 2, expected);
    if (limits->dtype != ATTN_I64) FAIL("key_limits must be int64");
    if (attn_size_of(limits, 1) != 2 || !broadcasts_to(limits->ndim, limits->shape, -1, rank, expected))
        FAIL("key_limits has shape %s, which does not broadcast to %s: two numbers for each query",
             attn_shape_text(limits->ndim, limits->shape), attn_shape_text(rank, expected));
    attn_resolve(limits, &at, p, &p->key_limits);
    return ATTN_OK;
}

/* Reads each stored element once: broadcasting may repeat it for a great many batch entries. */
const int64_t *attn_out_of_range(const attn_tensor *lengths, int64_t least, int64_t most)
{
    ptrdiff_t count = 1;
    for (int axis = 1; axis <= lengths->ndim; axis++)
        if (attn_stride_of(lengths, axis) != 0) count *= attn_size_of(lengths, axis);
    for (ptrdiff_t n = 0; n < count; n++) {
        const char *at = lengths->data;
        ptrdiff_t rest = n;
        for (int axis = 1; axis <= lengths->ndim && rest > 0; axis++) {
            if (attn_stride_of(lengths, axis) == 0) continue;
            at += rest % attn_size_of(lengths, axis) * attn_stride_of(lengths, axis);
            rest /= attn_size_of(lengths, axis);
        }
        const int64_t *length = (const int64_t *)(const void *)at;
        if (*length < least || *length > most) return length;
    }
    return NULL;
}

/* key_lengths or query_lengths: one integer for each batch entry, 0 <= n <= most. */
static attn_status check_lengths(const attn_tensor *lengths, const char *name, const char *axis_name, ptrdiff_t most,
                                 const attn_problem *p, attn_operand *operand, attn_error *error)
{
    operand->data = NULL;
    if (lengths->data == NULL) return ATTN_OK;

    if (lengths->dtype != ATTN_I64 || !broadcasts_to(lengths->ndim, lengths->shape, -1, p->batch_axes, p->batch_shape))
        FAIL("%s has shape %s, which does not broadcast to the batch axes %s", name,
             attn_shape_text(lengths->ndim, lengths->shape), attn_shape_text(p->batch_axes, p->batch_shape));

    operand->data = lengths->data;
    operand->head = operand->row = operand->column = 0;
    for (int n = 0; n < p->batch_axes; n++) operand->batch[n] = attn_stride_of(lengths, p->batch_axes - n);
    const int64_t *wrong = p->batches == 0 ? NULL : attn_out_of_range(lengths, 0, most);
    if (wrong != NULL) FAIL("%s holds %lld, expected 0 <= n <= %td (%s)", name, (long long)*wrong, most, axis_name);
    return ATTN_OK;
}

/* Positions and distances stay below this, so that sums of a few of them fit. */
#define MOST_POSITION ((ptrdiff_t)PTRDIFF_MAX / 8)

/* One side of a window; beyond any array it is unbounded. */
static ptrdiff_t reach_of(ptrdiff_t side)
{
    return side == ATTN_UNBOUNDED || side > MOST_POSITION ? PTRDIFF_MAX : side;
}

static attn_status check_visibility(const attn_args *args, attn_problem *p, attn_error *error)
{
    static const char *const wide = "  upper_left   lower_right\n    x . . .       x x x .\n    x x . .       x x x x";
    static const char *const tall = "  upper_left   lower_right\n    x .           . .\n    x x           . .\n"
                                    "    x x           x .\n    x x           x x";
    const int windowed = args->window_left != ATTN_UNBOUNDED || args->window_right != ATTN_UNBOUNDED;

    if (args->window_left < ATTN_UNBOUNDED || args->window_right < ATTN_UNBOUNDED)
        FAIL("window is (%td, %td), expected two sizes of 0 or more, or None for unbounded", args->window_left,
             args->window_right);
    if ((args->is_causal || windowed) && p->q_len != p->maskable_len && args->align == ATTN_ALIGN_UNSAID)
        FAIL("%s with %td queries and %td keys needs align='upper_left' (torch, JAX) or align='lower_right' "
             "(FlashAttention; decoding with a cache). For %s, x = up to the query's own position:\n%s",
             args->is_causal ? "is_causal=True" : "window", p->q_len, p->maskable_len,
             p->q_len < p->maskable_len ? "2 queries and 4 keys" : "4 queries and 2 keys",
             p->q_len < p->maskable_len ? wide : tall);

    if (args->key_start < 0 || args->query_start < 0 || args->key_start > MOST_POSITION ||
        args->query_start > MOST_POSITION)
        FAIL("query_start is %td and key_start %td, expected positions from 0 to %td", args->query_start,
             args->key_start, MOST_POSITION);
    if (args->align == ATTN_ALIGN_OFFSET && (args->align_offset < -MOST_POSITION || args->align_offset > MOST_POSITION))
        FAIL("align is %td, expected positions from %td to %td", args->align_offset, -MOST_POSITION, MOST_POSITION);
    if (args->key_start % ATTN_BLOCK_KEYS != 0)
        FAIL("key_start is %td, expected a multiple of %d", args->key_start, (int)ATTN_BLOCK_KEYS);

    p->before = reach_of(args->window_left);
    p->after = reach_of(args->window_right);
    if (args->is_causal) p->after = 0;
    p->lower_right = args->align == ATTN_ALIGN_LOWER_RIGHT;
    p->query_start = args->query_start;
    p->key_start = args->key_start;
    p->offset = args->query_start - args->key_start;
    if (args->align == ATTN_ALIGN_OFFSET) p->offset += args->align_offset;
    return ATTN_OK;
}

attn_status attn_check_masks(const attn_args *args, attn_problem *p, attn_error *error)
{
    attn_status status;
    if (args->extra_keys < 0 || args->extra_keys > p->kv_len || (args->extra_keys > 0 && args->query_lengths.data))
        FAIL("extra_keys is %td, expected 0 to %td (the length of key), and 0 with query_lengths", args->extra_keys,
             p->kv_len);
    p->maskable_len = p->kv_len - args->extra_keys;
    for (int which = 0; which < ATTN_MASKS; which++) {
        const attn_tensor *const given[] = {&args->mask, &args->padding_mask, &args->keep_mask};
        p->masks[which].data = NULL;
        if (given[which]->data == NULL) continue;
        if ((status = check_mask(args, given[which], which, p, error)) != ATTN_OK) return status;
    }
    if ((status = check_limits(&args->key_limits, p, error)) != ATTN_OK) return status;
    if ((status = check_visibility(args, p, error)) != ATTN_OK) return status;
    if ((status = check_dropout(args, p, error)) != ATTN_OK) return status;
    status = check_lengths(&args->key_lengths, "key_lengths", "the length of key", p->maskable_len, p, &p->key_lengths,
                           error);
    if (status != ATTN_OK) return status;
    return check_lengths(&args->query_lengths, "query_lengths", "the length of query", p->q_len, p, &p->query_lengths,
                         error);
}

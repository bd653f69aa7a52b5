/* All rules on the arguments of rotary position embedding, and where its axes lie. */
#include "check.h"
#include "error.h"
#include "rotary.h"
#include "walk.h"

/* Beyond it, a double cannot tell neighbouring positions apart. */
#define EXACT_POSITION ((int64_t)1 << 53)

/* Heads are an axis of four axes or more, and in ATTN_LAYOUT_BSHD always. */
static attn_axis_places places_in(const attn_rotary_args *args)
{
    return attn_places_of(args->layout, args->layout == ATTN_LAYOUT_BSHD || args->x.ndim >= 4);
}

static attn_status check_x(const attn_tensor *x, attn_layout layout, attn_error *error)
{
    const int least = layout == ATTN_LAYOUT_BSHD ? 3 : 2;
    ptrdiff_t bytes = sizeof(double);
    int over = 0;
    if (x->ndim > ATTN_MAX_AXES) FAIL("x has %d axes, expected at most %d", x->ndim, (int)ATTN_MAX_AXES);
    if (x->ndim < least)
        FAIL("x has shape %s, expected at least %d axes: %s", attn_shape_text(x->ndim, x->shape), least,
             least == 3 ? "(..., length, heads, dim)" : "(..., length, dim)");
    if (attn_size_of_real(x->dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    for (int n = 0; n < x->ndim; n++) {
        if (x->shape[n] < 0) FAIL("x has shape %s, expected sizes of 0 or more", attn_shape_text(x->ndim, x->shape));
        over |= __builtin_mul_overflow(bytes, x->shape[n], &bytes);
    }
    if (over) FAIL("the result is too large for memory: x %s", attn_shape_text(x->ndim, x->shape));
    return ATTN_OK;
}

static attn_status check_frequencies(const attn_rotary_args *args, attn_error *error)
{
    const attn_tensor *inv_freq = &args->inv_freq;
    const ptrdiff_t dim = attn_size_of(&args->x, 1);
    if (inv_freq->ndim != 1 || inv_freq->dtype != ATTN_F64)
        FAIL("inv_freq has shape %s, expected (pairs,), and must be float64",
             attn_shape_text(inv_freq->ndim, inv_freq->shape));
    if (inv_freq->shape[0] > dim / 2)
        FAIL("inv_freq has %td pairs, but x has dim %td: at most %td pairs. Given: x %s", inv_freq->shape[0], dim,
             dim / 2, attn_shape_text(args->x.ndim, args->x.shape));
    if (inv_freq->shape[0] > 1 && inv_freq->strides[0] != (ptrdiff_t)sizeof(double))
        FAIL("inv_freq must be contiguous");
    return ATTN_OK;
}

static attn_status check_positions(const attn_rotary_args *args, attn_error *error)
{
    const attn_tensor *ids = &args->position_ids;
    const attn_axis_places at = places_in(args);
    const ptrdiff_t length = attn_size_of(&args->x, at.length);
    if (ids->data == NULL) {
        const int64_t offset = args->offset;
        if (offset < -EXACT_POSITION || offset > EXACT_POSITION - length)
            FAIL("offset is %td and x has length %td, expected positions from -2**53 to 2**53", args->offset, length);
        return ATTN_OK;
    }

    ptrdiff_t expected[ATTN_MAX_AXES];
    const int rank = args->x.ndim - at.batch + 2; /* batch axes and length */
    for (int n = 0; n < rank - 1; n++) expected[n] = args->x.shape[n];
    expected[rank - 1] = length;
    int fits = ids->ndim <= rank && ids->dtype == ATTN_I64;
    for (int n = 1; fits && n <= ids->ndim; n++)
        fits = attn_size_of(ids, n) == 1 || attn_size_of(ids, n) == expected[rank - n];
    if (!fits)
        FAIL("position_ids has shape %s, which does not broadcast to %s: (..., length), one for each row of all heads",
             attn_shape_text(ids->ndim, ids->shape), attn_shape_text(rank, expected));
    const int64_t *wrong = attn_out_of_range(ids, -EXACT_POSITION, EXACT_POSITION);
    if (wrong != NULL) FAIL("position_ids holds %lld, expected positions from -2**53 to 2**53", (long long)*wrong);
    return ATTN_OK;
}

attn_status attn_check_rotary(const attn_rotary_args *args, attn_error *error)
{
    attn_status status;
    if ((status = check_x(&args->x, args->layout, error)) != ATTN_OK) return status;
    if ((status = check_frequencies(args, error)) != ATTN_OK) return status;
    return check_positions(args, error);
}

/* An axis of x and y, counted from the right; 0 stands for an axis of size 1. */
static attn_rotary_axis axis_of(const attn_tensor *x, const attn_tensor *y, int axis)
{
    if (axis == 0) return (attn_rotary_axis){1, 0, 0, 0};
    return (attn_rotary_axis){attn_size_of(x, axis), attn_stride_of(x, axis), attn_stride_of(y, axis), 0};
}

attn_status attn_layout_rotary(const attn_rotary_args *args, attn_tensor y, attn_rope *t, attn_error *error)
{
    const attn_tensor *x = &args->x, *ids = &args->position_ids;
    attn_status status = attn_check_rotary(args, error);
    if (status == ATTN_OK) status = attn_check_rows("x", x, x, attn_last_size(x), error);
    if (status == ATTN_OK) status = attn_check_rows("y", &y, x, attn_last_size(x), error);
    if (status != ATTN_OK) return status;
    if (y.dtype != x->dtype) FAIL("y has another dtype than x");

    const attn_axis_places at = places_in(args);
    t->row = axis_of(x, &y, at.length);
    t->head = axis_of(x, &y, at.heads);
    t->row.ids = ids->data ? attn_stride_of(ids, 1) : 0;
    t->own_axes = t->shared_axes = 0;
    t->own = t->shared = 1;
    for (int axis = x->ndim; axis >= at.batch; axis--) {
        attn_rotary_axis one = axis_of(x, &y, axis);
        one.ids = ids->data ? attn_stride_of(ids, axis - at.batch + 2) : 0;
        if (one.ids != 0) {
            t->own_axis[t->own_axes++] = one;
            t->own *= one.size;
        } else {
            t->shared_axis[t->shared_axes++] = one;
            t->shared *= one.size;
        }
    }
    t->dtype = x->dtype;
    t->length = t->row.size;
    t->heads = t->head.size;
    t->dim = attn_size_of(x, 1);
    t->pairs = args->inv_freq.shape[0];
    t->x = x->data;
    t->y = y.data;
    t->ids = ids->data;
    t->inv_freq = args->inv_freq.data;
    t->scale = args->scale;
    t->offset = args->offset;
    t->interleaved = args->interleaved;
    return ATTN_OK;
}

attn_status attn_rotary(const attn_rotary_args *args, attn_tensor y, attn_error *error)
{
    attn_rope rope;
    const attn_status status = attn_layout_rotary(args, y, &rope, error);
    return status == ATTN_OK ? attn_apply_rope(&rope, args->num_threads, error) : status;
}

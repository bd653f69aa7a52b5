/* Shapes of the results, likely mistakes to warn about, and rules on the caller's result arrays. */
#include <float.h>
#include <string.h>

#include "check.h"
#include "error.h"

/* 0 for a zero of a float mask, 1 for a one, 2 for any other number. Compares bits: converting a long double, or
 * comparing a signalling NaN, would raise the caller's floating-point flags. */
static int zero_or_one(const char *at, attn_dtype dtype)
{
    enum { LONG_BYTES = LDBL_MANT_DIG == 64 ? 10 : sizeof(long double) }; /* x86: 10 of 16 bytes, the rest is padding */
    static const long double long_zero = 0, long_minus_zero = -0.0L, long_one = 1;
    uint16_t half;
    uint32_t single;
    uint64_t twice;
    switch (dtype) {
    case ATTN_F16: memcpy(&half, at, sizeof half); return (half & 0x7fff) == 0 ? 0 : half == 0x3c00 ? 1 : 2;
    case ATTN_BF16: memcpy(&half, at, sizeof half); return (half & 0x7fff) == 0 ? 0 : half == 0x3f80 ? 1 : 2;
    case ATTN_F32:
        memcpy(&single, at, sizeof single);
        return (single & 0x7fffffff) == 0 ? 0 : single == 0x3f800000 ? 1 : 2;
    case ATTN_F64:
        memcpy(&twice, at, sizeof twice);
        return (twice & INT64_MAX) == 0 ? 0 : twice == (uint64_t)0x3ff << 52 ? 1 : 2;
    default:
        if (memcmp(at, &long_one, LONG_BYTES) == 0) return 1;
        return memcmp(at, &long_zero, LONG_BYTES) == 0 || memcmp(at, &long_minus_zero, LONG_BYTES) == 0 ? 0 : 2;
    }
}

/* Whether a float mask's very first and very last row hold only zeros and ones, and at least one 1. */
static int looks_like_ones(const attn_problem *p, int which)
{
    const attn_operand *mask = &p->masks[which];
    const attn_element dtype = p->mask_dtypes[which];
    if (mask->data == NULL || dtype == ATTN_ELEMENT_BOOL || dtype == ATTN_ELEMENT_BLOCKED) return 0;
    if (p->q_len == 0 || p->maskable_len == 0) return 0;
    if (p->batches == 0 || p->heads == 0) return 0;
    const ptrdiff_t columns = mask->column == 0 ? 1 : p->maskable_len < 2048 ? p->maskable_len : 2048;
    int seen = 0;
    for (int last = 0; last < 2; last++) {
        const char *at =
            last ? attn_part(p, mask, p->batches - 1, p->heads - 1) + (p->q_len - 1) * mask->row : mask->data;
        for (ptrdiff_t j = 0; j < columns && seen < 2; j++, at += mask->column)
            seen |= zero_or_one(at, (attn_dtype)dtype);
    }
    return seen == 1;
}

/* Whether query is probably (..., length, heads, dim): hundreds of heads, at most 64 queries, and a number of queries
 * that is a multiple of the keys. The last rule excludes decoding, which has more keys than queries. */
static int heads_look_like_length(const attn_problem *p)
{
    return p->has_heads && p->heads > 512 && p->q_len <= 64 && p->kv_len > 0 && p->q_len % p->kv_len == 0;
}

static void shapes_of(const attn_args *args, const attn_problem *p, attn_shapes *shapes)
{
    const int n = p->batch_axes, length_first = p->has_heads && args->layout == ATTN_LAYOUT_BSHD;
    const size_t batch_bytes = (size_t)n * sizeof *p->batch_shape;
    memcpy(shapes->output, p->batch_shape, batch_bytes);
    memcpy(shapes->weights, p->batch_shape, batch_bytes);
    memcpy(shapes->lse, p->batch_shape, batch_bytes);
    shapes->ndim = n + p->has_heads + 2;
    shapes->weights_ndim = shapes->ndim - p->average;
    shapes->lse_ndim = shapes->ndim - 1;
    if (p->has_heads) {
        shapes->output[n + length_first] = p->heads;
        if (!p->average) shapes->weights[n] = p->heads;
        shapes->lse[n] = p->heads;
    }
    shapes->output[n + (p->has_heads && !length_first)] = p->q_len;
    shapes->output[shapes->ndim - 1] = p->v_dim + (p->unfinished ? ATTN_STATE_EXTRA : 0);
    shapes->weights[shapes->weights_ndim - 2] = shapes->lse[shapes->lse_ndim - 1] = p->q_len;
    shapes->weights[shapes->weights_ndim - 1] = p->kv_len;
}

void attn_describe(const attn_args *args, const attn_problem *p, attn_shapes *shapes)
{
    shapes_of(args, p, shapes);
    shapes->mask_looks_like_ones = looks_like_ones(p, ATTN_MASK);
    shapes->padding_looks_like_ones = looks_like_ones(p, ATTN_PADDING);
    shapes->heads_look_like_length = heads_look_like_length(p);
    shapes->heads = p->heads;
    shapes->q_len = p->q_len;
    shapes->work = attn_work(p);
}

attn_status attn_attention_shapes(const attn_args *args, attn_shapes *shapes, attn_error *error)
{
    attn_problem problem;
    const attn_status status = attn_check_inputs(args, &problem, error);
    if (status == ATTN_OK) attn_describe(args, &problem, shapes);
    return status;
}

attn_status attn_check_result(const char *name, const attn_tensor *tensor, int axes, const ptrdiff_t *shape,
                              attn_dtype dtype, attn_error *error)
{
    if (tensor->data == NULL) return ATTN_OK;
    int same = tensor->ndim == axes;
    for (int n = 0; same && n < axes; n++) same = tensor->shape[n] == shape[n];
    if (!same)
        FAIL("%s has shape %s, expected %s", name, attn_shape_text(tensor->ndim, tensor->shape),
             attn_shape_text(axes, shape));
    if (!attn_go_together(tensor->dtype, dtype)) FAIL("%s has another dtype than query", name);
    return ATTN_OK;
}

attn_status attn_check_results(const attn_args *args, const attn_problem *p, const attn_tensor *output,
                               const attn_tensor *weights, const attn_tensor *lse, attn_error *error)
{
    attn_shapes want;
    attn_status status;
    shapes_of(args, p, &want);
    if ((status = attn_check_result("output", output, want.ndim, want.output, args->query.dtype, error)) != ATTN_OK)
        return status;
    status = attn_check_result("weights", weights, want.weights_ndim, want.weights, args->query.dtype, error);
    if (status == ATTN_OK) status = attn_check_result("lse", lse, want.lse_ndim, want.lse, p->dtype, error);
    if (status == ATTN_OK && lse->data && lse->dtype != p->dtype) FAIL("lse must be float64 for float64, else float32");
    return status;
}

attn_status attn_check_outputs(const attn_args *args, const attn_tensor *output, const attn_tensor *weights,
                               const attn_tensor *lse, attn_problem *p, attn_error *error)
{
    const attn_axis_places at = attn_places_of(args->layout, p->has_heads);
    const attn_axis_places weights_at = attn_places_of(ATTN_LAYOUT_BHSD, p->has_heads && !p->average);
    const attn_axis_places lse_at = attn_lse_places(p->has_heads);
    const ptrdiff_t size = attn_size_of_real(output->dtype);

    if (output->data == NULL || size == 0 || attn_computed(output->dtype) != p->dtype)
        FAIL("output must be given, in a dtype that goes with query's");
    const int written = p->batches > 0 && p->heads > 0 && p->q_len > 0; /* empty arrays may have any strides */
    if (p->unfinished && output->dtype != p->dtype)
        FAIL("an unfinished output must be float64 for float64, else float32");
    if ((p->unfinished && lse->data != NULL) || ((p->unfinished || p->state.data) && weights->data != NULL))
        FAIL("parts of the keys give no weights, and lse with the last part alone");
    if (written && (p->v_dim > 1 || p->unfinished) && attn_stride_of(output, 1) != size)
        FAIL("output's last axis must be contiguous");
    if (written && weights->data != NULL && p->kv_len > 1 &&
        attn_stride_of(weights, 1) != attn_size_of_real(weights->dtype))
        FAIL("the last axis of weights must be contiguous");
    attn_resolve(output, &at, p, &p->output);
    p->weights.data = p->lse.data = NULL;
    if (weights->data != NULL) attn_resolve(weights, &weights_at, p, &p->weights);
    if (lse->data != NULL) attn_resolve(lse, &lse_at, p, &p->lse);
    return ATTN_OK;
}

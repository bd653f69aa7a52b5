/* The feed-forward part of a Transformer's layer. Scratch memory holds the hidden rows and, with a norm, the normalised
 * x. Many rows are done in parts, so that it stays small.
 */
#include "layer.h"

#include "arena.h"
#include "cut.h"
#include "error.h"
#include "linear.h"
#include "parallel.h"

static attn_linear_args product_of(const attn_feed_forward_args *args, attn_tensor weight, attn_tensor bias)
{
    return (attn_linear_args){.x = args->x, .weight = weight, .bias = bias, .num_threads = args->num_threads};
}

/* The product that the activation is applied to: the gate's, or without a gate that of in_weight. */
static attn_linear_args first_of(const attn_feed_forward_args *args)
{
    attn_linear_args first = args->gate_weight.data ? product_of(args, args->gate_weight, args->gate_bias)
                                                    : product_of(args, args->in_weight, args->in_bias);
    first.activation = args->activation;
    return first;
}

/* Checks a weight and its bias, under the names that the caller knows. */
static attn_status check_part(const attn_feed_forward_args *args, const char *part, const attn_tensor *weight,
                              const attn_tensor *bias, attn_error *error)
{
    const attn_tensor *x = &args->x;
    if (x->ndim < 1) FAIL("x has no axes, expected (..., features)");
    if (weight->ndim != 2 || weight->shape[1] != attn_last_size(x))
        FAIL("%s_weight has shape %s, expected (hidden, %td): x has shape %s", part,
             attn_shape_text(weight->ndim, weight->shape), attn_last_size(x), attn_shape_text(x->ndim, x->shape));
    if (bias->data && (bias->ndim != 1 || bias->shape[0] != weight->shape[0]))
        FAIL("%s_bias has shape %s, expected (%td,): %s_weight has shape %s", part,
             attn_shape_text(bias->ndim, bias->shape), weight->shape[0], part,
             attn_shape_text(weight->ndim, weight->shape));
    return ATTN_OK;
}

/* All rules but those on y. */
attn_status attn_check_feed_forward(const attn_feed_forward_args *args, attn_error *error)
{
    const attn_tensor *in = &args->in_weight, *gate = &args->gate_weight, *out = &args->out_weight;
    const attn_tensor *bias = &args->out_bias;
    attn_tensor hidden;
    attn_linear_args linear = product_of(args, *in, args->in_bias);
    attn_status status = check_part(args, "in", in, &args->in_bias, error);
    if (status == ATTN_OK && gate->data) status = check_part(args, "gate", gate, &args->gate_bias, error);
    if (status == ATTN_OK) status = attn_check_linear(&linear, error);
    if (status != ATTN_OK) return status;
    if (gate->data) {
        linear = first_of(args);
        if ((status = attn_check_linear(&linear, error)) != ATTN_OK) return status;
        if (gate->shape[0] != in->shape[0])
            FAIL("gate_weight has shape %s, expected that of in_weight, %s", attn_shape_text(gate->ndim, gate->shape),
                 attn_shape_text(in->ndim, in->shape));
    } else if (args->gate_bias.data) {
        FAIL("gate_bias needs gate_weight");
    }
    attn_layout_contiguous(&args->x, in->shape[0], &hidden);
    if (out->ndim != 2 || out->shape[1] != in->shape[0])
        FAIL("out_weight has shape %s, expected (features, %td): in_weight has shape %s",
             attn_shape_text(out->ndim, out->shape), in->shape[0], attn_shape_text(in->ndim, in->shape));
    if (bias->data && (bias->ndim != 1 || bias->shape[0] != out->shape[0]))
        FAIL("out_bias has shape %s, expected (%td,): out_weight has shape %s",
             attn_shape_text(bias->ndim, bias->shape), out->shape[0], attn_shape_text(out->ndim, out->shape));
    linear = (attn_linear_args){.x = hidden, .weight = *out, .bias = args->out_bias, .residual = args->residual};
    return attn_check_linear(&linear, error);
}

size_t attn_feed_forward_work(const attn_feed_forward_args *args)
{
    const attn_tensor *in = &args->in_weight, *out = &args->out_weight;
    const size_t rows = (size_t)attn_count_rows(&args->x, 1), hidden = (size_t)in->shape[0];
    const size_t both = attn_saturating_add(attn_saturating_mul((size_t)in->shape[1], args->gate_weight.data ? 2 : 1),
                                            (size_t)out->shape[0]);
    return attn_saturating_mul(rows, attn_saturating_mul(hidden, both));
}

/* A part of the rows, and memory for it. */
typedef struct {
    attn_feed_forward_args args;
    attn_tensor y, normed, hidden;
} rows_part;

/* Sets up a part in `memory`; returns the bytes it needs. With memory == NULL it only counts them. */
static size_t take_part(const attn_feed_forward_args *args, attn_tensor y, int axis, attn_cut cut, int norms,
                        char *memory, rows_part *part)
{
    size_t used = 0;
    part->args = *args;
    part->y = y;
    attn_cut_tensor(&part->args.x, axis, cut);
    attn_cut_tensor(&part->args.residual, axis, cut);
    attn_cut_tensor(&part->y, axis, cut);
    const size_t hidden = attn_layout_contiguous(&part->args.x, args->in_weight.shape[0], &part->hidden);
    const size_t normed = attn_layout_contiguous(&part->args.x, attn_last_size(&args->x), &part->normed);
    part->hidden.data = attn_next_part(memory, &used, hidden);
    if (norms) part->normed.data = attn_next_part(memory, &used, normed);
    return used;
}

static attn_status run(rows_part *part, const attn_norm_args *norm, attn_error *error)
{
    attn_feed_forward_args *args = &part->args;
    attn_tensor hidden = part->hidden;
    attn_status status;
    if (norm != NULL) {
        attn_norm_args rows = *norm;
        rows.x = args->x;
        if ((status = attn_normalize(&rows, attn_none, part->normed, error)) != ATTN_OK) return status;
        args->x = part->normed;
    }
    attn_linear_args linear = first_of(args);
    status = attn_linear(&linear, hidden, error);
    if (status == ATTN_OK && args->gate_weight.data) {
        linear = product_of(args, args->in_weight, args->in_bias);
        linear.gate = hidden;
        status = attn_linear(&linear, hidden, error);
    }
    if (status != ATTN_OK) return status;
    linear = (attn_linear_args){.x = hidden,
                                .weight = args->out_weight,
                                .bias = args->out_bias,
                                .residual = args->residual,
                                .num_threads = args->num_threads};
    return attn_linear(&linear, part->y, error);
}

/* The axis that rows are cut along: the longest one except the last. */
static int axis_of(const attn_tensor *x)
{
    int longest = 0;
    for (int axis = 1; axis < x->ndim - 1; axis++)
        if (x->shape[axis] > x->shape[longest]) longest = axis;
    return longest;
}

attn_status attn_feed_forward_normed(const attn_feed_forward_args *args, const attn_norm_args *norm, attn_tensor y,
                                     attn_error *error)
{
    rows_part part;
    attn_arena arena;
    attn_status status = attn_check_feed_forward(args, error);
    if (status == ATTN_OK) status = attn_check_rows("y", &y, &args->x, args->out_weight.shape[0], error);
    if (status != ATTN_OK) return status;

    const int axis = axis_of(&args->x), axes = args->x.ndim - axis;
    const ptrdiff_t entries = axes > 1 ? args->x.shape[axis] : 1;
    const ptrdiff_t cuts = attn_count_cuts(attn_count_rows(&args->x, 1), entries, 1, args->num_threads);
    const size_t bytes = take_part(args, y, axes, attn_cut_of(entries, cuts, 0), norm != NULL, NULL, &part);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "the feed-forward part needs %zu bytes for its hidden rows", bytes);
    for (ptrdiff_t n = 0; status == ATTN_OK && n < cuts; n++) {
        take_part(args, y, axes, attn_cut_of(entries, cuts, n), norm != NULL, arena.scratch, &part);
        status = run(&part, norm, error);
    }
    attn_arena_give(&arena);
    return status;
}

attn_status attn_feed_forward(const attn_feed_forward_args *args, attn_tensor y, attn_error *error)
{
    return attn_feed_forward_normed(args, NULL, y, error);
}

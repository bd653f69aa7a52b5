/* The feed-forward part of a Transformer's layer. Its hidden rows are all the memory it takes. */
#include "layer.h"

#include "arena.h"
#include "error.h"
#include "linear.h"

static attn_linear_args product_of(const attn_feed_forward_args *args, attn_view weight, attn_view bias)
{
    return (attn_linear_args){.x = args->x, .weight = weight, .bias = bias, .num_threads = args->num_threads};
}

/* The first product, or the gate's; then the product that the gate meets. */
static attn_linear_args first_of(const attn_feed_forward_args *args)
{
    attn_linear_args first = args->gate_weight.data ? product_of(args, args->gate_weight, args->gate_bias)
                                                    : product_of(args, args->in_weight, args->in_bias);
    first.activation = args->activation;
    return first;
}

/* A weight and its bias under their own names. */
static attn_status check_part(const attn_feed_forward_args *args, const char *part, const attn_view *weight,
                              const attn_view *bias, attn_error *error)
{
    const attn_view *x = &args->x;
    if (x->axes < 1) FAIL("x has no axes, expected (..., features)");
    if (weight->axes != 2 || weight->shape[1] != attn_last_size(x))
        FAIL("%s_weight has shape %s, expected (hidden, %td): x has shape %s", part,
             attn_shape_text(weight->axes, weight->shape), attn_last_size(x), attn_shape_text(x->axes, x->shape));
    if (bias->data && (bias->axes != 1 || bias->shape[0] != weight->shape[0]))
        FAIL("%s_bias has shape %s, expected (%td,): %s_weight has shape %s", part,
             attn_shape_text(bias->axes, bias->shape), weight->shape[0], part,
             attn_shape_text(weight->axes, weight->shape));
    return ATTN_OK;
}

/* All rules but those on y. */
attn_status attn_check_feed_forward(const attn_feed_forward_args *args, attn_error *error)
{
    const attn_view *in = &args->in_weight, *gate = &args->gate_weight, *out = &args->out_weight;
    const attn_view *bias = &args->out_bias;
    attn_own_view hidden;
    attn_linear_args linear = product_of(args, *in, args->in_bias);
    attn_status status = check_part(args, "in", in, &args->in_bias, error);
    if (status == ATTN_OK && gate->data) status = check_part(args, "gate", gate, &args->gate_bias, error);
    if (status == ATTN_OK) status = attn_check_linear(&linear, error);
    if (status != ATTN_OK) return status;
    if (gate->data) {
        linear = first_of(args);
        if ((status = attn_check_linear(&linear, error)) != ATTN_OK) return status;
        if (gate->shape[0] != in->shape[0])
            FAIL("gate_weight has shape %s, expected that of in_weight, %s", attn_shape_text(gate->axes, gate->shape),
                 attn_shape_text(in->axes, in->shape));
    } else if (args->gate_bias.data) {
        FAIL("gate_bias comes with gate_weight");
    }
    attn_lay_contiguous(&args->x, in->shape[0], &hidden);
    if (out->axes != 2 || out->shape[1] != in->shape[0])
        FAIL("out_weight has shape %s, expected (features, %td): in_weight has shape %s",
             attn_shape_text(out->axes, out->shape), in->shape[0], attn_shape_text(in->axes, in->shape));
    if (bias->data && (bias->axes != 1 || bias->shape[0] != out->shape[0]))
        FAIL("out_bias has shape %s, expected (%td,): out_weight has shape %s",
             attn_shape_text(bias->axes, bias->shape), out->shape[0], attn_shape_text(out->axes, out->shape));
    linear = (attn_linear_args){.x = hidden.view, .weight = *out, .bias = args->out_bias, .residual = args->residual};
    return attn_check_linear(&linear, error);
}

size_t attn_feed_forward_work(const attn_feed_forward_args *args)
{
    const attn_view *in = &args->in_weight, *out = &args->out_weight;
    const size_t rows = (size_t)attn_count_rows(&args->x, 1), hidden = (size_t)in->shape[0];
    const size_t both =
        attn_plus(attn_times((size_t)in->shape[1], args->gate_weight.data ? 2 : 1), (size_t)out->shape[0]);
    return attn_times(rows, attn_times(hidden, both));
}

static attn_status run(const attn_feed_forward_args *args, attn_view hidden, attn_view y, attn_error *error)
{
    attn_linear_args linear = first_of(args);
    attn_status status = attn_linear(&linear, hidden, error);
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
    return attn_linear(&linear, y, error);
}

attn_status attn_feed_forward(const attn_feed_forward_args *args, attn_view y, attn_error *error)
{
    attn_own_view hidden;
    attn_arena arena;
    attn_status status = attn_check_feed_forward(args, error);
    if (status == ATTN_OK) status = attn_check_rows("y", &y, &args->x, args->out_weight.shape[0], error);
    if (status != ATTN_OK) return status;
    const size_t bytes = attn_lay_contiguous(&args->x, args->in_weight.shape[0], &hidden);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "the feed-forward part needs %zu bytes for its hidden rows", bytes);
    hidden.view.data = arena.scratch;
    status = run(args, hidden.view, y, error);
    attn_arena_give(&arena);
    return status;
}

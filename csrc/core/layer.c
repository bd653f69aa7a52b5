/* A layer of a Transformer: self-attention, attention to memory and feed-forward, each added to its input.
 *
 * y holds the running sum. With norm_first, the normalised input of self-attention goes to y, too, as its sum is x; the
 * other parts normalise into scratch memory. A batch is processed in groups, so that scratch memory is for one group.
 */
#include "layer.h"

#include "arena.h"
#include "check.h"
#include "error.h"
#include "norm.h"
#include "parallel.h"

enum { SELF, CROSS, FEED };

/* The parts' arguments: x is the input of a part, sum the residual added to its output. */
static void fill_attention(const attn_layer_args *args, int part, attn_tensor x, attn_tensor sum,
                           attn_multihead_args *attention)
{
    *attention = *(part == SELF ? &args->self : &args->cross);
    attention->query = x;
    attention->key = attention->value = part == SELF ? x : args->memory;
    attention->residual = sum;
}
static int has_cross(const attn_layer_args *args)
{
    return args->memory.data != NULL || args->cross.attention.cache != NULL;
}
static attn_feed_forward_args feed_of(const attn_layer_args *args, attn_tensor x, attn_tensor sum)
{
    attn_feed_forward_args feed = args->feed;
    feed.x = x;
    feed.residual = sum;
    return feed;
}
static attn_norm_args norm_of(const attn_layer_args *args, int part, attn_tensor x)
{
    const attn_norm_weights *norm = &args->norms[part];
    return (attn_norm_args){.kind = norm->kind,
                            .x = x,
                            .weight = norm->weight,
                            .bias = norm->bias,
                            .epsilon = norm->epsilon,
                            .num_threads = args->feed.num_threads};
}

/* A part's output is added to x, so it must have x's features. */
static attn_status check_sum(const attn_layer_args *args, const char *part, const attn_tensor *weight,
                             attn_error *error)
{
    if (weight->data == NULL) FAIL("out_weight of %s is missing", part);
    if (args->x.ndim < 1 || weight->ndim != 2 || weight->shape[0] == attn_last_size(&args->x)) return ATTN_OK;
    FAIL("out_weight of %s has shape %s, expected (%td, inner): its output is added to x, which has shape %s", part,
         attn_shape_text(weight->ndim, weight->shape), attn_last_size(&args->x),
         attn_shape_text(args->x.ndim, args->x.shape));
}

/* A function of its own, so that only one attention's arguments are on the stack. */
static __attribute__((noinline)) attn_status check_attention(const attn_layer_args *args, int part, attn_shapes *shapes,
                                                             attn_error *error)
{
    attn_multihead_args attention;
    fill_attention(args, part, args->x, args->x, &attention);
    return attn_multihead_shapes(&attention, shapes, error);
}

attn_status attn_layer_shapes(const attn_layer_args *args, attn_shapes *self, attn_shapes *cross, attn_error *error)
{
    const attn_feed_forward_args feed = feed_of(args, args->x, args->x);
    attn_status status;
    if (args->x.dtype != attn_computed(args->x.dtype)) FAIL("x must be float32 or float64"); /* y holds the sums */
    if ((status = check_sum(args, "the self-attention", &args->self.out_weight, error)) != ATTN_OK) return status;
    if ((status = check_sum(args, "the feed-forward part", &args->feed.out_weight, error)) != ATTN_OK) return status;
    if (has_cross(args) &&
        (status = check_sum(args, "the attention to memory", &args->cross.out_weight, error)) != ATTN_OK)
        return status;
    if ((status = check_attention(args, SELF, self, error)) != ATTN_OK) return status;
    if (has_cross(args) && (status = check_attention(args, CROSS, cross, error)) != ATTN_OK) return status;
    if ((status = attn_check_feed_forward(&feed, error)) != ATTN_OK) return status;
    for (int part = SELF; part <= FEED; part++) {
        const attn_norm_args norm = norm_of(args, part, args->x);
        if (part == CROSS && !has_cross(args)) continue;
        if ((status = attn_check_norm(&norm, error)) != ATTN_OK) return status;
    }
    self->work = attn_saturating_add(self->work, attn_feed_forward_work(&feed));
    if (has_cross(args)) self->work = attn_saturating_add(self->work, cross->work);
    return ATTN_OK;
}

/* y = sum + attention(x), where x is sum, or with norm_first its normalisation, written to `normed`. */
static attn_status attend(const attn_layer_args *args, int part, attn_tensor sum, attn_tensor normed, attn_tensor y,
                          attn_tensor weights, attn_error *error)
{
    attn_tensor x = sum;
    attn_status status;
    if (args->norm_first) {
        const attn_norm_args norm = norm_of(args, part, sum);
        if ((status = attn_normalize(&norm, attn_none, normed, error)) != ATTN_OK) return status;
        x = normed;
    }
    attn_multihead_args attention;
    fill_attention(args, part, x, sum, &attention);
    return attn_multihead(&attention, y, weights, error);
}

/* The same for the attention to memory, where sum is y. */
static attn_status attend_to_memory(const attn_layer_args *args, attn_tensor y, attn_tensor weights, attn_error *error)
{
    attn_arena arena;
    attn_tensor normed;
    if (!args->norm_first) return attend(args, CROSS, y, y, y, weights, error);
    const size_t bytes = attn_layout_contiguous(&y, attn_last_size(&y), &normed);
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "the layer needs %zu bytes of scratch memory", bytes);
    normed.data = arena.scratch;
    const attn_status status = attend(args, CROSS, y, normed, y, weights, error);
    attn_arena_give(&arena);
    return status;
}

/* y = sum + part(sum), then normalised unless norm_first. */
static attn_status add_part(const attn_layer_args *args, int part, attn_tensor sum, attn_tensor y, attn_tensor weights,
                            attn_error *error)
{
    attn_status status;
    if (part == FEED) {
        const attn_feed_forward_args feed = feed_of(args, sum, sum);
        const attn_norm_args norm = norm_of(args, part, sum);
        status = attn_feed_forward_normed(&feed, args->norm_first ? &norm : NULL, y, error);
    } else if (part == CROSS) {
        status = attend_to_memory(args, y, weights, error);
    } else {
        status = attend(args, part, sum, y, y, weights, error);
    }
    if (status != ATTN_OK || args->norm_first) return status;
    const attn_norm_args norm = norm_of(args, part, y);
    return attn_normalize(&norm, attn_none, y, error);
}

/* The layer for one group. */
static attn_status run(const attn_layer_args *args, attn_tensor y, attn_tensor self_weights, attn_tensor cross_weights,
                       attn_error *error)
{
    attn_status status = add_part(args, SELF, args->x, y, self_weights, error);
    if (status == ATTN_OK && has_cross(args)) status = add_part(args, CROSS, y, y, cross_weights, error);
    return status == ATTN_OK ? add_part(args, FEED, y, y, attn_none, error) : status;
}

/* All rules on the inputs and on the results, for the whole batch: a group sees only its part of the results. */
static attn_status check(const attn_layer_args *args, const attn_tensor *y, const attn_tensor *self_weights,
                         const attn_tensor *cross_weights, attn_error *error)
{
    const attn_dtype dtype = args->x.dtype;
    attn_shapes self, cross;
    attn_status status = attn_layer_shapes(args, &self, &cross, error);
    if (status == ATTN_OK) status = attn_check_rows("y", y, &args->x, attn_last_size(&args->x), error);
    if (status != ATTN_OK) return status;
    if (y->dtype != dtype) FAIL("y has another dtype than x");
    if (y->data == args->x.data) FAIL("y must not share x's memory: pass another array");
    status = attn_check_result("self_weights", self_weights, self.weights_ndim, self.weights, dtype, error);
    if (status != ATTN_OK || !has_cross(args)) return status;
    return attn_check_result("cross_weights", cross_weights, cross.weights_ndim, cross.weights, dtype, error);
}

attn_status attn_layer(const attn_layer_args *args, attn_tensor y, attn_tensor self_weights, attn_tensor cross_weights,
                       attn_error *error)
{
    attn_arena arena;
    attn_status status = check(args, &y, &self_weights, &cross_weights, error);
    if (status != ATTN_OK) return status;

    const ptrdiff_t groups = attn_count_groups(args);
    if (groups == 1) return run(args, y, self_weights, cross_weights, error);
    if (!attn_arena_take(&arena, sizeof(attn_group)))
        return attn_fail(error, ATTN_NO_MEMORY, "the layer needs %zu bytes of scratch memory", sizeof(attn_group));
    attn_group *const group = (attn_group *)(void *)arena.scratch;
    for (ptrdiff_t n = 0; status == ATTN_OK && n < groups; n++) {
        attn_take_group(args, y, self_weights, cross_weights, n, groups, group);
        status = run(&group->args, group->y, group->self_weights, group->cross_weights, error);
    }
    attn_arena_give(&arena);
    return status;
}

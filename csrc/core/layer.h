/* What the layer asks of its parts before it begins, and the groups that it is done in. */
#ifndef ATTN_CORE_LAYER_H
#define ATTN_CORE_LAYER_H

#include "walk.h"

/* feed_forward.c: all rules on the arguments, and multiply-adds, about. */
attn_status attn_check_feed_forward(const attn_feed_forward_args *args, attn_error *error);
size_t attn_feed_forward_work(const attn_feed_forward_args *args);

/* feed_forward.c: attn_feed_forward; with norm, whose x is not looked at, x is normalised first. */
attn_status attn_feed_forward_normed(const attn_feed_forward_args *args, const attn_norm_args *norm, attn_view y,
                                     attn_error *error);

/* groups.c: some entries of the batch's first axis, with the arguments and results that are theirs. */
enum { ATTN_BATCH_VIEWS = 15 };
typedef struct {
    attn_layer_args args;
    attn_view y, self_weights, cross_weights;
    ptrdiff_t shapes[ATTN_BATCH_VIEWS][ATTN_MAX_AXES]; /* what the views' shapes point to */
} attn_group;

/* How many groups there are. The arguments are checked. */
ptrdiff_t attn_count_groups(const attn_layer_args *args);

/* Group `number` of several. */
void attn_take_group(const attn_layer_args *args, attn_view y, attn_view self_weights, attn_view cross_weights,
                     ptrdiff_t number, ptrdiff_t groups, attn_group *group);

#endif

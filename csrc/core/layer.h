/* The layer's parts, as checked before it starts, and its groups of batch entries. */
#ifndef ATTN_CORE_LAYER_H
#define ATTN_CORE_LAYER_H

#include "walk.h"

/* feed_forward.c: all rules on the arguments, and the approximate number of multiply-adds. */
attn_status attn_check_feed_forward(const attn_feed_forward_args *args, attn_error *error);
size_t attn_feed_forward_work(const attn_feed_forward_args *args);

/* feed_forward.c: attn_feed_forward; with a norm, whose own x is ignored, args->x is normalised first. */
attn_status attn_feed_forward_normed(const attn_feed_forward_args *args, const attn_norm_args *norm, attn_tensor y,
                                     attn_error *error);

/* groups.c: a group of entries of the first batch axis, with its slices of the arguments and results. */
typedef struct {
    attn_layer_args args;
    attn_tensor y, self_weights, cross_weights;
} attn_group;

/* The number of groups. The arguments must have been checked. */
ptrdiff_t attn_count_groups(const attn_layer_args *args);

/* Fills `group` with group `number` of `groups`. */
void attn_take_group(const attn_layer_args *args, attn_tensor y, attn_tensor self_weights, attn_tensor cross_weights,
                     ptrdiff_t number, ptrdiff_t groups, attn_group *group);

#endif

/* Cuts a layer's batch into groups of entries of its first axis. */
#include "cut.h"
#include "layer.h"

/* Dropout counts its heads over the whole batch, and a cache belongs to the whole batch. */
static int stays_whole(const attn_args *attention)
{
    return attention->cache != NULL || attention->dropout_p > 0 || attention->keep_mask.data != NULL;
}

ptrdiff_t attn_count_groups(const attn_layer_args *args)
{
    const attn_tensor *x = &args->x;
    if (x->ndim < 3 || stays_whole(&args->self.attention) || stays_whole(&args->cross.attention)) return 1;
    return attn_count_cuts(attn_count_rows(x, 1), x->shape[0], 1, args->feed.num_threads);
}

void attn_take_group(const attn_layer_args *args, attn_tensor y, attn_tensor self_weights, attn_tensor cross_weights,
                     ptrdiff_t number, ptrdiff_t groups, attn_group *group)
{
    group->args = *args; /* one by one: a literal would lie on the stack first */
    group->y = y;
    group->self_weights = self_weights;
    group->cross_weights = cross_weights;
    const attn_cut cut = attn_cut_of(args->x.shape[0], groups, number);
    attn_multihead_args *self = &group->args.self, *cross = &group->args.cross;
    const int batch = args->x.ndim - 2; /* number of batch axes, a tensor's first ones */
    struct {
        attn_tensor *tensor;
        int axis;
    } const tensors[] = {
        {&group->args.x, batch + 2},
        {&group->args.memory, batch + 2},
        {&group->y, batch + 2},
        {&group->self_weights, batch + 3 - (self->attention.average_weights != 0)},
        {&group->cross_weights, batch + 3 - (cross->attention.average_weights != 0)},
        {&self->attention.mask, batch + 3},
        {&cross->attention.mask, batch + 3},
        {&self->attention.padding_mask, batch + 3},
        {&cross->attention.padding_mask, batch + 3},
        {&self->attention.key_limits, batch + 3},
        {&cross->attention.key_limits, batch + 3},
        {&self->attention.key_lengths, batch},
        {&cross->attention.key_lengths, batch},
        {&self->attention.query_lengths, batch},
        {&cross->attention.query_lengths, batch},
        {&self->rotary.position_ids, batch + 1},
        {&cross->rotary.position_ids, batch + 1},
    };
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++)
        attn_cut_tensor(tensors[n].tensor, tensors[n].axis, cut);
}

/* A layer's batch in groups: what the parts hand to each other is for a few rows at a time, whatever the batch, but for
 * enough that every thread has its share and a weight is used well. No cut changes a number.
 */
#include <string.h>

#include "arena.h"
#include "layer.h"
#include "parallel.h"

enum { ROWS_PER_WORKER = 384 };

/* Keeps of dropout are counted over the whole batch, and a cache is for all of it. */
static int stays_whole(const attn_args *attention)
{
    return attention->cache != NULL || attention->dropout_p > 0 || attention->keep_mask.data != NULL;
}

ptrdiff_t attn_count_groups(const attn_layer_args *args)
{
    const attn_view *x = &args->x;
    if (x->axes < 3 || stays_whole(&args->self.attention) || stays_whole(&args->cross.attention)) return 1;
    const ptrdiff_t rows = attn_count_rows(x, 1), workers = attn_workers(args->feed.num_threads, PTRDIFF_MAX);
    const ptrdiff_t groups = rows / ((ptrdiff_t)ROWS_PER_WORKER * (workers > 2 ? workers : 2));
    return groups < 1 ? 1 : attn_smaller(groups, x->shape[0]);
}

/* Where the group's axis is `axes` from the last, the group's part of it; a view that is the same for all stays. */
static attn_view part_of(attn_view view, int axes, ptrdiff_t entries, ptrdiff_t first, ptrdiff_t count,
                         ptrdiff_t *shape)
{
    const int axis = view.axes - axes;
    if (view.data == NULL || axis < 0 || view.shape[axis] != entries) return view;
    memcpy(shape, view.shape, (size_t)view.axes * sizeof *shape);
    shape[axis] = count;
    view.shape = shape;
    view.data = (char *)view.data + first * view.strides[axis];
    return view;
}

void attn_take_group(const attn_layer_args *args, attn_view y, attn_view self_weights, attn_view cross_weights,
                     ptrdiff_t number, ptrdiff_t groups, attn_group *group)
{
    *group = (attn_group){.args = *args, .y = y, .self_weights = self_weights, .cross_weights = cross_weights};
    if (groups == 1) return;

    const ptrdiff_t entries = args->x.shape[0];
    const ptrdiff_t more = entries % groups; /* groups of an entry more than the others */
    const ptrdiff_t first = entries / groups * number + attn_smaller(number, more);
    const ptrdiff_t count = entries / groups + (number < more);
    attn_multihead_args *self = &group->args.self, *cross = &group->args.cross;
    const int batch = args->x.axes - 2; /* axes; a view's others come behind them */
    struct {
        attn_view *view;
        int axes;
    } const views[ATTN_BATCH_VIEWS] = {
        {&group->args.x, batch + 2},
        {&group->args.memory, batch + 2},
        {&group->y, batch + 2},
        {&group->self_weights, batch + 3 - (self->attention.average_weights != 0)},
        {&group->cross_weights, batch + 3 - (cross->attention.average_weights != 0)},
        {&self->attention.mask, batch + 3},
        {&cross->attention.mask, batch + 3},
        {&self->attention.padding_mask, batch + 3},
        {&cross->attention.padding_mask, batch + 3},
        {&self->attention.key_lengths, batch},
        {&cross->attention.key_lengths, batch},
        {&self->attention.query_lengths, batch},
        {&cross->attention.query_lengths, batch},
        {&self->rotary.position_ids, batch + 1},
        {&cross->rotary.position_ids, batch + 1},
    };
    for (int n = 0; n < ATTN_BATCH_VIEWS; n++)
        *views[n].view = part_of(*views[n].view, views[n].axes, entries, first, count, group->shapes[n]);
}

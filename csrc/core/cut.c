#include "cut.h"

#include <string.h>

#include "arena.h"
#include "parallel.h"

enum { ROWS_PER_WORKER = 384 };

ptrdiff_t attn_count_cuts(ptrdiff_t rows, ptrdiff_t entries, ptrdiff_t least, int num_threads)
{
    if (rows < 2 * ROWS_PER_WORKER) return 1;
    const ptrdiff_t workers = attn_workers(num_threads, PTRDIFF_MAX);
    const ptrdiff_t cuts = rows / ((ptrdiff_t)ROWS_PER_WORKER * (workers > 2 ? workers : 2));
    const ptrdiff_t most = attn_min(cuts, entries / least);
    return most < 1 ? 1 : most;
}

attn_cut attn_cut_of(ptrdiff_t entries, ptrdiff_t cuts, ptrdiff_t number)
{
    if (cuts == 1) return (attn_cut){entries, 0, entries};
    const ptrdiff_t more = entries % cuts; /* parts that are one entry longer */
    return (attn_cut){entries, entries / cuts * number + attn_min(number, more), entries / cuts + (number < more)};
}

attn_view attn_cut_view(attn_view view, int axes, attn_cut cut, ptrdiff_t *shape)
{
    const int axis = view.axes - axes;
    if (view.data == NULL || axis < 0 || view.shape[axis] != cut.entries) return view;
    memcpy(shape, view.shape, (size_t)view.axes * sizeof *shape);
    shape[axis] = cut.count;
    view.shape = shape;
    view.data = (char *)view.data + cut.first * view.strides[axis];
    return view;
}

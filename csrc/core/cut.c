/* Parts of axes. See cut.h. */
#include "cut.h"

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

void attn_cut_tensor(attn_tensor *tensor, int axis, attn_cut cut)
{
    const int n = tensor->ndim - axis;
    if (tensor->data == NULL || n < 0 || tensor->shape[n] != cut.entries) return;
    tensor->shape[n] = cut.count;
    tensor->data = (char *)tensor->data + cut.first * tensor->strides[n];
}

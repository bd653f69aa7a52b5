/* Cuts long inputs into parts, so that scratch memory does not grow with the number of rows. A part is large enough to
 * keep every thread busy and to reuse each weight. A cut does not change any result.
 */
#ifndef ATTN_CORE_CUT_H
#define ATTN_CORE_CUT_H

#include "attn.h"

/* A part of an axis: `count` of its `entries`, from `first` on. */
typedef struct {
    ptrdiff_t entries, first, count;
} attn_cut;

/* Number of parts for `rows` rows on an axis of `entries` entries. Each part has at least `least` entries. */
ptrdiff_t attn_count_cuts(ptrdiff_t rows, ptrdiff_t entries, ptrdiff_t least, int num_threads);

/* Part `number` of `cuts`. The first parts are one entry longer when `entries` is not a multiple of `cuts`. */
attn_cut attn_cut_of(ptrdiff_t entries, ptrdiff_t cuts, ptrdiff_t number);

/* Cuts a tensor along its axis -axis. One without that axis, or broadcast along it, stays as it is. */
void attn_cut_tensor(attn_tensor *tensor, int axis, attn_cut cut);

#endif

/* Long inputs in parts: what is at hand is then for a few rows at a time, whatever their number, but for enough that every
 * thread has its share and a weight is used well. No cut changes a number.
 */
#ifndef ATTN_CORE_CUT_H
#define ATTN_CORE_CUT_H

#include "attn.h"

/* Entries of an axis of `entries`, a part of them. */
typedef struct {
    ptrdiff_t entries, first, count;
} attn_cut;

/* How many parts of so many rows there are, each `least` entries of their axis or more. */
ptrdiff_t attn_count_cuts(ptrdiff_t rows, ptrdiff_t entries, ptrdiff_t least, int num_threads);

/* Number `number` of `cuts` parts, of which the first are one entry longer than the last. */
attn_cut attn_cut_of(ptrdiff_t entries, ptrdiff_t cuts, ptrdiff_t number);

/* The part of a view whose axis is `axes` from the last. A view that is the same for all, or has no such axis, stays.
 * `shape` is what the part's shape points to. */
attn_view attn_cut_view(attn_view view, int axes, attn_cut cut, ptrdiff_t *shape);

#endif

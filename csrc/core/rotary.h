/* Rotary position embedding that is checked all through. */
#ifndef ATTN_CORE_ROTARY_H
#define ATTN_CORE_ROTARY_H

#include "attn.h"

/* A batch axis; strides in bytes. */
typedef struct {
    ptrdiff_t size, x, y, ids;
} attn_rotary_axis;

/* Batch axes are walked as two: entries with positions of their own, and in each those that share them. */
typedef struct {
    attn_dtype dtype;
    ptrdiff_t own, shared, heads, length, dim, pairs;
    int own_axes, shared_axes;
    attn_rotary_axis own_axis[ATTN_MAX_AXES], shared_axis[ATTN_MAX_AXES];
    const char *x, *ids; /* ids: NULL where positions count from offset */
    char *y;
    attn_rotary_axis row, head; /* the length axis and the heads axis; strides in bytes */
    const double *inv_freq;
    double scale;
    ptrdiff_t offset;
    int interleaved;
} attn_turning;

/* check_rotary.c: fills `turning`; all rules on the arguments and on y. Nothing in it points to a shape of the caller's. */
attn_status attn_lay_rotary(const attn_rotary_args *args, attn_view y, attn_turning *turning, attn_error *error);

attn_status attn_turn(const attn_turning *turning, int num_threads, attn_error *error);

#endif

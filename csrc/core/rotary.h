/* Fully checked rotary position embedding. */
#ifndef ATTN_CORE_ROTARY_H
#define ATTN_CORE_ROTARY_H

#include "attn.h"

/* A batch axis; strides in bytes. */
typedef struct {
    ptrdiff_t size, x, y, ids;
} attn_rotary_axis;

/* Batch axes come in two groups: `own` ones along which positions differ, and `shared` ones along which they agree. */
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
} attn_rope;

/* check_rotary.c: checks the arguments and y; fills `rope`. */
attn_status attn_layout_rotary(const attn_rotary_args *args, attn_tensor y, attn_rope *rope, attn_error *error);

attn_status attn_apply_rope(const attn_rope *rope, int num_threads, attn_error *error);

#endif

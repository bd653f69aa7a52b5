/* Views whose shapes are copies: the core reads them without the GIL, and another thread may assign to an array's shape. */
#ifndef PYATTN_FROZEN_H
#define PYATTN_FROZEN_H

#include "convert.h"

typedef struct {
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
} pyattn_frozen;

void pyattn_freeze(attn_view *view, pyattn_frozen *own);

/* Rows of one array that holds those of query, key and value on top of one another, as torch's in_proj_weight does: q is
 * all of it at first. own (3) keeps the shapes. Returns -1 with a ValueError that calls the array `name`. */
int pyattn_unpack(attn_view *q, attn_view *k, attn_view *v, const char *name, pyattn_frozen *own);

#endif

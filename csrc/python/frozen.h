/* Views with copied shapes: the core reads them without the GIL, while another thread may assign to an array's
 * shape. */
#ifndef PYATTN_FROZEN_H
#define PYATTN_FROZEN_H

#include <string.h>

#include "convert.h"

typedef struct {
    ptrdiff_t shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
} pyattn_frozen;

static inline void pyattn_freeze(attn_view *view, pyattn_frozen *own)
{
    if (view->data == NULL || view->axes == 0) return; /* a scalar's shape is NULL */
    memcpy(own->shape, view->shape, (size_t)view->axes * sizeof *own->shape);
    memcpy(own->strides, view->strides, (size_t)view->axes * sizeof *own->strides);
    view->shape = own->shape;
    view->strides = own->strides;
}

/* Splits q, which stacks the rows of query, key and value as torch's in_proj_weight does, into q, k and v. own (3)
 * stores their shapes. Returns -1 with a ValueError that calls the array `name`. */
int pyattn_unpack(attn_view *q, attn_view *k, attn_view *v, const char *name, pyattn_frozen *own);

#endif

/* Arrays with any strides. The tests name axes by role; the core gets an attn_tensor whose axes are in the caller's
 * order.
 *
 * Memory between, before and after the elements is filled with 0xFF, which is NaN if read, and shows stray writes.
 */
#ifndef TENSOR_H
#define TENSOR_H

#include "harness.h"

enum { OUTER, BATCH, HEAD, ROW, COLUMN, ROLES };

/* The memory layout of a tensor. */
typedef struct {
    int order[ROLES];            /* roles, slowest first */
    unsigned reversed, repeated; /* bits of roles: negative stride; stride 0 */
    ptrdiff_t stretch;           /* elements from one to the next */
    ptrdiff_t padding;           /* elements left out after each axis */
    ptrdiff_t row_multiple;      /* 0, or the multiple of bytes that row strides are rounded up to */
    ptrdiff_t lead, tail;        /* elements before the first and after the last */
} storage;

typedef struct {
    attn_dtype dtype;
    ptrdiff_t size[ROLES], step[ROLES]; /* strides in bytes; 0 for repeated axes */
    char *memory, *data;                /* allocated memory; element (0, ...). NULL: no tensor */
    size_t bytes;
    int ndim;
    ptrdiff_t shape[ROLES], strides[ROLES];
} tensor;

/* roles: the axes in the caller's order; the view has the last `axes` of them, and those before have size 1. */
void tensor_make(tensor *t, attn_dtype dtype, const ptrdiff_t size[ROLES], const int *roles, int count, int axes,
                 const storage *s);
void tensor_free(tensor *t);
attn_tensor tensor_view(const tensor *t);

/* for (ptrdiff_t at[ROLES] = {0}, left = tensor_count(t); left > 0; left--, tensor_next(t, at)) */
ptrdiff_t tensor_count(const tensor *t);
void tensor_next(const tensor *t, ptrdiff_t at[ROLES]);
char *tensor_at(const tensor *t, const ptrdiff_t at[ROLES]);
double tensor_get(const tensor *t, const ptrdiff_t at[ROLES]);
void tensor_set(tensor *t, const ptrdiff_t at[ROLES], double x);

void tensor_wipe(tensor *t);           /* every byte 0xFF again */
int tensor_kept_gaps(const tensor *t); /* nothing but elements was written */
uint64_t tensor_hash(const tensor *t); /* of the elements' bits; every NaN counts as the same */

#endif

/* Strided rows, made contiguous. */
#ifndef ATTN_CORE_COPY_H
#define ATTN_CORE_COPY_H

#include <stddef.h>

/* `count` elements that lie `step` bytes apart, made contiguous and padded with zeros. */
void attn_copy_row(char *to, const char *from, ptrdiff_t step, ptrdiff_t count, ptrdiff_t padded, int size);

/* Rows a power of two apart fall into the same few sets of the first-level cache: they are better copied. */
static inline int attn_aliases(ptrdiff_t stride) { return stride != 0 && stride % 2048 == 0; }

#endif

/* Copies strided rows to contiguous ones. */
#ifndef ATTN_CORE_COPY_H
#define ATTN_CORE_COPY_H

#include <stddef.h>

/* Copies `count` elements, `step` bytes apart, and pads them with zeros to `padded`. */
void attn_copy_row(char *to, const char *from, ptrdiff_t step, ptrdiff_t count, ptrdiff_t padded, int size);

#endif

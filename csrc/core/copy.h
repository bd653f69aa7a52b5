/* Strided rows, made contiguous. */
#ifndef ATTN_CORE_COPY_H
#define ATTN_CORE_COPY_H

#include <stddef.h>

/* `count` elements that lie `step` bytes apart, made contiguous and padded with zeros. */
void attn_copy_row(char *to, const char *from, ptrdiff_t step, ptrdiff_t count, ptrdiff_t padded, int size);

#endif

/* Elements in steps become contiguous, bit for bit. */
#ifndef ATTN_GATHER_H
#define ATTN_GATHER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GATHER(type)                                                                                                   \
    for (ptrdiff_t n = 0; n < count; n++) memcpy(to + n * (ptrdiff_t)sizeof(type), from + n * step, sizeof(type))
/* Copies `count` elements of 1, 2, 4 or 8 bytes, `step` bytes apart. */
static inline void attn_gather(ptrdiff_t size, ptrdiff_t count, const char *from, ptrdiff_t step, char *to)
{
    if (step == size || count <= 1) {
        memcpy(to, from, (size_t)(count * size));
        return;
    }
    switch (size) {
    case 1: GATHER(uint8_t); break;
    case 2: GATHER(uint16_t); break;
    case 4: GATHER(uint32_t); break;
    default: GATHER(uint64_t); break;
    }
}
#undef GATHER

#endif

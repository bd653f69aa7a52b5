#include "copy.h"

#include <string.h>

void attn_copy_row(char *to, const char *from, ptrdiff_t step, ptrdiff_t count, ptrdiff_t padded, int size)
{
    if (step == size || count <= 1) {
        memcpy(to, from, (size_t)(count * size));
    } else if (size == 4) {
        for (ptrdiff_t d = 0; d < count; d++) memcpy(to + 4 * d, from + d * step, 4);
    } else {
        for (ptrdiff_t d = 0; d < count; d++) memcpy(to + 8 * d, from + d * step, 8);
    }
    memset(to + count * size, 0, (size_t)((padded - count) * size));
}

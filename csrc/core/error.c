/* Messages: attn_fail and what its arguments need. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

attn_status attn_fail(attn_error *error, attn_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list values;
        va_start(values, format);
        vsnprintf(error->message, sizeof error->message, format, values);
        va_end(values);
    }
    return status;
}

const char *attn_shape_text(int axes, const ptrdiff_t *shape)
{
    static _Thread_local char buffers[4][128];
    static _Thread_local unsigned next;
    char *text = buffers[next++ % 4], *end = text + sizeof buffers[0], *at = text;

    at += snprintf(at, (size_t)(end - at), "(");
    for (int i = 0; i < axes && end - at > 32; i++)
        at += snprintf(at, (size_t)(end - at), axes == 1 ? "%td," : i + 1 < axes ? "%td, " : "%td", shape[i]);
    snprintf(at, (size_t)(end - at), end - at > 32 ? ")" : "...)");
    return text;
}

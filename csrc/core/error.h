/* Error messages: one sentence for the caller. */
#ifndef ATTN_CORE_ERROR_H
#define ATTN_CORE_ERROR_H

#include "attn.h"

/* Writes the message (printf's format) and returns the status, so that a check is one line. */
__attribute__((cold, format(printf, 3, 4))) attn_status attn_fail(attn_error *error, attn_status status,
                                                                  const char *format, ...);

/* Reports a broken rule, in functions that have an `error` and return a status. */
#define FAIL(...) return attn_fail(error, ATTN_INVALID, __VA_ARGS__)

/* A shape as "(2, 3, 4)" in one of a few rotating buffers: good for the arguments of one attn_fail. */
const char *attn_shape_text(int axes, const ptrdiff_t *shape);

#endif

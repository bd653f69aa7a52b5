/* Dropout by chance: its arguments as the kernels read them. */
#ifndef ATTN_CORE_DROPOUT_H
#define ATTN_CORE_DROPOUT_H

#include "attn.h"
#include "kernels.h"

/* For dropout_p > 0. Call it inside a task: it may raise floating-point flags, which must not reach the caller. */
attn_dropout attn_dropout_of(double dropout_p, uint64_t seed);

/* Checks that dropout_p is a probability, and that 32-bit counters suffice for the rows and keys. */
attn_status attn_check_dropout(double dropout_p, ptrdiff_t units, ptrdiff_t queries, ptrdiff_t keys, attn_error *error);

#endif

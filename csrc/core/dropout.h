/* Dropout by chance: its arguments as the kernels read them. */
#ifndef ATTN_CORE_DROPOUT_H
#define ATTN_CORE_DROPOUT_H

#include "attn.h"
#include "kernels.h"

/* For 0 < dropout_p. To be called inside a task, where no floating-point flag is the caller's. */
attn_dropout attn_dropout_of(double dropout_p, uint64_t seed);

/* What is kept is multiplied with, so that the mean stays. Inside a task, too. */
double attn_kept_factor(double dropout_p);

/* Is it a probability, and are there few enough rows and keys? */
attn_status attn_check_dropout(double dropout_p, ptrdiff_t units, ptrdiff_t queries, ptrdiff_t keys, attn_error *error);

#endif

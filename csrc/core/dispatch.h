/* The kernels in use. */
#ifndef ATTN_CORE_DISPATCH_H
#define ATTN_CORE_DISPATCH_H

#include "attn.h"
#include "kernels.h"

const attn_kernels *attn_kernels_for(attn_dtype dtype);

/* ATTN_TO_L1 where prefetching into the L1 cache is faster, else 0. */
int attn_prefetch_flags(void);

#endif

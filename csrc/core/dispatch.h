/* The kernels in use. */
#ifndef ATTN_CORE_DISPATCH_H
#define ATTN_CORE_DISPATCH_H

#include "attn.h"
#include "kernels.h"

const attn_kernels *attn_kernels_for(attn_dtype dtype);

#endif

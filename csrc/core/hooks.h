/* The host's hooks, as attn_set_hooks left them. */
#ifndef ATTN_CORE_HOOKS_H
#define ATTN_CORE_HOOKS_H

#include "attn.h"

extern attn_hooks attn_host;

#endif

/* What the layer asks of its parts before it begins. */
#ifndef ATTN_CORE_LAYER_H
#define ATTN_CORE_LAYER_H

#include "attn.h"

/* feed_forward.c: all rules on the arguments, and multiply-adds, about. */
attn_status attn_check_feed_forward(const attn_feed_forward_args *args, attn_error *error);
size_t attn_feed_forward_work(const attn_feed_forward_args *args);

#endif

/* Scratch memory. Taken by the calling thread before a parallel region, given back after it. */
#ifndef ATTN_CORE_ARENA_H
#define ATTN_CORE_ARENA_H

#include <stddef.h>

enum { ATTN_ALIGNMENT = 64 };

typedef struct {
    void *base;    /* what the allocator returned */
    char *scratch; /* aligned to ATTN_ALIGNMENT */
    size_t bytes;  /* usable from scratch on */
} attn_arena;

/* Returns 0 when out of memory. `bytes` may be 0. */
int attn_arena_take(attn_arena *arena, size_t bytes);
void attn_arena_give(attn_arena *arena);

/* Saturating arithmetic of sizes: a size that overflows becomes SIZE_MAX, whose allocation fails. */
static inline size_t attn_saturating_mul(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? (size_t)-1 : product;
}
static inline size_t attn_saturating_add(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (size_t)-1 : sum;
}
/* Rounded up to whole cache lines. */
static inline size_t attn_padded(size_t bytes)
{
    return attn_saturating_add(bytes, ATTN_ALIGNMENT - 1) & ~(size_t)(ATTN_ALIGNMENT - 1);
}

/* Returns the next part of a piece of memory. With memory == NULL it only counts the bytes. */
static inline void *attn_next_part(char *memory, size_t *used, size_t bytes)
{
    char *at = memory == NULL ? NULL : memory + *used;
    if (bytes == 0) return at; /* saves time: most parts are empty in a small call */
    *used = attn_saturating_add(*used, attn_padded(bytes));
    return at;
}

/* Quotients of non-negative numbers. Small calls mostly divide by 1 or get 0, and a division takes up to 90 cycles. */
static inline ptrdiff_t attn_fast_div(ptrdiff_t a, ptrdiff_t b) { return a < b ? 0 : b == 1 ? a : a / b; }
static inline ptrdiff_t attn_ceil_div(ptrdiff_t a, ptrdiff_t b) { return a == 0 ? 0 : attn_fast_div(a - 1, b) + 1; }
static inline ptrdiff_t attn_min(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline ptrdiff_t attn_max(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

#endif

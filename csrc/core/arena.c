/* The only file that allocates. A free list keeps a few arenas of moderate size between calls, so that a loop of calls
 * does not pay for fresh pages each time. A call allocates only when the free list has no arena that is large enough.
 */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>

#include "attn.h"
#include "hooks.h"

enum { FREE_ARENA_BYTES = 8 << 20, FREE_LIST_LENGTH = 4 }; /* most bytes of one; how many: a layer nests up to four */

attn_hooks attn_host = {malloc, free, NULL};

/* A free arena. Its first bytes hold its size. */
typedef struct {
    size_t bytes;
} arena_header;
static void *free_list[FREE_LIST_LENGTH];

/* Empties a slot and returns its arena. The plain load first is cheaper than an exchange when the slot is empty. */
static void *take_slot(int slot)
{
    if (__atomic_load_n(&free_list[slot], __ATOMIC_RELAXED) == NULL) return NULL;
    return __atomic_exchange_n(&free_list[slot], NULL, __ATOMIC_ACQ_REL);
}

/* Puts the arena into any empty slot; 0 when all slots are full. */
static int put_in_slot(void *base)
{
    for (int slot = 0; slot < FREE_LIST_LENGTH; slot++) {
        void *empty = NULL;
        if (__atomic_compare_exchange_n(&free_list[slot], &empty, base, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return 1;
    }
    return 0;
}

void attn_set_hooks(const attn_hooks *hooks)
{
    for (int slot = 0; slot < FREE_LIST_LENGTH; slot++) {
        void *old = take_slot(slot);
        if (old != NULL) attn_host.release(old);
    }
    attn_host.allocate = hooks->allocate ? hooks->allocate : malloc;
    attn_host.release = hooks->release ? hooks->release : free;
    attn_host.interrupted = hooks->interrupted;
}

static size_t size_of(const void *base) { return ((const arena_header *)base)->bytes; }

/* Returns an arena to a slot, or to the host. */
static void put_back(void *base)
{
    if (base != NULL && !put_in_slot(base)) attn_host.release(base);
}

/* The smallest free arena that is large enough: small calls reuse small arenas and leave the large ones to large calls.
 * If every arena is too small, the largest goes back to the host, to make room for the one allocated next. */
static void *find(size_t bytes)
{
    void *best = NULL;
    for (int slot = 0; slot < FREE_LIST_LENGTH; slot++) {
        void *base = take_slot(slot);
        if (base == NULL) continue;
        const int fits = size_of(base) >= bytes, best_fits = best != NULL && size_of(best) >= bytes;
        const int better = best == NULL || (fits != best_fits ? fits
                                            : fits            ? size_of(base) < size_of(best)
                                                              : size_of(base) > size_of(best));
        put_back(better ? best : base);
        if (better) best = base;
    }
    if (best == NULL || size_of(best) >= bytes) return best;
    attn_host.release(best);
    return NULL;
}

int attn_arena_take(attn_arena *arena, size_t bytes)
{
    const size_t overhead = sizeof(arena_header) + ATTN_ALIGNMENT;
    void *base = find(bytes);
    if (base == NULL) {
        if (bytes > SIZE_MAX / 2 || (base = attn_host.allocate(bytes + overhead)) == NULL) return 0;
        ((arena_header *)base)->bytes = bytes;
    }
    arena->base = base;
    arena->bytes = size_of(base);
    arena->scratch = (char *)(((uintptr_t)base + overhead) & ~(uintptr_t)(ATTN_ALIGNMENT - 1));
    return 1;
}

void attn_arena_give(attn_arena *arena)
{
    if (arena->bytes > FREE_ARENA_BYTES || !put_in_slot(arena->base)) attn_host.release(arena->base);
}

/* The only file that allocates. A few arenas of moderate size are kept between calls, so that a loop of calls does not
 * pay for fresh pages each time; whoever finds none that is large enough allocates.
 */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>

#include "attn.h"
#include "hooks.h"

enum { KEPT_MOST = 8 << 20, KEPT = 4 }; /* bytes of one; how many: a layer takes up to four within one another */

attn_hooks attn_host = {malloc, free, NULL};

/* A kept arena: its first bytes say how large it is. */
typedef struct {
    size_t bytes;
} kept_header;
static void *kept[KEPT];

/* What is in a slot, which is then empty. To look first is cheaper where it is empty already. */
static void *take_slot(int slot)
{
    if (__atomic_load_n(&kept[slot], __ATOMIC_RELAXED) == NULL) return NULL;
    return __atomic_exchange_n(&kept[slot], NULL, __ATOMIC_ACQ_REL);
}

/* Into any empty slot; 0 when there is none. */
static int keep(void *base)
{
    for (int slot = 0; slot < KEPT; slot++) {
        void *empty = NULL;
        if (__atomic_compare_exchange_n(&kept[slot], &empty, base, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return 1;
    }
    return 0;
}

void attn_set_hooks(const attn_hooks *hooks)
{
    for (int slot = 0; slot < KEPT; slot++) {
        void *old = take_slot(slot);
        if (old != NULL) attn_host.release(old);
    }
    attn_host.allocate = hooks->allocate ? hooks->allocate : malloc;
    attn_host.release = hooks->release ? hooks->release : free;
    attn_host.interrupted = hooks->interrupted;
}

static size_t size_of(const void *base) { return ((const kept_header *)base)->bytes; }

/* Back into a slot, or to the host. */
static void put_back(void *base)
{
    if (base != NULL && !keep(base)) attn_host.release(base);
}

/* The smallest kept arena that is large enough: a small call gets one that is warm, and leaves a large one to who needs
 * it. Where none is, the largest goes back to the host, to make room for the one that is allocated then. */
static void *find(size_t bytes)
{
    void *best = NULL;
    for (int slot = 0; slot < KEPT; slot++) {
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
    const size_t overhead = sizeof(kept_header) + ATTN_ALIGNMENT;
    void *base = find(bytes);
    if (base == NULL) {
        if (bytes > SIZE_MAX / 2 || (base = attn_host.allocate(bytes + overhead)) == NULL) return 0;
        ((kept_header *)base)->bytes = bytes;
    }
    arena->base = base;
    arena->bytes = size_of(base);
    arena->scratch = (char *)(((uintptr_t)base + overhead) & ~(uintptr_t)(ATTN_ALIGNMENT - 1));
    return 1;
}

void attn_arena_give(attn_arena *arena)
{
    if (arena->bytes > KEPT_MOST || !keep(arena->base)) attn_host.release(arena->base);
}

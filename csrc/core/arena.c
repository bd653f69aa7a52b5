/* The only file that allocates. One arena of moderate size is kept between calls, so that a loop of calls does not pay
 * for fresh pages each time; whoever finds it taken allocates.
 */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>

#include "attn.h"
#include "hooks.h"

enum { KEPT_MOST = 8 << 20 };

attn_hooks attn_host = {malloc, free, NULL};

/* The kept arena: its first bytes say how large it is. */
typedef struct {
    size_t bytes;
} kept_header;
static void *kept;

void attn_set_hooks(const attn_hooks *hooks)
{
    void *old = __atomic_exchange_n(&kept, NULL, __ATOMIC_ACQ_REL);
    if (old != NULL) attn_host.release(old);
    attn_host.allocate = hooks->allocate ? hooks->allocate : malloc;
    attn_host.release = hooks->release ? hooks->release : free;
    attn_host.interrupted = hooks->interrupted;
}

int attn_arena_take(attn_arena *arena, size_t bytes)
{
    const size_t overhead = sizeof(kept_header) + ATTN_ALIGNMENT;
    void *base = __atomic_exchange_n(&kept, NULL, __ATOMIC_ACQ_REL);

    if (base != NULL && ((kept_header *)base)->bytes < bytes) {
        attn_host.release(base);
        base = NULL;
    }
    if (base == NULL) {
        if (bytes > SIZE_MAX / 2 || (base = attn_host.allocate(bytes + overhead)) == NULL) return 0;
        ((kept_header *)base)->bytes = bytes;
    }
    arena->base = base;
    arena->bytes = ((kept_header *)base)->bytes;
    arena->scratch = (char *)(((uintptr_t)base + overhead) & ~(uintptr_t)(ATTN_ALIGNMENT - 1));
    return 1;
}

void attn_arena_give(attn_arena *arena)
{
    void *base = arena->base;
    if (arena->bytes <= KEPT_MOST) base = __atomic_exchange_n(&kept, base, __ATOMIC_ACQ_REL);
    if (base != NULL) attn_host.release(base);
}

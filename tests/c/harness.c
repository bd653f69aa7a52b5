#include "harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int held, failed; /* atomic */

void claim_held(void) { __atomic_add_fetch(&held, 1, __ATOMIC_RELAXED); }

void claim_failed(const char *file, int line, const char *format, ...)
{
    enum { MOST_PRINTED = 20 };
    if (__atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED) > MOST_PRINTED) return;
    va_list values;
    va_start(values, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
}

int report(const char *test)
{
    printf("%-15s %d claims passed", test, held);
    if (failed > 0) printf(", %d FAILED", failed);
    printf(" (");
    for (int n = 0; n < level_count(); n++) printf("%s%s", n ? ", " : "", attn_isa_name(n));
    puts(")");
    return failed > 0;
}

int level_count(void)
{
    int n = 0;
    while (n < MOST_LEVELS && attn_isa_name(n) != NULL) n++;
    return n;
}

void use_level(int level)
{
    attn_error error = {""};
    CLAIM(attn_set_isa(attn_isa_name(level), &error) == ATTN_OK, "%s", error.message);
}

attn_tensor strided(void *data, attn_dtype dtype, size_t ndim, const ptrdiff_t *shape, const ptrdiff_t *strides)
{
    attn_tensor t = {.data = data, .dtype = dtype, .ndim = (int)ndim};
    for (size_t n = 0; n < ndim; n++) {
        t.shape[n] = shape[n];
        t.strides[n] = strides == NULL ? 0 : strides[n];
    }
    return t;
}

void *take(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        fprintf(stderr, "the test itself has no memory\n");
        exit(2);
    }
    return memory;
}

static uint32_t next(lcg *g)
{
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g->state >> 32);
}

lcg lcg_from(uint64_t seed)
{
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u; /* nearby seeds must give unlike numbers */
    lcg g = {(seed ^ seed >> 27) * 0x94d049bb133111ebu};
    next(&g);
    return g;
}

ptrdiff_t draw_below(lcg *g, ptrdiff_t n) { return (ptrdiff_t)(((uint64_t)next(g) * (uint64_t)n) >> 32); }

int draw_one_in(lcg *g, int n) { return draw_below(g, n) == 0; }

double draw_real(lcg *g, attn_dtype dtype)
{
    const int64_t high = (int64_t)(int32_t)next(g);
    if (dtype == ATTN_F32) return (double)(high / 256) * 0x1p-22;
    return (double)(high * (1 << 20) + (int64_t)(next(g) >> 12)) * 0x1p-50;
}

ptrdiff_t draw_from(lcg *g, const ptrdiff_t *list, size_t count) { return list[draw_below(g, (ptrdiff_t)count)]; }

/* Lets a forked child of a program with threads continue. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0:halt_on_error=0"; }

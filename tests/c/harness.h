/* Shared by all tests: claims, random numbers, the levels of this machine. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "attn.h"

/* A claim. If false, prints its place and a message in printf's format; the test goes on. */
#define CLAIM(holds, ...)                                                                                              \
    do {                                                                                                               \
        if (holds)                                                                                                     \
            claim_held();                                                                                              \
        else                                                                                                           \
            claim_failed(__FILE__, __LINE__, __VA_ARGS__);                                                             \
    } while (0)
void claim_held(void);
__attribute__((format(printf, 3, 4))) void claim_failed(const char *file, int line, const char *format, ...);

/* Prints one line with the result; returns main's exit status. */
int report(const char *test);

/* The levels of this machine, best first. */
enum { MOST_LEVELS = 8 };
int level_count(void);
void use_level(int level);

/* malloc that exits on failure. */
void *take(size_t bytes);

/* A tensor of these sizes and strides; strides NULL: all 0. */
attn_tensor strided(void *data, attn_dtype dtype, size_t ndim, const ptrdiff_t *shape, const ptrdiff_t *strides);

/* Random numbers, the same on every machine. */
typedef struct {
    uint64_t state;
} lcg;
lcg lcg_from(uint64_t seed);
ptrdiff_t draw_below(lcg *g, ptrdiff_t n);
int draw_one_in(lcg *g, int n);
double draw_real(lcg *g, attn_dtype dtype); /* in [-2, 2), exact in dtype, with all of its significant bits */
ptrdiff_t draw_from(lcg *g, const ptrdiff_t *list, size_t count);
#define LIST(...)    ((const ptrdiff_t[]){__VA_ARGS__})
#define PICK(g, ...) draw_from(g, LIST(__VA_ARGS__), sizeof LIST(__VA_ARGS__) / sizeof(ptrdiff_t))

#endif

/* Tests a function f of one number over a range of float32 and samples of float64, at every level. */
#ifndef UNARY_H
#define UNARY_H

#include "dispatch.h"

typedef struct {
    const char *name, *range; /* as printed */
    uint32_t first, last;     /* bits of the float32 at both ends of the range, ascending */
    double bound;             /* in ULP */
    int odd;                  /* f(-x) is -f(x), and at most 1 */
    void (*apply)(const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y);
    double (*exact_f32)(double x);
    long double (*exact_f64)(long double x);
    double (*sample_f64)(double part, int number); /* part grows evenly from 0 to 1 with the number of the sample */
    int samples;                                   /* of float64; 0: UNARY_SAMPLES */
} unary;

/* The default number of float64 samples. */
enum { UNARY_SAMPLES = 1 << 20 };

/* One float32 of the range in 4,099, or every one; prints the worst error of each level. */
void test_f32(const unary *f, int every);
void test_f64(const unary *f);

/* x and f(x) in every lane; every number of elements, and nothing after them. */
typedef struct {
    float x32, y32;
    double x64, y64;
} edge;
void test_edges(const unary *f, int count, const edge *edges);

#endif

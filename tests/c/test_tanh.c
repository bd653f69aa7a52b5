/* tanh of the kernels against libm's: at most 4 ULP at every level, odd, and never above 1.
 *
 *   test_tanh           one float32 in 4,099
 *   test_tanh --every   every float32 in [2^-126, 16]
 *
 * Largest errors over all floats: 3.29 ULP with fma, at 0.117, and 3.48 without (scalar). float64 is sampled in both,
 * against long double where that is wider: 2.61 and 2.64 ULP.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "harness.h"
#include "unary.h"

static void apply(const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y)
{
    kernels->activate(ATTN_KIND_TANH, count, x, y);
}

/* Half of them spread evenly over [0, 22], where the last of them are 1; half over the powers of two below. */
static double sample(double part, int number)
{
    return number % 2 ? 22 * part + 0x1p-60 : ldexp(1 + part, -number / (UNARY_SAMPLES / 1022));
}

static const unary f = {
    .name = "tanh",
    .range = "[2^-126, 16]",
    .first = 0x00800000, /* 2^-126 */
    .last = 0x41800000,  /* 16 */
    .bound = 4,
    .odd = 1,
    .apply = apply,
    .exact_f32 = tanh,
    .exact_f64 = tanhl,
    .sample_f64 = sample,
};

/* Zeros, infinities, NaN, the largest and a denormal number. */
static const edge edges[] = {
    {0, 0, 0, 0},
    {-0.0f, 0, -0.0, 0},
    {INFINITY, 1, (double)INFINITY, 1},
    {-INFINITY, -1, -(double)INFINITY, -1},
    {NAN, NAN, (double)NAN, (double)NAN},
    {FLT_MAX, 1, DBL_MAX, 1},
    {-FLT_MAX, -1, -DBL_MAX, -1},
    {FLT_MIN / 2, 0, DBL_MIN / 2, 0},
    {30, 1, 30, 1},
    {-1e4f, -1, -1e4, -1},
};

int main(int count, char **arguments)
{
    test_edges(&f, sizeof edges / sizeof *edges, edges);
    test_f32(&f, count > 1 && strcmp(arguments[1], "--every") == 0);
    test_f64(&f);
    return report("test_tanh");
}

/* exp2 of the kernels against libm's: at most 2 ULP at every level, and 0 instead of denormals.
 *
 *   test_exp2           one float32 in 4,099
 *   test_exp2 --every   every float32 in [-150, 0]
 *
 * float64 is sampled in both, against long double where that is wider.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "harness.h"
#include "unary.h"

static void apply(const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y)
{
    kernels->exp2_array(count, x, y);
}

/* Half of them spread evenly over [-1100, 0], half near 0, where most scores of a softmax are. */
static double sample(double part, int number)
{
    return (number % 2 ? -8 : -1100) * part;
}

static const unary f = {
    .name = "exp2",
    .range = "[-150, 0]",
    .first = 0x80000000, /* -0 */
    .last = 0xc3160000,  /* -150 */
    .bound = 2,
    .apply = apply,
    .exact_f32 = exp2,
    .exact_f64 = exp2l,
    .sample_f64 = sample,
};

/* Exact powers, -inf and NaN. */
static const edge edges[] = {
    {0, 1, 0, 1},
    {-INFINITY, 0, -(double)INFINITY, 0},
    {-1, 0.5f, -1, 0.5},
    {NAN, NAN, (double)NAN, (double)NAN},
    {-126, FLT_MIN, -1022, DBL_MIN},
    {-127, 0, -1023, 0},
    {-3, 0.125f, -3, 0.125},
};

int main(int count, char **arguments)
{
    test_edges(&f, sizeof edges / sizeof *edges, edges);
    test_f32(&f, count > 1 && strcmp(arguments[1], "--every") == 0);
    test_f64(&f);
    return report("test_exp2");
}

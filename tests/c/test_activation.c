/* Activations of the kernels against long double, at every level.
 *
 *   test_activation           one float32 in 4,099
 *   test_activation --every   every float32 of the ranges below
 *
 * The test measures -f(-a): the hard part is negative x, where nearly all of x cancels. float64 is sampled in both.
 * Over every float32: GELU 6.5 ULP, SILU 3.5, GELU_TANH 10.1 up to 2 and 208 up to 9.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "harness.h"
#include "unary.h"

/* -f(-a), a block at a time. */
static void apply_below(attn_activation_kind kind, const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y)
{
    char negative[1 << 15] = {0};
    for (ptrdiff_t i = 0; i < count; i++) {
        if (kernels->size == 4)
            ((float *)(void *)negative)[i] = -((const float *)x)[i];
        else
            ((double *)(void *)negative)[i] = -((const double *)x)[i];
    }
    kernels->activate(kind, count, negative, y);
    for (ptrdiff_t i = 0; i < count; i++) {
        if (kernels->size == 4)
            ((float *)y)[i] = -((float *)y)[i];
        else
            ((double *)y)[i] = -((double *)y)[i];
    }
}

#define BOTH_SIDES(name, KIND)                                                                                         \
    static void name##_above(const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y)                     \
    {                                                                                                                  \
        kernels->activate(KIND, count, x, y);                                                                          \
    }                                                                                                                  \
    static void name##_below(const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y)                     \
    {                                                                                                                  \
        apply_below(KIND, kernels, count, x, y);                                                                       \
    }
BOTH_SIDES(gelu, ATTN_KIND_GELU)
BOTH_SIDES(gelu_tanh, ATTN_KIND_GELU_TANH)
BOTH_SIDES(silu, ATTN_KIND_SILU)

/* erfc(z) falls like exp(-z^2), so this corrects for the rounding of z. */
static long double long_gelu(long double x)
{
    const long double root = 0.70710678118654752440084436210484904L, z = -x * root;
    const long double lost = z > 1 ? fmal(-x, root, -z) : 0;
    return x * erfcl(z) * (1 - 2 * z * lost) / 2;
}
static long double long_silu(long double x) { return x / (1 + expl(-x)); }
static long double long_gelu_tanh(long double x)
{
    const long double root = 1.5957691216057307117597842397375274738L; /* 2 sqrt(2 / pi) */
    return x / (1 + expl(-root * (x + 0.044715L * x * x * x)));
}
static long double long_gelu_below(long double a) { return -long_gelu(-a); }
static long double long_silu_below(long double a) { return -long_silu(-a); }
static long double long_gelu_tanh_below(long double a) { return -long_gelu_tanh(-a); }

/* double is exact enough for float32: at the far end of GELU it is some hundred of its ULP off, 2^-22 ULP of float. */
static double gelu_f32(double x) { return x * erfc(-x * 0.70710678118654752) / 2; }
static double silu_f32(double x) { return x / (1 + exp(-x)); }
static double gelu_tanh_f32(double x) { return x / (1 + exp(-1.5957691216057307 * (x + 0.044715 * x * x * x))); }
static double gelu_below_f32(double a) { return -gelu_f32(-a); }
static double silu_below_f32(double a) { return -silu_f32(-a); }
static double gelu_tanh_below_f32(double a) { return -gelu_tanh_f32(-a); }

enum { SAMPLES = 1 << 16 }; /* of float64; few, as emulators are slow with long double */

/* Half of them spread evenly up to `most`, half over the powers of two below. */
static double sample_to(double most, double part, int number)
{
    return number % 2 ? most * part + 0x1p-60 : ldexp(1 + part, -number / (SAMPLES / 1000));
}
static double to_38(double part, int number) { return sample_to(38, part, number); }
static double to_37(double part, int number) { return sample_to(37, part, number); }
static double to_700(double part, int number) { return sample_to(700, part, number); }
static double to_2(double part, int number) { return sample_to(2, part, number); }
static double to_9(double part, int number) { return sample_to(9, part, number); }
static double to_20(double part, int number) { return sample_to(20, part, number); }

/* Ranges end where exp(-z) falls below the smallest normal number and is 0, though x / (1 + exp(-z)) would be |x| times
 * as large. GELU_TANH has two ranges: z grows with x^3, and its own rounding changes exp(-z) by 4 |z| ULP. */
static const unary functions[] = {
    {"gelu", "[2^-120, 16]", 0x03800000, 0x41800000, 7, 0, gelu_above, gelu_f32, long_gelu, to_38, SAMPLES},
    {"-gelu(-a)", "[2^-120, 12.9]", 0x03800000, 0x414e6666, 7, 0, gelu_below, gelu_below_f32, long_gelu_below, to_37,
     SAMPLES},
    {"silu", "[2^-120, 87]", 0x03800000, 0x42ae0000, 3, 0, silu_above, silu_f32, long_silu, to_700, SAMPLES},
    {"-silu(-a)", "[2^-120, 87]", 0x03800000, 0x42ae0000, 4, 0, silu_below, silu_below_f32, long_silu_below, to_700,
     SAMPLES},
    {"gelu_tanh", "[2^-120, 16]", 0x03800000, 0x41800000, 4, 0, gelu_tanh_above, gelu_tanh_f32, long_gelu_tanh, to_20,
     SAMPLES},
    {"-gelu_tanh(-a)", "[2^-120, 2]", 0x03800000, 0x40000000, 13, 0, gelu_tanh_below, gelu_tanh_below_f32,
     long_gelu_tanh_below, to_2, SAMPLES},
    {"-gelu_tanh(-a)", "[2, 9]", 0x40000000, 0x41100000, 270, 0, gelu_tanh_below, gelu_tanh_below_f32,
     long_gelu_tanh_below, to_9, SAMPLES},
};

/* Zeros, infinities, NaN and the largest numbers: exact results for all three functions. */
static const edge edges[] = {
    {0, 0, 0, 0},
    {-0.0f, 0, -0.0, 0},
    {INFINITY, INFINITY, (double)INFINITY, (double)INFINITY},
    {-INFINITY, 0, -(double)INFINITY, 0},
    {NAN, NAN, (double)NAN, (double)NAN},
    {FLT_MAX, FLT_MAX, DBL_MAX, DBL_MAX},
    {-FLT_MAX, 0, -DBL_MAX, 0},
    {1000, 1000, 1000, 1000},
    {-1000, 0, -1000, 0},
};

int main(int count, char **arguments)
{
    const int every = count > 1 && strcmp(arguments[1], "--every") == 0;
    for (size_t n = 0; n < sizeof functions / sizeof *functions; n++) {
        if (n % 2 == 0 && n < 6) test_edges(&functions[n], sizeof edges / sizeof *edges, edges);
        test_f32(&functions[n], every);
        test_f64(&functions[n]);
    }
    return report("test_activation");
}

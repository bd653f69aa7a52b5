/* Gradients of the activations against long double, at every level.
 *
 *   test_activation_backward          one float32 in 4,099 with an absolute value in [2^-120, 2^7]
 *   test_activation_backward --many   one in 31
 *
 * A slope is a sum of two terms, which cancel where it crosses 0. Its error is counted in u times their sizes.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dispatch.h"
#include "float_state.h"
#include "harness.h"

enum { BLOCK = 4096, SAMPLES = 1 << 15 };

/* The terms of a slope; `exponent` is that of its exponential, `flushed` what multiplies it. */
typedef struct {
    long double first, second, exponent, flushed;
} slope;

/* erfc(z) falls like exp(-z^2), so this corrects for the rounding of z. */
static slope gelu(long double x)
{
    const long double root = 0.70710678118654752440084436210484904L, z = -x * root;
    const long double lost = z > 1 ? fmal(-x, root, -z) : 0;
    return (slope){erfcl(z) * (1 - 2 * z * lost) / 2, x * 0.39894228040143267793994605993438187L * expl(-x * x / 2), 0,
                   1 + fabsl(x)};
}
static slope sigmoid(long double z, long double w)
{
    const long double e = expl(-fabsl(z)), s = z < 0 ? e / (1 + e) : 1 / (1 + e);
    return (slope){s, w * e / ((1 + e) * (1 + e)), fabsl(z), 1 + fabsl(w)};
}
static slope silu(long double x)
{
    slope found = sigmoid(x, x);
    found.exponent = 0; /* it is x itself, without rounding */
    return found;
}
static slope gelu_tanh(long double x)
{
    const long double root = 1.5957691216057307117597842397375274738L; /* 2 sqrt(2 / pi) */
    return sigmoid(root * (x + 0.044715L * x * x * x), root * (x + 3 * 0.044715L * x * x * x));
}
static slope of_tanh(long double x)
{
    const long double e = expl(-2 * fabsl(x));
    return (slope){4 * e / ((1 + e) * (1 + e)), 0, 0, 4};
}

static const struct {
    const char *name;
    attn_activation_kind kind;
    slope (*exact)(long double x);
    double bound; /* in u of the terms, without what the rounding of the exponent adds */
} functions[] = {{"gelu'", ATTN_KIND_GELU, gelu, 8},
                 {"gelu_tanh'", ATTN_KIND_GELU_TANH, gelu_tanh, 7},
                 {"silu'", ATTN_KIND_SILU, silu, 7},
                 {"tanh'", ATTN_KIND_TANH, of_tanh, 7}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* Bounds that an error takes. GELU_TANH: each unit of the exponent adds 4 u, as in the forward kernel. */
static double share(int f, double y, slope exact, double u, double least)
{
    const long double size = fabsl(exact.first) + fabsl(exact.second), error = fabsl(y - exact.first - exact.second);
    return (double)(error / ((functions[f].bound + 4 * exact.exponent) * u * size + exact.flushed * least));
}

/* As inside the core, with denormals flushed. */
static void apply(int f, const attn_kernels *kernels, ptrdiff_t n, const void *upstream, const void *x, void *y)
{
    const attn_float_state before = attn_float_enter();
    kernels->activate_backward(functions[f].kind, n, upstream, x, NULL, y, NULL);
    attn_float_leave(before);
}

static void claim(int f, const char *kind, double worst)
{
    printf("%s %s %-7s %.3f bounds\n", functions[f].name, kind, attn_isa(), worst);
    CLAIM(worst <= 1, "%s: %s of %s is off by %g bounds", attn_isa(), functions[f].name, kind, worst);
}

static void test_f32(int f, uint32_t step)
{
    const uint32_t first = 0x03800000, last = 0x43000000;
    double worst[MOST_LEVELS] = {0};
    float x[BLOCK], y[BLOCK], ones[BLOCK];
    slope exact[BLOCK];
    uint32_t bits = first;
    for (int i = 0; i < BLOCK; i++) ones[i] = 1;
    while (bits < last) {
        for (int i = 0; i < BLOCK; i++) {
            memcpy(&x[i], &bits, sizeof bits);
            if (i % 2) x[i] = -x[i];
            bits = bits < last ? bits + step : last;
            exact[i] = functions[f].exact(x[i]);
        }
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            apply(f, attn_kernels_for(ATTN_F32), BLOCK, ones, x, y);
            for (int i = 0; i < BLOCK; i++) {
                const double error = share(f, (double)y[i], exact[i], 0x1p-24, (double)FLT_MIN);
                if (!(error <= worst[level])) worst[level] = isnan(error) ? (double)INFINITY : error;
            }
        }
    }
    for (int level = 0; level < level_count(); level++) use_level(level), claim(f, "float32", worst[level]);
}

/* Half of the samples spread evenly up to 40, half over the powers of two below. */
static void test_f64(int f)
{
    double worst[MOST_LEVELS] = {0}, x[BLOCK], y[BLOCK], ones[BLOCK];
    slope exact[BLOCK];
    lcg g = lcg_from(2);
    for (int i = 0; i < BLOCK; i++) ones[i] = 1;
    for (int from = 0; from < SAMPLES; from += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            const double part = draw_real(&g, ATTN_F64);
            x[i] = i % 2 ? 20 * part : ldexp(part, -(from + i) / (SAMPLES / 1000));
            exact[i] = functions[f].exact(x[i]);
        }
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            apply(f, attn_kernels_for(ATTN_F64), BLOCK, ones, x, y);
            for (int i = 0; i < BLOCK; i++) {
                const double error = share(f, y[i], exact[i], 0x1p-53, DBL_MIN);
                if (!(error <= worst[level])) worst[level] = isnan(error) ? (double)INFINITY : error;
            }
        }
    }
    for (int level = 0; level < level_count(); level++) use_level(level), claim(f, "float64", worst[level]);
}

/* Slopes at the ends of the range, and in every lane; nothing after the last element is written. */
static void test_edges(attn_dtype dtype)
{
    enum { MOST = 2 * ATTN_MAX_WIDTH, KINDS = 7 };
    static const double ends[KINDS] = {0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN, 3e38, -3e38};
    static const struct {
        attn_activation_kind kind;
        double slopes[KINDS];
    } rows[] = {{ATTN_KIND_IDENTITY, {1, 1, 1, 1, 1, 1, 1}},
                {ATTN_KIND_RELU, {0, 0, 1, 0, 1, 1, 0}}, /* torch passes the gradient of NaN on */
                {ATTN_KIND_GELU, {0.5, 0.5, 1, 0, (double)NAN, 1, 0}},
                {ATTN_KIND_GELU_TANH, {0.5, 0.5, 1, 0, (double)NAN, 1, 0}},
                {ATTN_KIND_SILU, {0.5, 0.5, 1, 0, (double)NAN, 1, 0}},
                {ATTN_KIND_TANH, {1, 1, 0, 0, (double)NAN, 0, 0}}};
    double room[4][MOST + 1];
    const int is_float = dtype == ATTN_F32;
#define SET(array, i, number)                                                                                          \
    (is_float ? (void)(((float *)(void *)room[array])[i] = (float)(number)) : (void)(room[array][i] = (number)))
#define GET(array, i) (is_float ? (double)((float *)(void *)room[array])[i] : room[array][i])
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int count = 0; count <= MOST; count++) {
            for (int i = 0; i < count; i++) SET(0, i, 2), SET(1, i, ends[i % KINDS]);
            SET(2, count, 7);
            const attn_kernels *kernels = attn_kernels_for(dtype);
            const attn_float_state before = attn_float_enter();
            kernels->activate_backward(rows[r].kind, count, room[0], room[1], NULL, room[2], NULL);
            attn_float_leave(before);
            int right = GET(2, count) == 7;
            for (int i = 0; i < count; i++) {
                const double expected = 2 * rows[r].slopes[i % KINDS], found = GET(2, i);
                /* of the middle, a sum in float may be 1 ULP off */
                right &= isnan(expected) ? isnan(found) : fabs(found - expected) <= (is_float ? 0x1p-23 : 0x1p-52);
            }
            CLAIM(right, "%s: kind %d of %d elements", attn_isa(), (int)rows[r].kind, count);
        }
#undef SET
#undef GET
}

int main(int count, char **arguments)
{
    const int many = count > 1 && strcmp(arguments[1], "--many") == 0;
    for (int f = 0; f < FUNCTIONS; f++) {
        test_f32(f, many ? 31 : 4099);
        test_f64(f);
    }
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        test_edges(ATTN_F32);
        test_edges(ATTN_F64);
    }
    return report("test_activation_backward");
}

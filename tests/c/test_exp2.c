/* exp2 of the kernels against libm's: at most 2 ULP at every level, and 0 for what would be denormal.
 *
 *   test_exp2           one float32 in 4,099
 *   test_exp2 --every   every float32 in [-150, 0]
 *
 * float64 is sampled in both, against long double where that is wider.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dispatch.h"
#include "float_state.h"
#include "harness.h"

enum { BLOCK = 4096, SHARES = 2, SAMPLES = 1 << 20, BOUND = 2 };

/* A share of the floats: bits first, first + step, first + 2 step ... up to -150. */
typedef struct {
    int levels;
    const attn_kernels *kernels[MOST_LEVELS];
    uint32_t first, step;
    double worst[MOST_LEVELS]; /* in ULP */
    float where[MOST_LEVELS];
} share;

/* |y - exact| in units of y's last place. exact <= 1 is positive; below the normal numbers y is to be 0, or next to the
 * least normal number by no more than the bound. */
static double ulps_f32(float y, double exact)
{
    uint64_t bits;
    double per_ulp; /* 2^(23 - exponent of exact) */
    if (exact < (double)FLT_MIN) return y == 0 ? 0 : fabs((double)y - exact) * 0x1p149;
    memcpy(&bits, &exact, sizeof bits);
    bits = ((uint64_t)(2 * 1023 + 23) << 52) - (bits & (uint64_t)0x7ff << 52);
    memcpy(&per_ulp, &bits, sizeof per_ulp);
    return fabs((double)y - exact) * per_ulp;
}

/* Compares a block; the kernels run as they do inside the core, with denormals flushed. */
static void compare_block(share *s, const float *x, const double *exact)
{
    float y[BLOCK];
    for (int n = 0; n < s->levels; n++) {
        const attn_float_state before = attn_float_enter();
        s->kernels[n]->exp2_array(BLOCK, x, y);
        attn_float_leave(before);
        for (int i = 0; i < BLOCK; i++) {
            const double error = ulps_f32(y[i], exact[i]);
            if (error <= s->worst[n]) continue;
            s->worst[n] = isnan(error) ? (double)INFINITY : error;
            s->where[n] = x[i];
        }
    }
}

static void *take_share(void *argument)
{
    share *s = argument;
    const uint64_t lowest = 0xc3160000; /* -150; -0 is 0x80000000 */
    float x[BLOCK];
    double exact[BLOCK];
    for (uint64_t from = s->first; from <= lowest; from += (uint64_t)BLOCK * s->step) {
        for (int i = 0; i < BLOCK; i++) {
            const uint64_t wanted = from + (uint64_t)i * s->step;
            const uint32_t bits = (uint32_t)(wanted < lowest ? wanted : lowest);
            memcpy(&x[i], &bits, sizeof bits);
            exact[i] = exp2((double)x[i]);
        }
        compare_block(s, x, exact);
    }
    return NULL;
}

static void test_f32(int every)
{
    static share shares[SHARES];
    const uint32_t step = every ? 1 : 4099;
    pthread_t threads[SHARES];
    for (int n = 0; n < SHARES; n++) {
        shares[n] = (share){.levels = level_count(), .first = 0x80000000u + (uint32_t)n * step, .step = SHARES * step};
        for (int level = 0; level < shares[n].levels; level++) {
            use_level(level);
            shares[n].kernels[level] = attn_kernels_for(ATTN_F32);
        }
    }
    for (int n = 1; n < SHARES; n++)
        if (pthread_create(&threads[n], NULL, take_share, &shares[n]) != 0)
            take_share(&shares[n]), threads[n] = pthread_self();
    take_share(&shares[0]);
    for (int n = 1; n < SHARES; n++)
        if (!pthread_equal(threads[n], pthread_self())) pthread_join(threads[n], NULL);

    for (int level = 0; level < shares[0].levels; level++) {
        int most = 0;
        for (int n = 1; n < SHARES; n++)
            if (shares[n].worst[level] > shares[most].worst[level]) most = n;
        const double worst = shares[most].worst[level];
        printf("exp2 float32 %-7s %.3f ULP at %a (%s)\n", attn_isa_name(level), worst,
               (double)shares[most].where[level], every ? "every float32 in [-150, 0]" : "a sample");
        CLAIM(worst <= BOUND, "%s: %g ULP", attn_isa_name(level), worst);
    }
}

static double ulps_f64(double y, long double exact)
{
    int exponent;
    if (exact < DBL_MIN) return y == 0 ? 0 : (double)ldexpl(fabsl(y - exact), 1074);
    frexpl(exact, &exponent);
    return (double)ldexpl(fabsl(y - exact), DBL_MANT_DIG - exponent);
}

/* Spread evenly over [-1100, 0], and one in two near 0, where a softmax has most of its scores. */
static void test_f64(void)
{
    double worst[MOST_LEVELS] = {0}, x[BLOCK], y[BLOCK];
    long double exact[BLOCK];
    lcg g = lcg_from(2);
    for (int from = 0; from < SAMPLES; from += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            const double most = i % 2 ? 8 : 1100;
            x[i] = -most * ((draw_real(&g, ATTN_F64) + 2) / 4 * BLOCK + from + i) / (SAMPLES + BLOCK);
            exact[i] = exp2l(x[i]);
        }
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            const attn_float_state before = attn_float_enter();
            attn_kernels_for(ATTN_F64)->exp2_array(BLOCK, x, y);
            attn_float_leave(before);
            for (int i = 0; i < BLOCK; i++) {
                const double error = ulps_f64(y[i], exact[i]);
                if (!(error <= worst[level])) worst[level] = isnan(error) ? (double)INFINITY : error;
            }
        }
    }
    for (int level = 0; level < level_count(); level++) {
        printf("exp2 float64 %-7s %.3f ULP (%d samples)\n", attn_isa_name(level), worst[level], SAMPLES);
        CLAIM(worst[level] <= BOUND, "%s: %g ULP", attn_isa_name(level), worst[level]);
    }
}

/* Exact powers, -inf and NaN, in every lane; every number of elements, and nothing after them. */
static void test_edges(void)
{
    static const float x[] = {0, -INFINITY, -1, NAN, -126, -127, -3},
                       expected[] = {1, 0, 0.5f, NAN, FLT_MIN, 0, 0.125f};
    enum { KINDS = sizeof x / sizeof *x, MOST = 2 * ATTN_MAX_WIDTH };
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        const attn_kernels *k32 = attn_kernels_for(ATTN_F32), *k64 = attn_kernels_for(ATTN_F64);
        for (int count = 0; count <= MOST; count++) {
            float in32[MOST], out32[MOST + 1];
            double in64[MOST], out64[MOST + 1];
            for (int i = 0; i < count; i++) in64[i] = (double)(in32[i] = x[i % KINDS]);
            out64[count] = (double)(out32[count] = 7);
            const attn_float_state before = attn_float_enter();
            k32->exp2_array(count, in32, out32);
            k64->exp2_array(count, in64, out64);
            attn_float_leave(before);
            int right = out32[count] == 7 && out64[count] == 7;
            for (int i = 0; i < count; i++) {
                const float y = expected[i % KINDS];
                right &= isnan(y) ? isnan(out32[i]) && isnan(out64[i])
                                  : out32[i] == y && (out64[i] == (double)y || x[i % KINDS] == -127);
            }
            CLAIM(right, "%s: exp2 of %d elements", attn_isa(), count);
        }
    }
}

int main(int count, char **arguments)
{
    test_edges();
    test_f32(count > 1 && strcmp(arguments[1], "--every") == 0);
    test_f64();
    return report("test_exp2");
}

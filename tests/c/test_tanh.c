/* tanh of the kernels against libm's: at most 4 ULP at every level, odd, and never above 1.
 *
 *   test_tanh           one float32 in 4,099
 *   test_tanh --every   every float32 in [2^-126, 16]
 *
 * Over every one 3.29 ULP with fma, at 0.117, and 3.48 without (scalar). float64 is sampled in both, against long double
 * where that is wider: 2.61 and 2.64.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dispatch.h"
#include "float_state.h"
#include "harness.h"

enum { BLOCK = 4096, SHARES = 2, SAMPLES = 1 << 20, BOUND = 4 };

/* A share of the floats: bits first, first + step, first + 2 step ... up to 16. */
typedef struct {
    int levels;
    const attn_kernels *kernels[MOST_LEVELS];
    uint32_t first, step;
    double worst[MOST_LEVELS]; /* in ULP; infinite where the result is above 1, or not odd */
    float where[MOST_LEVELS];
} share;

/* |y - exact| in units of the last place of a float as large as exact, which is a normal one. */
static double ulps_f32(float y, double exact)
{
    uint64_t bits;
    double per_ulp; /* 2^(23 - exponent of exact) */
    memcpy(&bits, &exact, sizeof bits);
    bits = ((uint64_t)(2 * 1023 + 23) << 52) - (bits & (uint64_t)0x7ff << 52);
    memcpy(&per_ulp, &bits, sizeof per_ulp);
    return fabs((double)y - exact) * per_ulp;
}

static void tanh_f32(const attn_kernels *kernels, const float *x, float *y)
{
    const attn_float_state before = attn_float_enter(); /* denormals flushed, as inside the core */
    kernels->tanh_array(BLOCK, x, y);
    attn_float_leave(before);
}

static void compare_block(share *s, const float *x, const double *exact)
{
    float negative[BLOCK], y[BLOCK], odd[BLOCK];
    for (int i = 0; i < BLOCK; i++) negative[i] = -x[i];
    for (int n = 0; n < s->levels; n++) {
        tanh_f32(s->kernels[n], x, y);
        tanh_f32(s->kernels[n], negative, odd);
        for (int i = 0; i < BLOCK; i++) {
            const double error = odd[i] == -y[i] && y[i] <= 1 ? ulps_f32(y[i], exact[i]) : (double)INFINITY;
            if (error <= s->worst[n]) continue;
            s->worst[n] = isnan(error) ? (double)INFINITY : error;
            s->where[n] = x[i];
        }
    }
}

static void *take_share(void *argument)
{
    share *s = argument;
    const uint64_t most = 0x41800000; /* 16; 2^-126 is 0x00800000 */
    float x[BLOCK];
    double exact[BLOCK];
    for (uint64_t from = s->first; from <= most; from += (uint64_t)BLOCK * s->step) {
        for (int i = 0; i < BLOCK; i++) {
            const uint64_t wanted = from + (uint64_t)i * s->step;
            const uint32_t bits = (uint32_t)(wanted < most ? wanted : most);
            memcpy(&x[i], &bits, sizeof bits);
            exact[i] = tanh((double)x[i]);
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
        shares[n] = (share){.levels = level_count(), .first = 0x00800000u + (uint32_t)n * step, .step = SHARES * step};
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
        printf("tanh float32 %-7s %.3f ULP at %a (%s)\n", attn_isa_name(level), worst,
               (double)shares[most].where[level], every ? "every float32 in [2^-126, 16]" : "a sample");
        CLAIM(worst <= BOUND, "%s: %g ULP", attn_isa_name(level), worst);
    }
}

static double ulps_f64(double y, long double exact)
{
    int exponent;
    frexpl(exact, &exponent);
    return (double)ldexpl(fabsl(y - exact), DBL_MANT_DIG - exponent);
}

/* Half of them spread evenly over [0, 22], where the last of them are 1; half over the powers of two below. */
static void test_f64(void)
{
    double worst[MOST_LEVELS] = {0}, x[BLOCK], y[BLOCK], negative[BLOCK], odd[BLOCK];
    long double exact[BLOCK];
    lcg g = lcg_from(2);
    for (int from = 0; from < SAMPLES; from += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            const double part = ((draw_real(&g, ATTN_F64) + 2) / 4 * BLOCK + from + i) / (SAMPLES + BLOCK);
            x[i] = i % 2 ? 22 * part + 0x1p-60 : ldexp(1 + part, -(from + i) / (SAMPLES / 1022));
            negative[i] = -x[i];
            exact[i] = tanhl(x[i]);
        }
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            const attn_float_state before = attn_float_enter();
            attn_kernels_for(ATTN_F64)->tanh_array(BLOCK, x, y);
            attn_kernels_for(ATTN_F64)->tanh_array(BLOCK, negative, odd);
            attn_float_leave(before);
            for (int i = 0; i < BLOCK; i++) {
                const double error = odd[i] == -y[i] && y[i] <= 1 ? ulps_f64(y[i], exact[i]) : (double)INFINITY;
                if (!(error <= worst[level])) worst[level] = isnan(error) ? (double)INFINITY : error;
            }
        }
    }
    for (int level = 0; level < level_count(); level++) {
        printf("tanh float64 %-7s %.3f ULP (%d samples)\n", attn_isa_name(level), worst[level], SAMPLES);
        CLAIM(worst[level] <= BOUND, "%s: %g ULP", attn_isa_name(level), worst[level]);
    }
}

/* Zeros, infinities, NaN, the largest and a denormal number, in every lane; every number of elements, and nothing after
 * them. */
static void test_edges(void)
{
    static const float x32[] = {0, -0.0f, INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, FLT_MIN / 2, 30, -1e4f};
    static const double x64[] = {
        0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN, DBL_MAX, -DBL_MAX, DBL_MIN / 2, 30, -1e4};
    static const float expected[] = {0, 0, 1, -1, NAN, 1, -1, 0, 1, -1};
    enum { KINDS = sizeof expected / sizeof *expected, MOST = 2 * ATTN_MAX_WIDTH };
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        for (int count = 0; count <= MOST; count++) {
            float in32[MOST], out32[MOST + 1];
            double in64[MOST], out64[MOST + 1];
            for (int i = 0; i < count; i++) in32[i] = x32[i % KINDS], in64[i] = x64[i % KINDS];
            out64[count] = (double)(out32[count] = 7);
            const attn_float_state before = attn_float_enter();
            attn_kernels_for(ATTN_F32)->tanh_array(count, in32, out32);
            attn_kernels_for(ATTN_F64)->tanh_array(count, in64, out64);
            attn_float_leave(before);
            int right = out32[count] == 7 && out64[count] == 7;
            for (int i = 0; i < count; i++) {
                const float y = expected[i % KINDS];
                right &= isnan(y) ? isnan(out32[i]) && isnan(out64[i]) : out32[i] == y && out64[i] == (double)y;
            }
            CLAIM(right, "%s: tanh of %d elements", attn_isa(), count);
        }
    }
}

int main(int count, char **arguments)
{
    test_edges();
    test_f32(count > 1 && strcmp(arguments[1], "--every") == 0);
    test_f64();
    return report("test_tanh");
}

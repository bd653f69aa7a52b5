#include "unary.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "float_state.h"
#include "harness.h"

enum { BLOCK = 4096, SHARES = 2 };

/* A thread's share of the floats: bits first, first + step, first + 2 step ... up to the last. */
typedef struct {
    const unary *f;
    int levels;
    const attn_kernels *kernels[MOST_LEVELS];
    uint32_t first, step;
    double worst[MOST_LEVELS]; /* in ULP */
    float where[MOST_LEVELS];
} share;

/* The kernels run as they do inside the core, with denormals flushed. */
static void apply(const unary *f, const attn_kernels *kernels, ptrdiff_t count, const void *x, void *y)
{
    const attn_float_state before = attn_float_enter();
    f->apply(kernels, count, x, y);
    attn_float_leave(before);
}

/* |y - exact| in ULP of y. exact is positive. Below the normal numbers, y must be 0, or the smallest normal number
 * within the bound. */
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

static double ulps_f64(double y, long double exact)
{
    int exponent;
    if (exact < DBL_MIN) return y == 0 ? 0 : (double)ldexpl(fabsl(y - exact), 1074);
    frexpl(exact, &exponent);
    return (double)ldexpl(fabsl(y - exact), DBL_MANT_DIG - exponent);
}

/* Whether an error is worse than the worst so far, which it then becomes; NaN is worse than any. */
static int is_worse(double error, double *worst)
{
    if (error <= *worst) return 0;
    *worst = isnan(error) ? (double)INFINITY : error;
    return 1;
}

static void compare_f32(share *s, const float *x, const double *exact)
{
    float negative[BLOCK], y[BLOCK], mirrored[BLOCK];
    for (int i = 0; i < BLOCK; i++) negative[i] = -x[i];
    for (int n = 0; n < s->levels; n++) {
        apply(s->f, s->kernels[n], BLOCK, x, y);
        if (s->f->odd) apply(s->f, s->kernels[n], BLOCK, negative, mirrored);
        for (int i = 0; i < BLOCK; i++) {
            const int right = !s->f->odd || (mirrored[i] == -y[i] && y[i] <= 1);
            if (is_worse(right ? ulps_f32(y[i], exact[i]) : (double)INFINITY, &s->worst[n])) s->where[n] = x[i];
        }
    }
}

static void *take_share(void *argument)
{
    share *s = argument;
    const uint64_t last = s->f->last;
    float x[BLOCK];
    double exact[BLOCK];
    for (uint64_t from = s->first; from <= last; from += (uint64_t)BLOCK * s->step) {
        for (int i = 0; i < BLOCK; i++) {
            const uint64_t wanted = from + (uint64_t)i * s->step;
            const uint32_t bits = (uint32_t)(wanted < last ? wanted : last);
            memcpy(&x[i], &bits, sizeof bits);
            exact[i] = s->f->exact_f32((double)x[i]);
        }
        compare_f32(s, x, exact);
    }
    return NULL;
}

static void run_shares(share *shares)
{
    pthread_t threads[SHARES];
    for (int n = 1; n < SHARES; n++)
        if (pthread_create(&threads[n], NULL, take_share, &shares[n]) != 0)
            take_share(&shares[n]), threads[n] = pthread_self();
    take_share(&shares[0]);
    for (int n = 1; n < SHARES; n++)
        if (!pthread_equal(threads[n], pthread_self())) pthread_join(threads[n], NULL);
}

void test_f32(const unary *f, int every)
{
    static share shares[SHARES];
    const uint32_t step = every ? 1 : 4099;
    for (int n = 0; n < SHARES; n++) {
        const uint32_t first = f->first + (uint32_t)n * step;
        shares[n] = (share){.f = f, .levels = level_count(), .first = first, .step = SHARES * step};
        for (int level = 0; level < shares[n].levels; level++) {
            use_level(level);
            shares[n].kernels[level] = attn_kernels_for(ATTN_F32);
        }
    }
    run_shares(shares);
    for (int level = 0; level < shares[0].levels; level++) {
        int most = 0;
        for (int n = 1; n < SHARES; n++)
            if (shares[n].worst[level] > shares[most].worst[level]) most = n;
        const double worst = shares[most].worst[level];
        printf("%s float32 %-7s %.3f ULP at %a (%s%s)\n", f->name, attn_isa_name(level), worst,
               (double)shares[most].where[level], every ? "every float32 in " : "a sample of ", f->range);
        CLAIM(worst <= f->bound, "%s: %g ULP", attn_isa_name(level), worst);
    }
}

static void compare_f64(const unary *f, const double *x, const long double *exact, double *worst)
{
    double negative[BLOCK], y[BLOCK], mirrored[BLOCK];
    for (int i = 0; i < BLOCK; i++) negative[i] = -x[i];
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        apply(f, attn_kernels_for(ATTN_F64), BLOCK, x, y);
        if (f->odd) apply(f, attn_kernels_for(ATTN_F64), BLOCK, negative, mirrored);
        for (int i = 0; i < BLOCK; i++) {
            const int right = !f->odd || (mirrored[i] == -y[i] && y[i] <= 1);
            is_worse(right ? ulps_f64(y[i], exact[i]) : (double)INFINITY, &worst[level]);
        }
    }
}

void test_f64(const unary *f)
{
    double worst[MOST_LEVELS] = {0}, x[BLOCK];
    long double exact[BLOCK];
    const int samples = f->samples ? f->samples : UNARY_SAMPLES;
    lcg g = lcg_from(2);
    for (int from = 0; from < samples; from += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            const double place = (draw_real(&g, ATTN_F64) + 2) / 4 * BLOCK + from + i;
            x[i] = f->sample_f64(place / (samples + BLOCK), from + i);
            exact[i] = f->exact_f64(x[i]);
        }
        compare_f64(f, x, exact, worst);
    }
    for (int level = 0; level < level_count(); level++) {
        printf("%s float64 %-7s %.3f ULP (%d samples)\n", f->name, attn_isa_name(level), worst[level], samples);
        CLAIM(worst[level] <= f->bound, "%s: %g ULP", attn_isa_name(level), worst[level]);
    }
}

static int same(double y, double expected)
{
    return isnan(expected) ? isnan(y) : y == expected;
}

void test_edges(const unary *f, int kinds, const edge *edges)
{
    enum { MOST = 2 * ATTN_MAX_WIDTH };
    for (int level = 0; level < level_count(); level++) {
        use_level(level);
        for (int count = 0; count <= MOST; count++) {
            float x32[MOST], y32[MOST + 1];
            double x64[MOST], y64[MOST + 1];
            for (int i = 0; i < count; i++) x32[i] = edges[i % kinds].x32, x64[i] = edges[i % kinds].x64;
            y64[count] = (double)(y32[count] = 7);
            apply(f, attn_kernels_for(ATTN_F32), count, x32, y32);
            apply(f, attn_kernels_for(ATTN_F64), count, x64, y64);
            int right = y32[count] == 7 && y64[count] == 7;
            for (int i = 0; i < count; i++)
                right &= same((double)y32[i], (double)edges[i % kinds].y32) && same(y64[i], edges[i % kinds].y64);
            CLAIM(right, "%s: %s of %d elements", attn_isa(), f->name, count);
        }
    }
}

/* softmax and log_softmax of rows, and merge_states, against long double. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static double get(attn_dtype dtype, const void *numbers, ptrdiff_t n)
{
    return dtype == ATTN_F32 ? (double)((const float *)numbers)[n] : ((const double *)numbers)[n];
}

static void set(attn_dtype dtype, void *numbers, ptrdiff_t n, double x)
{
    if (dtype == ATTN_F32)
        ((float *)numbers)[n] = (float)x;
    else
        ((double *)numbers)[n] = x;
}

static double unit_of(attn_dtype dtype) { return dtype == ATTN_F32 ? 0x1p-24 : 0x1p-53; }
static double least_of(attn_dtype dtype) { return dtype == ATTN_F32 ? (double)FLT_MIN : DBL_MIN; }

/* softmax ------------------------------------------------------------------------------------------------------- */

/* A softmax within 8u y (1 + 2A) + tiny, its logarithm within 4u (1 + |y| + A), where A = max |x|. */
static void claim_softmax_row(attn_dtype dtype, ptrdiff_t n, const void *x, const void *y, int logarithm)
{
    long double top = -INFINITY, sum = 0;
    double largest = 0, worst = 0;
    for (ptrdiff_t j = 0; j < n; j++) {
        const double size = fabs(get(dtype, x, j));
        if (get(dtype, x, j) > top) top = get(dtype, x, j);
        if (size > largest && isfinite(size)) largest = size;
    }
    for (ptrdiff_t j = 0; j < n; j++) sum += expl(get(dtype, x, j) - top);
    for (ptrdiff_t j = 0; j < n; j++) {
        const long double shifted = get(dtype, x, j) - top,
                          exact = logarithm ? shifted - logl(sum) : expl(shifted) / sum;
        const double found = get(dtype, y, j), u = unit_of(dtype);
        const double bound = logarithm ? 4 * u * (1 + (double)fabsl(exact) + largest)
                                       : 8 * u * (double)exact * (1 + 2 * largest) + least_of(dtype);
        const double error = found == exact ? 0 : (double)fabsl(found - exact) / bound;
        if (!(error <= worst)) worst = isnan(error) ? (double)INFINITY : error;
    }
    CLAIM(worst <= 1, "%s: %s of %td elements, unit roundoff %g, is off by %g bounds", attn_isa(),
          logarithm ? "log_softmax" : "softmax", n, unit_of(dtype), worst);
}

static void test_softmax(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, lcg *g)
{
    const size_t size = dtype == ATTN_F32 ? sizeof(float) : sizeof(double), bytes = (size_t)(rows * n) * size;
    char *x = take(bytes), *y = take(bytes), *in_place = take(bytes);
    attn_error error = {""};
    for (ptrdiff_t i = 0; i < rows * n; i++)
        set(dtype, x, i, i % n != 0 && draw_one_in(g, 9) ? -(double)INFINITY : 20 * draw_real(g, dtype));
    for (int logarithm = 0; logarithm < 2; logarithm++) {
        CLAIM(attn_softmax(dtype, rows, n, x, y, logarithm, 2, &error) == ATTN_OK, "%s", error.message);
        for (ptrdiff_t row = 0; row < rows; row++)
            claim_softmax_row(dtype, n, x + (size_t)(row * n) * size, y + (size_t)(row * n) * size, logarithm);
        memcpy(in_place, x, bytes);
        CLAIM(attn_softmax(dtype, rows, n, in_place, in_place, logarithm, 1, &error) == ATTN_OK, "%s", error.message);
        CLAIM(memcmp(in_place, y, bytes) == 0, "%s: in place, softmax of %td elements has other bits", attn_isa(), n);
    }
    free(x), free(y), free(in_place);
}

/* merge_states -------------------------------------------------------------------------------------------------- */

enum { PARTS = 3, ROWS = 5, DIM = 7 };

/* The formula of attn.h for one row, in long double. A part with weight 0 holds NaN, as it must not be read. */
static void claim_merged_row(attn_dtype dtype, ptrdiff_t row, const void *const *outputs, const void *const *lses,
                             const void *output, const void *lse)
{
    long double top = -INFINITY, sum = 0;
    for (int n = 0; n < PARTS; n++)
        if (get(dtype, lses[n], row) > top) top = get(dtype, lses[n], row);
    for (int n = 0; n < PARTS; n++)
        if (top > -INFINITY) sum += expl(get(dtype, lses[n], row) - top);
    const long double exact = sum == 0 ? -(long double)INFINITY : top + logl(sum);
    const double found = get(dtype, lse, row), u = unit_of(dtype);
    CLAIM(found == exact || fabsl(found - exact) <= 4 * u * (1 + fabsl(exact)), "lse %g, not %Lg", found, exact);
    for (ptrdiff_t d = 0; d < DIM; d++) {
        long double expected = 0, size = 0;
        for (int n = 0; n < PARTS; n++) {
            const long double share = sum == 0 ? 0 : expl(get(dtype, lses[n], row) - exact);
            if (share == 0) continue;
            const double part = get(dtype, outputs[n], row * DIM + d);
            expected += share * part;
            size += share * (1 + fabs(get(dtype, lses[n], row))) * fabs(part);
        }
        const double merged = get(dtype, output, row * DIM + d);
        CLAIM(fabsl(merged - expected) <= 4 * u * (size + fabsl(expected)) + least_of(dtype), "output %g, not %Lg",
              merged, expected);
    }
}

/* Row 0: all parts; row 1: one is empty; row 2: two are; row 3: all are; row 4: one outweighs the others by e^80. */
static void test_merge(attn_dtype dtype, lcg *g)
{
    double outputs[PARTS][ROWS * DIM], lses[PARTS][ROWS], output[ROWS * DIM], lse[ROWS]; /* room for either dtype */
    const void *output_list[PARTS], *lse_list[PARTS];
    attn_error error = {""};
    for (int n = 0; n < PARTS; n++) {
        for (ptrdiff_t row = 0; row < ROWS; row++) {
            const int empty = row < 4 && n < row;
            set(dtype, lses[n], row,
                empty ? -(double)INFINITY : (row == 4 && n == 1 ? 80 : 3) * (2 + draw_real(g, dtype)));
            for (ptrdiff_t d = 0; d < DIM; d++)
                set(dtype, outputs[n], row * DIM + d, empty ? (double)NAN : draw_real(g, dtype));
        }
        output_list[n] = outputs[n];
        lse_list[n] = lses[n];
    }
    CLAIM(attn_merge_states(dtype, PARTS, ROWS, DIM, output_list, lse_list, output, lse, &error) == ATTN_OK, "%s",
          error.message);
    for (ptrdiff_t row = 0; row < ROWS; row++) claim_merged_row(dtype, row, output_list, lse_list, output, lse);
    CLAIM(get(dtype, lse, 3) == -(double)INFINITY && get(dtype, output, 3 * DIM) == 0,
          "nothing and nothing is (0, -inf)");
    CLAIM(attn_merge_states(dtype, 0, 1, DIM, output_list, lse_list, output, lse, &error) == ATTN_OK, "%s",
          error.message);
    CLAIM(get(dtype, lse, 0) == -(double)INFINITY && get(dtype, output, 0) == 0, "no parts at all are (0, -inf)");
}

int main(void)
{
    lcg g = lcg_from(3);
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++) {
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (ptrdiff_t n = 0; n < 70; n++) test_softmax((attn_dtype)dtype, 3, n, &g);
            test_softmax((attn_dtype)dtype, 100, 1000, &g);
            test_softmax((attn_dtype)dtype, 2, 40000, &g);
        }
        for (int n = 0; n < 20; n++) test_merge((attn_dtype)dtype, &g);
    }
    return report("test_rows");
}

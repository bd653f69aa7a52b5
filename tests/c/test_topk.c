/* argmax and top-k against insertion into a sorted list; refused calls write nothing. */
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

/* Draws from few numbers, so that many are equal: infinities, NaN, zeros of both signs, denormals. */
static double draw_number(attn_dtype dtype, lcg *g)
{
    const double denormal = dtype == ATTN_F32 ? 0x1p-149 : 0x1p-1074;
    switch (draw_below(g, 8)) {
    case 0: return (double)NAN;
    case 1: return draw_one_in(g, 2) ? (double)INFINITY : -(double)INFINITY;
    case 2: return draw_one_in(g, 2) ? 0.0 : -0.0;
    case 3: return (double)draw_below(g, 3) * denormal;
    case 4: return dtype == ATTN_F32 ? -(double)FLT_MAX : -DBL_MAX;
    case 5: return (double)draw_below(g, 4);
    default: return draw_real(g, dtype);
    }
}

static int is_larger(double a, double b) { return a > b || (isnan(a) && !isnan(b)); }

/* The indices of a row's elements from the largest on, each inserted after all that are at least as large. */
static void sort_places(attn_dtype dtype, const void *x, ptrdiff_t row, ptrdiff_t n, int64_t *places)
{
    for (ptrdiff_t j = 0; j < n; j++) {
        ptrdiff_t at = j;
        for (; at > 0 && is_larger(get(dtype, x, row * n + j), get(dtype, x, row * n + places[at - 1])); at--)
            places[at] = places[at - 1];
        places[at] = j;
    }
}

static void test_topk_of(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t k, lcg *g)
{
    const size_t size = dtype == ATTN_F32 ? sizeof(float) : sizeof(double), chosen = (size_t)(rows * k);
    char *x = take((size_t)(rows * n) * size), *values = take(chosen * size);
    int64_t *indices = take(chosen * sizeof *indices), *largest = take((size_t)rows * sizeof *largest);
    int64_t *places = take((size_t)n * sizeof *places);
    attn_error error = {""};
    for (ptrdiff_t i = 0; i < rows * n; i++) set(dtype, x, i, draw_number(dtype, g));

    CLAIM(attn_top_k(dtype, rows, n, x, k, values, indices, 2, &error) == ATTN_OK, "%s", error.message);
    const attn_status status = attn_argmax(dtype, rows, n, x, largest, 1, &error);
    CLAIM((status == ATTN_OK) == (n > 0), "argmax of %td elements: %s", n, error.message);
    for (ptrdiff_t row = 0; row < rows; row++) {
        sort_places(dtype, x, row, n, places);
        if (n > 0) CLAIM(largest[row] == places[0], "%s: argmax of %td elements", attn_isa(), n);
        for (ptrdiff_t j = 0; j < k; j++) {
            const char *found = values + (size_t)(row * k + j) * size,
                       *there = x + (size_t)(row * n + places[j]) * size;
            CLAIM(indices[row * k + j] == places[j], "%s: number %td of %td out of %td", attn_isa(), j, k, n);
            CLAIM(memcmp(found, there, size) == 0, "%s: value %td of %td out of %td", attn_isa(), j, k, n);
        }
    }
    free(x), free(values), free(indices), free(largest), free(places);
}

/* More elements than lie between two polls, in an order that replaces the heap's root again and again. */
static void test_long_row(attn_dtype dtype, ptrdiff_t n, ptrdiff_t k)
{
    const size_t size = dtype == ATTN_F32 ? sizeof(float) : sizeof(double);
    char *x = take((size_t)n * size), *values = take((size_t)k * size);
    int64_t *indices = take((size_t)k * sizeof *indices), largest = -1;
    attn_error error = {""};
    for (ptrdiff_t j = 0; j < n; j++) set(dtype, x, j, (double)j);
    CLAIM(attn_top_k(dtype, 1, n, x, k, values, indices, 1, &error) == ATTN_OK, "%s", error.message);
    for (ptrdiff_t j = 0; j < k; j++) CLAIM(indices[j] == n - 1 - j, "%s: place %td of %td", attn_isa(), j, n);
    CLAIM(attn_argmax(dtype, 1, n, x, &largest, 1, &error) == ATTN_OK && largest == n - 1, "%s: argmax", attn_isa());
    free(x), free(values), free(indices);
}

#define REFUSED(call, sentence)                                                                                        \
    CLAIM((call) == ATTN_INVALID && strcmp(error.message, sentence) == 0, "\"%s\"", error.message)

static void test_mistakes(void)
{
    float x[6] = {0}, values[6] = {7, 7, 7, 7, 7, 7};
    int64_t indices[6] = {7, 7, 7, 7, 7, 7};
    attn_error error;
    REFUSED(attn_top_k(ATTN_F32, 2, 3, x, 4, values, indices, 1, &error),
            "k is 4, expected 0 <= k <= 3: a row of x has 3 elements");
    REFUSED(attn_top_k(ATTN_F32, 2, 3, x, -1, values, indices, 1, &error),
            "k is -1, expected 0 <= k <= 3: a row of x has 3 elements");
    REFUSED(attn_top_k(ATTN_I64, 2, 3, x, 1, values, indices, 1, &error), "x must be float32 or float64");
    REFUSED(attn_argmax(ATTN_F16, 2, 3, x, indices, 1, &error), "x must be float32 or float64");
    REFUSED(attn_argmax(ATTN_F32, 2, 0, x, indices, 1, &error), "x has empty rows, which have no largest element");
    for (int n = 0; n < 6; n++) CLAIM(values[n] == 7 && indices[n] == 7, "element %d was written", n);
    CLAIM(attn_top_k(ATTN_F32, 2, 3, x, 0, values, indices, 1, &error) == ATTN_OK, "k of 0");
    CLAIM(attn_argmax(ATTN_F32, 0, 0, x, indices, 1, &error) == ATTN_OK, "no rows");
}

int main(void)
{
    lcg g = lcg_from(8);
    test_mistakes();
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++)
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (ptrdiff_t n = 0; n < 150; n++) {
                test_topk_of((attn_dtype)dtype, 3, n, draw_below(&g, n + 1), &g);
                test_topk_of((attn_dtype)dtype, 1, n, n < 3 ? n : 3, &g);
            }
            test_topk_of((attn_dtype)dtype, 40, 1000, 7, &g);
            test_topk_of((attn_dtype)dtype, 2, 1000, 1000, &g);
            test_long_row((attn_dtype)dtype, 40000, 5);
            test_long_row((attn_dtype)dtype, 40000, 40000);
        }
    return report("test_topk");
}

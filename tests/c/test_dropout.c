/* Dropout of rows keeps what attn_dropout_keep says, for any cut of a row, any thread, and rows beyond 2^32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "dropout.h"
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

/* x / (1 - p) in three roundings: of the factor's quotient, to dtype, and of the product. */
static int is_kept(attn_dtype dtype, double y, double x, double dropout_p)
{
    const double u = dtype == ATTN_F32 ? 0x1p-24 : 0x1p-53, exact = x / (1 - dropout_p);
    return fabs(y - exact) <= 4 * u * fabs(exact);
}

/* Inputs that will be dropped are NaN. */
static void test_rows(attn_dtype dtype, lcg *g)
{
    const ptrdiff_t size = dtype == ATTN_F32 ? 4 : 8, rows = PICK(g, 1, 2, 7, 300);
    const ptrdiff_t features = PICK(g, 1, 3, 4, 15, 16, 17, 63, 64, 65, 130, 1000, 70000), count = rows * features;
    const double dropout_p = (const double[]){1e-12, 0.1, 0.5, 0.9, 1}[draw_below(g, 5)];
    const uint64_t seed = (uint64_t)draw_below(g, PTRDIFF_MAX);
    unsigned char *keep = take((size_t)count);
    char *x = take((size_t)(count * size)), *y = take((size_t)(count * size));
    ptrdiff_t wrong = 0;
    attn_error error = {""};

    CLAIM(attn_dropout_keep(dropout_p, seed, 1, rows, features, keep, 1, &error) == ATTN_OK, "%s", error.message);
    for (ptrdiff_t n = 0; n < count; n++) set(dtype, x, n, keep[n] ? draw_real(g, dtype) : (double)NAN);
    const int threads = 1 + (int)draw_below(g, 3);
    CLAIM(attn_drop_rows(dtype, rows, features, x, y, dropout_p, seed, threads, &error) == ATTN_OK, "%s",
          error.message);
    for (ptrdiff_t n = 0; n < count; n++)
        wrong += keep[n] ? !is_kept(dtype, get(dtype, y, n), get(dtype, x, n), dropout_p) : get(dtype, y, n) != 0;
    CLAIM(wrong == 0, "%s: of (%td, %td), p = %g, %td are wrong", attn_isa(), rows, features, dropout_p, wrong);

    CLAIM(attn_drop_rows(dtype, rows, features, x, x, dropout_p, seed, 1, &error) == ATTN_OK, "%s", error.message);
    CLAIM(memcmp(x, y, (size_t)(count * size)) == 0, "%s: (%td, %td) in place has other bits", attn_isa(), rows,
          features);
    free(keep), free(x), free(y);
}

/* A row beyond 2^32, from a later feature on, as the linear layer's epilogue handles part of a row's features. */
static void test_the_kernel(attn_dtype dtype, lcg *g)
{
    enum { FEATURES = 200 };
    const attn_kernels *k = attn_kernels_for(dtype);
    const attn_dropout dropout = attn_dropout_of(0.4, 99);
    const uint32_t unit = 1 + (uint32_t)draw_below(g, 1000), query = (uint32_t)draw_below(g, UINT32_MAX);
    const ptrdiff_t first = 4 * draw_below(g, 1000), features = 1 + draw_below(g, FEATURES);
    double x[FEATURES], y[FEATURES], keep[ATTN_BLOCK_KEYS]; /* room for either dtype */
    for (ptrdiff_t n = 0; n < features; n++) set(dtype, x, n, 3);
    k->drop_features(&dropout, (uint64_t)unit << 32 | query, first, features, 2, x, y);
    for (ptrdiff_t n = 0; n < features; n++) {
        if (n % ATTN_BLOCK_KEYS == 0)
            k->drop_mask_tile(&dropout, 1, ATTN_BLOCK_KEYS, &query, &unit, (uint32_t)((first + n) / 4), keep,
                              ATTN_BLOCK_KEYS, 1);
        const double expected = get(dtype, keep, n % ATTN_BLOCK_KEYS) == 0 ? 6 : 0;
        CLAIM(get(dtype, y, n) == expected, "%s: feature %td of row (%u, %u) is %g", attn_isa(), first + n, unit, query,
              get(dtype, y, n));
    }
}

static void claim_refused(attn_dtype dtype, ptrdiff_t features, double dropout_p, const char *sentence)
{
    double x = 1, y = 7;
    attn_error error = {""};
    const attn_status status = attn_drop_rows(dtype, 1, features, &x, &y, dropout_p, 0, 1, &error);
    CLAIM(status == ATTN_INVALID && strcmp(error.message, sentence) == 0, "status %d: %s", (int)status, error.message);
    CLAIM(y == 7, "%g was written", y);
}

static void test_mistakes(void)
{
    double x[2] = {1e-310, -3}, y[2];
    attn_error error = {""};
    claim_refused(ATTN_F64, 1, 1.5, "dropout_p is 1.5, expected 0 <= dropout_p <= 1");
    claim_refused(ATTN_F64, 1, (double)NAN, "dropout_p is nan, expected 0 <= dropout_p <= 1");
    claim_refused(ATTN_BOOL, 1, 0.5, "x must be float16, bfloat16, float32 or float64");
    claim_refused(ATTN_F64, (ptrdiff_t)(INT64_C(1) << 34), 0.5,
                  "x has 17179869184 features in a row, expected less than 2**34");
    CLAIM(attn_drop_rows(ATTN_F64, 1, 2, x, y, 0, 0, 1, &error) == ATTN_OK && memcmp(x, y, sizeof x) == 0,
          "where nothing is dropped, numbers stay as they are");
}

int main(void)
{
    lcg g = lcg_from(7);
    test_mistakes();
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++)
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (int n = 0; n < 40; n++) test_rows((attn_dtype)dtype, &g);
            for (int n = 0; n < 100; n++) test_the_kernel((attn_dtype)dtype, &g);
        }
    return report("test_dropout");
}

/* Embeddings against long double, with strided tables, ids and residuals; refused calls write nothing. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { BATCH = 3, LENGTH = 5 };

static double get(attn_dtype dtype, const void *numbers, ptrdiff_t n)
{
    return dtype == ATTN_F32 ? (double)((const float *)numbers)[n] : ((const double *)numbers)[n];
}

static void *draw(attn_dtype dtype, ptrdiff_t count, lcg *g)
{
    const size_t size = dtype == ATTN_F32 ? sizeof(float) : sizeof(double);
    char *numbers = take((size_t)count * size);
    for (ptrdiff_t n = 0; n < count; n++) {
        if (dtype == ATTN_F32)
            ((float *)(void *)numbers)[n] = (float)draw_real(g, dtype);
        else
            ((double *)(void *)numbers)[n] = draw_real(g, dtype);
    }
    return numbers;
}

/* Bound: a rounding of scale and one of the sum; without fma, another one of the product. */
static void claim_close(attn_dtype dtype, double found, double scale, double weight, double residual)
{
    const double u = dtype == ATTN_F32 ? 0x1p-24 : 0x1p-53, least = dtype == ATTN_F32 ? (double)FLT_MIN : DBL_MIN;
    const long double product = (long double)scale * weight, exact = product + residual;
    const long double bound = 2 * u * (fabsl(product) + fabsl(exact)) + least;
    CLAIM(fabsl(found - exact) <= bound, "%s: %g times %g and %g is %g", attn_isa(), scale, weight, residual, found);
}

/* Ids (BATCH, LENGTH) taken backwards from a larger array; a table with gaps, or transposed; a residual of one or all
 * rows. */
static void test_embedding(attn_dtype dtype, lcg *g)
{
    const ptrdiff_t size = dtype == ATTN_F32 ? 4 : 8, rows = PICK(g, 1, 2, 7, 50),
                    dim = PICK(g, 1, 3, 4, 16, 17, 33, 100);
    const int transposed = draw_one_in(g, 3), with_residual = !draw_one_in(g, 3), whole = draw_one_in(g, 2);
    const double scale = draw_one_in(g, 3) ? 1 : draw_real(g, dtype) * 0.7;
    int64_t ids[BATCH * 2 * LENGTH]; /* every other one */
    char *weight = draw(dtype, rows * (dim + 3), g), *residual = draw(dtype, BATCH * LENGTH * dim, g);
    char *y = take((size_t)(BATCH * LENGTH * dim * size));
    for (int n = 0; n < BATCH * 2 * LENGTH; n++) ids[n] = n % 2 ? draw_below(g, rows) : INT64_MIN;

    const ptrdiff_t ids_shape[] = {BATCH, LENGTH}, weight_shape[] = {rows, dim}, shape[] = {BATCH, LENGTH, dim};
    const ptrdiff_t ids_strides[] = {sizeof ids / BATCH, -2 * (ptrdiff_t)sizeof(int64_t)}, zeros[] = {0, 0, size};
    const ptrdiff_t weight_strides[] = {transposed ? size : (dim + 3) * size, transposed ? rows * size : size};
    const ptrdiff_t strides[] = {LENGTH * dim * size, dim * size, size};
    attn_embedding_args args = {.ids = strided(ids + 2 * LENGTH - 1, ATTN_I64, 2, ids_shape, ids_strides),
                                .weight = strided(weight, dtype, 2, weight_shape, weight_strides),
                                .scale = scale,
                                .num_threads = 1 + (int)draw_below(g, 3)};
    attn_error error = {""};
    if (with_residual)
        args.residual =
            whole ? strided(residual, dtype, 3, shape, strides) : strided(residual, dtype, 1, shape + 2, zeros + 2);
    const attn_status status = attn_embedding(&args, strided(y, dtype, 3, shape, strides), &error);
    CLAIM(status == ATTN_OK, "%s", error.message);
    for (ptrdiff_t row = 0; row < BATCH * LENGTH; row++)
        for (ptrdiff_t d = 0; d < dim; d++) {
            const ptrdiff_t id = (ptrdiff_t)ids[row / LENGTH * 2 * LENGTH + 2 * LENGTH - 1 - row % LENGTH * 2];
            const double w = get(dtype, weight, (id * weight_strides[0] + d * weight_strides[1]) / size);
            const double r = with_residual ? get(dtype, residual, whole ? row * dim + d : d) : 0;
            claim_close(dtype, get(dtype, y, row * dim + d), scale, w, r);
        }
    free(weight), free(residual), free(y);
}

/* Refused calls write nothing. */
static void claim_refused(const attn_embedding_args *args, const char *sentence, int line)
{
    static const ptrdiff_t shape[] = {2, 2, 3}, strides[] = {24, 12, 4};
    float y[2][2][3];
    attn_error error = {""};
    memset(y, 1, sizeof y);
    const attn_status status = attn_embedding(args, strided(y, ATTN_F32, 3, shape, strides), &error);
    CLAIM(status == ATTN_INVALID, "line %d: status %d", line, (int)status);
    CLAIM(strcmp(error.message, sentence) == 0, "line %d: \"%s\"", line, error.message);
    for (size_t n = 0; n < sizeof y; n++) CLAIM(((char *)y)[n] == 1, "line %d: byte %zu was written", line, n);
}

#define REFUSED(sentence, ...)                                                                                         \
    do {                                                                                                               \
        attn_embedding_args c = good;                                                                                  \
        __VA_ARGS__;                                                                                                   \
        claim_refused(&c, sentence, __LINE__);                                                                         \
    } while (0)

static void test_mistakes(void)
{
    static int64_t ids[] = {0, 1, 2, 5}, wrong[] = {0, 1, 5, 6}, below[] = {0, 1, 2, -1};
    static float weight[6][3], residual[2][3];
    static const ptrdiff_t two[] = {2, 2}, ids_strides[] = {16, 8}, shape[] = {6, 3}, strides[] = {12, 4};
    static const ptrdiff_t huge[] = {PTRDIFF_MAX / 2, 4}, pair[] = {2, 3};
    const attn_embedding_args good = {.ids = strided(ids, ATTN_I64, 2, two, ids_strides),
                                      .weight = strided(weight, ATTN_F32, 2, shape, strides),
                                      .scale = 1};
    REFUSED("input holds 6 at index (1, 1), expected 0 <= id < 6: weight has shape (6, 3)", c.ids.data = wrong);
    REFUSED("input holds -1 at index (1, 1), expected 0 <= id < 6: weight has shape (6, 3)", c.ids.data = below);
    REFUSED("input holds 0 at index (0, 0), expected 0 <= id < 0: weight has shape (0, 3)", c.weight.shape[0] = 0);
    REFUSED("input is 6, expected 0 <= id < 6: weight has shape (6, 3)", c.ids.data = wrong + 3; c.ids.ndim = 0);
    REFUSED("input must be int64", c.ids.dtype = ATTN_F64);
    REFUSED("input has 8 axes, expected at most 7", c.ids.ndim = ATTN_MAX_AXES);
    REFUSED("weight has shape (6,), expected 2 axes: (num_embeddings, embedding_dim)", c.weight.ndim = 1);
    REFUSED("weight must be float16, bfloat16, float32 or float64", c.weight.dtype = ATTN_BOOL);
    REFUSED("the result is too large for memory: input (4611686018427387903, 4), weight (6, 3)",
            c.ids = strided(ids, ATTN_I64, 2, huge, NULL));
    REFUSED("residual has shape (6, 3), which does not broadcast to (2, 2, 3): input has shape (2, 2), weight (6, 3)",
            c.residual = c.weight);
    REFUSED("residual has another dtype than weight", c.residual = strided(residual, ATTN_F64, 2, pair, strides));
    REFUSED("y has shape (2, 2, 3), expected (2, 2, 4)", c.weight.shape[1] = 4);
    REFUSED("y has shape (2, 2, 3), expected (2, 3)", c.ids.ndim = 1);
}

int main(void)
{
    lcg g = lcg_from(6);
    test_mistakes();
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++)
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (int n = 0; n < 200; n++) test_embedding((attn_dtype)dtype, &g);
        }
    return report("test_embedding");
}

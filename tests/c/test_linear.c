/* Linear layers against long double: the error bound, and that a row does not depend on the others. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

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

/* A matrix whose rows lie `row` elements apart. */
typedef struct {
    ptrdiff_t shape[2], strides[2];
} matrix;

static matrix matrix_of(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t row)
{
    const ptrdiff_t size = dtype == ATTN_F32 ? sizeof(float) : sizeof(double);
    return (matrix){{rows, columns}, {row * size, size}};
}

/* The transpose, in the same memory. */
static matrix transposed(matrix m) { return (matrix){{m.shape[1], m.shape[0]}, {m.strides[1], m.strides[0]}}; }

static attn_tensor view_of(attn_dtype dtype, const matrix *m, int axes, void *data)
{
    return strided(data, dtype, (size_t)axes, m->shape + 2 - axes, m->strides + 2 - axes);
}

/* 4u (|x||W| + |b|), times at most the square root of the inner length, and u of the result. */
static void claim_close(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t inner, ptrdiff_t features, ptrdiff_t weight_row,
                        const void *x, const void *weight, const void *bias, const void *y)
{
    const double u = dtype == ATTN_F32 ? 0x1p-24 : 0x1p-53, least = dtype == ATTN_F32 ? (double)FLT_MIN : DBL_MIN;
    double worst = 0;
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t n = 0; n < features; n++) {
            long double exact = get(dtype, bias, n), size = fabsl(exact);
            for (ptrdiff_t d = 0; d < inner; d++) {
                const long double term =
                    (long double)get(dtype, x, i * inner + d) * get(dtype, weight, n * weight_row + d);
                exact += term;
                size += fabsl(term);
            }
            if (exact < 0) exact = 0; /* ReLU */
            const double bound = u * (4 * sqrt((double)inner + 1) * (double)size + fabs((double)exact)) + least;
            const double error = fabs((double)(get(dtype, y, i * features + n) - exact)) / bound;
            if (!(error <= worst)) worst = isnan(error) ? (double)INFINITY : error;
        }
    CLAIM(worst <= 1, "%s: (%td, %td) by %td features, unit roundoff %g, is off by %g bounds", attn_isa(), rows, inner,
          features, u, worst);
}

static void test_linear(attn_dtype dtype, lcg *g)
{
    const ptrdiff_t rows = PICK(g, 1, 2, 3, 5, 8, 9, 17, 40, 49, 100), inner = PICK(g, 0, 1, 3, 16, 40, 128, 130, 300);
    const ptrdiff_t features = PICK(g, 1, 5, 16, 33, 64, 65, 130), size = dtype == ATTN_F32 ? 4 : 8;
    const ptrdiff_t weight_row = draw_one_in(g, 3) ? (inner + 511) / 512 * 512 + 512 : inner; /* apart: it is copied */
    void *x = draw(dtype, rows * inner, g), *weight = draw(dtype, features * weight_row, g);
    void *bias = draw(dtype, features, g), *y = take((size_t)(rows * features * size));
    void *alone = take((size_t)(features * size));
    const matrix x_shape = matrix_of(dtype, rows, inner, inner), y_shape = matrix_of(dtype, rows, features, features);
    const matrix weight_shape = matrix_of(dtype, features, inner, weight_row);
    const matrix bias_shape = matrix_of(dtype, 1, features, features);
    const matrix one_x = matrix_of(dtype, 1, inner, inner), one_y = matrix_of(dtype, 1, features, features);
    attn_linear_args args = {.x = view_of(dtype, &x_shape, 2, x),
                             .weight = view_of(dtype, &weight_shape, 2, weight),
                             .bias = view_of(dtype, &bias_shape, 1, bias),
                             .activation = ATTN_RELU,
                             .num_threads = 1 + (int)draw_below(g, 3)};
    attn_error error = {""};

    CLAIM(attn_linear(&args, view_of(dtype, &y_shape, 2, y), &error) == ATTN_OK, "%s", error.message);
    claim_close(dtype, rows, inner, features, weight_row, x, weight, bias, y);

    const ptrdiff_t i = draw_below(g, rows);
    args.x = view_of(dtype, &one_x, 2, (char *)x + i * inner * size);
    CLAIM(attn_linear(&args, view_of(dtype, &one_y, 2, alone), &error) == ATTN_OK, "%s", error.message);
    CLAIM(memcmp(alone, (char *)y + i * features * size, (size_t)(features * size)) == 0,
          "%s: row %td of %td has other bits alone, inner %td, %td features", attn_isa(), i, rows, inner, features);

    /* the same weight as (inner, features) */
    const matrix in_out = matrix_of(dtype, inner, features, features + draw_below(g, 3));
    const matrix weight_transposed = transposed(in_out);
    void *other = draw(dtype, inner * (features + 2), g), *again = take((size_t)(rows * features * size));
    for (ptrdiff_t n = 0; n < features; n++)
        for (ptrdiff_t d = 0; d < inner; d++)
            memcpy((char *)other + d * in_out.strides[0] + n * size, (char *)weight + (n * weight_row + d) * size,
                   (size_t)size);
    args.x = view_of(dtype, &x_shape, 2, x);
    args.weight = view_of(dtype, &weight_transposed, 2, other);
    CLAIM(attn_linear(&args, view_of(dtype, &y_shape, 2, again), &error) == ATTN_OK, "%s", error.message);
    CLAIM(memcmp(again, y, (size_t)(rows * features * size)) == 0,
          "%s: a weight as (inner, features) gives other bits: %td rows, inner %td, %td features", attn_isa(), rows,
          inner, features);
    free(x), free(weight), free(bias), free(y), free(alone), free(other), free(again);
}

int main(void)
{
    lcg g = lcg_from(5);
    for (int dtype = ATTN_F32; dtype <= ATTN_F64; dtype++)
        for (int level = 0; level < level_count(); level++) {
            use_level(level);
            for (int n = 0; n < 150; n++) test_linear((attn_dtype)dtype, &g);
        }
    return report("test_linear");
}

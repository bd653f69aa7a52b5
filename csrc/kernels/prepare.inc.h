/* Prepares copies of queries and keys for score functions other than the dot product.
 *
 * A sum of squares is eight interleaved partial sums in double, folded in a fixed order: bit-identical at every level.
 * For float64, rows whose squares leave double's range are first scaled to around 1.
 */

typedef real K(eight) __attribute__((vector_size(8 * sizeof(real)), aligned(sizeof(real)), may_alias));
#ifndef ATTN_EIGHT_DOUBLES
#define ATTN_EIGHT_DOUBLES
typedef double attn_eight_doubles __attribute__((vector_size(64)));
#endif

static inline double K(sum_of_squares)(ptrdiff_t dim, const real *row, double times)
{
    attn_eight_doubles part = {0};
    ptrdiff_t d = 0;
    for (; d + 8 <= dim; d += 8) {
        const attn_eight_doubles x = __builtin_convertvector(*(const K(eight) *)(row + d), attn_eight_doubles) * times;
        part += x * x;
    }
    for (int c = 0; d + c < dim; c++) part[c] += ((double)row[d + c] * times) * ((double)row[d + c] * times);
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

/* The sum of squares of a row times *times, which is 1 unless the squares leave double's range. */
static inline double K(squares_of_row)(ptrdiff_t dim, const real *row, double *times)
{
    const double squares = K(sum_of_squares)(dim, row, 1);
    *times = 1;
    if (REAL_F32 || (squares > 0x1p-900 && squares < 0x1p900)) return squares;
    double most = 0;
    for (ptrdiff_t d = 0; d < dim; d++) most = fabs((double)row[d]) > most ? fabs((double)row[d]) : most;
    *times = most > 1 ? 0x1p-600 : 0x1p600;
    return K(sum_of_squares)(dim, row, *times);
}

/* Scales a row to norm 1, except a row of zeros. */
static inline void K(normalise_row)(ptrdiff_t dim, real *row)
{
    double times;
    const double squares = K(squares_of_row)(dim, row, &times);
    if (squares == 0) return;
    const double inverse = 1 / sqrt(squares);
    ptrdiff_t d = 0;
    for (; d + 8 <= dim; d += 8) {
        const attn_eight_doubles x = __builtin_convertvector(*(const K(eight) *)(row + d), attn_eight_doubles);
        *(K(eight) *)(row + d) = __builtin_convertvector(x * times * inverse, K(eight));
    }
    for (; d < dim; d++) row[d] = (real)((double)row[d] * times * inverse);
}

/*   data  (rows, dim)   row stride `stride`, in and out */
static void K(normalise_rows)(int rows, ptrdiff_t dim, ptrdiff_t stride, void *data)
{
    for (int i = 0; i < rows; i++) K(normalise_row)(dim, (real *)data + i * stride);
}

/* From the gradient g of a row's unit vector u, that of the row: (g - (g . u) u) / norm. Of a row of zeros it is 0; of
 * one that is not finite, g is NaN, or 0 where nothing was computed from the row. */
static inline void K(normalise_row_backward)(ptrdiff_t dim, const real *row, real *gradient)
{
    double times, along[8] = {0};
    const double squares = K(squares_of_row)(dim, row, &times);
    if (!isfinite(squares)) return;
    for (ptrdiff_t d = 0; d < dim; d++) along[d % 8] += (double)gradient[d] * ((double)row[d] * times);
    const double sum =
        ((along[0] + along[4]) + (along[2] + along[6])) + ((along[1] + along[5]) + (along[3] + along[7]));
    const double share = squares == 0 ? 0 : sum / squares, inverse = squares == 0 ? 0 : times / sqrt(squares);
    for (ptrdiff_t d = 0; d < dim; d++)
        gradient[d] = (real)(((double)gradient[d] - share * ((double)row[d] * times)) * inverse);
}

/*   data      (rows, dim)   row stride `stride`
 *   gradient  (rows, dim)   the same, in and out
 */
static void K(normalise_rows_backward)(int rows, ptrdiff_t dim, ptrdiff_t stride, const void *data, void *gradient)
{
    for (int i = 0; i < rows; i++)
        K(normalise_row_backward)(dim, (const real *)data + i * stride, (real *)gradient + i * stride);
}

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

/* Scales a row to norm 1, except a row of zeros. */
static inline void K(normalise_row)(ptrdiff_t dim, real *row)
{
    double times = 1, squares = K(sum_of_squares)(dim, row, 1);
    if (!REAL_F32 && !(squares > 0x1p-900 && squares < 0x1p900)) {
        double most = 0;
        for (ptrdiff_t d = 0; d < dim; d++) most = fabs((double)row[d]) > most ? fabs((double)row[d]) : most;
        times = most > 1 ? 0x1p-600 : 0x1p600;
        squares = K(sum_of_squares)(dim, row, times);
    }
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

/* Partial attentions over parts of the keys, merged through their logsumexps. All sums are taken in double: a part may
 * weigh e^-80 of another, and what it adds still counts. */
#include <math.h>
#include <string.h>

#include "arena.h"
#include "error.h"
#include "float_state.h"

static double real_at(attn_dtype dtype, const void *data, ptrdiff_t i)
{
    return dtype == ATTN_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void store_real(attn_dtype dtype, void *data, ptrdiff_t i, double x)
{
    if (dtype == ATTN_F32)
        ((float *)data)[i] = (float)x;
    else
        ((double *)data)[i] = x;
}

/* One row: weights of the parts, then their sum of outputs. `share` and `sum` are scratch of `parts` and dim. */
static void merge_row(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t row, ptrdiff_t dim, const void *const *outputs,
                      const void *const *lses, void *output, void *lse, double *share, double *sum)
{
    /* 1. the largest logsumexp; NaN is not lost */
    double top = (double)-INFINITY, total = 0;
    for (ptrdiff_t n = 0; n < parts; n++) {
        share[n] = real_at(dtype, lses[n], row);
        if (!(share[n] <= top)) top = share[n];
    }

    /* 2. each part's share; nothing at all is 0 with lse = -inf */
    for (ptrdiff_t n = 0; n < parts; n++) {
        share[n] = share[n] == (double)-INFINITY ? 0 : exp(share[n] - top);
        total += share[n];
    }
    store_real(dtype, lse, row, total == 0 ? (double)-INFINITY : top + log(total));

    /* 3. outputs; a part without a share is not touched */
    memset(sum, 0, (size_t)dim * sizeof *sum);
    for (ptrdiff_t n = 0; n < parts; n++) {
        if (share[n] == 0) continue;
        const double weight = share[n] / total;
        for (ptrdiff_t d = 0; d < dim; d++) sum[d] += weight * real_at(dtype, outputs[n], row * dim + d);
    }
    for (ptrdiff_t d = 0; d < dim; d++) store_real(dtype, output, row * dim + d, sum[d]);
}

attn_status attn_merge_states(attn_dtype dtype, ptrdiff_t parts, ptrdiff_t rows, ptrdiff_t dim,
                              const void *const *outputs, const void *const *lses, void *output, void *lse,
                              attn_error *error)
{
    attn_arena arena;
    const size_t bytes = attn_times(attn_plus((size_t)parts, (size_t)dim), sizeof(double));
    if (dtype != ATTN_F32 && dtype != ATTN_F64)
        return attn_fail(error, ATTN_INVALID, "outputs and lses must be float32 or float64");
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "merge_states needs %zu bytes of scratch memory", bytes);

    const attn_float_state state = attn_float_enter();
    double *share = (double *)(void *)arena.scratch;
    for (ptrdiff_t row = 0; row < rows; row++)
        merge_row(dtype, parts, row, dim, outputs, lses, output, lse, share, share + parts);
    attn_float_leave(state);
    attn_arena_give(&arena);
    return ATTN_OK;
}

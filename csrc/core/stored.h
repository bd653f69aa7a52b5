/* Rows of any stored dtype and stride: contiguous float32 and float64 are read and written in place, all others through
 * scratch. */
#ifndef ATTN_CORE_STORED_H
#define ATTN_CORE_STORED_H

#include "arena.h"
#include "float_state.h"
#include "kernels.h"
#include "parallel.h"
#include "walk.h"

static inline int attn_is_in_place(attn_dtype dtype, ptrdiff_t count, ptrdiff_t step)
{
    return !attn_is_half(dtype) && (count <= 1 || step == attn_size_of_real(dtype));
}

/* Scratch bytes of a row of elements `step` bytes apart; 0 for one that is read in place. */
static inline size_t attn_strided_bytes(attn_dtype dtype, ptrdiff_t count, ptrdiff_t step)
{
    if (attn_is_in_place(dtype, count, step)) return 0;
    return attn_padded(attn_saturating_mul((size_t)count, dtype == ATTN_F64 ? sizeof(double) : sizeof(float)));
}

static inline size_t attn_row_bytes(attn_dtype dtype, ptrdiff_t count)
{
    return attn_strided_bytes(dtype, count, attn_size_of_real(dtype));
}

/* A row as contiguous numbers to compute with. */
static inline const void *attn_read_strided(const attn_kernels *k, attn_dtype dtype, ptrdiff_t count, const void *from,
                                            ptrdiff_t step, void *scratch)
{
    if (attn_is_in_place(dtype, count, step)) return from;
    k->load_block((attn_element)dtype, 1, count, from, 0, step, count, scratch);
    return scratch;
}

static inline const void *attn_read_row(const attn_kernels *k, attn_dtype dtype, ptrdiff_t count, const void *from,
                                        void *scratch)
{
    return attn_read_strided(k, dtype, count, from, attn_size_of_real(dtype), scratch);
}

/* Rows at any addresses as contiguous numbers to compute with, `padded` of them apart in `to`, where `row` then points.
 * Rows that are equally far apart are read together: where their columns are contiguous, vectors are transposed. */
void attn_load_rows(const attn_kernels *k, attn_dtype dtype, int rows, ptrdiff_t columns, ptrdiff_t column_step,
                    ptrdiff_t padded, void **row, void *to);

/* The same as attn_read_row, by a thread that is in no task. */
static inline const void *attn_read_outside(const attn_kernels *k, attn_dtype dtype, ptrdiff_t count, const void *from,
                                            void *scratch)
{
    if (!attn_is_half(dtype)) return from;
    const attn_float_state before = attn_float_enter(); /* a signalling NaN raises a flag */
    const void *const row = attn_read_row(k, dtype, count, from, scratch);
    attn_float_leave(before);
    return row;
}

/* Where to compute a row of `to`, which attn_round_row then brings there. */
static inline void *attn_target_of(attn_dtype dtype, void *to, void *scratch)
{
    return attn_is_half(dtype) ? scratch : to;
}

static inline void attn_round_row(const attn_kernels *k, attn_dtype dtype, ptrdiff_t count, const void *from, void *to)
{
    if (attn_is_half(dtype)) k->store_row((attn_element)dtype, count, from, to);
}

/* attn_parallel_for, with scratch memory for each worker, whose start is written to *scratch first. */
attn_status attn_run_with_scratch(const char *function, ptrdiff_t tasks, int workers, size_t worker_bytes,
                                  char **scratch, attn_body run, void *job, attn_error *error);

#endif

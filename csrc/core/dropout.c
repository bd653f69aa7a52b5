/* Random dropout: the threshold, the range of Philox counters, the mask of kept weights, and dropout of rows. */
#include <string.h>

#include "check.h"
#include "dispatch.h"
#include "dropout.h"
#include "error.h"
#include "stored.h"

/* A weight is dropped with probability round(p * 2^32) / 2^32, and never less than 2^-32. */
attn_dropout attn_dropout_of(double dropout_p, uint64_t seed)
{
    const uint64_t dropped = (uint64_t)(dropout_p * 0x1p32 + 0.5);
    return (attn_dropout){{(uint32_t)seed, (uint32_t)(seed >> 32)}, dropped == 0 ? 0 : (uint32_t)(dropped - 1)};
}

/* The factor of what is kept, which may raise floating-point flags, too. */
static double factor_of(double dropout_p) { return dropout_p < 1 ? 1 / (1 - dropout_p) : 0; }

attn_status attn_check_dropout(double dropout_p, ptrdiff_t units, ptrdiff_t queries, ptrdiff_t keys, attn_error *error)
{
    const int64_t most = (int64_t)1 << 32; /* 32-bit counters; one counter gives four keys */
    if (!(dropout_p >= 0 && dropout_p <= 1)) FAIL("dropout_p is %g, expected 0 <= dropout_p <= 1", dropout_p);
    if (dropout_p > 0 && (units > most || queries > most || keys / 4 >= most))
        FAIL("dropout with %td heads in all, %td queries and %td keys, expected at most 2**32 of each (keys: 2**34); "
             "pass keep_mask instead",
             units, queries, keys);
    return ATTN_OK;
}

/* The dropout mask of some heads, in the layout of attention's keep_mask: (units, q_len, kv_len). Rows are cut into
 * pieces; each piece polls for interruption. */
enum { PIECE_KEYS = 1 << 16 };
typedef struct {
    const attn_kernels *kernels;
    double dropout_p;
    uint64_t seed;
    attn_row_cut cut;
    ptrdiff_t q_len, kv_len, pieces; /* pieces per row */
    unsigned char *keep;
} keep_job;

static void fill_piece(const keep_job *k, const attn_dropout *dropout, ptrdiff_t number)
{
    const ptrdiff_t row = attn_fast_div(number, k->pieces), from = (number - row * k->pieces) * PIECE_KEYS;
    const ptrdiff_t head = attn_fast_div(row, k->q_len), to = attn_min(k->kv_len, from + PIECE_KEYS);
    const uint32_t unit = (uint32_t)head, query = (uint32_t)(row - head * k->q_len);
    unsigned char *keep = k->keep + row * k->kv_len;
    float tile[ATTN_BLOCK_KEYS];
    for (ptrdiff_t key = from; key < to; key += ATTN_BLOCK_KEYS) {
        const ptrdiff_t keys = attn_min(to - key, ATTN_BLOCK_KEYS);
        k->kernels->drop_mask_tile(dropout, 1, (int)keys, &query, &unit, (uint32_t)(key / 4), tile, ATTN_BLOCK_KEYS, 1);
        for (ptrdiff_t n = 0; n < keys; n++) keep[key + n] = tile[n] == 0;
    }
}

static void fill_pieces(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const keep_job *k = context;
    const attn_dropout dropout = attn_dropout_of(k->dropout_p, k->seed);
    for (ptrdiff_t n = attn_first_row(&k->cut, task); n < attn_first_row(&k->cut, task + 1); n++) {
        if (attn_should_stop(job, worker)) return;
        fill_piece(k, &dropout, n);
    }
}

attn_status attn_dropout_keep(double dropout_p, uint64_t seed, ptrdiff_t units, ptrdiff_t q_len, ptrdiff_t kv_len,
                              unsigned char *keep, int num_threads, attn_error *error)
{
    keep_job k = {.dropout_p = dropout_p, .seed = seed, .q_len = q_len, .kv_len = kv_len, .keep = keep};
    ptrdiff_t rows, all;
    if (units < 0 || q_len < 0 || kv_len < 0 || __builtin_mul_overflow(units, q_len, &rows) ||
        __builtin_mul_overflow(rows, kv_len, &all))
        FAIL("%td heads, %td queries and %td keys: sizes must be 0 or more, and the mask must fit in memory", units,
             q_len, kv_len);
    attn_status status = attn_check_dropout(dropout_p, units, q_len, kv_len, error);
    if (status != ATTN_OK || all == 0) return status;
    if (dropout_p == 0) {
        memset(keep, 1, (size_t)all);
        return ATTN_OK;
    }
    k.kernels = attn_kernels_for(ATTN_F32);
    k.pieces = attn_ceil_div(kv_len, PIECE_KEYS);
    k.cut = attn_cut_rows(rows * k.pieces, (size_t)attn_min(kv_len, PIECE_KEYS));
    return attn_parallel_for(k.cut.tasks, attn_workers(num_threads, k.cut.tasks), fill_pieces, &k);
}

/* Dropout of rows, which are cut into the same pieces. */
typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype;
    double dropout_p;
    uint64_t seed;
    attn_row_cut cut;
    ptrdiff_t features, pieces; /* pieces per row */
    const char *x;
    char *y, *scratch;
} drops;

static void drop_pieces(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const drops *d = context;
    const attn_dropout dropout = attn_dropout_of(d->dropout_p, d->seed);
    const double factor = factor_of(d->dropout_p);
    char *const scratch = d->scratch + (size_t)worker * attn_row_bytes(d->dtype, PIECE_KEYS);
    for (ptrdiff_t n = attn_first_row(&d->cut, task); n < attn_first_row(&d->cut, task + 1); n++) {
        const ptrdiff_t row = attn_fast_div(n, d->pieces), from = (n - row * d->pieces) * PIECE_KEYS;
        const ptrdiff_t at = (row * d->features + from) * attn_size_of_real(d->dtype);
        const ptrdiff_t count = attn_min(d->features - from, PIECE_KEYS);
        if (attn_should_stop(job, worker)) return;
        const void *const x = attn_read_row(d->kernels, d->dtype, count, d->x + at, scratch);
        void *const y = attn_target_of(d->dtype, d->y + at, scratch);
        d->kernels->drop_features(&dropout, (uint64_t)row, from, count, factor, x, y);
        attn_round_row(d->kernels, d->dtype, count, y, d->y + at);
    }
}

attn_status attn_drop_rows(attn_dtype dtype, ptrdiff_t rows, ptrdiff_t features, const void *x, void *y,
                           double dropout_p, uint64_t seed, int num_threads, attn_error *error)
{
    if (attn_size_of_real(dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    if (!(dropout_p >= 0 && dropout_p <= 1)) FAIL("dropout_p is %g, expected 0 <= dropout_p <= 1", dropout_p);
    if ((int64_t)features / 4 >= (int64_t)1 << 32) /* 32-bit counters, each for four features */
        FAIL("x has %td features in a row, expected less than 2**34", features);
    if (rows == 0 || features == 0) return ATTN_OK;
    drops d = {.kernels = attn_kernels_for(attn_computed(dtype)),
               .dtype = dtype,
               .dropout_p = dropout_p,
               .seed = seed,
               .features = features,
               .x = x,
               .y = y};
    if (dropout_p == 0) {
        memmove(y, x, (size_t)(rows * features * attn_size_of_real(dtype)));
        return ATTN_OK;
    }
    d.pieces = attn_ceil_div(features, PIECE_KEYS);
    d.cut = attn_cut_rows(rows * d.pieces, (size_t)attn_min(features, PIECE_KEYS));
    return attn_run_with_scratch("dropout", d.cut.tasks, attn_workers(num_threads, d.cut.tasks),
                                 attn_row_bytes(dtype, PIECE_KEYS), &d.scratch, drop_pieces, &d, error);
}

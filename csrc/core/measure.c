/* Peak speeds of this machine, for the benchmarks. */
#include "arena.h"
#include "dispatch.h"
#include "parallel.h"
#include "system.h"

static double seconds_now(void) { return 1e-9 * (double)attn_now(); }

/* The best of many short runs, so that other programs' load does not lower the peak. */
double attn_measure_fma(double seconds)
{
    enum { ROUNDS = 20000 };
    const attn_kernels *k = attn_kernels_for(ATTN_F32);
    float sink[ATTN_MAX_WIDTH];
    double best = 0;
    for (double start = seconds_now(), last = start; last - start < seconds;) {
        const double before = seconds_now(), work = k->fma_rounds(ROUNDS, sink);
        last = seconds_now();
        if (last > before && work / (last - before) > best) best = work / (last - before);
    }
    return best;
}

enum { READ_PIECE = 1 << 16 };

typedef struct {
    const attn_kernels *kernels;
    const float *data;
    ptrdiff_t count;
} read_job;

static void read_piece(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const read_job *r = context;
    const ptrdiff_t from = task * READ_PIECE, left = r->count - from;
    float sink[ATTN_MAX_WIDTH];
    (void)worker, (void)job;
    r->kernels->read_array(left < READ_PIECE ? left : READ_PIECE, r->data + from, sink);
}

double attn_measure_read(const float *data, ptrdiff_t count, int num_threads)
{
    read_job job = {attn_kernels_for(ATTN_F32), data, count};
    const ptrdiff_t tasks = count / READ_PIECE + 1;
    const double before = seconds_now();
    if (attn_parallel_for(tasks, attn_workers(num_threads, tasks), read_piece, &job) != ATTN_OK) return 0;
    const double after = seconds_now();
    return after > before ? (double)count * sizeof(float) / (after - before) : 0;
}

/* Activations of contiguous arrays, in parallel over parts of them. */
#include "arena.h"
#include "dispatch.h"
#include "error.h"
#include "parallel.h"

#define SAME(kind) ((int)ATTN_KIND_##kind == (int)ATTN_##kind)
_Static_assert(SAME(IDENTITY) && SAME(RELU) && SAME(GELU) && SAME(GELU_TANH) && SAME(SILU) && SAME(TANH),
               "the kernels' numbers for activations are attn.h's");

enum { PART = 1 << 13 };

typedef struct {
    const attn_kernels *kernels;
    attn_activation_kind kind;
    ptrdiff_t n;
    const char *x;
    char *y;
} activate_job;

static void one_part(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const activate_job *a = context;
    const ptrdiff_t from = task * PART, offset = from * a->kernels->size;
    if (attn_should_stop(job, worker)) return;
    a->kernels->activate(a->kind, attn_min(PART, a->n - from), a->x + offset, a->y + offset);
}

attn_status attn_activate(attn_dtype dtype, attn_activation activation, ptrdiff_t n, const void *x, void *y,
                          int num_threads, attn_error *error)
{
    if (dtype != ATTN_F32 && dtype != ATTN_F64) return attn_fail(error, ATTN_INVALID, "x must be float32 or float64");
    activate_job job = {attn_kernels_for(dtype), (attn_activation_kind)activation, n, x, y};
    const ptrdiff_t tasks = attn_ceil_div(n, PART);
    return attn_parallel_for(tasks, attn_workers(num_threads, tasks), one_part, &job);
}

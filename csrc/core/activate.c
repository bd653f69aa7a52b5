/* Activations of contiguous arrays, and their gradients, in parallel over parts of them. */
#include "dispatch.h"
#include "error.h"
#include "stored.h"

#define SAME(kind) ((int)ATTN_KIND_##kind == (int)ATTN_##kind)
_Static_assert(SAME(IDENTITY) && SAME(RELU) && SAME(GELU) && SAME(GELU_TANH) && SAME(SILU) && SAME(TANH),
               "the kernels' numbers for activations are attn.h's");

enum { PART = 1 << 13 };

typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype;
    attn_activation_kind kind;
    ptrdiff_t n;
    const char *x;
    char *y, *scratch;
} activate_job;

static void one_part(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const activate_job *a = context;
    const ptrdiff_t from = task * PART, count = attn_min(PART, a->n - from),
                    offset = from * attn_size_of_real(a->dtype);
    char *const scratch = a->scratch + (size_t)worker * attn_row_bytes(a->dtype, PART);
    if (attn_should_stop(job, worker)) return;
    const void *const x = attn_read_row(a->kernels, a->dtype, count, a->x + offset, scratch);
    void *const y = attn_target_of(a->dtype, a->y + offset, scratch);
    a->kernels->activate(a->kind, count, x, y);
    attn_round_row(a->kernels, a->dtype, count, y, a->y + offset);
}

attn_status attn_activate(attn_dtype dtype, attn_activation activation, ptrdiff_t n, const void *x, void *y,
                          int num_threads, attn_error *error)
{
    if (attn_size_of_real(dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    activate_job job = {attn_kernels_for(attn_computed(dtype)), dtype, (attn_activation_kind)activation, n, x, y, NULL};
    const ptrdiff_t tasks = attn_ceil_div(n, PART);
    return attn_run_with_scratch("an activation", tasks, attn_workers(num_threads, tasks), attn_row_bytes(dtype, PART),
                                 &job.scratch, one_part, &job, error);
}

/* Gradients -------------------------------------------------------------------------------------------------------- */

/* What a worker reads; its scratch holds them in this order, and the gradients in place of them. */
enum { UPSTREAM, X, GATE, INPUTS };

typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype;
    attn_activation_kind kind;
    ptrdiff_t n;
    const char *inputs[INPUTS]; /* gate may be NULL */
    char *grad_x, *grad_gate, *scratch;
} backward_job;

static void one_part_backward(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const backward_job *b = context;
    const attn_kernels *k = b->kernels;
    const size_t bytes = attn_row_bytes(b->dtype, PART);
    const ptrdiff_t from = task * PART, count = attn_min(PART, b->n - from),
                    offset = from * attn_size_of_real(b->dtype);
    char *const scratch = b->scratch + (size_t)worker * INPUTS * bytes;
    const void *in[INPUTS] = {NULL};
    if (attn_should_stop(job, worker)) return;
    for (int n = 0; n < INPUTS; n++)
        if (b->inputs[n]) in[n] = attn_read_row(k, b->dtype, count, b->inputs[n] + offset, scratch + (size_t)n * bytes);
    void *const grad_x = attn_target_of(b->dtype, b->grad_x + offset, scratch);
    void *const grad_gate = in[GATE] ? attn_target_of(b->dtype, b->grad_gate + offset, scratch + GATE * bytes) : NULL;
    k->activate_backward(b->kind, count, in[UPSTREAM], in[X], in[GATE], grad_x, grad_gate);
    attn_round_row(k, b->dtype, count, grad_x, b->grad_x + offset);
    if (grad_gate) attn_round_row(k, b->dtype, count, grad_gate, b->grad_gate + offset);
}

attn_status attn_activate_backward(attn_dtype dtype, attn_activation activation, ptrdiff_t n, const void *grad_output,
                                   const void *x, const void *gate, void *grad_x, void *grad_gate, int num_threads,
                                   attn_error *error)
{
    if (attn_size_of_real(dtype) == 0) FAIL("x must be float16, bfloat16, float32 or float64");
    if (gate != NULL && grad_gate == NULL) FAIL("gate needs grad_gate, where its gradient goes");
    backward_job job = {attn_kernels_for(attn_computed(dtype)),
                        dtype,
                        (attn_activation_kind)activation,
                        n,
                        {grad_output, x, gate},
                        grad_x,
                        grad_gate,
                        NULL};
    const ptrdiff_t tasks = attn_ceil_div(n, PART);
    return attn_run_with_scratch("the gradient of an activation", tasks, attn_workers(num_threads, tasks),
                                 INPUTS * attn_row_bytes(dtype, PART), &job.scratch, one_part_backward, &job, error);
}

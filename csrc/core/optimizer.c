/* Steps of optimisers, and the sum of squares that clipping needs, in parallel over parts of contiguous arrays. */
#include <math.h>

#include "dispatch.h"
#include "error.h"
#include "stored.h"

enum { PART = 1 << 13, SQUARES = 1 << 15 };

typedef struct {
    const attn_kernels *kernels;
    attn_dtype dtype; /* of the parameter */
    ptrdiff_t n;
    char *parameter;
    const char *gradient;
    char *state[3];             /* each may be NULL */
    const attn_adam_step *adam; /* NULL: sgd */
    const attn_sgd_step *sgd;
    char *scratch;
} step_job;

static void *from_element(char *array, ptrdiff_t n, ptrdiff_t size) { return array == NULL ? NULL : array + n * size; }

static void one_part(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const step_job *j = context;
    const attn_kernels *k = j->kernels;
    const ptrdiff_t from = task * PART, count = attn_min(PART, j->n - from);
    char *const scratch = j->scratch + (size_t)worker * attn_row_bytes(j->dtype, PART);
    char *const stored = j->parameter + from * attn_size_of_real(j->dtype);
    void *state[3];
    if (attn_should_stop(job, worker)) return;
    for (int n = 0; n < 3; n++) state[n] = from_element(j->state[n], from, k->size);
    const void *const gradient = j->gradient + from * k->size;
    void *const parameter = attn_target_of(j->dtype, stored, scratch);
    attn_read_row(k, j->dtype, count, stored, scratch);
    if (j->adam)
        k->adam(j->adam, count, parameter, gradient, state[0], state[1], state[2]);
    else
        k->sgd(j->sgd, count, parameter, gradient, state[0]);
    attn_round_row(k, j->dtype, count, parameter, stored);
}

static attn_status run_step(step_job *job, int num_threads, attn_error *error)
{
    const ptrdiff_t tasks = attn_ceil_div(job->n, PART);
    job->kernels = attn_kernels_for(attn_computed(job->dtype));
    return attn_run_with_scratch("an optimizer", tasks, attn_workers(num_threads, tasks),
                                 attn_row_bytes(job->dtype, PART), &job->scratch, one_part, job, error);
}

/* The numbers of a step, without a trace in the caller's floating-point flags. */
static attn_adam_step adam_step_of(const attn_adam_args *args)
{
    const attn_float_state before = attn_float_enter();
    const double first = 1 - pow(args->beta1, args->step), second = 1 - pow(args->beta2, args->step);
    const attn_adam_step step = {.sign = args->maximize ? -1 : 1,
                                 .weight_decay = args->decoupled ? 0 : args->weight_decay,
                                 .shrink = args->decoupled ? 1 - args->lr * args->weight_decay : 1,
                                 .beta1 = args->beta1,
                                 .beta2 = args->beta2,
                                 .epsilon = args->epsilon,
                                 .first_share = 1 - args->beta1,
                                 .second_share = 1 - args->beta2,
                                 .second_scale = sqrt(second),
                                 .step_size = args->lr / first};
    attn_float_leave(before);
    return step;
}

static attn_status check_step(attn_dtype dtype, ptrdiff_t n, attn_error *error)
{
    if (attn_size_of_real(dtype) == 0) FAIL("parameter must be float16, bfloat16, float32 or float64");
    if (n < 0 || n > PTRDIFF_MAX / (ptrdiff_t)sizeof(double)) FAIL("parameter has %td elements", n);
    return ATTN_OK;
}

attn_status attn_adam(const attn_adam_args *args, attn_dtype dtype, ptrdiff_t n, void *parameter, const void *gradient,
                      void *mean, void *square, void *max_square, attn_error *error)
{
    const attn_status status = check_step(dtype, n, error);
    if (status != ATTN_OK) return status;
    if (!(args->step >= 1)) FAIL("step is %g, expected 1 or more", args->step);
    const attn_adam_step step = adam_step_of(args);
    step_job job = {.dtype = dtype,
                    .n = n,
                    .parameter = parameter,
                    .gradient = gradient,
                    .state = {mean, square, max_square},
                    .adam = &step};
    return run_step(&job, args->num_threads, error);
}

attn_status attn_sgd(const attn_sgd_args *args, attn_dtype dtype, ptrdiff_t n, void *parameter, const void *gradient,
                     void *momentum, attn_error *error)
{
    const attn_status status = check_step(dtype, n, error);
    if (status != ATTN_OK) return status;
    const attn_sgd_step step = {.sign = args->maximize ? -1 : 1,
                                .weight_decay = args->weight_decay,
                                .momentum = args->momentum,
                                .dampening = args->dampening,
                                .step_size = args->lr,
                                .begins = args->begins,
                                .nesterov = args->nesterov};
    step_job job = {
        .dtype = dtype, .n = n, .parameter = parameter, .gradient = gradient, .state = {momentum}, .sgd = &step};
    return run_step(&job, args->num_threads, error);
}

/* Squares ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const attn_kernels *kernels;
    ptrdiff_t n;
    const char *x;
    double *sums; /* one of each part */
} squares_job;

static void sum_part(void *context, ptrdiff_t task, int worker, attn_job *job)
{
    const squares_job *s = context;
    const ptrdiff_t from = task * SQUARES;
    if (attn_should_stop(job, worker)) return;
    const char *x = s->x + from * s->kernels->size;
    s->sums[task] = s->kernels->sum_products(attn_min(SQUARES, s->n - from), x, x);
}

attn_status attn_sum_squares(attn_dtype dtype, ptrdiff_t n, const void *x, double *sum, int num_threads,
                             attn_error *error)
{
    if (dtype != ATTN_F32 && dtype != ATTN_F64) FAIL("x must be float32 or float64");
    const ptrdiff_t tasks = attn_ceil_div(n, SQUARES);
    const size_t bytes = attn_saturating_mul((size_t)tasks, sizeof(double));
    squares_job job = {attn_kernels_for(dtype), n, x, NULL};
    attn_arena arena;
    if (!attn_arena_take(&arena, bytes))
        return attn_fail(error, ATTN_NO_MEMORY, "a sum of squares needs %zu bytes of scratch memory", bytes);
    job.sums = (double *)(void *)arena.scratch;
    const attn_status status = attn_parallel_for(tasks, attn_workers(num_threads, tasks), sum_part, &job);
    if (status == ATTN_OK) {
        const attn_float_state before = attn_float_enter();
        *sum = 0;
        for (ptrdiff_t n_part = 0; n_part < tasks; n_part++) *sum += job.sums[n_part];
        attn_float_leave(before);
    }
    attn_arena_give(&arena);
    return status;
}

/* Parallel loops on the library's own threads, or on a host's. */
#ifndef ATTN_CORE_PARALLEL_H
#define ATTN_CORE_PARALLEL_H

#include "attn.h"

typedef struct attn_job attn_job;

/* One task of a loop. `worker` is below attn_workers' result; concurrent tasks have different ones. */
typedef void (*attn_body)(void *context, ptrdiff_t task, int worker, attn_job *job);

/* The number of workers for a loop of `tasks` tasks. num_threads 0: attn_get_num_threads. */
int attn_workers(int num_threads, ptrdiff_t tasks);

/* Runs tasks 0, 1, 2 ... on up to `workers` threads, including the calling one. One loop at a time has the pool: a
 * second caller finds it busy and runs its tasks itself. Returns ATTN_OK; ATTN_INTERRUPTED if the host asked to stop;
 * ATTN_FORKED in a child that was forked during the loop, whose other workers are gone. */
attn_status attn_parallel_for(ptrdiff_t tasks, int workers, attn_body body, void *context);

/* Multiply-adds (some microseconds of work) below which a second thread costs more than it saves. */
enum { ATTN_WORTH_THREADS = 1000000 };

/* Splits rows among tasks of about equally many elements. Task n has rows attn_first_row(n) up to, but not including,
 * attn_first_row(n + 1). */
typedef struct {
    ptrdiff_t rows, per_task, tasks;
} attn_row_cut;
attn_row_cut attn_cut_rows(ptrdiff_t rows, size_t row_elements);
ptrdiff_t attn_first_row(const attn_row_cut *cut, ptrdiff_t task);

/* For long tasks: nonzero when the task must stop early. Worker 0 polls the host from time to time. */
int attn_should_stop(attn_job *job, int worker);

/* Waits until a counter, which earlier tasks of the loop increase, has reached `least`. Returns 0 if the task must stop
 * instead. */
int attn_wait_for(const ptrdiff_t *counter, ptrdiff_t least, int worker, attn_job *job);

/* CPUs that affinity and control groups allow this process, at least 1. */
int attn_usable_cpus(void);

#endif

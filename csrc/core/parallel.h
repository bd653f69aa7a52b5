/* Parallel loops on the library's own threads. */
#ifndef ATTN_CORE_PARALLEL_H
#define ATTN_CORE_PARALLEL_H

#include "attn.h"

typedef struct attn_job attn_job;

/* One task of a loop. `worker` is below the number that attn_workers gave, and no two tasks share one at a time. */
typedef void (*attn_body)(void *context, ptrdiff_t task, int worker, attn_job *job);

/* How many workers a loop of so many tasks may use. num_threads 0: as set. */
int attn_workers(int num_threads, ptrdiff_t tasks);

/* Runs tasks 0, 1, 2 ... on up to `workers` threads, the calling one among them. One loop at a time has the pool: a
 * second caller finds it busy and runs its tasks itself. Returns ATTN_OK, or ATTN_INTERRUPTED when the host said so. A
 * task may be run twice: a child that is forked in the midst of a loop begins it anew. */
attn_status attn_parallel_for(ptrdiff_t tasks, int workers, attn_body body, void *context);

/* For loops whose tasks overwrite what an earlier loop left: changed when this process is a new child by now. */
int attn_forks(void);

/* Below so many multiply-adds, some microseconds of work, a second thread costs more than it gives. */
enum { ATTN_WORTH_THREADS = 1000000 };

/* Rows shared out among tasks, about as many elements to each; a task has those from attn_first_row of its own number
 * up to that of the next. */
typedef struct {
    ptrdiff_t rows, per_task, tasks;
} attn_row_cut;
attn_row_cut attn_cut_rows(ptrdiff_t rows, size_t row_elements);
ptrdiff_t attn_first_row(const attn_row_cut *cut, ptrdiff_t task);

/* For long tasks: nonzero when the rest of the work is no longer wanted. Worker 0 asks the host, now and then. */
int attn_should_stop(attn_job *job, int worker);

/* cpus.c: CPUs that affinity and cgroup leave to this process, at least 1. */
int attn_usable_cpus(void);

/* cpus.c: CPUs that this process's control groups pay for, rounded up; 0 when they set no limit. `root` is where the
 * system's files are: "", or a folder with some like them. */
int attn_cgroup_quota(const char *root);

#endif

/* An operating system, as the core and the binding need it: clocks, threads, locks, processors, processes. posix.c,
 * windows.c and single.c (WebAssembly, which has no threads) define the same functions; one of them is compiled.
 */
#ifndef ATTN_SYSTEM_H
#define ATTN_SYSTEM_H

#include <stdint.h>

#if defined(_WIN32)
#define ATTN_ON_WINDOWS 1
typedef struct {
    void *lock; /* an SRWLOCK */
} attn_mutex;
typedef struct {
    void *condition; /* a CONDITION_VARIABLE */
} attn_condition;
#define ATTN_MUTEX_INIT                                                                                                \
    {                                                                                                                  \
        NULL                                                                                                           \
    }
#define ATTN_CONDITION_INIT                                                                                            \
    {                                                                                                                  \
        NULL                                                                                                           \
    }
#elif defined(__wasm__)
#define ATTN_HAS_NO_THREADS 1
typedef struct {
    int locked;
} attn_mutex;
typedef struct {
    int unused;
} attn_condition;
#define ATTN_MUTEX_INIT                                                                                                \
    {                                                                                                                  \
        0                                                                                                              \
    }
#define ATTN_CONDITION_INIT                                                                                            \
    {                                                                                                                  \
        0                                                                                                              \
    }
#else
#define ATTN_ON_POSIX 1
#include <pthread.h>
typedef pthread_mutex_t attn_mutex;
typedef pthread_cond_t attn_condition;
#define ATTN_MUTEX_INIT     PTHREAD_MUTEX_INITIALIZER
#define ATTN_CONDITION_INIT PTHREAD_COND_INITIALIZER
#endif

/* Lets the child of a fork leave a function that waits for threads the child does not have. ATTN_SET_EXIT is 0, and
 * nonzero after ATTN_TAKE_EXIT; the function that set it must not have returned. */
#if defined(ATTN_ON_POSIX)
#include <setjmp.h>
typedef jmp_buf attn_exit;
#define ATTN_SET_EXIT(exit)  _setjmp(exit)
#define ATTN_TAKE_EXIT(exit) _longjmp(exit, 1)
#else /* without fork */
typedef char attn_exit[1];
#define ATTN_SET_EXIT(exit)  ((void)(exit), 0)
#define ATTN_TAKE_EXIT(exit) ((void)(exit))
#endif

/* Nanoseconds of a clock that only goes forward; attn_about_now is cheaper, and some milliseconds behind. */
int64_t attn_now(void);
int64_t attn_about_now(void);

void attn_yield(void); /* lets another thread have this processor */
void attn_nap(void);   /* sleeps for 50 microseconds; yields where the shortest sleep is far longer */

void attn_lock(attn_mutex *mutex);
int attn_try_lock(attn_mutex *mutex); /* 0 if another thread holds it */
void attn_unlock(attn_mutex *mutex);
void attn_wait(attn_condition *condition, attn_mutex *mutex);
void attn_wait_at_most(attn_condition *condition, attn_mutex *mutex, int64_t nanoseconds);
void attn_wake_one(attn_condition *condition);
/* Anew, whoever held it: in the child of a fork. */
void attn_reset(attn_mutex *mutex, attn_condition *condition);

/* Starts a thread that never ends, with a stack of 1 MB, to which no signals are delivered but its own faults. Returns
 * 0 if the system refuses. */
int attn_start_thread(void (*run)(void));

/* Runs `child` in the child of every fork, from the first call on. */
void attn_watch_forks(void (*child)(void));

/* A number of this process, which differs in the child of a fork. */
int64_t attn_process(void);

int attn_allowed_cpus(void); /* by affinity, at least 1 */

/* cgroups.c: the CPU quota of this process's control groups, rounded up; 0 without a limit, as on all systems but
 * Linux. `root` is prepended to the paths of the system's files: "", or a test's folder. */
int attn_cgroup_quota(const char *root);

#endif

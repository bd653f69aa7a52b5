/* The only file with threads: a small pool of workers that are parked between loops.
 *
 * One loop at a time has the pool. A counter hands out its tasks; the calling thread works, too. Workers join a loop
 * and leave it by a change of one atomic word; they take a lock only to sleep. After a loop they spin for a while in
 * case another one follows: a model's layers follow within 50 microseconds. With more threads than processors they spin
 * for less, as others could work meanwhile. The calling thread yields while it waits, as a worker may be on its
 * processor. After a fork the child starts with an empty pool. The fork handler takes no lock: the forking thread may
 * hold something that the lock's owner waits for.
 */
#define _GNU_SOURCE
#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "arena.h"
#include "float_state.h"
#include "hooks.h"

enum { MOST_WORKERS = 1024, SPIN_NS = 100000, CROWDED_SPIN_NS = 20000, POLL_NS = 50000000, STACK_BYTES = 1 << 20 };
#define RUNNING (UINT32_C(1) << 16) /* above all open places */

struct attn_job {
    attn_body body;
    void *context;
    ptrdiff_t tasks, next;    /* next: atomic */
    int stop;                 /* atomic; an attn_status: why to stop */
    int forks;                /* of the pool when the loop began */
    int alone;                /* one worker, so the counter need not be atomic */
    attn_float_state outside; /* worker 0's floating-point state, restored for the host */
};

static struct {
    pthread_mutex_t busy; /* held for the whole of a loop */
    pthread_mutex_t lock; /* held to fall asleep, and to wake */
    pthread_cond_t wake, done;
    uint32_t places; /* atomic: the loop's open places, and RUNNING for each worker that is in it */
    int asleep;      /* atomic: workers that wait for `wake` */
    int waiting;     /* atomic: whether the calling thread waits for `done` */
    int spin_ns;     /* atomic: for how long one waits before it sleeps */
    int threads;     /* workers alive, without the calling thread */
    int forks;       /* forks between the first process and this one */
    attn_job *job;   /* the loop's, while it has places */
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static int64_t clock_now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now(void) { return clock_now(CLOCK_MONOTONIC); }

/* A cheap clock, accurate to a few milliseconds. */
static int64_t about_now(void)
{
#ifdef CLOCK_MONOTONIC_COARSE
    return clock_now(CLOCK_MONOTONIC_COARSE);
#else
    return now();
#endif
}

/* Tells the processor that the thread spins. */
static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* How many threads --------------------------------------------------------------------------------------------------
 */

static int threads_set; /* atomic; 0: the default */

/* 0 when the variable is not set, -1 when it is not a valid number of threads. */
static int from_environment(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') return 0;
    char *end;
    long n = strtol(text, &end, 10); /* OMP_NUM_THREADS may be a list: its first entry counts */
    return end != text && (*end == '\0' || *end == ',') && n > 0 && n <= MOST_WORKERS ? (int)n : -1;
}

/* The environment's setting, or 0. Read only once, as another thread may change the environment later. */
static int environment_threads(void)
{
    static int known = -1; /* atomic */
    int n = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (n < 0) {
        n = from_environment("PYATTN_NUM_THREADS");
        if (n <= 0) n = from_environment("OMP_NUM_THREADS");
        if (n < 0) n = 0;
        __atomic_store_n(&known, n, __ATOMIC_RELAXED);
    }
    return n;
}

const char *attn_threads_complaint(void)
{
    static char complaint[160];
    const char *text = getenv("PYATTN_NUM_THREADS");
    environment_threads();
    if (from_environment("PYATTN_NUM_THREADS") >= 0) return NULL;
    snprintf(complaint, sizeof complaint, "PYATTN_NUM_THREADS=%.60s is not a number from 1 to %d and is ignored", text,
             MOST_WORKERS);
    return complaint;
}

static int default_threads(void)
{
    static int known; /* atomic */
    int n = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (n == 0) {
        n = environment_threads();
        if (n == 0) n = attn_usable_cpus();
        __atomic_store_n(&known, n, __ATOMIC_RELAXED);
    }
    return n;
}

void attn_set_num_threads(int num_threads)
{
    __atomic_store_n(&threads_set, num_threads > MOST_WORKERS ? MOST_WORKERS : num_threads, __ATOMIC_RELAXED);
}

int attn_get_num_threads(void)
{
    int n = __atomic_load_n(&threads_set, __ATOMIC_RELAXED);
    return n > 0 ? n : default_threads();
}

int attn_workers(int num_threads, ptrdiff_t tasks)
{
    int n = num_threads > 0 ? num_threads : attn_get_num_threads();
    if (n > MOST_WORKERS) n = MOST_WORKERS;
    return tasks < n ? (tasks > 0 ? (int)tasks : 1) : n;
}

attn_row_cut attn_cut_rows(ptrdiff_t rows, size_t row_elements)
{
    enum { TASK_ELEMENTS = 1 << 15 };
    const ptrdiff_t per_task = row_elements >= TASK_ELEMENTS ? 1 : TASK_ELEMENTS / (ptrdiff_t)(row_elements + 1) + 1;
    return (attn_row_cut){rows, per_task, attn_ceil_div(rows, per_task)};
}

ptrdiff_t attn_first_row(const attn_row_cut *cut, ptrdiff_t task)
{
    return task < cut->tasks ? task * cut->per_task : cut->rows;
}

/* A loop ------------------------------------------------------------------------------------------------------------
 */

/* Calls the host in its own floating-point state: it may run any code, such as a signal handler. */
static int ask_host(const attn_job *job)
{
    const attn_float_state inside = attn_float_save();
    attn_float_leave(job->outside);
    const int stop = attn_host.interrupted();
    attn_float_leave(inside);
    return stop;
}

/* Per thread, not per loop, as a call may be many short loops. Frequent polls do not read the clock each time. */
static _Thread_local struct {
    int64_t asked, read; /* when the host was last asked, and the clock last read */
    int skipped;
} caller;

static int time_to_ask(void)
{
    enum { OFTEN_NS = 1000000, MOST_SKIPPED = 4 };
    if (caller.skipped++ < MOST_SKIPPED) return 0;
    const int64_t t = about_now();
    if (t - caller.read < OFTEN_NS) caller.skipped = 0;
    caller.read = t;
    if (t - caller.asked < POLL_NS) return 0;
    caller.asked = t;
    return 1;
}

/* Whether this is a child that was forked during the loop: then its other workers and their tasks are gone.
 * A thread that works alone just goes on. */
static int is_forked(const attn_job *job) { return !job->alone && pool.forks != job->forks; }

int attn_should_stop(attn_job *job, int worker)
{
    if (worker == 0 && !__atomic_load_n(&job->stop, __ATOMIC_RELAXED)) {
        int stop = attn_host.interrupted != NULL && time_to_ask() && ask_host(job) ? ATTN_INTERRUPTED : ATTN_OK;
        if (stop == ATTN_OK && is_forked(job)) stop = ATTN_FORKED;
        if (stop != ATTN_OK) __atomic_store_n(&job->stop, stop, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&job->stop, __ATOMIC_RELAXED);
}

static int64_t time_to_sleep(void) { return now() + __atomic_load_n(&pool.spin_ns, __ATOMIC_RELAXED); }

int attn_wait_for(const ptrdiff_t *counter, ptrdiff_t least, int worker, attn_job *job)
{
    const struct timespec pause = {0, 50000};
    if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) >= least) return 1;
    const int64_t until = time_to_sleep();
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < least) {
        if (attn_should_stop(job, worker)) return 0;
        if (now() < until)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
    return 1;
}

static void work(attn_job *job, int worker)
{
    const attn_float_state state = attn_float_enter();
    if (worker == 0) job->outside = state;
    for (;;) {
        ptrdiff_t task = job->alone ? job->next++ : __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (task >= job->tasks || __atomic_load_n(&job->stop, __ATOMIC_RELAXED)) break;
        job->body(job->context, task, worker, job);
    }
    attn_float_leave(state);
}

/* Takes the loop's last open place, whose number is this worker's, if there is one. */
static attn_job *join(int *worker)
{
    uint32_t places = __atomic_load_n(&pool.places, __ATOMIC_RELAXED);
    while (places % RUNNING > 0)
        if (__atomic_compare_exchange_n(&pool.places, &places, places - 1 + RUNNING, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            *worker = (int)(places % RUNNING);
            return pool.job;
        }
    return NULL;
}

static void leave(void)
{
    if (__atomic_sub_fetch(&pool.places, RUNNING, __ATOMIC_SEQ_CST) > 0) return;
    if (!__atomic_load_n(&pool.waiting, __ATOMIC_SEQ_CST)) return;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.lock);
    sched_yield(); /* who waits may be on this processor */
}

static void sleep_until_open(void)
{
    pthread_mutex_lock(&pool.lock);
    __atomic_add_fetch(&pool.asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&pool.places, __ATOMIC_SEQ_CST) % RUNNING == 0) pthread_cond_wait(&pool.wake, &pool.lock);
    __atomic_sub_fetch(&pool.asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&pool.lock);
}

/* Opens places, and wakes sleepers if too few workers are awake. */
static void open_places(int places)
{
    __atomic_store_n(&pool.places, (uint32_t)places, __ATOMIC_SEQ_CST);
    const int asleep = __atomic_load_n(&pool.asleep, __ATOMIC_SEQ_CST);
    if (places <= pool.threads - asleep) return;
    pthread_mutex_lock(&pool.lock); /* a worker about to sleep has seen the places by now, or waits */
    pthread_mutex_unlock(&pool.lock);
    for (int n = pool.threads - asleep; n < places; n++) pthread_cond_signal(&pool.wake);
}

/* Waits for a loop to join. Sets this worker's number in the loop. */
static attn_job *next_job(int *worker)
{
    for (;;) {
        attn_job *job;
        for (int64_t until = time_to_sleep(); !(job = join(worker)) && now() < until;) relax();
        if (job != NULL) return job;
        sleep_until_open();
    }
}

static void *worker_main(void *unused)
{
    (void)unused;
    for (int worker = 0;;) {
        attn_job *job = next_job(&worker);
        work(job, worker);
        leave();
    }
    return NULL;
}

static void forget_threads(void)
{
    pool.forks++;
    pthread_mutex_init(&pool.busy, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.places = 0;
    pool.asleep = pool.waiting = pool.threads = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_threads); }

/* Grows the pool to `wanted` workers if it can. Called with `busy` held. Workers block all signals but faults, so that
 * signal handlers run on the program's own threads. */
static void grow(int wanted)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* delivered to the faulting worker itself */
    sigset_t all, before;
    pthread_attr_t attributes;

    if (pool.threads >= wanted) return;
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) sigdelset(&all, faults[n]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int spin_ns = wanted < attn_usable_cpus() ? SPIN_NS : CROWDED_SPIN_NS;
    __atomic_store_n(&pool.spin_ns, spin_ns, __ATOMIC_RELAXED);
    while (pool.threads < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, worker_main, NULL) != 0) break;
        pool.threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static int anyone_works(void) { return __atomic_load_n(&pool.places, __ATOMIC_SEQ_CST) > 0; }

/* Closes the loop to more workers and waits for those that joined, still polling the host for interruption. */
static void wait_for_workers(attn_job *job)
{
    if (is_forked(job)) return; /* another thread of the child may have the pool */
    if (__atomic_and_fetch(&pool.places, ~(RUNNING - 1), __ATOMIC_ACQUIRE) == 0) return;
    for (int64_t until = time_to_sleep(); anyone_works() && now() < until;) sched_yield();
    if (!anyone_works()) return;

    pthread_mutex_lock(&pool.lock);
    __atomic_store_n(&pool.waiting, 1, __ATOMIC_SEQ_CST);
    while (anyone_works()) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += POLL_NS;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&pool.done, &pool.lock, &until);
        pthread_mutex_unlock(&pool.lock); /* the host may be slow, and take locks of its own */
        attn_should_stop(job, 0);
        pthread_mutex_lock(&pool.lock);
    }
    __atomic_store_n(&pool.waiting, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&pool.lock);
}

/* Returns whether the pool was free: the loop has then run. Out of line, as a loop on one thread would save more
 * registers. */
static __attribute__((noinline)) int work_together(attn_job *job, int workers)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks); /* first, so that no child inherits a busy pool */
    if (pthread_mutex_trylock(&pool.busy) != 0) return 0;
    grow(workers - 1);
    pool.job = job;
    open_places(workers - 1 < pool.threads ? workers - 1 : pool.threads);
    work(job, 0);
    wait_for_workers(job);
    if (!is_forked(job))
        pthread_mutex_unlock(&pool.busy);
    else if (job->stop == ATTN_OK) /* forked after the last poll */
        job->stop = ATTN_FORKED;
    return 1;
}

attn_status attn_parallel_for(ptrdiff_t tasks, int workers, attn_body body, void *context)
{
    attn_job job = {.body = body, .context = context, .tasks = tasks, .forks = pool.forks};
    if (workers <= 1 || !work_together(&job, workers)) {
        job.alone = 1;
        work(&job, 0);
    }
    return (attn_status)job.stop;
}

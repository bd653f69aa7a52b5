/* The only file with threads: a small pool of workers that are parked between loops.
 *
 * One loop at a time has the pool. A counter hands out its tasks; the calling thread works, too. Workers join a loop
 * and leave it by a change of one atomic word; they take a lock only to sleep. After a loop they spin for a while in
 * case another one follows: a model's layers follow within 50 microseconds. With more threads than processors they spin
 * for less, as others could work meanwhile. The calling thread yields while it waits, as a worker may be on its
 * processor. After a fork the child starts with an empty pool. The fork handler takes no lock: the forking thread may
 * hold something that the lock's owner waits for.
 *
 * Where a host lends its own threads, a team (attn_suggest_threads), these run a loop instead, but never in the child of
 * a fork, as they may be gone there.
 */
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>

#include "arena.h"
#include "float_state.h"
#include "hooks.h"
#include "system.h"

enum { MOST_WORKERS = 1024, SPIN_NS = 100000, CROWDED_SPIN_NS = 20000, POLL_NS = 50000000 };
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
    attn_mutex busy; /* held for the whole of a loop */
    attn_mutex lock; /* held to fall asleep, and to wake */
    attn_condition wake, done;
    uint32_t places; /* atomic: the loop's open places, and RUNNING for each worker that is in it */
    int asleep;      /* atomic: workers that wait for `wake` */
    int waiting;     /* atomic: whether the calling thread waits for `done` */
    int spin_ns;     /* atomic: for how long one waits before it sleeps */
    int threads;     /* workers alive, without the calling thread */
    int forks;       /* forks between the first process and this one */
    attn_job *job;   /* the loop's, while it has places */
} pool = {.busy = ATTN_MUTEX_INIT,
          .lock = ATTN_MUTEX_INIT,
          .wake = ATTN_CONDITION_INIT,
          .done = ATTN_CONDITION_INIT,
          .spin_ns = SPIN_NS};

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
static _Thread_local attn_suggestion suggested;

/* 0 when the variable is not set, -1 when it is not a valid number of threads. */
static int from_environment(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') return 0;
    char *end;
    long n = strtol(text, &end, 10); /* OMP_NUM_THREADS may be a list: its first entry counts */
    return end != text && (*end == '\0' || *end == ',') && n > 0 && n <= MOST_WORKERS ? (int)n : -1;
}

/* A variable's number, or 0. Read only once, as another thread may change the environment later. */
static int known_threads(const char *name, int *known)
{
    int n = __atomic_load_n(known, __ATOMIC_RELAXED);
    if (n < 0) {
        n = from_environment(name);
        if (n < 0) n = 0;
        __atomic_store_n(known, n, __ATOMIC_RELAXED);
    }
    return n;
}

static int own_threads(void)
{
    static int known = -1; /* atomic */
    return known_threads("PYATTN_NUM_THREADS", &known);
}

static int openmp_threads(void)
{
    static int known = -1; /* atomic */
    return known_threads("OMP_NUM_THREADS", &known);
}

const char *attn_threads_complaint(void)
{
    static char complaint[160];
    const char *text = getenv("PYATTN_NUM_THREADS");
    own_threads();
    openmp_threads();
    if (from_environment("PYATTN_NUM_THREADS") >= 0) return NULL;
    snprintf(complaint, sizeof complaint, "PYATTN_NUM_THREADS=%.60s is not a number from 1 to %d and is ignored", text,
             MOST_WORKERS);
    return complaint;
}

int attn_usable_cpus(void)
{
    const int cpus = attn_allowed_cpus(), quota = attn_cgroup_quota("");
    return quota > 0 && quota < cpus ? quota : cpus;
}

static int default_threads(void)
{
    static int known; /* atomic */
    int n = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (n == 0) {
        n = own_threads();
        if (n == 0) n = openmp_threads();
        if (n == 0) n = attn_usable_cpus();
        __atomic_store_n(&known, n, __ATOMIC_RELAXED);
    }
    return n;
}

void attn_set_num_threads(int num_threads)
{
    __atomic_store_n(&threads_set, num_threads > MOST_WORKERS ? MOST_WORKERS : num_threads, __ATOMIC_RELAXED);
}

static void forget_threads(void);

attn_suggestion attn_suggest_threads(attn_suggestion suggestion)
{
    const attn_suggestion before = suggested;
    if (suggestion.team != NULL) attn_watch_forks(forget_threads);
    suggested = suggestion;
    if (suggested.num_threads > MOST_WORKERS) suggested.num_threads = MOST_WORKERS;
    return before;
}

int attn_get_num_threads(void)
{
    const int n = __atomic_load_n(&threads_set, __ATOMIC_RELAXED);
    if (n > 0) return n;
    return suggested.num_threads > 0 && own_threads() == 0 ? suggested.num_threads : default_threads();
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
    const int64_t t = attn_about_now();
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

static int64_t time_to_sleep(void) { return attn_now() + __atomic_load_n(&pool.spin_ns, __ATOMIC_RELAXED); }

int attn_wait_for(const ptrdiff_t *counter, ptrdiff_t least, int worker, attn_job *job)
{
    if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) >= least) return 1;
    const int64_t until = time_to_sleep();
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < least) {
        if (attn_should_stop(job, worker)) return 0;
        if (attn_now() < until)
            attn_yield();
        else
            attn_nap();
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
    attn_lock(&pool.lock);
    attn_wake_one(&pool.done);
    attn_unlock(&pool.lock);
    attn_yield(); /* who waits may be on this processor */
}

static void sleep_until_open(void)
{
    attn_lock(&pool.lock);
    __atomic_add_fetch(&pool.asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&pool.places, __ATOMIC_SEQ_CST) % RUNNING == 0) attn_wait(&pool.wake, &pool.lock);
    __atomic_sub_fetch(&pool.asleep, 1, __ATOMIC_SEQ_CST);
    attn_unlock(&pool.lock);
}

/* Opens places, and wakes sleepers if too few workers are awake. */
static void open_places(int places)
{
    __atomic_store_n(&pool.places, (uint32_t)places, __ATOMIC_SEQ_CST);
    const int asleep = __atomic_load_n(&pool.asleep, __ATOMIC_SEQ_CST);
    if (places <= pool.threads - asleep) return;
    attn_lock(&pool.lock); /* a worker about to sleep has seen the places by now, or waits */
    attn_unlock(&pool.lock);
    for (int n = pool.threads - asleep; n < places; n++) attn_wake_one(&pool.wake);
}

/* Waits for a loop to join. Sets this worker's number in the loop. */
static attn_job *next_job(int *worker)
{
    for (;;) {
        attn_job *job;
        for (int64_t until = time_to_sleep(); !(job = join(worker)) && attn_now() < until;) relax();
        if (job != NULL) return job;
        sleep_until_open();
    }
}

static void worker_main(void)
{
    for (int worker = 0;;) {
        attn_job *job = next_job(&worker);
        work(job, worker);
        leave();
    }
}

static void forget_threads(void)
{
    pool.forks++;
    attn_reset(&pool.busy, NULL);
    attn_reset(&pool.lock, &pool.wake);
    attn_reset(NULL, &pool.done);
    pool.places = 0;
    pool.asleep = pool.waiting = pool.threads = 0;
}

/* Grows the pool to `wanted` workers if it can. Called with `busy` held. Signal handlers run on the program's own
 * threads, not on these. */
static void grow(int wanted)
{
    if (pool.threads >= wanted) return;
    const int spin_ns = wanted < attn_usable_cpus() ? SPIN_NS : CROWDED_SPIN_NS;
    __atomic_store_n(&pool.spin_ns, spin_ns, __ATOMIC_RELAXED);
    while (pool.threads < wanted && attn_start_thread(worker_main)) pool.threads++;
}

static int anyone_works(void) { return __atomic_load_n(&pool.places, __ATOMIC_SEQ_CST) > 0; }

/* Closes the loop to more workers and waits for those that joined, still polling the host for interruption. */
static void wait_for_workers(attn_job *job)
{
    if (is_forked(job)) return; /* another thread of the child may have the pool */
    if (__atomic_and_fetch(&pool.places, ~(RUNNING - 1), __ATOMIC_ACQUIRE) == 0) return;
    for (int64_t until = time_to_sleep(); anyone_works() && attn_now() < until;) attn_yield();
    if (!anyone_works()) return;

    attn_lock(&pool.lock);
    __atomic_store_n(&pool.waiting, 1, __ATOMIC_SEQ_CST);
    while (anyone_works()) {
        attn_wait_at_most(&pool.done, &pool.lock, POLL_NS);
        attn_unlock(&pool.lock); /* the host may be slow, and take locks of its own */
        attn_should_stop(job, 0);
        attn_lock(&pool.lock);
    }
    __atomic_store_n(&pool.waiting, 0, __ATOMIC_SEQ_CST);
    attn_unlock(&pool.lock);
}

/* A loop on a host's threads. */
typedef struct {
    attn_job *job;
    const void *calling; /* an address of the calling thread's own, which tells it from the others */
    int workers;         /* how many may work */
    int joined, running; /* how many have come, and how many work, beside the calling thread; atomic */
    attn_exit exit;
} team_work;

/* Waits here, not within the team: there nobody polls the host, and the child of a fork would wait for threads that it
 * does not have. A child leaves the team's function in the middle: OpenMP then takes this thread for one within a
 * parallel region, and computes what it calls later on this thread alone. */
static void wait_for_team(team_work *w)
{
    for (int64_t until = time_to_sleep(); __atomic_load_n(&w->running, __ATOMIC_ACQUIRE) > 0 && !is_forked(w->job);) {
        attn_should_stop(w->job, 0);
        attn_now() < until ? attn_yield() : attn_nap();
    }
    if (is_forked(w->job)) ATTN_TAKE_EXIT(w->exit);
}

/* The team waits until each of its threads has returned from this, also one that comes after the loop: so `w` lives. */
static void join_team(void *object)
{
    team_work *w = object;
    if (w->calling == &caller) {
        work(w->job, 0);
        wait_for_team(w);
        return;
    }
    const int worker = __atomic_add_fetch(&w->joined, 1, __ATOMIC_RELAXED);
    if (worker >= w->workers) return;
    __atomic_add_fetch(&w->running, 1, __ATOMIC_RELAXED);
    work(w->job, worker);
    __atomic_sub_fetch(&w->running, 1, __ATOMIC_RELEASE);
}

/* Asks for the whole team always, as another number may end and start threads. */
static void work_in_team(attn_job *job, int workers)
{
    team_work w = {.job = job, .calling = &caller, .workers = workers};
    if (!ATTN_SET_EXIT(w.exit)) suggested.team(join_team, &w, (unsigned)suggested.num_threads, 0);
}

static void work_in_pool(attn_job *job, int workers)
{
    grow(workers - 1);
    pool.job = job;
    open_places(workers - 1 < pool.threads ? workers - 1 : pool.threads);
    work(job, 0);
    wait_for_workers(job);
}

/* Returns whether the pool was free: the loop has then run. Out of line, as a loop on one thread would save more
 * registers. */
static __attribute__((noinline)) int work_together(attn_job *job, int workers)
{
    attn_watch_forks(forget_threads); /* first, so that no child inherits a busy pool */
    if (!attn_try_lock(&pool.busy)) return 0;
    const int most = workers > attn_get_num_threads() ? workers : attn_get_num_threads();
    if (suggested.team != NULL && most <= suggested.num_threads && pool.forks == 0)
        work_in_team(job, workers);
    else
        work_in_pool(job, workers);
    if (!is_forked(job))
        attn_unlock(&pool.busy);
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

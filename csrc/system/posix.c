/* Linux, macOS and other POSIX systems. See system.h. */
#define _GNU_SOURCE
#include "system.h"

#if ATTN_ON_POSIX
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_at(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t attn_now(void) { return clock_at(CLOCK_MONOTONIC); }

int64_t attn_about_now(void)
{
#ifdef CLOCK_MONOTONIC_COARSE
    return clock_at(CLOCK_MONOTONIC_COARSE);
#else
    return attn_now();
#endif
}

void attn_yield(void) { sched_yield(); }

void attn_nap(void)
{
    const struct timespec pause = {0, 50000};
    nanosleep(&pause, NULL);
}

void attn_lock(attn_mutex *mutex) { pthread_mutex_lock(mutex); }

int attn_try_lock(attn_mutex *mutex) { return pthread_mutex_trylock(mutex) == 0; }

void attn_unlock(attn_mutex *mutex) { pthread_mutex_unlock(mutex); }

void attn_wait(attn_condition *condition, attn_mutex *mutex) { pthread_cond_wait(condition, mutex); }

void attn_wait_at_most(attn_condition *condition, attn_mutex *mutex, int64_t nanoseconds)
{
    const int64_t until = clock_at(CLOCK_REALTIME) + nanoseconds; /* the clock of a condition that says no other */
    const struct timespec t = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    pthread_cond_timedwait(condition, mutex, &t);
}

void attn_wake_one(attn_condition *condition) { pthread_cond_signal(condition); }

void attn_reset(attn_mutex *mutex, attn_condition *condition)
{
    if (mutex) pthread_mutex_init(mutex, NULL);
    if (condition) pthread_cond_init(condition, NULL);
}

static void *begin(void *run)
{
    ((void (*)(void))run)();
    return NULL;
}

int attn_start_thread(void (*run)(void))
{
    enum { STACK_BYTES = 1 << 20 };
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* delivered to the faulting thread itself */
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;

    if (pthread_attr_init(&attributes) != 0) return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) sigdelset(&all, faults[n]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&thread, &attributes, begin, (void *)run);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

static void (*in_child)(void); /* atomic */

static void watch(void) { pthread_atfork(NULL, NULL, __atomic_load_n(&in_child, __ATOMIC_RELAXED)); }

void attn_watch_forks(void (*child)(void))
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (__atomic_load_n(&in_child, __ATOMIC_RELAXED) == NULL) __atomic_store_n(&in_child, child, __ATOMIC_RELAXED);
    pthread_once(&once, watch);
}

int64_t attn_process(void) { return getpid(); }

int attn_allowed_cpus(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
#endif

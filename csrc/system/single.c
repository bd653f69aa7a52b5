/* Systems without threads: WebAssembly. See system.h. */
#include "system.h"

#if ATTN_HAS_NO_THREADS
#include <time.h>

int64_t attn_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t attn_about_now(void) { return attn_now(); }

void attn_yield(void) {}

void attn_nap(void) {}

void attn_lock(attn_mutex *mutex) { mutex->locked = 1; }

int attn_try_lock(attn_mutex *mutex) { return mutex->locked ? 0 : (mutex->locked = 1); }

void attn_unlock(attn_mutex *mutex) { mutex->locked = 0; }

void attn_wait(attn_condition *condition, attn_mutex *mutex) { (void)condition, (void)mutex; }

void attn_wait_at_most(attn_condition *condition, attn_mutex *mutex, int64_t nanoseconds)
{
    (void)condition, (void)mutex, (void)nanoseconds;
}

void attn_wake_one(attn_condition *condition) { (void)condition; }

void attn_reset(attn_mutex *mutex, attn_condition *condition)
{
    (void)condition;
    if (mutex) mutex->locked = 0;
}

int attn_start_thread(void (*run)(void))
{
    (void)run;
    return 0;
}

void attn_watch_forks(void (*child)(void)) { (void)child; }

int64_t attn_process(void) { return 1; }

int attn_allowed_cpus(void) { return 1; }
#endif

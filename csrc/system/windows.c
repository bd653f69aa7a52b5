/* Windows. See system.h. */
#include "system.h"

#if ATTN_ON_WINDOWS
#define WIN32_LEAN_AND_MEAN
#include <process.h>
#include <stddef.h>
#include <windows.h>

_Static_assert(sizeof(SRWLOCK) == sizeof(attn_mutex) && sizeof(CONDITION_VARIABLE) == sizeof(attn_condition),
               "system.h declares them without windows.h");

static SRWLOCK *lock_of(attn_mutex *mutex) { return (SRWLOCK *)(void *)mutex; }

static CONDITION_VARIABLE *condition_of(attn_condition *condition) { return (CONDITION_VARIABLE *)(void *)condition; }

int64_t attn_now(void)
{
    LARGE_INTEGER count, frequency; /* of ticks; ticks a second */
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    const int64_t seconds = count.QuadPart / frequency.QuadPart, rest = count.QuadPart % frequency.QuadPart;
    return seconds * 1000000000 + rest * 1000000000 / frequency.QuadPart;
}

int64_t attn_about_now(void) { return (int64_t)GetTickCount64() * 1000000; }

void attn_yield(void) { SwitchToThread(); }

void attn_nap(void) { SwitchToThread(); } /* Sleep(1) may last 16 ms */

void attn_lock(attn_mutex *mutex) { AcquireSRWLockExclusive(lock_of(mutex)); }

int attn_try_lock(attn_mutex *mutex) { return TryAcquireSRWLockExclusive(lock_of(mutex)) != 0; }

void attn_unlock(attn_mutex *mutex) { ReleaseSRWLockExclusive(lock_of(mutex)); }

void attn_wait(attn_condition *condition, attn_mutex *mutex)
{
    SleepConditionVariableSRW(condition_of(condition), lock_of(mutex), INFINITE, 0);
}

void attn_wait_at_most(attn_condition *condition, attn_mutex *mutex, int64_t nanoseconds)
{
    SleepConditionVariableSRW(condition_of(condition), lock_of(mutex), (DWORD)(nanoseconds / 1000000 + 1), 0);
}

void attn_wake_one(attn_condition *condition) { WakeConditionVariable(condition_of(condition)); }

void attn_reset(attn_mutex *mutex, attn_condition *condition)
{
    if (mutex) InitializeSRWLock(lock_of(mutex));
    if (condition) InitializeConditionVariable(condition_of(condition));
}

static unsigned __stdcall begin(void *run)
{
    ((void (*)(void))run)();
    return 0;
}

int attn_start_thread(void (*run)(void))
{
    enum { STACK_BYTES = 1 << 20 };
    const uintptr_t thread =
        _beginthreadex(NULL, STACK_BYTES, begin, (void *)run, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    if (thread != 0) CloseHandle((HANDLE)thread);
    return thread != 0;
}

void attn_watch_forks(void (*child)(void)) { (void)child; } /* which Windows lacks */

int64_t attn_process(void) { return (int64_t)GetCurrentProcessId(); }

int attn_allowed_cpus(void)
{
    DWORD_PTR process = 0, system = 0; /* masks of one group of up to 64 processors */
    const int all = (int)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system) || process == system) return all > 0 ? all : 1;
    return __builtin_popcountll(process);
}
#endif

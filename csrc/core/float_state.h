/* Tasks run with denormals flushed to zero, as denormals can be 87 times slower. Afterwards the thread gets back its
 * own floating-point state, flags included. On x86, long doubles have a state of their own, which costs a small call
 * some 2 % to read: code that reads a long double saves and restores it (attn_long_enter).
 */
#ifndef ATTN_CORE_FLOAT_STATE_H
#define ATTN_CORE_FLOAT_STATE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned attn_float_state;
static inline attn_float_state attn_float_save(void) { return _mm_getcsr(); }
static inline void attn_float_leave(attn_float_state before) { _mm_setcsr(before); }
/* Exceptions masked, round to nearest, flush to zero, denormals are zero. */
static inline void attn_float_flush(void) { _mm_setcsr(0x1f80 | 0x8040); }
/* The same with denormals kept: comparisons must tell them apart, and are not slowed down by them. */
static inline void attn_float_keep(void) { _mm_setcsr(0x1f80); }
#elif defined(__aarch64__)
typedef struct {
    uint64_t control, status;
} attn_float_state;
static inline attn_float_state attn_float_save(void)
{
    attn_float_state now;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(now.control), "=r"(now.status));
    return now;
}
static inline void attn_float_leave(attn_float_state before)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(before.control), "r"(before.status));
}
static inline void attn_float_flush(void)
{
    const uint64_t flush = (uint64_t)1 << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(flush));
}
static inline void attn_float_keep(void) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0)); }
#else
#include <fenv.h>
typedef fenv_t attn_float_state;
static inline attn_float_state attn_float_save(void)
{
    attn_float_state now;
    fegetenv(&now);
    return now;
}
static inline void attn_float_leave(attn_float_state before) { fesetenv(&before); }
static inline void attn_float_flush(void) { fesetenv(FE_DFL_ENV); }
static inline void attn_float_keep(void) { fesetenv(FE_DFL_ENV); }
#endif

/* The flags of long doubles, which on x86 are others than those above. */
#if defined(__x86_64__)
typedef uint16_t attn_long_state;
static inline attn_long_state attn_long_enter(void)
{
    uint16_t status;
    __asm__ volatile("fnstsw %0" : "=a"(status));
    return status & 0x3f;
}
static inline void attn_long_leave(attn_long_state before)
{
    if (attn_long_enter() == before) return; /* the rest is slow */
    uint32_t environment[7];                 /* status is the second word */
    __asm__ volatile("fnstenv %0" : "=m"(environment));
    environment[1] = (environment[1] & ~(uint32_t)0x3f) | before;
    __asm__ volatile("fldenv %0" : : "m"(environment));
}
#else
typedef int attn_long_state;
static inline attn_long_state attn_long_enter(void) { return 0; }
static inline void attn_long_leave(attn_long_state before) { (void)before; }
#endif

/* Enters the flushing state; returns the previous one, for attn_float_leave. */
static inline attn_float_state attn_float_enter(void)
{
    const attn_float_state before = attn_float_save();
    attn_float_flush();
    return before;
}

#endif

/* Tasks run with denormals flushed to zero, as denormals can be 87 times slower. Afterwards the thread gets back its
 * own floating-point state, flags included.
 */
#ifndef ATTN_CORE_FLOAT_STATE_H
#define ATTN_CORE_FLOAT_STATE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef struct {
    unsigned sse;
    uint16_t x87; /* x87 flags, which reading a long double mask raises */
} attn_float_state;
static inline uint16_t attn_x87_flags(void)
{
    uint16_t status;
    __asm__ volatile("fnstsw %0" : "=a"(status));
    return status & 0x3f;
}
static inline attn_float_state attn_float_save(void)
{
    return (attn_float_state){.sse = _mm_getcsr(), .x87 = attn_x87_flags()};
}
static inline void attn_float_leave(attn_float_state before)
{
    _mm_setcsr(before.sse);
    if (attn_x87_flags() == before.x87) return; /* the rest is slow */
    uint32_t environment[7];                    /* status is the second word */
    __asm__ volatile("fnstenv %0" : "=m"(environment));
    environment[1] = (environment[1] & ~(uint32_t)0x3f) | before.x87;
    __asm__ volatile("fldenv %0" : : "m"(environment));
}
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

/* Enters the flushing state; returns the previous one, for attn_float_leave. */
static inline attn_float_state attn_float_enter(void)
{
    const attn_float_state before = attn_float_save();
    attn_float_flush();
    return before;
}

#endif

/* Denormals are zero inside a loop's tasks (they would cost up to 87 times as much), and the thread's own
 * floating-point state, flags included, is put back after it.
 */
#ifndef ATTN_CORE_FLOAT_STATE_H
#define ATTN_CORE_FLOAT_STATE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned attn_float_state;
/* All exceptions masked, to nearest, flush to zero, denormals are zero. */
static inline attn_float_state attn_float_enter(void)
{
    attn_float_state before = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8040);
    return before;
}
static inline void attn_float_leave(attn_float_state before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
typedef struct {
    uint64_t control, status;
} attn_float_state;
static inline attn_float_state attn_float_enter(void)
{
    attn_float_state before;
    uint64_t flush = (uint64_t)1 << 24;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(before.control), "=r"(before.status));
    __asm__ volatile("msr fpcr, %0" : : "r"(flush));
    return before;
}
static inline void attn_float_leave(attn_float_state before)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(before.control), "r"(before.status));
}
#else
#include <fenv.h>
typedef fenv_t attn_float_state;
static inline attn_float_state attn_float_enter(void)
{
    attn_float_state before;
    feholdexcept(&before);
    return before;
}
static inline void attn_float_leave(attn_float_state before) { fesetenv(&before); }
#endif

#endif

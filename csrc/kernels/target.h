/* Compiling one instruction set per file, without per-file compiler flags.
 *
 * A stub isa_<name>.c writes ATTN_TARGET_BEGIN("avx2,fma") before it includes a vocabulary and the algorithms, and
 * ATTN_TARGET_END after them. System and compiler headers come first: their functions must not be compiled for the
 * wider instruction set.
 */
#ifndef ATTN_KERNELS_TARGET_H
#define ATTN_KERNELS_TARGET_H

#define ATTN_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define ATTN_TARGET_BEGIN(features) \
    ATTN_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define ATTN_TARGET_END _Pragma("clang attribute pop")
#define ATTN_SEPARATE static __attribute__((noinline))
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#define ATTN_UNROLL_SOME _Pragma("clang loop unroll_count(8)")
#else
#define ATTN_TARGET_BEGIN(features) _Pragma("GCC push_options") ATTN_PRAGMA(GCC target(features))
#define ATTN_TARGET_END _Pragma("GCC pop_options")
#define ATTN_SEPARATE static __attribute__((noinline, noclone))
#define ATTN_UNROLL _Pragma("GCC unroll 32")
#define ATTN_UNROLL_SOME _Pragma("GCC unroll 8")
#endif

/* ATTN_UNROLL unrolls a loop fully. ATTN_UNROLL_SOME is for a tile's long loop of about 64 rounds: branch prediction
 * foresees the end of 8 rounds, but not of 64. On Zen 3, attention with 512 keys takes 3 to 6% less time, and 10 to 30%
 * less with 80 or 256 features. */

/* A template: every caller passes its sizes as constants, so that loops over them are unrolled. */
#define ATTN_TEMPLATE static inline __attribute__((always_inline))

/* ATTN_SEPARATE: a function for which the compiler allocates registers alone. */

#endif

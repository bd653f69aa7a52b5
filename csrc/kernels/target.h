/* Compiling one instruction set per file, without per-file compiler flags.
 *
 * A stub isa_<name>.c writes ATTN_TARGET_BEGIN("avx2,fma") before it includes a vocabulary and the algorithms, and
 * ATTN_TARGET_END after them. Headers of the system and of the compiler come first: what they declare must not be
 * compiled for the wider set.
 */
#ifndef ATTN_KERNELS_TARGET_H
#define ATTN_KERNELS_TARGET_H

#define ATTN_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define ATTN_TARGET_BEGIN(features) \
    ATTN_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define ATTN_TARGET_END _Pragma("clang attribute pop")
#define ATTN_UNROLL _Pragma("clang loop unroll(full)")
#define ATTN_UNROLL_SOME _Pragma("clang loop unroll_count(8)")
#else
#define ATTN_TARGET_BEGIN(features) _Pragma("GCC push_options") ATTN_PRAGMA(GCC target(features))
#define ATTN_TARGET_END _Pragma("GCC pop_options")
#define ATTN_UNROLL _Pragma("GCC unroll 32")
#define ATTN_UNROLL_SOME _Pragma("GCC unroll 8")
#endif

/* ATTN_UNROLL: a loop that disappears. ATTN_UNROLL_SOME: the long loop of a tile, of some 64 rounds. A processor foresees
 * the end of 8 rounds, not of 64: attention of 512 keys takes 3 to 6 % less time on Zen 3, with 80 or 256 features 10 to
 * 30 %. */

/* A template: every caller passes its sizes as constants, and the loops over them disappear. */
#define ATTN_TEMPLATE static inline __attribute__((always_inline))

#endif

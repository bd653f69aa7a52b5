/* Vocabulary for any CPU: plain C, one operation a lane. Same names as every vec_<isa>.h.
 *
 * A "vector" is four floats (two doubles) of the compiler's own vector type, so that a baseline build still uses the
 * SIMD instructions of every x86-64. fma is a multiply and an add here: emulating it without the instruction would be a
 * hundred times slower. Only this level is not bit-identical to the others.
 */
#ifndef ATTN_VEC_SCALAR_H
#define ATTN_VEC_SCALAR_H

#include <stdint.h>
#include <string.h>

enum { VF32_LANES = 4, VF64_LANES = 2, VEC_ACCUMULATORS = 8 };
typedef float vf32 __attribute__((vector_size(16)));
typedef double vf64 __attribute__((vector_size(16)));
typedef int32_t vf32_mask __attribute__((vector_size(16)));
typedef uint32_t vf32_bits __attribute__((vector_size(16)));
typedef int64_t vf64_mask __attribute__((vector_size(16)));

static inline vf32 vf32_load(const float *p) { vf32 a; memcpy(&a, p, sizeof a); return a; }
static inline vf64 vf64_load(const double *p) { vf64 a; memcpy(&a, p, sizeof a); return a; }
/* The first n lanes, the rest zero; reads nothing at or past p + n. */
static inline vf32 vf32_load_first(const float *p, int n)
{
    vf32 a = {0};
    for (int i = 0; i < n && i < 4; i++) a[i] = p[i];
    return a;
}
static inline vf64 vf64_load_first(const double *p, int n)
{
    vf64 a = {0};
    for (int i = 0; i < n && i < 2; i++) a[i] = p[i];
    return a;
}
static inline void vf32_store(float *p, vf32 a) { memcpy(p, &a, sizeof a); }
static inline void vf64_store(double *p, vf64 a) { memcpy(p, &a, sizeof a); }
static inline void vf32_store_first(float *p, int n, vf32 a)
{
    for (int i = 0; i < n && i < 4; i++) p[i] = a[i];
}
static inline void vf64_store_first(double *p, int n, vf64 a)
{
    for (int i = 0; i < n && i < 2; i++) p[i] = a[i];
}
static inline vf32 vf32_splat(float x) { return (vf32){x, x, x, x}; }
static inline vf64 vf64_splat(double x) { return (vf64){x, x}; }
static inline vf32 vf32_add(vf32 a, vf32 b) { return a + b; }
static inline vf64 vf64_add(vf64 a, vf64 b) { return a + b; }
static inline vf32 vf32_sub(vf32 a, vf32 b) { return a - b; }
static inline vf64 vf64_sub(vf64 a, vf64 b) { return a - b; }
static inline vf32 vf32_mul(vf32 a, vf32 b) { return a * b; }
static inline vf64 vf64_mul(vf64 a, vf64 b) { return a * b; }
static inline vf32 vf32_div(vf32 a, vf32 b) { return a / b; }
static inline vf64 vf64_div(vf64 a, vf64 b) { return a / b; }
static inline vf32 vf32_sqrt(vf32 a) { return (vf32){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
static inline vf64 vf64_sqrt(vf64 a) { return (vf64){sqrt(a[0]), sqrt(a[1])}; }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return a * b + c; }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return a * b + c; }
static inline vf32_mask vf32_lt(vf32 a, vf32 b) { return a < b; }
static inline vf64_mask vf64_lt(vf64 a, vf64 b) { return a < b; }
static inline vf32_mask vf32_eq(vf32 a, vf32 b) { return a == b; }
static inline vf64_mask vf64_eq(vf64 a, vf64 b) { return a == b; }
/* With exclusive or: gcc 12 fails to compile the plain form, (m & yes) | (~m & no). */
static inline vf32 vf32_select(vf32_mask m, vf32 yes, vf32 no)
{
    return (vf32)((vf32_mask)no ^ (((vf32_mask)no ^ (vf32_mask)yes) & m));
}
static inline vf64 vf64_select(vf64_mask m, vf64 yes, vf64 no)
{
    return (vf64)((vf64_mask)no ^ (((vf64_mask)no ^ (vf64_mask)yes) & m));
}
/* The larger; b where either is NaN. */
static inline vf32 vf32_max(vf32 a, vf32 b) { return vf32_select(b < a, a, b); }
static inline vf64 vf64_max(vf64 a, vf64 b) { return vf64_select(b < a, a, b); }
/* To the nearest integer, ties to even, for |a| < 2^22 (double: 2^51): adding 1.5 * 2^23 leaves no room for a fraction.
 */
static inline vf32 vf32_round(vf32 a) { return (a + 0x1.8p23f) - 0x1.8p23f; }
static inline vf64 vf64_round(vf64 a) { return (a + 0x1.8p52) - 0x1.8p52; }
/* a * 2^n for integral -127 <= n <= 0 (double: -1023); denormal results are flushed to zero. The low bits of
 * 2^23 + 127 + n, moved up, are the exponent; n = -127 makes it all zero, which is +0. */
static inline vf32 vf32_scale2(vf32 a, vf32 n)
{
    vf32 biased = n + (0x1p23f + 127);
    return a * (vf32)((vf32_mask)biased << 23);
}
static inline vf64 vf64_scale2(vf64 a, vf64 n)
{
    vf64 biased = n + (0x1p52 + 1023);
    return a * (vf64)((vf64_mask)biased << 52);
}
/* +0 or -0, with the sign of a. */
static inline vf32 vf32_signed_zero(vf32 a) { return (vf32)((vf32_mask)a & INT32_MIN); }
static inline vf64 vf64_signed_zero(vf64 a) { return (vf64)((vf64_mask)a & INT64_MIN); }
static inline int vf32_has_nan(vf32 a)
{
    vf32_mask same = a == a;
    return (same[0] & same[1] & same[2] & same[3]) == 0;
}
static inline int vf64_has_nan(vf64 a)
{
    vf64_mask same = a == a;
    return (same[0] & same[1]) == 0;
}

/* LANES numbers of another dtype. The exponent of a float16 is moved by 112; infinities and NaN get the highest one,
 * and numbers without one are multiples of 2^-24. */
static __attribute__((noinline)) vf32 vf32_load_f16(const char *p)
{
    float lanes[4];
    for (int i = 0; i < 4; i++) {
        uint16_t half;
        memcpy(&half, p + 2 * i, sizeof half);
        const uint32_t rest = half & 0x7fffu, sign = (half & 0x8000u) << 16;
        const float tiny = (float)(int)rest * 0x1p-24f;
        uint32_t bits, moved = (rest << 13) + (rest >= 0x7c00 ? 0x70000000u : 0x38000000u);
        memcpy(&bits, &tiny, sizeof bits);
        bits = (rest < 0x400 ? bits : moved) | sign;
        memcpy(&lanes[i], &bits, sizeof bits);
    }
    return vf32_load(lanes);
}
static inline vf64 vf64_load_f16(const char *p)
{
    char four[8] = {0};
    memcpy(four, p, 4);
    const vf32 x = vf32_load_f16(four);
    return (vf64){(double)x[0], (double)x[1]};
}
static inline vf32 vf32_load_bf16(const char *p)
{
    uint16_t half[4];
    memcpy(half, p, sizeof half);
    return (vf32)((vf32_bits){half[0], half[1], half[2], half[3]} << 16);
}
static inline vf64 vf64_load_bf16(const char *p)
{
    char four[8] = {0};
    memcpy(four, p, 4);
    const vf32 x = vf32_load_bf16(four);
    return (vf64){(double)x[0], (double)x[1]};
}
/* Those of the pairs of halves in 32 bits that come first in memory, or those that come second. */
static inline vf32 vf32_unpair(vf32 pairs, int second, vf32 (*load)(const char *))
{
    char bytes[16], halves[8];
    memcpy(bytes, &pairs, sizeof bytes);
    for (int i = 0; i < 4; i++) memcpy(halves + 2 * i, bytes + 4 * i + 2 * second, 2);
    return load(halves);
}
static inline vf32 vf32_even_f16(vf32 pairs) { return vf32_unpair(pairs, 0, vf32_load_f16); }
static inline vf32 vf32_odd_f16(vf32 pairs) { return vf32_unpair(pairs, 1, vf32_load_f16); }
static inline vf32 vf32_even_bf16(vf32 pairs) { return vf32_unpair(pairs, 0, vf32_load_bf16); }
static inline vf32 vf32_odd_bf16(vf32 pairs) { return vf32_unpair(pairs, 1, vf32_load_bf16); }
/* Rounded to nearest, ties to even. A number below 2^-14 is a multiple of 2^-24, to which adding 0.5 rounds it. */
static inline void vf32_store_f16(char *p, vf32 a)
{
    for (int i = 0; i < 4; i++) {
        const float x = a[i];
        uint32_t bits, tiny;
        memcpy(&bits, &x, sizeof bits);
        const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
        const float small = (size < 0x38800000 ? __builtin_fabsf(x) : 0) + 0.5f;
        memcpy(&tiny, &small, sizeof tiny);
        uint32_t half = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
        if (size < 0x38800000) half = tiny - 0x3f000000;
        if (size >= 0x477ff000) half = 0x7c00;
        if (size > 0x7f800000) half = 0x7e00 | (size >> 13 & 0x3ff);
        const uint16_t y = (uint16_t)(half | sign);
        memcpy(p + 2 * i, &y, sizeof y);
    }
}
static inline void vf32_store_bf16(char *p, vf32 a)
{
    for (int i = 0; i < 4; i++) {
        uint32_t bits;
        const float x = a[i];
        memcpy(&bits, &x, sizeof bits);
        bits = x == x ? bits + 0x7fff + (bits >> 16 & 1) : bits | 1u << 22;
        const uint16_t y = (uint16_t)(bits >> 16);
        memcpy(p + 2 * i, &y, sizeof y);
    }
}
static inline vf64 vf64_widen(const float *p) { return (vf64){(double)p[0], (double)p[1]}; }
/* Both, rounded. */
static inline vf32 vf32_narrow(vf64 low, vf64 high)
{
    return (vf32){(float)low[0], (float)low[1], (float)high[0], (float)high[1]};
}

/* Loads LANES bytes of a bool mask: 0 for a nonzero byte, -inf for a zero. */
static inline vf32 vf32_load_bool(const char *p)
{
    float lanes[4];
    for (int i = 0; i < 4; i++) lanes[i] = p[i] ? 0 : -INFINITY;
    return vf32_load(lanes);
}
static inline vf64 vf64_load_bool(const char *p)
{
    double lanes[2];
    for (int i = 0; i < 2; i++) lanes[i] = p[i] ? 0 : (double)-INFINITY;
    return vf64_load(lanes);
}

/* Swaps lanes 0 and 1, 2 and 3, and so on. */
static inline vf32 vf32_swap_pairs(vf32 a) { return (vf32){a[1], a[0], a[3], a[2]}; }
static inline vf64 vf64_swap_pairs(vf64 a) { return (vf64){a[1], a[0]}; }

/* A part is 16 bytes, the whole vector. transpose_inside swaps lane j of r[i] with lane i of r[j]. */
static inline void vf32_transpose_inside(vf32 r[4])
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            float x = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = x;
        }
}
static inline void vf64_transpose_inside(vf64 r[2])
{
    double x = r[0][1];
    r[0][1] = r[1][0];
    r[1][0] = x;
}
static inline void vf32_transpose_across(vf32 r[1]) { (void)r; }
static inline void vf64_transpose_across(vf64 r[1]) { (void)r; }
static inline void vf32_load_across(const float *const row[1], ptrdiff_t offset, vf32 r[1])
{
    r[0] = vf32_load(row[0] + offset);
}
static inline void vf64_load_across(const double *const row[1], ptrdiff_t offset, vf64 r[1])
{
    r[0] = vf64_load(row[0] + offset);
}
#endif

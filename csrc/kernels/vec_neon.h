/* NEON vocabulary (arm64): 4 float lanes, 2 double lanes. Same names as every vec_<isa>.h. */
#ifndef ATTN_VEC_NEON_H
#define ATTN_VEC_NEON_H

#include <arm_neon.h>

enum { VF32_LANES = 4, VF64_LANES = 2, VEC_ACCUMULATORS = 24 };
typedef float32x4_t vf32;
typedef float64x2_t vf64;
typedef uint32x4_t vf32_mask;
typedef uint64x2_t vf64_mask;

static inline vf32 vf32_load(const float *p) { return vld1q_f32(p); }
static inline vf64 vf64_load(const double *p) { return vld1q_f64(p); }
/* The first n lanes, the rest zero; reads nothing at or past p + n. */
static inline vf32 vf32_load_first(const float *p, int n)
{
    float lanes[4] = {0};
    for (int i = 0; i < n && i < 4; i++) lanes[i] = p[i];
    return vld1q_f32(lanes);
}
static inline vf64 vf64_load_first(const double *p, int n)
{
    double lanes[2] = {0};
    for (int i = 0; i < n && i < 2; i++) lanes[i] = p[i];
    return vld1q_f64(lanes);
}
static inline void vf32_store(float *p, vf32 a) { vst1q_f32(p, a); }
static inline void vf64_store(double *p, vf64 a) { vst1q_f64(p, a); }
static inline void vf32_store_first(float *p, int n, vf32 a)
{
    float lanes[4];
    vst1q_f32(lanes, a);
    for (int i = 0; i < n && i < 4; i++) p[i] = lanes[i];
}
static inline void vf64_store_first(double *p, int n, vf64 a)
{
    double lanes[2];
    vst1q_f64(lanes, a);
    for (int i = 0; i < n && i < 2; i++) p[i] = lanes[i];
}
static inline vf32 vf32_splat(float x) { return vdupq_n_f32(x); }
static inline vf64 vf64_splat(double x) { return vdupq_n_f64(x); }
static inline vf32 vf32_add(vf32 a, vf32 b) { return vaddq_f32(a, b); }
static inline vf64 vf64_add(vf64 a, vf64 b) { return vaddq_f64(a, b); }
static inline vf32 vf32_sub(vf32 a, vf32 b) { return vsubq_f32(a, b); }
static inline vf64 vf64_sub(vf64 a, vf64 b) { return vsubq_f64(a, b); }
static inline vf32 vf32_mul(vf32 a, vf32 b) { return vmulq_f32(a, b); }
static inline vf64 vf64_mul(vf64 a, vf64 b) { return vmulq_f64(a, b); }
static inline vf32 vf32_div(vf32 a, vf32 b) { return vdivq_f32(a, b); }
static inline vf64 vf64_div(vf64 a, vf64 b) { return vdivq_f64(a, b); }
static inline vf32 vf32_sqrt(vf32 a) { return vsqrtq_f32(a); }
static inline vf64 vf64_sqrt(vf64 a) { return vsqrtq_f64(a); }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return vfmaq_f32(c, a, b); }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return vfmaq_f64(c, a, b); }
/* The larger; b if either is NaN, as on x86 (vmaxq would give NaN). */
static inline vf32 vf32_max(vf32 a, vf32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf64 vf64_max(vf64 a, vf64 b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
/* To the nearest integer, ties to even. */
static inline vf32 vf32_round(vf32 a) { return vrndnq_f32(a); }
static inline vf64 vf64_round(vf64 a) { return vrndnq_f64(a); }
/* a * 2^n for integral -127 <= n <= 0 (double: -1023); denormal results are flushed to zero. The exponent is written
 * as bits: n = -127 makes it all zero, which is +0. */
static inline vf32 vf32_scale2(vf32 a, vf32 n)
{
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
static inline vf64 vf64_scale2(vf64 a, vf64 n)
{
    int64x2_t exponent = vaddq_s64(vcvtq_s64_f64(n), vdupq_n_s64(1023));
    return vmulq_f64(a, vreinterpretq_f64_s64(vshlq_n_s64(exponent, 52)));
}
/* +0 or -0, with the sign of a. */
static inline vf32 vf32_signed_zero(vf32 a)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x80000000u)));
}
static inline vf64 vf64_signed_zero(vf64 a)
{
    return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(a), vdupq_n_u64(0x8000000000000000u)));
}

static inline vf32_mask vf32_lt(vf32 a, vf32 b) { return vcltq_f32(a, b); }
static inline vf64_mask vf64_lt(vf64 a, vf64 b) { return vcltq_f64(a, b); }
static inline vf32_mask vf32_eq(vf32 a, vf32 b) { return vceqq_f32(a, b); }
static inline vf64_mask vf64_eq(vf64 a, vf64 b) { return vceqq_f64(a, b); }
static inline vf32 vf32_select(vf32_mask m, vf32 yes, vf32 no) { return vbslq_f32(m, yes, no); }
static inline vf64 vf64_select(vf64_mask m, vf64 yes, vf64 no) { return vbslq_f64(m, yes, no); }
static inline int vf32_has_nan(vf32 a) { return vminvq_u32(vceqq_f32(a, a)) == 0; }
static inline int vf64_has_nan(vf64 a)
{
    uint64x2_t same = vceqq_f64(a, a);
    return (vgetq_lane_u64(same, 0) & vgetq_lane_u64(same, 1)) == 0;
}

/* LANES numbers of another dtype. */
static inline vf32 vf32_load_f16(const char *p)
{
    uint16x4_t bits;
    memcpy(&bits, p, sizeof bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}
static inline vf64 vf64_load_f16(const char *p)
{
    uint16x4_t bits = {0};
    memcpy(&bits, p, 4);
    return vcvt_f64_f32(vget_low_f32(vcvt_f32_f16(vreinterpret_f16_u16(bits))));
}
static inline vf32 vf32_load_bf16(const char *p)
{
    uint16x4_t bits;
    memcpy(&bits, p, sizeof bits);
    return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
}
static inline vf64 vf64_load_bf16(const char *p)
{
    uint16x4_t bits = {0};
    memcpy(&bits, p, 4);
    return vcvt_f64_f32(vget_low_f32(vreinterpretq_f32_u32(vshll_n_u16(bits, 16))));
}
/* Those of the pairs of halves in 32 bits that come first in memory, and those that come second. */
static inline vf32 vf32_even_f16(vf32 pairs)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_f32(pairs))));
}
static inline vf32 vf32_odd_f16(vf32 pairs)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(vreinterpretq_u32_f32(pairs), 16)));
}
static inline vf32 vf32_even_bf16(vf32 pairs)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs), 16));
}
static inline vf32 vf32_odd_bf16(vf32 pairs)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs), vdupq_n_u32(0xffff0000u)));
}
/* Rounded to nearest, ties to even. */
static inline void vf32_store_f16(char *p, vf32 a)
{
    const uint16x4_t bits = vreinterpret_u16_f16(vcvt_f16_f32(a));
    memcpy(p, &bits, sizeof bits);
}
static inline void vf32_store_bf16(char *p, vf32 a)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t near = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t kept = vbslq_u32(vceqq_f32(a, a), near, vorrq_u32(bits, vdupq_n_u32(1u << 22)));
    const uint16x4_t halves = vshrn_n_u32(kept, 16);
    memcpy(p, &halves, sizeof halves);
}
static inline vf64 vf64_widen(const float *p) { return vcvt_f64_f32(vld1_f32(p)); }
/* Both, rounded. */
static inline vf32 vf32_narrow(vf64 low, vf64 high) { return vcvt_high_f32_f64(vcvt_f32_f64(low), high); }

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
static inline vf32 vf32_swap_pairs(vf32 a) { return vrev64q_f32(a); }
static inline vf64 vf64_swap_pairs(vf64 a) { return vextq_f64(a, a, 1); }

/* A part is 16 bytes, the whole vector. transpose_inside swaps lane j of r[i] with lane i of r[j]. */
static inline void vf64_transpose_inside(vf64 r[2])
{
    vf64 low = vtrn1q_f64(r[0], r[1]);
    r[1] = vtrn2q_f64(r[0], r[1]);
    r[0] = low;
}
static inline void vf32_transpose_inside(vf32 r[4])
{
    vf64 a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    vf64 c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
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

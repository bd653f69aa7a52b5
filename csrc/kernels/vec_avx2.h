/* AVX2 + FMA vocabulary: 8 float lanes, 4 double lanes. Same names as every vec_<isa>.h. */
#ifndef ATTN_VEC_AVX2_H
#define ATTN_VEC_AVX2_H

#include <immintrin.h>

enum { VF32_LANES = 8, VF64_LANES = 4, VEC_ACCUMULATORS = 12 };
typedef __m256 vf32;
typedef __m256d vf64;
typedef __m256 vf32_mask;
typedef __m256d vf64_mask;

/* All ones in the first n lanes. */
static inline __m256i vf32_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256i vf64_first(int n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

static inline vf32 vf32_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf64 vf64_load(const double *p) { return _mm256_loadu_pd(p); }
/* The first n lanes, the rest zero; reads nothing at or past p + n. */
static inline vf32 vf32_load_first(const float *p, int n) { return _mm256_maskload_ps(p, vf32_first(n)); }
static inline vf64 vf64_load_first(const double *p, int n) { return _mm256_maskload_pd(p, vf64_first(n)); }
static inline void vf32_store(float *p, vf32 a) { _mm256_storeu_ps(p, a); }
static inline void vf64_store(double *p, vf64 a) { _mm256_storeu_pd(p, a); }
static inline void vf32_store_first(float *p, int n, vf32 a) { _mm256_maskstore_ps(p, vf32_first(n), a); }
static inline void vf64_store_first(double *p, int n, vf64 a) { _mm256_maskstore_pd(p, vf64_first(n), a); }
static inline vf32 vf32_splat(float x) { return _mm256_set1_ps(x); }
static inline vf64 vf64_splat(double x) { return _mm256_set1_pd(x); }
static inline vf32 vf32_add(vf32 a, vf32 b) { return _mm256_add_ps(a, b); }
static inline vf64 vf64_add(vf64 a, vf64 b) { return _mm256_add_pd(a, b); }
static inline vf32 vf32_sub(vf32 a, vf32 b) { return _mm256_sub_ps(a, b); }
static inline vf64 vf64_sub(vf64 a, vf64 b) { return _mm256_sub_pd(a, b); }
static inline vf32 vf32_mul(vf32 a, vf32 b) { return _mm256_mul_ps(a, b); }
static inline vf64 vf64_mul(vf64 a, vf64 b) { return _mm256_mul_pd(a, b); }
static inline vf32 vf32_div(vf32 a, vf32 b) { return _mm256_div_ps(a, b); }
static inline vf64 vf64_div(vf64 a, vf64 b) { return _mm256_div_pd(a, b); }
static inline vf32 vf32_sqrt(vf32 a) { return _mm256_sqrt_ps(a); }
static inline vf64 vf64_sqrt(vf64 a) { return _mm256_sqrt_pd(a); }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return _mm256_fmadd_pd(a, b, c); }
/* The larger; b where either is NaN. */
static inline vf32 vf32_max(vf32 a, vf32 b) { return _mm256_max_ps(a, b); }
static inline vf64 vf64_max(vf64 a, vf64 b) { return _mm256_max_pd(a, b); }
/* To the nearest integer, ties to even. */
static inline vf32 vf32_round(vf32 a) { return _mm256_round_ps(a, 8); }
static inline vf64 vf64_round(vf64 a) { return _mm256_round_pd(a, 8); }
/* a * 2^n for integral -127 <= n <= 0 (double: -1023); denormal results are flushed to zero. The exponent is written
 * as bits: n = -127 makes it all zero, which is +0. */
static inline vf32 vf32_scale2(vf32 a, vf32 n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
static inline vf64 vf64_scale2(vf64 a, vf64 n)
{
    /* AVX2 cannot convert to 64-bit integers; 2^52 + 1023 + n has the wanted exponent in its low bits. */
    __m256d biased = _mm256_add_pd(n, _mm256_set1_pd(0x1p52 + 1023));
    return _mm256_mul_pd(a, _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(biased), 52)));
}
/* +0 or -0, with the sign of a. */
static inline vf32 vf32_signed_zero(vf32 a) { return _mm256_and_ps(a, _mm256_set1_ps(-0.0f)); }
static inline vf64 vf64_signed_zero(vf64 a) { return _mm256_and_pd(a, _mm256_set1_pd(-0.0)); }

static inline vf32_mask vf32_lt(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vf64_mask vf64_lt(vf64 a, vf64 b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
static inline vf32_mask vf32_eq(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline vf64_mask vf64_eq(vf64 a, vf64 b) { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
static inline vf32 vf32_select(vf32_mask m, vf32 yes, vf32 no) { return _mm256_blendv_ps(no, yes, m); }
static inline vf64 vf64_select(vf64_mask m, vf64 yes, vf64 no) { return _mm256_blendv_pd(no, yes, m); }
static inline int vf32_has_nan(vf32 a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
static inline int vf64_has_nan(vf64 a) { return _mm256_movemask_pd(_mm256_cmp_pd(a, a, _CMP_UNORD_Q)) != 0; }

/* LANES numbers of another dtype. */
static inline vf32 vf32_load_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vf64 vf64_load_f16(const char *p)
{
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
static inline vf32 vf32_load_bf16(const char *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline vf64 vf64_load_bf16(const char *p)
{
    const __m128i wide = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(wide, 16)));
}
/* Those of the pairs of halves in 32 bits that come first in memory, and those that come second. */
static inline vf32 vf32_low_f16(__m256i low)
{
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
static inline vf32 vf32_even_f16(vf32 pairs)
{
    return vf32_low_f16(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(0xffff)));
}
static inline vf32 vf32_odd_f16(vf32 pairs) { return vf32_low_f16(_mm256_srli_epi32(_mm256_castps_si256(pairs), 16)); }
static inline vf32 vf32_even_bf16(vf32 pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
static inline vf32 vf32_odd_bf16(vf32 pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32((int)0xffff0000)));
}
/* Rounded to nearest, ties to even. */
static inline void vf32_store_f16(char *p, vf32 a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vf32_store_bf16(char *p, vf32 a)
{
    const __m256i bits = _mm256_castps_si256(a), one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(1 << 22);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(near, _mm256_or_si256(bits, quiet), nan), 16);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(halves));
}
static inline vf64 vf64_widen(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
/* Both, rounded. */
static inline vf32 vf32_narrow(vf64 low, vf64 high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}

/* Loads LANES bytes of a bool mask: 0 for a nonzero byte, -inf for a zero. */
static inline vf32 vf32_load_bool(const char *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    __m256i zero = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_setzero_si256());
    return _mm256_and_ps(_mm256_castsi256_ps(zero), _mm256_set1_ps(-INFINITY));
}
static inline vf64 vf64_load_bool(const char *p)
{
    int four;
    memcpy(&four, p, sizeof four);
    __m256i zero = _mm256_cmpeq_epi64(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four)), _mm256_setzero_si256());
    return _mm256_and_pd(_mm256_castsi256_pd(zero), _mm256_set1_pd((double)-INFINITY));
}

/* Swaps lanes 0 and 1, 2 and 3, and so on. */
static inline vf32 vf32_swap_pairs(vf32 a) { return _mm256_permute_ps(a, 0xb1); }
static inline vf64 vf64_swap_pairs(vf64 a) { return _mm256_permute_pd(a, 0x5); }

/* A part is 16 bytes. transpose_inside swaps lane j of r[i] with lane i of r[j] in each part; transpose_across swaps
 * part j of r[i] with part i of r[j]. */
static inline void vf64_transpose_inside(vf64 r[2])
{
    vf64 low = _mm256_unpacklo_pd(r[0], r[1]);
    r[1] = _mm256_unpackhi_pd(r[0], r[1]);
    r[0] = low;
}
static inline void vf64_transpose_across(vf64 r[2])
{
    vf64 low = _mm256_permute2f128_pd(r[0], r[1], 0x20);
    r[1] = _mm256_permute2f128_pd(r[0], r[1], 0x31);
    r[0] = low;
}
static inline void vf32_transpose_inside(vf32 r[4])
{
    vf32 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    vf32 c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    r[0] = _mm256_shuffle_ps(a, c, 0x44);
    r[1] = _mm256_shuffle_ps(a, c, 0xee);
    r[2] = _mm256_shuffle_ps(b, d, 0x44);
    r[3] = _mm256_shuffle_ps(b, d, 0xee);
}
static inline void vf32_transpose_across(vf32 r[2])
{
    vf32 low = _mm256_permute2f128_ps(r[0], r[1], 0x20);
    r[1] = _mm256_permute2f128_ps(r[0], r[1], 0x31);
    r[0] = low;
}
/* transpose_across of what is in memory, `offset` elements from row[i]. Parts are combined as they are loaded, which
 * needs no shuffle unit. */
static inline void vf32_load_across(const float *const row[2], ptrdiff_t offset, vf32 r[2])
{
    const float *a = row[0] + offset, *b = row[1] + offset;
    r[0] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
    r[1] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + 4)), _mm_loadu_ps(b + 4), 1);
}
static inline void vf64_load_across(const double *const row[2], ptrdiff_t offset, vf64 r[2])
{
    const double *a = row[0] + offset, *b = row[1] + offset;
    r[0] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(a)), _mm_loadu_pd(b), 1);
    r[1] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(a + 2)), _mm_loadu_pd(b + 2), 1);
}
#endif

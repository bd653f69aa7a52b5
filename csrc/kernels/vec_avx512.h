/* AVX-512 vocabulary: 16 float lanes, 8 double lanes. Same names as every vec_<isa>.h. */
#ifndef ATTN_VEC_AVX512_H
#define ATTN_VEC_AVX512_H

#include <immintrin.h>

enum { VF32_LANES = 16, VF64_LANES = 8, VEC_ACCUMULATORS = 24 };
typedef __m512 vf32;
typedef __m512d vf64;
typedef __mmask16 vf32_mask;
typedef __mmask8 vf64_mask;

#define FIRST(n) ((1u << (n)) - 1)

static inline vf32 vf32_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf64 vf64_load(const double *p) { return _mm512_loadu_pd(p); }
/* The first n lanes, the rest zero; reads nothing at or past p + n. */
static inline vf32 vf32_load_first(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)FIRST(n), p); }
static inline vf64 vf64_load_first(const double *p, int n) { return _mm512_maskz_loadu_pd((__mmask8)FIRST(n), p); }
static inline void vf32_store(float *p, vf32 a) { _mm512_storeu_ps(p, a); }
static inline void vf64_store(double *p, vf64 a) { _mm512_storeu_pd(p, a); }
static inline void vf32_store_first(float *p, int n, vf32 a) { _mm512_mask_storeu_ps(p, (__mmask16)FIRST(n), a); }
static inline void vf64_store_first(double *p, int n, vf64 a) { _mm512_mask_storeu_pd(p, (__mmask8)FIRST(n), a); }
static inline vf32 vf32_splat(float x) { return _mm512_set1_ps(x); }
static inline vf64 vf64_splat(double x) { return _mm512_set1_pd(x); }
static inline vf32 vf32_add(vf32 a, vf32 b) { return _mm512_add_ps(a, b); }
static inline vf64 vf64_add(vf64 a, vf64 b) { return _mm512_add_pd(a, b); }
static inline vf32 vf32_sub(vf32 a, vf32 b) { return _mm512_sub_ps(a, b); }
static inline vf64 vf64_sub(vf64 a, vf64 b) { return _mm512_sub_pd(a, b); }
static inline vf32 vf32_mul(vf32 a, vf32 b) { return _mm512_mul_ps(a, b); }
static inline vf64 vf64_mul(vf64 a, vf64 b) { return _mm512_mul_pd(a, b); }
static inline vf32 vf32_div(vf32 a, vf32 b) { return _mm512_div_ps(a, b); }
static inline vf64 vf64_div(vf64 a, vf64 b) { return _mm512_div_pd(a, b); }
static inline vf32 vf32_sqrt(vf32 a) { return _mm512_sqrt_ps(a); }
static inline vf64 vf64_sqrt(vf64 a) { return _mm512_sqrt_pd(a); }
static inline vf32 vf32_fma(vf32 a, vf32 b, vf32 c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf64 vf64_fma(vf64 a, vf64 b, vf64 c) { return _mm512_fmadd_pd(a, b, c); }
/* The larger; b where either is NaN. */
static inline vf32 vf32_max(vf32 a, vf32 b) { return _mm512_max_ps(a, b); }
static inline vf64 vf64_max(vf64 a, vf64 b) { return _mm512_max_pd(a, b); }
/* To the nearest integer, ties to even. */
static inline vf32 vf32_round(vf32 a) { return _mm512_roundscale_ps(a, 0); }
static inline vf64 vf64_round(vf64 a) { return _mm512_roundscale_pd(a, 0); }
/* a * 2^n for integral -127 <= n <= 0 (double: -1023); denormal results are flushed to zero. */
static inline vf32 vf32_scale2(vf32 a, vf32 n) { return _mm512_scalef_ps(a, n); }
static inline vf64 vf64_scale2(vf64 a, vf64 n) { return _mm512_scalef_pd(a, n); }
/* +0 or -0, with the sign of a. */
static inline vf32 vf32_signed_zero(vf32 a) { return _mm512_and_ps(a, _mm512_set1_ps(-0.0f)); }
static inline vf64 vf64_signed_zero(vf64 a) { return _mm512_and_pd(a, _mm512_set1_pd(-0.0)); }

static inline vf32_mask vf32_lt(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vf64_mask vf64_lt(vf64 a, vf64 b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
static inline vf32_mask vf32_eq(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline vf64_mask vf64_eq(vf64 a, vf64 b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
static inline vf32 vf32_select(vf32_mask m, vf32 yes, vf32 no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline vf64 vf64_select(vf64_mask m, vf64 yes, vf64 no) { return _mm512_mask_blend_pd(m, no, yes); }
static inline int vf32_has_nan(vf32 a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
static inline int vf64_has_nan(vf64 a) { return _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q) != 0; }

/* LANES numbers of another dtype. */
static inline vf32 vf32_load_f16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vf64 vf64_load_f16(const char *p)
{
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
static inline vf32 vf32_load_bf16(const char *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline vf64 vf64_load_bf16(const char *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
}
/* Those of the pairs of halves in 32 bits that come first in memory, and those that come second. */
static inline vf32 vf32_even_f16(vf32 pairs)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(pairs)));
}
static inline vf32 vf32_odd_f16(vf32 pairs)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(pairs), 16)));
}
static inline vf32 vf32_even_bf16(vf32 pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
static inline vf32 vf32_odd_bf16(vf32 pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000)));
}
/* Rounded to nearest, ties to even. */
static inline void vf32_store_f16(char *p, vf32 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vf32_store_bf16(char *p, vf32 a) /* AVX512-BF16's own conversion flushes denormals */
{
    const __m512i bits = _mm512_castps_si512(a), one = _mm512_set1_epi32(1), quiet = _mm512_set1_epi32(1 << 22);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(near, nan, bits, quiet);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
static inline vf64 vf64_widen(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
/* Both, rounded. */
static inline vf32 vf32_narrow(vf64 low, vf64 high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}

/* Loads LANES bytes of a bool mask: 0 for a nonzero byte, -inf for a zero. */
static inline vf32 vf32_load_bool(const char *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_maskz_mov_ps(_mm_testn_epi8_mask(bytes, bytes), _mm512_set1_ps(-INFINITY));
}
static inline vf64 vf64_load_bool(const char *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm512_maskz_mov_pd((__mmask8)_mm_testn_epi8_mask(bytes, bytes), _mm512_set1_pd((double)-INFINITY));
}

/* Swaps lanes 0 and 1, 2 and 3, and so on. */
static inline vf32 vf32_swap_pairs(vf32 a) { return _mm512_permute_ps(a, 0xb1); }
static inline vf64 vf64_swap_pairs(vf64 a) { return _mm512_permute_pd(a, 0x55); }

/* A part is 16 bytes. transpose_inside swaps lane j of r[i] with lane i of r[j] in each part; transpose_across swaps
 * part j of r[i] with part i of r[j]. */
static inline void vf64_transpose_inside(vf64 r[2])
{
    vf64 low = _mm512_unpacklo_pd(r[0], r[1]);
    r[1] = _mm512_unpackhi_pd(r[0], r[1]);
    r[0] = low;
}
static inline void vf64_transpose_across(vf64 r[4])
{
    vf64 a = _mm512_shuffle_f64x2(r[0], r[1], 0x88), b = _mm512_shuffle_f64x2(r[0], r[1], 0xdd);
    vf64 c = _mm512_shuffle_f64x2(r[2], r[3], 0x88), d = _mm512_shuffle_f64x2(r[2], r[3], 0xdd);
    r[0] = _mm512_shuffle_f64x2(a, c, 0x88);
    r[1] = _mm512_shuffle_f64x2(b, d, 0x88);
    r[2] = _mm512_shuffle_f64x2(a, c, 0xdd);
    r[3] = _mm512_shuffle_f64x2(b, d, 0xdd);
}
static inline void vf32_transpose_inside(vf32 r[4])
{
    vf32 a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    vf32 c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = _mm512_shuffle_ps(a, c, 0x44);
    r[1] = _mm512_shuffle_ps(a, c, 0xee);
    r[2] = _mm512_shuffle_ps(b, d, 0x44);
    r[3] = _mm512_shuffle_ps(b, d, 0xee);
}
static inline void vf32_transpose_across(vf32 r[4])
{
    vf32 a = _mm512_shuffle_f32x4(r[0], r[1], 0x88), b = _mm512_shuffle_f32x4(r[0], r[1], 0xdd);
    vf32 c = _mm512_shuffle_f32x4(r[2], r[3], 0x88), d = _mm512_shuffle_f32x4(r[2], r[3], 0xdd);
    r[0] = _mm512_shuffle_f32x4(a, c, 0x88);
    r[1] = _mm512_shuffle_f32x4(b, d, 0x88);
    r[2] = _mm512_shuffle_f32x4(a, c, 0xdd);
    r[3] = _mm512_shuffle_f32x4(b, d, 0xdd);
}

/* transpose_across of what is in memory, `offset` elements from row[i]. Halves are combined as they are loaded, which
 * saves half of the shuffles (Zen 4 does one a cycle): eight rows of a linear layer take 0.84 of the time. */
static inline vf64 vf64_load_two(const double *low, const double *high)
{
    return _mm512_mask_broadcast_f64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(low)), 0xf0, _mm256_loadu_pd(high));
}
static inline void vf64_load_across(const double *const row[4], ptrdiff_t offset, vf64 r[4])
{
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    const vf64 a = vf64_load_two(row[0] + offset, row[2] + offset);
    const vf64 b = vf64_load_two(row[1] + offset, row[3] + offset);
    const vf64 c = vf64_load_two(row[0] + offset + 4, row[2] + offset + 4);
    const vf64 d = vf64_load_two(row[1] + offset + 4, row[3] + offset + 4);
    r[0] = _mm512_permutex2var_pd(a, even, b);
    r[1] = _mm512_permutex2var_pd(a, odd, b);
    r[2] = _mm512_permutex2var_pd(c, even, d);
    r[3] = _mm512_permutex2var_pd(c, odd, d);
}
static inline vf32 vf32_load_two(const float *low, const float *high)
{
    return _mm512_mask_broadcast_f32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), 0xff00, _mm256_loadu_ps(high));
}
static inline void vf32_load_across(const float *const row[4], ptrdiff_t offset, vf32 r[4])
{
    const __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    const __m512i odd = _mm512_setr_epi32(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    const vf32 a = vf32_load_two(row[0] + offset, row[2] + offset);
    const vf32 b = vf32_load_two(row[1] + offset, row[3] + offset);
    const vf32 c = vf32_load_two(row[0] + offset + 8, row[2] + offset + 8);
    const vf32 d = vf32_load_two(row[1] + offset + 8, row[3] + offset + 8);
    r[0] = _mm512_permutex2var_ps(a, even, b);
    r[1] = _mm512_permutex2var_ps(a, odd, b);
    r[2] = _mm512_permutex2var_ps(c, even, d);
    r[3] = _mm512_permutex2var_ps(c, odd, d);
}

#undef FIRST
#endif

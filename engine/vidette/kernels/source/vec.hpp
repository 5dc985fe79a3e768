// Sixteen floats at a time: one AVX-512 register, two of AVX2, or an array that the compiler sees to.
//
// Every function does the same operations in the same order on each lane, so code written on `Vec` gives a row the
// same bits however rows are grouped. Sums over lanes are taken in one order on all machines.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#define VIDETTE_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define VIDETTE_AVX2 1
#endif

#if defined(VIDETTE_AVX512) || defined(VIDETTE_AVX2)
#include <immintrin.h>
#endif

#include "half.hpp"

namespace vidette {

constexpr int kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#if defined(VIDETTE_AVX512)

constexpr const char *kInstructions = "avx512-vnni";

struct Vec {
    __m512 v;
};

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec all(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const half_t *p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
}
inline void store(float *p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store_first(float *p, Vec a, int n) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), a.v); }
inline void store(half_t *p, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand if either is not a number.
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec round(Vec a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// `a` in lanes first <= lane < last, `other` elsewhere.
inline Vec between(Vec a, int first, int last, Vec other) {
    const unsigned below = first <= 0 ? 0u : first >= kLanes ? 0xffffu : (1u << first) - 1;
    const unsigned upto = last <= 0 ? 0u : last >= kLanes ? 0xffffu : (1u << last) - 1;
    return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(upto & ~below), a.v)};
}
inline Vec zero_where_below(Vec a, Vec x, Vec limit) {
    return {_mm512_mask_mov_ps(a.v, _mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), _mm512_setzero_ps())};
}
inline bool all_finite(Vec a) {
    const __m512 largest = _mm512_set1_ps(std::numeric_limits<float>::max());
    return _mm512_cmp_ps_mask(_mm512_abs_ps(a.v), largest, _CMP_LE_OQ) == 0xffff;
}
// Whether a lane is larger than a limit, or not a number.
inline bool any_above(Vec a, float limit) {
    return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(limit), _CMP_NLE_UQ) != 0;
}
// a * 2^n for whole n in [-126, 127].
inline Vec scale_by_power(Vec a, Vec n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)))};
}
// Rounds to nearest, ties to even; every lane has to be within int8.
inline void store_int8(std::int8_t *p, Vec a) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
inline __m256 lower(Vec a) { return _mm512_castps512_ps256(a.v); }
inline __m256 upper(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }

#elif defined(VIDETTE_AVX2)

constexpr const char *kInstructions = "avx2";

struct Vec {
    __m256 lo, hi;
};

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Vec load(const half_t *p) {
    const __m128i *q = reinterpret_cast<const __m128i *>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline void store(float *p, Vec a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline void store_first(float *p, Vec a, int n) {
    float lanes[kLanes];
    store(lanes, a);
    std::memcpy(p, lanes, n * sizeof(float));
}
inline void store(half_t *p, Vec a) {
    __m128i *q = reinterpret_cast<__m128i *>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline Vec abs(Vec a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline Vec round(Vec a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline Vec between(Vec a, int first, int last, Vec other) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i from = _mm256_set1_epi32(first - 1), to = _mm256_set1_epi32(last);
    const __m256i high = _mm256_add_epi32(lanes, _mm256_set1_epi32(8));
    const __m256i in_lo = _mm256_and_si256(_mm256_cmpgt_epi32(lanes, from), _mm256_cmpgt_epi32(to, lanes));
    const __m256i in_hi = _mm256_and_si256(_mm256_cmpgt_epi32(high, from), _mm256_cmpgt_epi32(to, high));
    return {_mm256_blendv_ps(other.lo, a.lo, _mm256_castsi256_ps(in_lo)),
            _mm256_blendv_ps(other.hi, a.hi, _mm256_castsi256_ps(in_hi))};
}
inline Vec zero_where_below(Vec a, Vec x, Vec limit) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ), a.lo),
            _mm256_andnot_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ), a.hi)};
}
inline bool all_finite(Vec a) {
    const __m256 largest = _mm256_set1_ps(std::numeric_limits<float>::max());
    const Vec size = abs(a);
    const int lo = _mm256_movemask_ps(_mm256_cmp_ps(size.lo, largest, _CMP_LE_OQ));
    const int hi = _mm256_movemask_ps(_mm256_cmp_ps(size.hi, largest, _CMP_LE_OQ));
    return (lo & hi) == 0xff;
}
inline bool any_above(Vec a, float limit) {
    const __m256 most = _mm256_set1_ps(limit);
    const __m256 lo = _mm256_cmp_ps(a.lo, most, _CMP_NLE_UQ), hi = _mm256_cmp_ps(a.hi, most, _CMP_NLE_UQ);
    return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}
inline Vec scale_by_power(Vec a, Vec n) {
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i lo = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.lo), bias), 23);
    const __m256i hi = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.hi), bias), 23);
    return {_mm256_mul_ps(a.lo, _mm256_castsi256_ps(lo)), _mm256_mul_ps(a.hi, _mm256_castsi256_ps(hi))};
}
inline void store_int8(std::int8_t *p, Vec a) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), bytes);
}
inline __m256 lower(Vec a) { return a.lo; }
inline __m256 upper(Vec a) { return a.hi; }

#else

constexpr const char *kInstructions = "portable";

struct Vec {
    float v[kLanes];
};

template <class F>
inline Vec each_lane(F f) {
    Vec result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = f(i);
    return result;
}
inline Vec zero() { return each_lane([](int) { return 0.0f; }); }
inline Vec all(float x) { return each_lane([=](int) { return x; }); }
inline Vec load(const float *p) { return each_lane([=](int i) { return p[i]; }); }
inline Vec load(const half_t *p) { return each_lane([=](int i) { return to_float(p[i]); }); }
inline void store_first(float *p, Vec a, int n) { std::memcpy(p, a.v, n * sizeof(float)); }
inline void store(float *p, Vec a) { store_first(p, a, kLanes); }
inline void store(half_t *p, Vec a) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_half(a.v[i]);
}
inline Vec operator+(Vec a, Vec b) { return each_lane([&](int i) { return a.v[i] + b.v[i]; }); }
inline Vec operator-(Vec a, Vec b) { return each_lane([&](int i) { return a.v[i] - b.v[i]; }); }
inline Vec operator*(Vec a, Vec b) { return each_lane([&](int i) { return a.v[i] * b.v[i]; }); }
inline Vec operator/(Vec a, Vec b) { return each_lane([&](int i) { return a.v[i] / b.v[i]; }); }
inline Vec fma(Vec a, Vec b, Vec c) { return each_lane([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
inline Vec max(Vec a, Vec b) { return each_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline Vec min(Vec a, Vec b) { return each_lane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline Vec abs(Vec a) { return each_lane([&](int i) { return std::fabs(a.v[i]); }); }
inline Vec round(Vec a) { return each_lane([&](int i) { return std::nearbyintf(a.v[i]); }); }
inline Vec between(Vec a, int first, int last, Vec other) {
    return each_lane([&](int i) { return first <= i && i < last ? a.v[i] : other.v[i]; });
}
inline Vec zero_where_below(Vec a, Vec x, Vec limit) {
    return each_lane([&](int i) { return x.v[i] < limit.v[i] ? 0.0f : a.v[i]; });
}
inline bool all_finite(Vec a) {
    bool finite = true;
    for (int i = 0; i < kLanes; ++i) finite &= std::fabs(a.v[i]) <= std::numeric_limits<float>::max();
    return finite;
}
inline bool any_above(Vec a, float limit) {
    bool above = false;
    for (int i = 0; i < kLanes; ++i) above |= !(a.v[i] <= limit);
    return above;
}
inline Vec scale_by_power(Vec a, Vec n) {
    return each_lane([&](int i) {
        if (!(std::fabs(n.v[i]) < 1000.0f)) return n.v[i] * a.v[i];  // not a number
        const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<int>(n.v[i]) + 127) << 23;
        float power;
        std::memcpy(&power, &bits, sizeof power);
        return a.v[i] * power;
    });
}
inline void store_int8(std::int8_t *p, Vec a) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(std::nearbyintf(a.v[i]));
}

#endif

inline Vec operator-(Vec a) { return zero() - a; }

// The sum of all lanes: halves onto each other, four times.
inline float sum(Vec a) {
#if defined(VIDETTE_AVX512) || defined(VIDETTE_AVX2)
    const __m256 eight = _mm256_add_ps(lower(a), upper(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
#else
    for (int width = kLanes / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
#endif
}

// The largest lane; any of them if one is not a number.
inline float largest(Vec a) {
#if defined(VIDETTE_AVX512) || defined(VIDETTE_AVX2)
    const __m256 eight = _mm256_max_ps(lower(a), upper(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
#else
    float found = a.v[0];
    for (int i = 1; i < kLanes; ++i) found = found > a.v[i] ? found : a.v[i];
    return found;
#endif
}

// e^x within 2 units in the last place; 0 below -87, at most e^88, not a number for what is none.
// Cody and Waite's reduction, then a polynomial of degree 6 (Cephes' coefficients).
inline Vec exp(Vec x) {
    const Vec lowest = all(-87.0f);
    const Vec bounded = max(lowest, min(all(88.0f), x));  // this order hands on what is not a number
    const Vec n = round(bounded * all(1.44269504088896341f));
    Vec r = fma(n, all(-0.693359375f), bounded);
    r = fma(n, all(2.12194440e-4f), r);
    Vec p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = fma(p, r * r, r + all(1.0f));
    return zero_where_below(scale_by_power(p, n), x, lowest);
}

// tanh by way of e^2x; within 1e-6.
inline Vec tanh(Vec x) {
    const Vec e = exp(x + x);
    return all(1.0f) - all(2.0f) / (e + all(1.0f));
}

}  // namespace vidette

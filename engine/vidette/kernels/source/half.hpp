// float16 (IEEE 754 binary16) as bits: conversions that need no instruction of their own.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace vidette {

// A type of its own, so that `load` knows what it loads.
struct half_t {
    std::uint16_t bits;
};

inline float to_float(half_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h.bits);
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000) << 16;
    const std::uint32_t exponent = (h.bits >> 10) & 0x1f, fraction = h.bits & 0x3ff;
    if (exponent == 0) {
        const float value = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -value : value;
    }
    const std::uint32_t rebased = exponent == 31 ? 0xff : exponent + 112;
    const std::uint32_t bits = sign | rebased << 23 | fraction << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

// To nearest, ties to even.
inline half_t to_half(float value) {
#if defined(__F16C__)
    return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)};
#else
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint16_t sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00)};
    if (bits >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};  // rounds to 65536 or more
    if (bits < 0x38800000) {  // subnormal: adding 0.5 moves the bits that stay to the end of the fraction
        float magnitude;
        std::memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, sizeof bits);
        return {static_cast<std::uint16_t>(sign | (bits - 0x3f000000))};
    }
    const std::uint32_t odd = bits >> 13 & 1;
    return {static_cast<std::uint16_t>(sign | ((bits - 0x38000000 + 0xfff + odd) >> 13))};
#endif
}

}  // namespace vidette

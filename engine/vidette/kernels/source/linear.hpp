// y = x W^T with W in 4 or 8 bits and x in 8 bits, both in blocks of 32 inputs with a scale of their own.
//
// Products of a block are summed as integers, exactly; blocks are summed in float32, first to last. So an output's
// bits depend on its row and its weights alone: not on the other rows, nor on the threads.
//
//     y[o] = sum over blocks b of s[b] * (d[o, b] * sum_k q[o, k] * a[k]  +  m[o, b] * sum_k a[k])
#pragma once

#include <cstdint>

#include "pack.hpp"
#include "vec.hpp"

namespace vidette {

constexpr int kBlock = 32;  // inputs that share a scale
constexpr int kTile = 16;   // outputs computed together

inline std::int64_t blocks_of(std::int64_t inputs) { return (inputs + kBlock - 1) / kBlock; }
inline std::int64_t tiles_of(std::int64_t outputs) { return (outputs + kTile - 1) / kTile; }

// --- activations ----------------------------------------------------------------------

// Rows of activations, quantised: each block of each row has the scale max|x| / 127.
struct Activations {
    std::int64_t blocks = 0;     // of a row
    std::int8_t *values = nullptr;  // [rows, blocks * 32]
    float *scales = nullptr;     // [rows, blocks]
    float *sums = nullptr;       // [rows, blocks] of the values; whole numbers
#if defined(VIDETTE_AVX2)
    std::int16_t *wide = nullptr;  // [rows, blocks * 32] the values in 16 bits, each four as 0, 2, 1, 3
#endif
};

// The bytes of a row, for whoever allocates.
inline std::size_t activation_bytes(std::int64_t blocks) {
#if defined(VIDETTE_AVX2)
    return static_cast<std::size_t>(blocks) * (kBlock * 3 + 8);
#else
    return static_cast<std::size_t>(blocks) * (kBlock + 8);
#endif
}

inline Activations lay_out_activations(std::uint8_t *memory, std::int64_t rows, std::int64_t blocks) {
    Activations a;
    a.blocks = blocks;
    a.values = reinterpret_cast<std::int8_t *>(memory);
    memory += rows * blocks * kBlock;
#if defined(VIDETTE_AVX2)
    a.wide = reinterpret_cast<std::int16_t *>(memory);
    memory += rows * blocks * kBlock * 2;
#endif
    a.scales = reinterpret_cast<float *>(memory);
    a.sums = a.scales + rows * blocks;
    return a;
}

// Quantises the 32 values at x as block b of a row. A block with a value that is not finite gets a scale that is no
// number, which every output of the row then is.
inline void quantize_block(const float *x, const Activations &to, std::int64_t row, std::int64_t b) {
    const Vec lo = load(x), hi = load(x + kLanes);
    float most = largest(max(abs(lo), abs(hi)));
    const std::int64_t at = row * to.blocks + b;
    std::int8_t *values = to.values + at * kBlock;
    float scale = most / 127.0f, inverse = 1.0f / scale;
    if (!(all_finite(lo) && all_finite(hi))) {
        scale = std::numeric_limits<float>::quiet_NaN();
        inverse = 0.0f;
    } else if (most < 1e-30f) {
        scale = inverse = 0.0f;
    }
    if (inverse == 0.0f) {
        std::memset(values, 0, kBlock);
    } else {
        const Vec times = all(inverse), top = all(127.0f), bottom = all(-127.0f);
        store_int8(values, max(bottom, min(top, round(lo * times))));
        store_int8(values + kLanes, max(bottom, min(top, round(hi * times))));
    }
    int total = 0;
    for (int i = 0; i < kBlock; ++i) total += values[i];
    to.scales[at] = scale;
    to.sums[at] = static_cast<float>(total);
#if defined(VIDETTE_AVX2)
    std::int16_t *wide = to.wide + at * kBlock;
    for (int i = 0; i < kBlock; i += 4) {
        wide[i] = values[i];
        wide[i + 1] = values[i + 2];
        wide[i + 2] = values[i + 1];
        wide[i + 3] = values[i + 3];
    }
#endif
}

// --- one tile of outputs for R rows -----------------------------------------------------

// A packed matrix (pack.hpp says how).
struct Matrix {
    Packing packing = Packing::P8;
    std::int64_t outputs = 0, inputs = 0, blocks = 0;
    const std::uint8_t *quants = nullptr;
    const std::uint16_t *scales = nullptr;

    std::int64_t tiles() const { return tiles_of(outputs); }
    std::int64_t nbytes() const {
        return static_cast<std::int64_t>(quants_bytes(packing, outputs, inputs) +
                                         2 * scales_count(packing, outputs, inputs));
    }
};

inline const half_t *halves(const std::uint16_t *p) { return reinterpret_cast<const half_t *>(p); }

#if defined(VIDETTE_AVX512)

inline __m512i four_of(const std::int8_t *p) {
    std::int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm512_set1_epi32(bytes);
}

template <int R>
inline void tile_p4(const std::uint8_t *quants, const half_t *scales, const Activations &x, std::int64_t row, Vec *y) {
    const std::int64_t blocks = x.blocks;
    const std::int8_t *a = x.values + row * blocks * kBlock;
    const float *s = x.scales + row * blocks, *sums = x.sums + row * blocks;
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    __m512 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
    for (std::int64_t b = 0; b < blocks; ++b, quants += 256, scales += 32) {
        __m512i dot[R];
        for (int r = 0; r < R; ++r) dot[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const __m512i w = _mm512_load_si512(quants + c * 64);
            const __m512i lo = _mm512_and_si512(w, nibble), hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble);
            for (int r = 0; r < R; ++r) {
                const std::int8_t *at = a + (r * blocks + b) * kBlock + c * 8;
                dot[r] = _mm512_dpbusd_epi32(dot[r], lo, four_of(at));
                dot[r] = _mm512_dpbusd_epi32(dot[r], hi, four_of(at + 4));
            }
        }
        const __m512 d = load(scales).v, m = load(scales + kTile).v;
        for (int r = 0; r < R; ++r) {
            __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot[r]));
            v = _mm512_fmadd_ps(m, _mm512_set1_ps(sums[r * blocks + b]), v);
            acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(s[r * blocks + b]), v, acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) y[r] = {acc[r]};
}

template <int R>
inline void tile_p8(const std::uint8_t *quants, const half_t *scales, const Activations &x, std::int64_t row, Vec *y) {
    const std::int64_t blocks = x.blocks;
    const std::int8_t *a = x.values + row * blocks * kBlock;
    const float *s = x.scales + row * blocks, *sums = x.sums + row * blocks;
    __m512 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
    for (std::int64_t b = 0; b < blocks; ++b, quants += 512, scales += 16) {
        __m512i dot[R];  // weights are stored with 128 added to each
        for (int r = 0; r < R; ++r)
            dot[r] = _mm512_set1_epi32(-128 * static_cast<int>(sums[r * blocks + b]));
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) {
            const __m512i w = _mm512_load_si512(quants + g * 64);
            for (int r = 0; r < R; ++r)
                dot[r] = _mm512_dpbusd_epi32(dot[r], w, four_of(a + (r * blocks + b) * kBlock + g * 4));
        }
        const __m512 d = load(scales).v;
        for (int r = 0; r < R; ++r) {
            const __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot[r]));
            acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(s[r * blocks + b]), v, acc[r]);
        }
    }
    for (int r = 0; r < R; ++r) y[r] = {acc[r]};
}

constexpr int kRows = 8;  // most rows of one pass

#elif defined(VIDETTE_AVX2)

inline __m256i four_of(const void *p) {
    std::int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// Sums are taken as they are written. GCC would do all products of a block first, and then sums, out of memory: half as
// fast.
inline void in_this_order(__m256i &sum) { asm("" : "+x"(sum)); }

template <int R>
inline void tile_p4(const std::uint8_t *quants, const half_t *scales, const Activations &x, std::int64_t row, Vec *y) {
    const std::int64_t blocks = x.blocks;
    const std::int8_t *a = x.values + row * blocks * kBlock;
    const float *s = x.scales + row * blocks, *sums = x.sums + row * blocks;
    const __m256i nibble = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
    for (int h = 0; h < 2; ++h) {
        const std::uint8_t *q = quants + h * 32;
        const half_t *sc = scales + h * 8;
        __m256 acc[R];
        for (int r = 0; r < R; ++r) acc[r] = _mm256_setzero_ps();
        for (std::int64_t b = 0; b < blocks; ++b, q += 256, sc += 32) {
            // A whole block fits 16 bits: 8 * 2 * 15 * 127 < 32768.
            __m256i dot[R];
            for (int r = 0; r < R; ++r) dot[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) {
                const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i *>(q + c * 64));
                const __m256i lo = _mm256_and_si256(w, nibble);
                const __m256i hi = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
                for (int r = 0; r < R; ++r) {
                    const std::int8_t *at = a + (r * blocks + b) * kBlock + c * 8;
                    dot[r] = _mm256_add_epi16(dot[r], _mm256_maddubs_epi16(lo, four_of(at)));
                    dot[r] = _mm256_add_epi16(dot[r], _mm256_maddubs_epi16(hi, four_of(at + 4)));
                    in_this_order(dot[r]);
                }
            }
            const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(sc)));
            const __m256 m = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(sc + kTile)));
            for (int r = 0; r < R; ++r) {
                __m256 v = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[r], ones)));
                v = _mm256_fmadd_ps(m, _mm256_set1_ps(sums[r * blocks + b]), v);
                acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(s[r * blocks + b]), v, acc[r]);
            }
        }
        for (int r = 0; r < R; ++r) (h ? y[r].hi : y[r].lo) = acc[r];
    }
}

template <int R>
inline void tile_p8(const std::uint8_t *quants, const half_t *scales, const Activations &x, std::int64_t row, Vec *y) {
    const std::int64_t blocks = x.blocks;
    const std::int16_t *a = x.wide + row * blocks * kBlock;
    const float *s = x.scales + row * blocks, *sums = x.sums + row * blocks;
    const __m256i low_byte = _mm256_set1_epi16(0x00ff);
    for (int h = 0; h < 2; ++h) {
        const std::uint8_t *q = quants + h * 32;
        const half_t *sc = scales + h * 8;
        __m256 acc[R];
        for (int r = 0; r < R; ++r) acc[r] = _mm256_setzero_ps();
        for (std::int64_t b = 0; b < blocks; ++b, q += 512, sc += 16) {
            __m256i dot[R];  // weights are stored with 128 added to each
            for (int r = 0; r < R; ++r)
                dot[r] = _mm256_set1_epi32(-128 * static_cast<int>(sums[r * blocks + b]));
#pragma GCC unroll 8
            for (int g = 0; g < 8; ++g) {
                const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i *>(q + g * 64));
                const __m256i even = _mm256_and_si256(w, low_byte), odd = _mm256_srli_epi16(w, 8);
                for (int r = 0; r < R; ++r) {
                    const std::int16_t *at = a + (r * blocks + b) * kBlock + g * 4;
                    dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(even, four_of(at)));
                    dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(odd, four_of(at + 2)));
                    in_this_order(dot[r]);
                }
            }
            const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(sc)));
            for (int r = 0; r < R; ++r) {
                const __m256 v = _mm256_mul_ps(d, _mm256_cvtepi32_ps(dot[r]));
                acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(s[r * blocks + b]), v, acc[r]);
            }
        }
        for (int r = 0; r < R; ++r) (h ? y[r].hi : y[r].lo) = acc[r];
    }
}

constexpr int kRows = 4;

#else

template <int R, class Value>
inline void tile_plainly(const half_t *scales, int scales_of_block, bool minima, const Activations &x, std::int64_t row,
                         Vec *y, Value value) {
    for (int r = 0; r < R; ++r) {
        const std::int64_t at = (row + r) * x.blocks;
        const half_t *sc = scales;
        y[r] = zero();
        for (std::int64_t b = 0; b < x.blocks; ++b, sc += scales_of_block) {
            const std::int8_t *a = x.values + (at + b) * kBlock;
            for (int j = 0; j < kTile; ++j) {
                int dot = 0;
                for (int k = 0; k < kBlock; ++k) dot += value(b, j, k) * a[k];
                float v = to_float(sc[j]) * static_cast<float>(dot);
                if (minima) v += to_float(sc[kTile + j]) * x.sums[at + b];
                y[r].v[j] += x.scales[at + b] * v;
            }
        }
    }
}

template <int R>
inline void tile_p4(const std::uint8_t *quants, const half_t *scales, const Activations &x, std::int64_t row, Vec *y) {
    tile_plainly<R>(scales, 32, true, x, row, y, [=](std::int64_t b, int j, int k) {
        const std::uint8_t both = quants[b * 256 + k / 8 * 64 + j * 4 + k % 4];
        return k % 8 < 4 ? both & 0x0f : both >> 4;
    });
}

template <int R>
inline void tile_p8(const std::uint8_t *quants, const half_t *scales, const Activations &x, std::int64_t row, Vec *y) {
    tile_plainly<R>(scales, 16, false, x, row, y, [=](std::int64_t b, int j, int k) {
        return quants[b * 512 + k / 4 * 64 + j * 4 + k % 4] - 128;
    });
}

constexpr int kRows = 4;

#endif

template <int R>
inline void tile_rows(const Matrix &w, std::int64_t tile, const Activations &x, std::int64_t row, Vec *y) {
    const std::int64_t at = tile * w.blocks;
    if (w.packing == Packing::P4)
        tile_p4<R>(w.quants + at * 256, halves(w.scales + at * 32), x, row, y);
    else
        tile_p8<R>(w.quants + at * 512, halves(w.scales + at * 16), x, row, y);
}

// Computes one tile of outputs for rows [0, rows) and hands each to put(row, Vec).
template <class Put>
inline void compute_tile(const Matrix &w, std::int64_t tile, const Activations &x, std::int64_t rows, Put &&put) {
    Vec y[kRows];
    std::int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) {
        tile_rows<kRows>(w, tile, x, row, y);
        for (int r = 0; r < kRows; ++r) put(row + r, y[r]);
    }
    const int rest = static_cast<int>(rows - row);
    switch (rest) {
        case 1: tile_rows<1>(w, tile, x, row, y); break;
        case 2: tile_rows<2>(w, tile, x, row, y); break;
        case 3: tile_rows<3>(w, tile, x, row, y); break;
#if defined(VIDETTE_AVX512)
        case 4: tile_rows<4>(w, tile, x, row, y); break;
        case 5: tile_rows<5>(w, tile, x, row, y); break;
        case 6: tile_rows<6>(w, tile, x, row, y); break;
        case 7: tile_rows<7>(w, tile, x, row, y); break;
#endif
        default: break;
    }
    for (int r = 0; r < rest; ++r) put(row + r, y[r]);
}

}  // namespace vidette

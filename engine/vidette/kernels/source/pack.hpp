// Weights from the block formats of their files to the two forms that the kernels read.
//
// A packed matrix [rows = outputs, cols = inputs] is a row of tiles of 16 outputs, a tile a row of blocks of
// 32 inputs. Rows are padded to whole tiles and columns to whole blocks, with weights of zero.
//
// P4, of 4 bits: a weight is d * q + m, q in 0..15, d and m float16 of one output and block.
//   quants: 256 bytes a block: 4 chunks of 8 inputs, 64 bytes each; byte 4 * j + i of chunk c holds output j:
//           its low half q of input 8 * c + i, its high half q of input 8 * c + 4 + i  (i in 0..3).
//   scales: 32 a block: d of each output, then m of each output.
// P8, of 8 bits: a weight is d * (u - 128), u in 1..255: u - 128 has a negative in int8.
//   quants: 512 bytes a block: 8 groups of 4 inputs, 64 bytes each; byte 4 * j + i of group g is u of output
//           j and input 4 * g + i.
//   scales: 16 a block: d of each output.
//
// Q4_0, Q4_1 and Q4_K become P4 with the very quants of the file, Q8_0 and Q5_0 become P8 the same way. The
// others are rounded to P8: d = float16(max |w| / 127), u = 128 + round(w / d), half to even. A block with
// values that are no finite numbers, or scales that leave the range of float16, gets a d that is no number:
// every logit that depends on it says so.
//
// Needs a compiler that keeps to IEEE arithmetic: no -ffast-math.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.hpp"

namespace vidette {

enum class Packing : std::int32_t { P4 = 0, P8 = 1 };

// What only this file needs.
namespace packed {

constexpr std::int64_t kTile = 16;
constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kP4Bytes = 256;
constexpr std::int64_t kP8Bytes = 512;
constexpr std::int64_t kP4Scales = 32;
constexpr std::int64_t kP8Scales = 16;

// Not a number, in float16.
constexpr std::uint16_t kHalfNan = 0x7e00;

inline std::uint32_t float_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float bits_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline float half_to_float(std::uint16_t half) { return to_float({half}); }
inline std::uint16_t float_to_half(float value) { return to_half(value).bits; }
inline bool half_is_finite(std::uint16_t half) { return (half & 0x7c00) != 0x7c00; }

inline std::int64_t tiles_of(std::int64_t rows) { return (rows + kTile - 1) / kTile; }
inline std::int64_t blocks_of(std::int64_t cols) { return (cols + kBlock - 1) / kBlock; }

// --- file types ---

inline std::uint16_t load_half(const std::uint8_t *from) {
    std::uint16_t half;
    std::memcpy(&half, from, 2);
    return half;
}

inline float load_scale(const std::uint8_t *from) { return half_to_float(load_half(from)); }

inline std::uint32_t load_word(const std::uint8_t *from) {
    std::uint32_t word;
    std::memcpy(&word, from, 4);
    return word;
}

constexpr std::uint32_t kLowHalves = 0x0f0f0f0f;

// The P4 form of 32 weights of one output: a word of each chunk.
struct Nibbles {
    std::uint32_t chunks[4];
    std::uint16_t d;
    std::uint16_t m;
};

// Bytes whose low halves are the first 16 quants, and whose high halves the others.
inline void split_halves(const std::uint8_t *bytes, Nibbles *out) {
    const std::uint32_t a = load_word(bytes), b = load_word(bytes + 4);
    const std::uint32_t c = load_word(bytes + 8), d = load_word(bytes + 12);
    out->chunks[0] = (a & kLowHalves) | ((b & kLowHalves) << 4);
    out->chunks[1] = (c & kLowHalves) | ((d & kLowHalves) << 4);
    out->chunks[2] = ((a >> 4) & kLowHalves) | (b & ~kLowHalves);
    out->chunks[3] = ((c >> 4) & kLowHalves) | (d & ~kLowHalves);
}

// Each type is a struct: `values` of them in `nbytes`, and
//   decode(block, part, out): the 32 floats of one part of a block, bit for bit those of the reference; types
//     without blocks take a number of values for the part;
//   split(block, part, out): the same part as P4, for types that become it;
//   copy(block, out, d): the same block as P8, for types that become it exactly; false if this one does not.
struct F32 {
    static constexpr std::int64_t values = 1, nbytes = 4;
    static void decode(const std::uint8_t *data, std::int64_t count, float *out) {
        std::memcpy(out, data, static_cast<std::size_t>(count) * 4);
    }
};

struct F16 {
    static constexpr std::int64_t values = 1, nbytes = 2;
    static void decode(const std::uint8_t *data, std::int64_t count, float *out) {
        std::int64_t k = 0;
#if defined(__F16C__)
        for (; k + 8 <= count; k += 8) {
            const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(data + 2 * k));
            _mm256_storeu_ps(out + k, _mm256_cvtph_ps(halves));
        }
#endif
        for (; k < count; k++) out[k] = load_scale(data + 2 * k);
    }
};

struct BF16 {
    static constexpr std::int64_t values = 1, nbytes = 2;
    static void decode(const std::uint8_t *data, std::int64_t count, float *out) {
        for (std::int64_t k = 0; k < count; k++) {
            out[k] = bits_float(static_cast<std::uint32_t>(load_half(data + 2 * k)) << 16);
        }
    }
};

struct Q4_0 {
    static constexpr std::int64_t values = 32, nbytes = 18;
    static void split(const std::uint8_t *block, std::int64_t, Nibbles *out) {
        split_halves(block + 2, out);
        out->d = load_half(block);
        out->m = float_to_half(-8.0f * half_to_float(out->d));
    }
    static void decode(const std::uint8_t *block, std::int64_t, float *out) {
        const float d = load_scale(block);
        for (int k = 0; k < 16; k++) {
            out[k] = d * static_cast<float>((block[2 + k] & 15) - 8);
            out[16 + k] = d * static_cast<float>((block[2 + k] >> 4) - 8);
        }
    }
};

struct Q4_1 {
    static constexpr std::int64_t values = 32, nbytes = 20;
    static void split(const std::uint8_t *block, std::int64_t, Nibbles *out) {
        split_halves(block + 4, out);
        out->d = load_half(block);
        out->m = load_half(block + 2);
    }
    static void decode(const std::uint8_t *block, std::int64_t, float *out) {
        const float d = load_scale(block), m = load_scale(block + 2);
        for (int k = 0; k < 16; k++) {
            out[k] = d * static_cast<float>(block[4 + k] & 15) + m;
            out[16 + k] = d * static_cast<float>(block[4 + k] >> 4) + m;
        }
    }
};

// Quants of Q5_0 and Q5_1: 4 bytes of fifth bits, then 16 of halves.
inline void fifth_bits(const std::uint8_t *bytes, std::uint8_t *out) {
    const std::uint32_t high = load_word(bytes);
    for (int k = 0; k < 16; k++) {
        out[k] = static_cast<std::uint8_t>((bytes[4 + k] & 15) | (((high >> k) & 1) << 4));
        out[16 + k] = static_cast<std::uint8_t>((bytes[4 + k] >> 4) | (((high >> (16 + k)) & 1) << 4));
    }
}

struct Q5_0 {
    static constexpr std::int64_t values = 32, nbytes = 22;
    static bool copy(const std::uint8_t *block, std::uint8_t *out, std::uint16_t *d) {
        *d = load_half(block);
        fifth_bits(block + 2, out);
        for (int k = 0; k < 32; k++) out[k] = static_cast<std::uint8_t>(out[k] + 128 - 16);
        return true;
    }
    static void decode(const std::uint8_t *block, std::int64_t, float *out) {
        const float d = load_scale(block);
        std::uint8_t quants[32];
        fifth_bits(block + 2, quants);
        for (int k = 0; k < 32; k++) out[k] = d * static_cast<float>(quants[k] - 16);
    }
};

struct Q5_1 {
    static constexpr std::int64_t values = 32, nbytes = 24;
    static void decode(const std::uint8_t *block, std::int64_t, float *out) {
        const float d = load_scale(block), m = load_scale(block + 2);
        std::uint8_t quants[32];
        fifth_bits(block + 4, quants);
        for (int k = 0; k < 32; k++) out[k] = d * static_cast<float>(quants[k]) + m;
    }
};

struct Q8_0 {
    static constexpr std::int64_t values = 32, nbytes = 34;
    // False where a quant is -128, which no writer of these files makes: such a block is rounded.
    static bool copy(const std::uint8_t *block, std::uint8_t *out, std::uint16_t *d) {
        *d = load_half(block);
        std::uint64_t zeros = 0;
        for (int k = 0; k < 32; k += 8) {
            std::uint64_t eight;
            std::memcpy(&eight, block + 2 + k, 8);
            eight ^= 0x8080808080808080u;
            zeros |= (eight - 0x0101010101010101u) & ~eight & 0x8080808080808080u;
            std::memcpy(out + k, &eight, 8);
        }
        return zeros == 0;
    }
    static void decode(const std::uint8_t *block, std::int64_t, float *out) {
        const float d = load_scale(block);
        for (int k = 0; k < 32; k++) out[k] = static_cast<float>(static_cast<std::int8_t>(block[2 + k])) * d;
    }
};

struct Q4_K {
    static constexpr std::int64_t values = 256, nbytes = 144;
    // Scale and minimum of a part, of 6 bits each: those of the first four parts lie in the low bits of bytes
    // 0-3 and 4-7, those of the last four in the halves of bytes 8-11 and the top bits of bytes 0-7.
    static void scales(const std::uint8_t *block, std::int64_t part, float *d, float *m) {
        const std::uint8_t *bytes = block + 4;
        const std::int64_t k = part & 3;
        const int scale = part < 4 ? bytes[k] & 63 : (bytes[8 + k] & 15) | ((bytes[k] >> 6) << 4);
        const int minimum = part < 4 ? bytes[4 + k] & 63 : (bytes[8 + k] >> 4) | ((bytes[4 + k] >> 6) << 4);
        *d = load_scale(block) * static_cast<float>(scale);
        *m = load_scale(block + 2) * static_cast<float>(minimum);
    }
    static void split(const std::uint8_t *block, std::int64_t part, Nibbles *out) {
        const std::uint8_t *bytes = block + 16 + (part / 2) * 32;
        const int shift = part % 2 == 0 ? 0 : 4;
        for (int c = 0; c < 4; c++) {
            const std::uint32_t low = (load_word(bytes + 8 * c) >> shift) & kLowHalves;
            const std::uint32_t high = (load_word(bytes + 8 * c + 4) >> shift) & kLowHalves;
            out->chunks[c] = low | (high << 4);
        }
        float d, m;
        scales(block, part, &d, &m);
        out->d = float_to_half(d);
        out->m = float_to_half(-m);
    }
    static void decode(const std::uint8_t *block, std::int64_t part, float *out) {
        const std::uint8_t *bytes = block + 16 + (part / 2) * 32;
        const int shift = part % 2 == 0 ? 0 : 4;
        float d, m;
        scales(block, part, &d, &m);
        for (int k = 0; k < 32; k++) out[k] = d * static_cast<float>((bytes[k] >> shift) & 15) - m;
    }
};

struct Q6_K {
    static constexpr std::int64_t values = 256, nbytes = 210;
    // Bytes: 128 of low halves, 64 of high pairs of bits, 16 scales (int8, one for 16 values), d.
    static void decode(const std::uint8_t *block, std::int64_t part, float *out) {
        const std::int64_t side = part / 4, line = part % 4;
        const std::uint8_t *low = block + 64 * side + 32 * (line % 2);
        const std::uint8_t *high = block + 128 + 32 * side;
        const int low_shift = line < 2 ? 0 : 4, high_shift = static_cast<int>(2 * line);
        const float d = load_scale(block + 208);
        for (int half = 0; half < 2; half++) {
            const auto factor = static_cast<std::int8_t>(block[192 + 2 * part + half]);
            const float scale = d * static_cast<float>(factor);
            for (int k = 16 * half; k < 16 * half + 16; k++) {
                const int quant = ((low[k] >> low_shift) & 15) | (((high[k] >> high_shift) & 3) << 4);
                out[k] = scale * static_cast<float>(quant - 32);
            }
        }
    }
};

// Calls `use` with the struct of a type, by its number in GGUF files; false: no type that we read.
template <class Use>
bool with_type(int type, Use&& use) {
    switch (type) {
        case 0: return use(F32{});
        case 1: return use(F16{});
        case 2: return use(Q4_0{});
        case 3: return use(Q4_1{});
        case 6: return use(Q5_0{});
        case 7: return use(Q5_1{});
        case 8: return use(Q8_0{});
        case 12: return use(Q4_K{});
        case 14: return use(Q6_K{});
        case 30: return use(BF16{});
        default: return false;
    }
}

template <class Source>
constexpr bool has_split = requires(Nibbles *out) { Source::split(nullptr, 0, out); };

template <class Source>
constexpr bool has_copy = requires(std::uint8_t *out, std::uint16_t *d) { Source::copy(nullptr, out, d); };

// --- tiles ---

// Rounds 32 floats to u (see P8) and returns d.
inline std::uint16_t round_block(const float *values, std::uint8_t *u) {
    // Sizes of floats order as their bits do, and whatever is not finite comes after all that is.
    std::uint32_t largest = 0;
    for (int k = 0; k < 32; k++) largest = std::max(largest, float_bits(values[k]) & 0x7fffffffu);
    const std::uint16_t half = float_to_half(bits_float(largest) / 127.0f);
    if (half == 0 || !half_is_finite(half)) {
        std::memset(u, 128, 32);
        return half == 0 ? half : kHalfNan;
    }
    const float d = half_to_float(half);
    // The last place of a float beside 1.5 * 2^23 is 1: the addition rounds, and the low bits are the result.
    // Only beside a subnormal d, itself rounded by up to a half, is there anything to clip.
    constexpr float rounder = 12582912.0f;
    std::int32_t rounded[kBlock];
    for (int k = 0; k < kBlock; k++) {
        const std::uint32_t quant = float_bits(values[k] / d + rounder) - float_bits(rounder);
        rounded[k] = std::min(std::max(static_cast<std::int32_t>(quant), -127), 127);
    }
    for (int k = 0; k < kBlock; k++) u[k] = static_cast<std::uint8_t>(rounded[k] + 128);
    return half;
}

// Packs the first `count` outputs of a tile to P4; what the others are is written already.
template <class Source>
void pack_p4(const std::uint8_t *data, std::int64_t row_bytes, std::int64_t count, std::int64_t blocks,
             std::uint8_t *quants, std::uint16_t *scales) {
    constexpr std::int64_t parts = Source::values / kBlock;
    for (std::int64_t b = 0; b < blocks; b++) {
        const std::uint8_t *block = data + b / parts * Source::nbytes;
        for (std::int64_t j = 0; j < count; j++) {
            Nibbles nibbles;
            Source::split(block + j * row_bytes, b % parts, &nibbles);
            if (!half_is_finite(nibbles.d) || !half_is_finite(nibbles.m)) {
                nibbles.d = kHalfNan;
                nibbles.m = kHalfNan;
            }
            for (std::int64_t c = 0; c < 4; c++) std::memcpy(quants + 64 * c + 4 * j, &nibbles.chunks[c], 4);
            scales[j] = nibbles.d;
            scales[kTile + j] = nibbles.m;
        }
        quants += kP4Bytes;
        scales += kP4Scales;
    }
}

// The 32 values of block b of a row; beyond its end they are zero.
template <class Source>
void decode_block(const std::uint8_t *row, std::int64_t b, std::int64_t cols, float *out) {
    if constexpr (Source::values == 1) {
        const std::int64_t first = b * kBlock, count = std::min(kBlock, cols - first);
        const std::uint8_t *from = row + first * Source::nbytes;
        if (count == kBlock) return Source::decode(from, kBlock, out);
        std::fill(out + count, out + kBlock, 0.0f);
        Source::decode(from, count, out);
    } else {
        constexpr std::int64_t parts = Source::values / kBlock;
        Source::decode(row + b / parts * Source::nbytes, b % parts, out);
    }
}

// Packs the first `count` outputs of a tile to P8; what the others are is written already. With `rounded`,
// types that could be copied are rounded as well.
template <class Source>
void pack_p8(const std::uint8_t *data, std::int64_t row_bytes, std::int64_t count, std::int64_t cols,
             bool rounded, std::uint8_t *quants, std::uint16_t *scales) {
    for (std::int64_t b = 0; b < blocks_of(cols); b++) {
        for (std::int64_t j = 0; j < count; j++) {
            const std::uint8_t *row = data + j * row_bytes;
            std::uint8_t u[kBlock];
            std::uint16_t d = 0;
            bool exact = false;
            if constexpr (has_copy<Source>) {
                if (!rounded) exact = Source::copy(row + b * Source::nbytes, u, &d);
            }
            if (!exact) {
                float values[kBlock];
                decode_block<Source>(row, b, cols, values);
                d = round_block(values, u);
            }
            for (std::int64_t g = 0; g < 8; g++) std::memcpy(quants + 64 * g + 4 * j, u + 4 * g, 4);
            scales[j] = half_is_finite(d) ? d : kHalfNan;
        }
        quants += kP8Bytes;
        scales += kP8Scales;
    }
}

}  // namespace packed

// What a type becomes unless it is forced to P8; false: no type that we read.
inline bool packing_of(int type, Packing *packing) {
    return packed::with_type(type, [&]<class Source>(Source) {
        *packing = packed::has_split<Source> ? Packing::P4 : Packing::P8;
        return true;
    });
}

inline std::size_t quants_bytes(Packing packing, std::int64_t rows, std::int64_t cols) {
    const std::int64_t block = packing == Packing::P4 ? packed::kP4Bytes : packed::kP8Bytes;
    return static_cast<std::size_t>(packed::tiles_of(rows) * packed::blocks_of(cols) * block);
}

inline std::size_t scales_count(Packing packing, std::int64_t rows, std::int64_t cols) {
    const std::int64_t block = packing == Packing::P4 ? packed::kP4Scales : packed::kP8Scales;
    return static_cast<std::size_t>(packed::tiles_of(rows) * packed::blocks_of(cols) * block);
}

// Packs tiles [first_tile, last_tile) of a matrix; threads may share the tiles of one.
//
// `data` is the whole matrix, row after row, of any alignment; `quants` and `scales` are the whole results,
// of quants_bytes and scales_count. With force_p8 every type is rounded to P8. Returns false, and writes
// nothing, for an unknown type, sizes below 0, columns that are no whole blocks of the file, or tiles that
// the matrix does not have.
inline bool pack_tiles(int type, const std::uint8_t *data, std::int64_t rows, std::int64_t cols,
                       bool force_p8, std::int64_t first_tile, std::int64_t last_tile, std::uint8_t *quants,
                       std::uint16_t *scales) {
    if (rows < 0 || cols < 0 || first_tile < 0 || last_tile > packed::tiles_of(rows)) return false;
    return packed::with_type(type, [&]<class Source>(Source) {
        if (cols % Source::values != 0) return false;
        const std::int64_t row_bytes = cols / Source::values * Source::nbytes;
        for (std::int64_t tile = first_tile; tile < last_tile; tile++) {
            const std::int64_t row = tile * packed::kTile, count = std::min(packed::kTile, rows - row);
            const std::uint8_t *tile_data = data + row * row_bytes;
            const std::int64_t blocks = packed::blocks_of(cols), block = tile * blocks;
            if constexpr (packed::has_split<Source>) {
                if (!force_p8) {
                    std::uint8_t *to = quants + block * packed::kP4Bytes;
                    std::uint16_t *to_scales = scales + block * packed::kP4Scales;
                    if (count < packed::kTile) {
                        std::memset(to, 0, static_cast<std::size_t>(blocks * packed::kP4Bytes));
                        std::fill(to_scales, to_scales + blocks * packed::kP4Scales, std::uint16_t{0});
                    }
                    packed::pack_p4<Source>(tile_data, row_bytes, count, blocks, to, to_scales);
                    continue;
                }
            }
            std::uint8_t *to = quants + block * packed::kP8Bytes;
            std::uint16_t *to_scales = scales + block * packed::kP8Scales;
            if (count < packed::kTile) {
                std::memset(to, 128, static_cast<std::size_t>(blocks * packed::kP8Bytes));
                std::fill(to_scales, to_scales + blocks * packed::kP8Scales, std::uint16_t{0});
            }
            packed::pack_p8<Source>(tile_data, row_bytes, count, cols, force_p8, to, to_scales);
        }
        return true;
    });
}

// Writes the float32 values [cols] of one row of a packed matrix.
inline void unpack_row(Packing packing, const std::uint8_t *quants, const std::uint16_t *scales,
                       std::int64_t cols, std::int64_t row, float *out) {
    const std::int64_t blocks = packed::blocks_of(cols);
    const std::int64_t first = row / packed::kTile * blocks, j = row % packed::kTile;
    for (std::int64_t b = 0; b < blocks; b++) {
        float values[packed::kBlock];
        if (packing == Packing::P4) {
            const std::uint8_t *block = quants + (first + b) * packed::kP4Bytes + 4 * j;
            const std::uint16_t *of_block = scales + (first + b) * packed::kP4Scales + j;
            const float d = packed::half_to_float(of_block[0]);
            const float m = packed::half_to_float(of_block[packed::kTile]);
            for (int c = 0; c < 4; c++) {
                for (int i = 0; i < 4; i++) {
                    values[8 * c + i] = d * static_cast<float>(block[64 * c + i] & 15) + m;
                    values[8 * c + 4 + i] = d * static_cast<float>(block[64 * c + i] >> 4) + m;
                }
            }
        } else {
            const std::uint8_t *block = quants + (first + b) * packed::kP8Bytes + 4 * j;
            const float d = packed::half_to_float(scales[(first + b) * packed::kP8Scales + j]);
            for (int g = 0; g < 8; g++) {
                for (int i = 0; i < 4; i++) {
                    values[4 * g + i] = d * static_cast<float>(block[64 * g + i] - 128);
                }
            }
        }
        const std::int64_t count = std::min(packed::kBlock, cols - b * packed::kBlock);
        std::memcpy(out + b * packed::kBlock, values, static_cast<std::size_t>(count) * 4);
    }
}

}  // namespace vidette

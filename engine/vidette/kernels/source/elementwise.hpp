// What happens to one row at a time: norms, rotation, gates. Lengths are padded to whole blocks with zeros.
#pragma once

#include "linear.hpp"
#include "vec.hpp"

namespace vidette {

enum class Activation { kSilu = 0, kGeluTanh = 1 };

// 1 / sqrt(mean(x^2) + epsilon) over the first `size` values of x; those after it, to a multiple of 16, are zeros.
inline float norm_factor(const float *x, std::int64_t size, float epsilon) {
    Vec squares = zero();
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const Vec v = load(x + i);
        squares = fma(v, v, squares);
    }
    if (i < size) {
        float tail[kLanes] = {};
        std::memcpy(tail, x + i, (size - i) * sizeof(float));
        const Vec v = load(tail);
        squares = fma(v, v, squares);
    }
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon);
}

// y = x * factor * weight. All three may be padded, and y may be x.
inline void norm_row(const float *x, const float *weight, std::int64_t size, float epsilon, float *y) {
    const float factor = norm_factor(x, size, epsilon);
    const Vec times = all(factor);
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(y + i, load(x + i) * times * load(weight + i));
    for (; i < size; ++i) y[i] = x[i] * factor * weight[i];
}

// Quantises a row that is padded with zeros to whole blocks.
inline void quantize_row(const float *x, const Activations &to, std::int64_t row) {
    for (std::int64_t b = 0; b < to.blocks; ++b) quantize_block(x + b * kBlock, to, row, b);
}

// The same of a normed row, which is written nowhere else; x and weight are padded with zeros.
inline void quantize_normed_row(const float *x, const float *weight, std::int64_t size, float epsilon,
                                const Activations &to, std::int64_t row) {
    const Vec times = all(norm_factor(x, size, epsilon));
    for (std::int64_t b = 0; b < to.blocks; ++b) {
        float normed[kBlock];
        for (int i = 0; i < kBlock; i += kLanes) {
            const std::int64_t at = b * kBlock + i;
            store(normed + i, load(x + at) * times * load(weight + at));
        }
        quantize_block(normed, to, row, b);
    }
}

// cos and sin of position * frequency, size = head_dim / 2.
inline void fill_rotation(float position, const float *frequencies, std::int64_t size, float *cosines, float *sines) {
    for (std::int64_t i = 0; i < size; ++i) {
        const float angle = position * frequencies[i];
        cosines[i] = std::cos(angle);
        sines[i] = std::sin(angle);
    }
}

// Rotates a head in place: pairs are neighbours, or half a head apart.
inline void rotate(float *x, std::int64_t head_dim, const float *cosines, const float *sines, bool interleaved) {
    const std::int64_t half = head_dim / 2;
    for (std::int64_t i = 0; i < half; ++i) {
        float &a = interleaved ? x[2 * i] : x[i], &b = interleaved ? x[2 * i + 1] : x[i + half];
        const float turned = a * cosines[i] - b * sines[i];
        b = a * sines[i] + b * cosines[i];
        a = turned;
    }
}

inline Vec activate(Activation kind, Vec x) {
    // x / (1 + e^-2z) is x/2 * (1 + tanh(z)): z = x/2 for SiLU, sqrt(2/pi) * (x + 0.044715 x^3) for GELU.
    const Vec z = all(0.7978845608f) * fma(all(0.044715f) * x * x, x, x);
    const Vec twice = kind == Activation::kSilu ? x : z + z;
    return zero_where_below(x / (all(1.0f) + exp(-twice)), x, all(-87.0f));
}

inline Vec soften(Vec x, float cap) { return all(cap) * tanh(x / all(cap)); }

}  // namespace vidette

// Attention over a paged pool of float16 keys and values, for the decode of one token and for chunks of a prompt alike.
//
// A query walks over its context in tiles of 64 positions from position 0 on, with the running maximum and sum of an
// online softmax (Milakov and Gimelshein, 2018). Where tiles begin depends on positions alone, and each query's
// numbers are added in the order of positions, so its bits do not depend on which other queries are computed with it.
//
// Per block of 16 tokens and layer the pool holds keys as [kv_head][head_dim][16 tokens], so that 16 scores are computed
// at once, then values as [kv_head][16 tokens][head_dim].
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "elementwise.hpp"
#include "vec.hpp"

namespace vidette {

constexpr int kBlockTokens = 16;
constexpr int kTileBlocks = 4;
constexpr int kTileTokens = kTileBlocks * kBlockTokens;
constexpr int kMaxQueries = 64;  // of one piece of work
#if defined(VIDETTE_AVX512)
constexpr int kScoreBlocks = 4, kMixVecs = 4;
#else
constexpr int kScoreBlocks = 1, kMixVecs = 1;
#endif
constexpr int kQueriesAtOnce = 4;

struct AttentionShape {
    std::int64_t heads, kv_heads, head_dim;
    float scale, softcap;  // softcap 0: none
    int window;            // 0: all

    std::int64_t group() const { return heads / kv_heads; }
    std::int64_t block_values() const { return kv_heads * kBlockTokens * head_dim; }  // of keys, or of values
    // Tokens of a row whose queries are computed together.
    std::int64_t piece_tokens() const { return std::max<std::int64_t>(1, 48 / group()); }
};

// Some tokens of one row, neighbours, and what they see.
struct AttentionPiece {
    std::int64_t first, last;     // tokens of the step
    std::int32_t position;        // of the first
    const std::int32_t *table;    // blocks of the row
};

inline std::size_t attention_scratch_floats(std::int64_t head_dim) {
    return static_cast<std::size_t>(2 * kMaxQueries * head_dim + kMaxQueries * (kTileTokens + 4) +
                                    2 * kTileTokens * head_dim);
}

// Puts a token's key and value of one head into the pool.
inline void write_to_pool(half_t *pool, const AttentionShape &shape, std::int32_t block, int slot, std::int64_t kv_head,
                          const float *key, const float *value) {
    half_t *keys = pool + block * 2 * shape.block_values() + kv_head * shape.head_dim * kBlockTokens;
    half_t *values = keys + shape.block_values() + slot * shape.head_dim;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) keys[d * kBlockTokens + slot] = to_half(key[d]);
    for (std::int64_t d = 0; d < shape.head_dim; d += kLanes) store(values + d, load(value + d));
}

// Scores of Q queries against B blocks of keys.
template <int Q, int B, class T>
inline void score(const float *q, std::int64_t head_dim, const T *const *keys, float *scores) {
    Vec acc[Q][B];
    for (int i = 0; i < Q; ++i)
        for (int b = 0; b < B; ++b) acc[i][b] = zero();
    for (std::int64_t d = 0; d < head_dim; ++d) {
        Vec k[B];
        for (int b = 0; b < B; ++b) k[b] = load(keys[b] + d * kBlockTokens);
        for (int i = 0; i < Q; ++i) {
            const Vec x = all(q[i * head_dim + d]);
            for (int b = 0; b < B; ++b) acc[i][b] = fma(x, k[b], acc[i][b]);
        }
    }
    for (int i = 0; i < Q; ++i)
        for (int b = 0; b < B; ++b) store(scores + i * kTileTokens + b * kBlockTokens, acc[i][b]);
}

template <int Q, class T>
inline void score_tile(const float *q, std::int64_t head_dim, const T *const *keys, int blocks, float *scores) {
    int b = 0;
    for (; b + kScoreBlocks <= blocks; b += kScoreBlocks)
        score<Q, kScoreBlocks>(q, head_dim, keys + b, scores + b * kBlockTokens);
    for (; b < blocks; ++b) score<Q, 1>(q, head_dim, keys + b, scores + b * kBlockTokens);
}

// mixed = mixed * keep + weights times values of tokens [first, last), for Q queries and N vectors of the head from
// value d on.
template <int Q, int N, class T>
inline void mix(const float *weights, const float *keep, const T *const *values, int first, int last,
                std::int64_t head_dim, std::int64_t d, float *mixed) {
    Vec acc[Q][N];
    for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = load(mixed + i * head_dim + d + n * kLanes) * all(keep[i]);
    for (int t = first; t < last; ++t) {
        const T *at = values[t / kBlockTokens] + t % kBlockTokens * head_dim + d;
        Vec v[N];
        for (int n = 0; n < N; ++n) v[n] = load(at + n * kLanes);
        for (int i = 0; i < Q; ++i) {
            const Vec w = all(weights[i * kTileTokens + t]);
            for (int n = 0; n < N; ++n) acc[i][n] = fma(w, v[n], acc[i][n]);
        }
    }
    for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) store(mixed + i * head_dim + d + n * kLanes, acc[i][n]);
}

// The same for the whole head; then nothing more is to be kept.
template <int Q, class T>
inline void mix_head(const float *weights, float *keep, const T *const *values, int first, int last,
                     std::int64_t head_dim, float *mixed) {
    std::int64_t d = 0;
    for (; d + kMixVecs * kLanes <= head_dim; d += kMixVecs * kLanes)
        mix<Q, kMixVecs>(weights, keep, values, first, last, head_dim, d, mixed);
    for (; d < head_dim; d += kLanes) mix<Q, 1>(weights, keep, values, first, last, head_dim, d, mixed);
    std::fill_n(keep, Q, 1.0f);
}

// The same for a tile of which each query sees [low, high): what all of them see together, the rest one by one, so that
// a value which a query does not see has no part in it even if it is infinite.
template <int Q, class T>
inline void mix_tile(const float *weights, float *keep, const T *const *values, const int *low, const int *high,
                     std::int64_t head_dim, float *mixed) {
    const int first = *std::max_element(low, low + Q), last = std::max(first, *std::min_element(high, high + Q));
    const auto alone = [&](int i, int from, int to) {
        if (from < to)
            mix_head<1>(weights + i * kTileTokens, keep + i, values, from, to, head_dim, mixed + i * head_dim);
    };
    for (int i = 0; i < Q; ++i) alone(i, low[i], std::min(first, high[i]));
    mix_head<Q>(weights, keep, values, first, last, head_dim, mixed);
    for (int i = 0; i < Q; ++i) alone(i, last, high[i]);
}

// Calls f with the number of queries as a constant, four at a time.
template <class F>
inline void by_fours(std::int64_t queries, F &&f) {
    std::int64_t i = 0;
    for (; i + kQueriesAtOnce <= queries; i += kQueriesAtOnce) f(std::integral_constant<int, kQueriesAtOnce>{}, i);
    switch (queries - i) {
        case 1: f(std::integral_constant<int, 1>{}, i); break;
        case 2: f(std::integral_constant<int, 2>{}, i); break;
        case 3: f(std::integral_constant<int, 3>{}, i); break;
        default: break;
    }
}

// The softmax of one query goes on with one tile: scores become weights, for positions [low, high) of the tile.
inline void soften_tile(float *scores, int low, int high, float softcap, float &most, float &total, float &keep) {
    if (low >= high) {  // sees nothing of it
        keep = 1.0f;
        return;
    }
    Vec s[kTileBlocks], top = all(-kInfinity);
    for (int b = 0; b < kTileBlocks; ++b) {
        s[b] = load(scores + b * kBlockTokens);
        if (softcap > 0.0f) s[b] = soften(s[b], softcap);
        s[b] = between(s[b], low - b * kBlockTokens, high - b * kBlockTokens, all(-kInfinity));
        top = max(top, s[b]);
    }
    const float here = largest(top);
    const float now = here > most ? here : most;
    float lanes[kLanes];
    store(lanes, exp(all(most - now)));
    keep = lanes[0];
    most = now;
    Vec sums = zero();
    for (int b = 0; b < kTileBlocks; ++b) {
        const Vec weight = exp(s[b] - all(now));
        store(scores + b * kBlockTokens, weight);
        sums = sums + weight;
    }
    total = total * keep + sum(sums);
}

// One key-value head of one piece. `q` is [tokens, q_stride], heads side by side; so is `out`.
inline void attend(const AttentionShape &shape, const AttentionPiece &piece, std::int64_t kv_head, const half_t *pool,
                   const float *q, std::int64_t q_stride, float *out, std::int64_t out_stride, float *scratch) {
    const std::int64_t group = shape.group(), dim = shape.head_dim, tokens = piece.last - piece.first;
    const std::int64_t queries = tokens * group;
    float *own = scratch, *mixed = own + kMaxQueries * dim, *scores = mixed + kMaxQueries * dim;
    float *most = scores + kMaxQueries * kTileTokens, *total = most + kMaxQueries, *keep = total + kMaxQueries;
    float *keys32 = keep + 2 * kMaxQueries, *values32 = keys32 + kTileTokens * dim;

    const Vec scale = all(shape.scale);
    for (std::int64_t i = 0; i < queries; ++i) {
        const float *from = q + (piece.first + i / group) * q_stride + (kv_head * group + i % group) * dim;
        for (std::int64_t d = 0; d < dim; d += kLanes) {
            store(own + i * dim + d, load(from + d) * scale);
            store(mixed + i * dim + d, zero());
        }
        most[i] = -kInfinity;
        total[i] = 0.0f;
    }

    const std::int64_t end = piece.position + tokens;  // of the context that any of them sees
    const std::int64_t begin = shape.window ? std::max<std::int64_t>(0, piece.position + 1 - shape.window) : 0;
    const bool convert = queries > kQueriesAtOnce;  // or else every value is read once anyway
    const std::int64_t head_values = kBlockTokens * dim;
    for (std::int64_t start = begin / kTileTokens * kTileTokens; start < end; start += kTileTokens) {
        const int seen = static_cast<int>(std::min<std::int64_t>(kTileTokens, end - start));
        const int blocks = (seen + kBlockTokens - 1) / kBlockTokens;
        const half_t *keys[kTileBlocks], *values[kTileBlocks];
        const float *wide_keys[kTileBlocks], *wide_values[kTileBlocks];
        for (int b = 0; b < blocks; ++b) {
            const std::int64_t block = piece.table[start / kBlockTokens + b];
            keys[b] = pool + block * 2 * shape.block_values() + kv_head * head_values;
            values[b] = keys[b] + shape.block_values();
            if (!convert) continue;
            wide_keys[b] = keys32 + b * head_values;
            wide_values[b] = values32 + b * head_values;
            for (std::int64_t i = 0; i < head_values; i += kLanes) {
                store(keys32 + b * head_values + i, load(keys[b] + i));
                store(values32 + b * head_values + i, load(values[b] + i));
            }
        }
        by_fours(queries, [&](auto count, std::int64_t i) {
            constexpr int Q = decltype(count)::value;
            const std::int64_t latest = piece.position + (i + Q - 1) / group;
            if (latest < start) return;
            if (convert)
                score_tile<Q>(own + i * dim, dim, wide_keys, blocks, scores + i * kTileTokens);
            else
                score_tile<Q>(own + i * dim, dim, keys, blocks, scores + i * kTileTokens);
            int low[Q], high[Q];
            for (int n = 0; n < Q; ++n) {
                const std::int64_t j = i + n;
                const std::int64_t position = piece.position + j / group;
                const std::int64_t from = shape.window ? position + 1 - shape.window : 0;
                low[n] = static_cast<int>(std::clamp<std::int64_t>(from - start, 0, kTileTokens));
                high[n] = static_cast<int>(std::clamp<std::int64_t>(position + 1 - start, 0, seen));
                soften_tile(scores + j * kTileTokens, low[n], high[n], shape.softcap, most[j], total[j], keep[j]);
            }
            if (convert)
                mix_tile<Q>(scores + i * kTileTokens, keep + i, wide_values, low, high, dim, mixed + i * dim);
            else
                mix_tile<Q>(scores + i * kTileTokens, keep + i, values, low, high, dim, mixed + i * dim);
        });
    }

    for (std::int64_t i = 0; i < queries; ++i) {
        float *to = out + (piece.first + i / group) * out_stride + (kv_head * group + i % group) * dim;
        const Vec divisor = all(total[i]);
        for (std::int64_t d = 0; d < dim; d += kLanes) store(to + d, load(mixed + i * dim + d) / divisor);
    }
}

}  // namespace vidette

// The native kernels, as C: one translation unit, compiled for the machine at hand.
//
// `library.py` is the other side of every declaration here; a change of one of them raises the ABI's number.
// Functions that return int32 return 0 for success.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "attention.hpp"
#include "best.hpp"
#include "decoder.hpp"
#include "elementwise.hpp"
#include "linear.hpp"
#include "pack.hpp"
#include "threads.hpp"
#include "vec.hpp"

#define VIDETTE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace vidette;

VIDETTE_EXPORT std::int32_t vidette_kernels_abi() { return 2; }
VIDETTE_EXPORT const char *vidette_kernels_isa() { return kInstructions; }

// --- a decoder ----------------------------------------------------------------------------

VIDETTE_EXPORT Decoder *vidette_open(const Shape *shape, const float *frequencies, const std::int32_t *rope_kinds,
                                     const std::int32_t *windows) {
    return Decoder::open(*shape, frequencies, rope_kinds, windows);
}

VIDETTE_EXPORT void vidette_close(Decoder *decoder) { delete decoder; }

VIDETTE_EXPORT std::int32_t vidette_set_layer_matrix(Decoder *decoder, std::int64_t layer, std::int32_t role,
                                                     std::int32_t type, const void *data, std::int64_t rows,
                                                     std::int64_t cols, std::int32_t force_p8) {
    return decoder->set_layer_matrix(layer, role, type, data, rows, cols, force_p8) ? 0 : 1;
}

VIDETTE_EXPORT std::int32_t vidette_set_layer_vector(Decoder *decoder, std::int64_t layer, std::int32_t role,
                                                     const float *data, std::int64_t size) {
    return decoder->set_layer_vector(layer, role, data, size) ? 0 : 1;
}

VIDETTE_EXPORT std::int32_t vidette_set_embedding(Decoder *decoder, std::int32_t type, const void *data,
                                                  std::int64_t rows, std::int64_t cols, std::int32_t force_p8) {
    return decoder->set_embedding(type, data, rows, cols, force_p8) ? 0 : 1;
}

VIDETTE_EXPORT std::int32_t vidette_set_head(Decoder *decoder, std::int32_t type, const void *data, std::int64_t rows,
                                             std::int64_t cols, std::int32_t force_p8) {
    return decoder->set_head(type, data, rows, cols, force_p8) ? 0 : 1;
}

VIDETTE_EXPORT std::int32_t vidette_set_norm(Decoder *decoder, const float *data) {
    return decoder->set_norm(data) ? 0 : 1;
}

VIDETTE_EXPORT void vidette_set_pool(Decoder *decoder, void *pool, std::int64_t num_blocks) {
    decoder->set_pool(static_cast<half_t *>(pool), num_blocks);
}

VIDETTE_EXPORT std::int32_t vidette_step(Decoder *decoder, const Step *step, float *logits, std::int64_t *best) {
    return decoder->step(*step, logits, best);
}

VIDETTE_EXPORT std::int64_t vidette_weight_bytes(const Decoder *decoder) { return decoder->weight_bytes(); }

// Begins to measure phases, from zero.
VIDETTE_EXPORT void vidette_profile(Decoder *decoder, std::int32_t on) { decoder->clock() = Clock(on != 0); }

// The seconds of each phase since then; returns how many phases there are.
VIDETTE_EXPORT std::int32_t vidette_profiled(Decoder *decoder, double *spent) {
    std::copy_n(decoder->clock().spent(), kPhases, spent);
    return kPhases;
}

// --- the machine --------------------------------------------------------------------------

// Bytes read in a second by so many threads.
VIDETTE_EXPORT double vidette_read_bandwidth(const void *data, std::int64_t nbytes, std::int32_t threads) {
    Team team(threads, 1);
    const auto *words = static_cast<const float *>(data);
    float sinks[kMaxThreads] = {};
    const std::int64_t count = nbytes / static_cast<std::int64_t>(sizeof(float)), piece = 1 << 16;
    double best = 0;
    for (int round = 0; round < 3; ++round) {
        const double start = seconds();
        team.run([&](Member &member) {
            member.share(count / piece, 1, [&](std::int64_t first, std::int64_t last) {
                Vec sums[4] = {zero(), zero(), zero(), zero()};
                for (std::int64_t i = first * piece; i < last * piece; i += 4 * kLanes)
                    for (int k = 0; k < 4; ++k) sums[k] = sums[k] + load(words + i + k * kLanes);
                sinks[member.number()] += sum(sums[0] + sums[1] + sums[2] + sums[3]);
            });
        });
        best = std::max(best, static_cast<double>(nbytes) / (seconds() - start));
    }
    volatile float kept = sinks[0];  // or nothing would be read
    (void)kept;
    return best;
}

// --- single kernels, for tests -------------------------------------------------------------

VIDETTE_EXPORT std::int32_t vidette_pack(std::int32_t type, const void *data, std::int64_t rows, std::int64_t cols,
                                         std::int32_t force_p8, void *quants, std::uint16_t *scales) {
    return pack_tiles(type, static_cast<const std::uint8_t *>(data), rows, cols, force_p8, 0, tiles_of(rows),
                      static_cast<std::uint8_t *>(quants), scales)
               ? 0
               : 1;
}

VIDETTE_EXPORT std::int32_t vidette_test_linear(std::int32_t packing, const void *quants, const std::uint16_t *scales,
                                                std::int64_t rows, std::int64_t cols, const float *x, std::int64_t n,
                                                float *y, std::int32_t threads) {
    Arena arena;
    Team team(threads, 1);
    Matrix w{static_cast<Packing>(packing), rows, cols, blocks_of(cols), nullptr, scales};
    const std::size_t size = quants_bytes(w.packing, rows, cols);
    auto *aligned = arena.take_array<std::uint8_t>(static_cast<std::int64_t>(size));
    auto *memory = arena.take_array<std::uint8_t>(static_cast<std::int64_t>(activation_bytes(w.blocks)) * n);
    auto *padded = arena.take_array<float>(w.blocks * kBlock);
    if (!aligned || !memory || !padded) return 1;
    std::memcpy(aligned, quants, size);
    w.quants = aligned;
    const Activations a = lay_out_activations(memory, n, w.blocks);
    for (std::int64_t row = 0; row < n; ++row) {
        std::copy_n(x + row * cols, cols, padded);
        quantize_row(padded, a, row);
    }
    team.run([&](Member &member) {
        member.share(w.tiles(), 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t tile = first; tile < last; ++tile)
                compute_tile(w, tile, a, n, [&](std::int64_t row, Vec v) {
                    const std::int64_t left = rows - tile * kTile;
                    store_first(y + row * rows + tile * kTile, v, static_cast<int>(std::min<std::int64_t>(kTile, left)));
                });
        });
    });
    return 0;
}

VIDETTE_EXPORT std::int32_t vidette_test_best(const float *logits, std::int64_t rows, std::int64_t vocab,
                                              std::int64_t *tokens, std::int32_t threads) {
    Arena arena;
    Bests best;
    Team team(threads, 1);
    if (!best.reserve(arena, team.size(), rows)) return 1;
    best.clear(rows);
    team.run([&](Member &member) {
        Best *own = best.of(member.number());
        member.share(tiles_of(vocab), 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t tile = first; tile < last; ++tile)
                for (std::int64_t row = 0; row < rows; ++row) {
                    float lanes[kTile] = {};  // as a product has zeros behind the last output
                    const std::int64_t at = tile * kTile, count = std::min<std::int64_t>(kTile, vocab - at);
                    std::copy_n(logits + row * vocab + at, count, lanes);
                    own[row].see(load(lanes), at, static_cast<int>(count));
                }
        });
    });
    best.write(rows, tokens);
    return 0;
}

struct AttentionArguments {
    std::int32_t num_heads, num_kv_heads, head_dim, window;
    float scale, softcap;
    std::int32_t rows, tokens, blocks_per_row, num_blocks, threads, reserved;
    const float *q, *k, *v;
    const std::int32_t *positions, *row_starts, *block_tables;
    std::uint16_t *pool;
    float *out;
};

VIDETTE_EXPORT std::int32_t vidette_test_attention(const AttentionArguments *arguments) {
    const AttentionArguments &a = *arguments;
    const AttentionShape shape{a.num_heads, a.num_kv_heads, a.head_dim, a.scale, a.softcap, a.window};
    half_t *pool = reinterpret_cast<half_t *>(a.pool);
    Arena arena;
    Team team(a.threads, 1);
    float *scratch[kMaxThreads];
    for (int i = 0; i < team.size(); ++i) {
        scratch[i] = arena.take_array<float>(static_cast<std::int64_t>(attention_scratch_floats(a.head_dim)));
        if (!scratch[i]) return 1;
    }
    auto *pieces = arena.take_array<AttentionPiece>(a.tokens);
    if (!pieces) return 1;
    std::int64_t count = 0;
    for (std::int32_t row = 0; row < a.rows; ++row) {
        const std::int32_t *table = a.block_tables + static_cast<std::int64_t>(row) * a.blocks_per_row;
        for (std::int64_t t = a.row_starts[row]; t < a.row_starts[row + 1]; ++t)
            for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
                const std::int64_t at = (t * shape.kv_heads + head) * shape.head_dim;
                write_to_pool(pool, shape, table[a.positions[t] / kBlockTokens], a.positions[t] % kBlockTokens, head,
                              a.k + at, a.v + at);
            }
        for (std::int64_t t = a.row_starts[row]; t < a.row_starts[row + 1]; t += shape.piece_tokens())
            pieces[count++] = {t, std::min<std::int64_t>(t + shape.piece_tokens(), a.row_starts[row + 1]), a.positions[t],
                               table};
    }
    const std::int64_t stride = shape.heads * shape.head_dim;
    team.run([&](Member &member) {
        member.share(count * shape.kv_heads, 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t i = first; i < last; ++i)
                attend(shape, pieces[i / shape.kv_heads], i % shape.kv_heads, pool, a.q, stride, a.out, stride,
                       scratch[member.number()]);
        });
    });
    return 0;
}

VIDETTE_EXPORT std::int32_t vidette_test_norm(const float *x, const float *weight, std::int64_t n, std::int64_t size,
                                              float epsilon, float *y) {
    for (std::int64_t row = 0; row < n; ++row) norm_row(x + row * size, weight, size, epsilon, y + row * size);
    return 0;
}

VIDETTE_EXPORT std::int32_t vidette_test_rotate(float *x, const std::int32_t *positions, const float *frequencies,
                                                std::int64_t n, std::int64_t heads, std::int64_t head_dim,
                                                std::int32_t interleaved) {
    Arena arena;
    float *cosines = arena.take_array<float>(head_dim), *sines = cosines + head_dim / 2;
    if (!cosines) return 1;
    for (std::int64_t t = 0; t < n; ++t) {
        fill_rotation(static_cast<float>(positions[t]), frequencies, head_dim / 2, cosines, sines);
        for (std::int64_t head = 0; head < heads; ++head)
            rotate(x + (t * heads + head) * head_dim, head_dim, cosines, sines, interleaved);
    }
    return 0;
}

// Calls f(values, to) for each sixteen of n values; what is over is padded with zeros.
template <class F>
static void by_lanes(std::int64_t n, F &&f) {
    for (std::int64_t i = 0; i < n; i += kLanes) f(i, static_cast<int>(std::min<std::int64_t>(kLanes, n - i)));
}

static Vec load_first(const float *p, int n) {
    float lanes[kLanes] = {};
    std::copy_n(p, n, lanes);
    return load(lanes);
}

VIDETTE_EXPORT std::int32_t vidette_test_gate(const float *gate, const float *up, std::int64_t n, std::int32_t activation,
                                              float *y) {
    by_lanes(n, [&](std::int64_t i, int count) {
        const Vec value = activate(static_cast<Activation>(activation), load_first(gate + i, count));
        store_first(y + i, value * load_first(up + i, count), count);
    });
    return 0;
}

VIDETTE_EXPORT std::int32_t vidette_test_exp(const float *x, std::int64_t n, float *y) {
    by_lanes(n, [&](std::int64_t i, int count) { store_first(y + i, exp(load_first(x + i, count)), count); });
    return 0;
}

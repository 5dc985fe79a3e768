// One step of a decoder: all rows and all layers in one call, by all threads of a team.
//
// With fewer tokens than threads the small phases are not shared: each member does them for itself, which is quicker than
// to wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "attention.hpp"
#include "best.hpp"
#include "elementwise.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "threads.hpp"

namespace vidette {

// --- what is computed -------------------------------------------------------------------

struct Shape {
    std::int64_t num_layers, hidden_size, ffn_size, num_heads, num_kv_heads, head_dim, vocab_size, rope_kinds;
    std::int32_t activation, interleaved_rope, threads, reserved;
    float norm_epsilon, query_scale, embedding_scale, attention_softcap, logit_softcap;
};

// Matrices and vectors of a layer, by number; `library.py` has the same.
enum Role : std::int32_t {
    kQuery, kKey, kValue, kOutput, kGate, kUp, kDown, kMatrices,
};
enum VectorRole : std::int32_t {
    kAttentionNorm, kFfnNorm, kQueryBias, kKeyBias, kValueBias, kQueryNorm, kKeyNorm, kPostAttentionNorm, kPostFfnNorm,
    kVectors,
};

struct Layer {
    Matrix matrices[kMatrices];
    const float *vectors[kVectors] = {};  // padded with zeros to whole blocks; null if there is none
    std::int64_t rope_kind = 0;
    int window = 0;
};

// A step (interface.StepPlan says what the arrays are).
struct Step {
    std::int64_t tokens, rows, table_stride, logits, best;
    const std::int32_t *token_ids, *positions, *row_starts, *block_tables, *logit_tokens, *best_tokens;

    // How many tokens the head computes: those whose logits are wanted, then those of which only the best one is.
    std::int64_t wanted() const { return logits + best; }
};

// --- where the time goes ------------------------------------------------------------------

enum Phase : std::int32_t {
    kEmbedPhase, kNormPhase, kQkvPhase, kRotatePhase, kAttentionPhase, kOutputPhase, kGateUpPhase, kGatePhase, kDownPhase,
    kHeadPhase, kPhases,
};

class Clock {
  public:
    explicit Clock(bool on = false) : on_(on) {}

    const double *spent() const { return spent_; }

    void start() {
        if (on_) last_ = seconds();
    }
    // What passed since the last mark was this phase.
    void mark(const Member &member, Phase phase) {
        if (!on_ || member.number() != 0) return;
        const double now = seconds();
        spent_[phase] += now - last_;
        last_ = now;
    }

  private:
    bool on_;
    double last_ = 0, spent_[kPhases] = {};
};

// --- the decoder --------------------------------------------------------------------------

enum Outcome : std::int32_t { kDone, kNoMemory, kUnknownToken };

// At most, of a layer and of all that is not in one.
constexpr int kLayerPhases = 12, kOtherPhases = 3;

class Decoder {
  public:
    // Null if there is no memory.
    static Decoder *open(const Shape &shape, const float *frequencies, const std::int32_t *kinds,
                         const std::int32_t *windows) {
        Decoder *decoder = new (std::nothrow) Decoder(shape);
        if (decoder && !decoder->set_up(frequencies, kinds, windows)) {
            delete decoder;
            return nullptr;
        }
        return decoder;
    }

    Team &team() { return team_; }
    Clock &clock() { return clock_; }

    bool set_layer_matrix(std::int64_t layer, std::int32_t role, int type, const void *data, std::int64_t rows,
                          std::int64_t cols, bool force_p8) {
        return pack(layers_[layer].matrices[role], type, data, rows, cols, force_p8);
    }
    bool set_embedding(int type, const void *data, std::int64_t rows, std::int64_t cols, bool force_p8) {
        return pack(embedding_, type, data, rows, cols, force_p8);
    }
    bool set_head(int type, const void *data, std::int64_t rows, std::int64_t cols, bool force_p8) {
        return pack(head_, type, data, rows, cols, force_p8);
    }
    bool set_layer_vector(std::int64_t layer, std::int32_t role, const float *data, std::int64_t size) {
        return (layers_[layer].vectors[role] = padded(data, size)) != nullptr;
    }
    bool set_norm(const float *data) { return (norm_ = padded(data, shape_.hidden_size)) != nullptr; }

    void set_pool(half_t *pool, std::int64_t num_blocks) {
        pool_ = pool;
        layer_values_ = num_blocks * 2 * attention_.block_values();
    }

    // Bytes of weights that the step of one token reads.
    std::int64_t weight_bytes() const {
        std::int64_t total = head().nbytes();
        for (std::int64_t i = 0; i < shape_.num_layers; ++i)
            for (const Matrix &matrix : layers_[i].matrices) total += matrix.nbytes();
        return total;
    }

    // Computes float32 logits [step.logits, vocab_size], and the tokens that follow best, [step.best].
    Outcome step(const Step &step, float *logits, std::int64_t *best) {
        for (std::int64_t t = 0; t < step.tokens; ++t)
            if (step.token_ids[t] < 0 || step.token_ids[t] >= shape_.vocab_size) return kUnknownToken;
        team_.wait_until_left();  // late members read what is changed here
        if (!reserve(step)) return kNoMemory;
        step_ = step;
        logits_ = logits;
        // The plan may be gone before a late member is.
        std::copy_n(step.best_tokens, step.best, std::copy_n(step.logit_tokens, step.logits, wanted_));
        best_.clear(step.best);
        cut_pieces();
        clock_.start();
        team_.run([this](Member &member) { run(member); });
        best_.write(step.best, best);
        return kDone;
    }

  private:
    explicit Decoder(const Shape &shape)
        : shape_(shape),
          attention_{shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.query_scale, shape.attention_softcap, 0},
          hidden_(pad(shape.hidden_size)),
          ffn_(pad(shape.ffn_size)),
          queries_(pad(shape.num_heads * shape.head_dim)),
          keys_(pad(shape.num_kv_heads * shape.head_dim)),
          team_(shape.threads, static_cast<int>(shape.num_layers * kLayerPhases + kOtherPhases)) {}

    static std::int64_t pad(std::int64_t size) { return blocks_of(size) * kBlock; }

    bool set_up(const float *frequencies, const std::int32_t *kinds, const std::int32_t *windows) {
        const std::int64_t half = shape_.head_dim / 2;
        layers_ = arena_.take_array<Layer>(shape_.num_layers);
        float *copy = arena_.take_array<float>(shape_.rope_kinds * half);
        if (!layers_ || !copy) return false;
        std::copy_n(frequencies, shape_.rope_kinds * half, copy);
        frequencies_ = copy;
        for (std::int64_t i = 0; i < shape_.num_layers; ++i) {
            Layer *layer = new (&layers_[i]) Layer;
            layer->rope_kind = kinds[i];
            layer->window = windows[i];
        }
        const std::int64_t widest = std::max({hidden_, ffn_, queries_});
        activation_row_ = activation_bytes(widest / kBlock);
        for (int i = 0; i < team_.size(); ++i) {
            own_activations_[i] = arena_.take_array<std::uint8_t>(activation_row_ * team_.size());
            scratch_[i] = arena_.take_array<float>(attention_scratch_floats(shape_.head_dim));
            if (!own_activations_[i] || !scratch_[i]) return false;
        }
        return true;
    }

    const float *padded(const float *data, std::int64_t size) {
        float *copy = arena_.take_array<float>(pad(size));
        if (copy) std::copy_n(data, size, copy);
        return copy;
    }

    bool pack(Matrix &to, int type, const void *data, std::int64_t rows, std::int64_t cols, bool force_p8) {
        Packing packing;
        if (!packing_of(type, &packing)) return false;
        if (force_p8) packing = Packing::P8;
        const auto *bytes = static_cast<const std::uint8_t *>(data);
        if (!pack_tiles(type, bytes, rows, cols, force_p8, 0, 0, nullptr, nullptr)) return false;  // of sizes it has not
        auto *quants = arena_.take_array<std::uint8_t>(quants_bytes(packing, rows, cols));
        auto *scales = arena_.take_array<std::uint16_t>(scales_count(packing, rows, cols));
        if (!quants || !scales) return false;
        to = {packing, rows, cols, blocks_of(cols), quants, scales};
        team_.run([=](Member &member) {
            member.share(tiles_of(rows), 8, [=](std::int64_t first, std::int64_t last) {
                pack_tiles(type, bytes, rows, cols, force_p8, first, last, quants, scales);
            });
        });
        return true;
    }

    const Matrix &head() const { return head_.quants ? head_ : embedding_; }

    // Room for a step; grows by need, never shrinks.
    bool reserve(const Step &step) {
        const std::int64_t pieces = step.rows + step.tokens / attention_.piece_tokens();
        if (step.tokens <= room_tokens_ && step.wanted() <= room_wanted_ && pieces <= room_pieces_) return true;
        const auto rounded = [](std::int64_t count) { return (count + 63) / 64 * 64; };
        room_tokens_ = std::max(room_tokens_, rounded(step.tokens));
        room_wanted_ = std::max(room_wanted_, rounded(step.wanted()));
        room_pieces_ = std::max(room_pieces_, rounded(pieces));
        buffers_.~Arena();
        new (&buffers_) Arena;
        const std::int64_t t = room_tokens_, rows = std::max(t, room_wanted_);
        const std::int64_t turns = t * shape_.rope_kinds * (shape_.head_dim / 2);
        const auto floats = [&](std::int64_t count) { return buffers_.take_array<float>(count); };
        x_ = floats(t * hidden_);
        delta_ = floats(t * hidden_);
        q_ = floats(t * queries_);
        k_ = floats(t * keys_);
        v_ = floats(t * keys_);
        mixed_ = floats(t * queries_);
        gate_ = floats(t * ffn_);
        up_ = floats(t * ffn_);
        cosines_ = floats(turns);
        sines_ = floats(turns);
        activations_ = buffers_.take_array<std::uint8_t>(activation_row_ * rows);
        pieces_ = buffers_.take_array<AttentionPiece>(room_pieces_);
        wanted_ = buffers_.take_array<std::int32_t>(room_wanted_);
        const bool enough = x_ && delta_ && q_ && k_ && v_ && mixed_ && gate_ && up_ && cosines_ && sines_ && activations_ &&
                            pieces_ && wanted_ && best_.reserve(buffers_, team_.size(), room_wanted_);
        if (!enough) room_tokens_ = room_wanted_ = room_pieces_ = 0;
        return enough;
    }

    void cut_pieces() {
        num_pieces_ = 0;
        for (std::int64_t row = 0; row < step_.rows; ++row) {
            const std::int32_t *table = step_.block_tables + row * step_.table_stride;
            const std::int64_t end = step_.row_starts[row + 1];
            for (std::int64_t first = step_.row_starts[row]; first < end; first += attention_.piece_tokens()) {
                const std::int64_t last = std::min(first + attention_.piece_tokens(), end);
                pieces_[num_pieces_++] = {first, last, step_.positions[first], table};
            }
        }
    }

    // --- phases, run by every member ---

    void run(Member &member) {
        embed(member);
        for (std::int64_t i = 0; i < shape_.num_layers; ++i) run_layer(member, layers_[i], i);
        finish(member);
    }

    void embed(Member &member) {
        const std::int64_t half = shape_.head_dim / 2, turns = shape_.rope_kinds * half;
        member.share(step_.tokens, 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t t = first; t < last; ++t) {
                float *x = x_ + t * hidden_;
                unpack_row(embedding_.packing, embedding_.quants, embedding_.scales, embedding_.inputs, step_.token_ids[t],
                           x);
                // The padding as well: it has what products of the last step left there, if that was no number.
                std::fill(x + shape_.hidden_size, x + hidden_, 0.0f);
                if (shape_.embedding_scale != 1.0f)
                    for (std::int64_t d = 0; d < shape_.hidden_size; ++d) x[d] *= shape_.embedding_scale;
                for (std::int64_t kind = 0; kind < shape_.rope_kinds; ++kind)
                    fill_rotation(static_cast<float>(step_.positions[t]), frequencies_ + kind * half, half,
                                  cosines_ + t * turns + kind * half, sines_ + t * turns + kind * half);
            }
        });
        clock_.mark(member, kEmbedPhase);
    }

    void run_layer(Member &member, const Layer &layer, std::int64_t index) {
        const std::int64_t tokens = step_.tokens;
        const float epsilon = shape_.norm_epsilon;

        const Activations normed = prepare(member, hidden_, tokens, [&](std::int64_t t, const Activations &to, std::int64_t row) {
            quantize_normed_row(x_ + t * hidden_, layer.vectors[kAttentionNorm], shape_.hidden_size, epsilon, to, row);
        });
        clock_.mark(member, kNormPhase);
        const Product qkv[] = {{layer.matrices[kQuery], q_, queries_, layer.vectors[kQueryBias]},
                               {layer.matrices[kKey], k_, keys_, layer.vectors[kKeyBias]},
                               {layer.matrices[kValue], v_, keys_, layer.vectors[kValueBias]}};
        multiply(member, qkv, normed, tokens);
        clock_.mark(member, kQkvPhase);

        half_t *pool = pool_ + index * layer_values_;
        turn_and_keep(member, layer, pool);
        clock_.mark(member, kRotatePhase);
        AttentionShape shape = attention_;
        shape.window = layer.window;
        member.share(num_pieces_ * shape_.num_kv_heads, 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t i = first; i < last; ++i)
                attend(shape, pieces_[i / shape_.num_kv_heads], i % shape_.num_kv_heads, pool, q_, queries_, mixed_, queries_,
                       scratch_[member.number()]);
        });
        clock_.mark(member, kAttentionPhase);

        const Activations mixed = prepare(member, queries_, tokens, [&](std::int64_t t, const Activations &to, std::int64_t row) {
            quantize_row(mixed_ + t * queries_, to, row);
        });
        add_product(member, layer.matrices[kOutput], mixed, layer.vectors[kPostAttentionNorm]);
        clock_.mark(member, kOutputPhase);

        const Activations again = prepare(member, hidden_, tokens, [&](std::int64_t t, const Activations &to, std::int64_t row) {
            quantize_normed_row(x_ + t * hidden_, layer.vectors[kFfnNorm], shape_.hidden_size, epsilon, to, row);
        });
        clock_.mark(member, kNormPhase);
        const Product gate_up[] = {{layer.matrices[kGate], gate_, ffn_, nullptr}, {layer.matrices[kUp], up_, ffn_, nullptr}};
        multiply(member, gate_up, again, tokens);
        clock_.mark(member, kGateUpPhase);
        const auto kind = static_cast<Activation>(shape_.activation);
        const Activations gated = prepare(member, ffn_, tokens, [&](std::int64_t t, const Activations &to, std::int64_t row) {
            const float *gate = gate_ + t * ffn_, *up = up_ + t * ffn_;
            for (std::int64_t b = 0; b < to.blocks; ++b) {
                float products[kBlock];
                for (int i = 0; i < kBlock; i += kLanes) {
                    const std::int64_t at = b * kBlock + i;
                    store(products + i, activate(kind, load(gate + at)) * load(up + at));
                }
                quantize_block(products, to, row, b);
            }
        });
        clock_.mark(member, kGatePhase);
        add_product(member, layer.matrices[kDown], gated, layer.vectors[kPostFfnNorm]);
        clock_.mark(member, kDownPhase);
    }

    void finish(Member &member) {
        const std::int64_t wanted = step_.wanted(), num_logits = step_.logits;
        if (wanted == 0) return;
        const Activations last = prepare(member, hidden_, wanted, [&](std::int64_t i, const Activations &to, std::int64_t row) {
            quantize_normed_row(x_ + wanted_[i] * hidden_, norm_, shape_.hidden_size, shape_.norm_epsilon, to, row);
        });
        const Matrix &w = head();
        const float cap = shape_.logit_softcap;
        Best *best = best_.of(member.number());
        member.share(w.tiles(), piece_of(w.tiles()), [&](std::int64_t first, std::int64_t end) {
            for (std::int64_t tile = first; tile < end; ++tile) {
                const std::int64_t at = tile * kTile;
                const int width = static_cast<int>(std::min<std::int64_t>(kTile, shape_.vocab_size - at));
                compute_tile(w, tile, last, wanted, [&](std::int64_t row, Vec y) {
                    if (cap > 0.0f) y = soften(y, cap);
                    if (row >= num_logits) return best[row - num_logits].see(y, at, width);
                    float *to = logits_ + row * shape_.vocab_size + at;
                    if (width == kTile)
                        store(to, y);
                    else
                        store_first(to, y, width);
                });
            }
        });
        clock_.mark(member, kHeadPhase);
    }

    // Quantised rows for the next product; put(item, to, row) makes one. By all members together, or, if there are
    // fewer rows than members, by each for itself.
    template <class Put>
    Activations prepare(Member &member, std::int64_t width, std::int64_t rows, Put &&put) {
        const std::int64_t blocks = width / kBlock;
        if (rows < team_.size()) {
            const Activations own = lay_out_activations(own_activations_[member.number()], rows, blocks);
            for (std::int64_t row = 0; row < rows; ++row) put(row, own, row);
            return own;
        }
        const Activations shared = lay_out_activations(activations_, rows, blocks);
        member.share(rows, std::max<std::int64_t>(1, rows / (team_.size() * 4)), [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t row = first; row < last; ++row) put(row, shared, row);
        });
        return shared;
    }

    // A matrix and where its products go.
    struct Product {
        const Matrix &matrix;
        float *to;
        std::int64_t stride;
        const float *bias;
    };

    std::int64_t piece_of(std::int64_t tiles) const {
        return std::clamp<std::int64_t>(tiles / (team_.size() * 8), 1, 16);
    }

    template <std::size_t N>
    void multiply(Member &member, const Product (&products)[N], const Activations &x, std::int64_t rows) {
        std::int64_t tiles = 0;
        for (const Product &product : products) tiles += product.matrix.tiles();
        member.share(tiles, piece_of(tiles), [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t i = first; i < last; ++i) {
                std::int64_t tile = i;
                const Product *product = products;
                for (; tile >= product->matrix.tiles(); ++product) tile -= product->matrix.tiles();
                const Vec bias = product->bias ? load(product->bias + tile * kTile) : zero();
                float *to = product->to + tile * kTile;
                const std::int64_t stride = product->stride;
                const bool add = product->bias;
                compute_tile(product->matrix, tile, x, rows,
                             [&](std::int64_t row, Vec y) { store(to + row * stride, add ? y + bias : y); });
            }
        });
    }

    // x += norm(matrix product), the norm only if there is one.
    void add_product(Member &member, const Matrix &matrix, const Activations &x, const float *norm) {
        const std::int64_t tokens = step_.tokens;
        float *target = norm ? delta_ : x_;
        member.share(matrix.tiles(), piece_of(matrix.tiles()), [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t tile = first; tile < last; ++tile) {
                float *to = target + tile * kTile;
                compute_tile(matrix, tile, x, tokens, [&](std::int64_t row, Vec y) {
                    float *at = to + row * hidden_;
                    store(at, norm ? y : load(at) + y);
                });
            }
        });
        if (!norm) return;
        member.share(tokens, 1, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t t = first; t < last; ++t) {
                float *delta = delta_ + t * hidden_, *to = x_ + t * hidden_;
                norm_row(delta, norm, shape_.hidden_size, shape_.norm_epsilon, delta);
                for (std::int64_t d = 0; d < hidden_; d += kLanes) store(to + d, load(to + d) + load(delta + d));
            }
        });
    }

    // Norms and turns queries and keys, and puts keys and values into the pool.
    void turn_and_keep(Member &member, const Layer &layer, half_t *pool) {
        const std::int64_t heads = shape_.num_heads, both = heads + shape_.num_kv_heads, dim = shape_.head_dim;
        const std::int64_t half = dim / 2, turns = shape_.rope_kinds * half;
        const std::int64_t count = step_.tokens * both;
        member.share(count, std::clamp<std::int64_t>(count / (team_.size() * 4), 1, 64), [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t i = first; i < last; ++i) {
                const std::int64_t t = i / both, head = i % both;
                const bool is_query = head < heads;
                float *x = is_query ? q_ + t * queries_ + head * dim : k_ + t * keys_ + (head - heads) * dim;
                const float *norm = layer.vectors[is_query ? kQueryNorm : kKeyNorm];
                if (norm) norm_row(x, norm, dim, shape_.norm_epsilon, x);
                const std::int64_t at = t * turns + layer.rope_kind * half;
                rotate(x, dim, cosines_ + at, sines_ + at, shape_.interleaved_rope);
                if (is_query) continue;
                const std::int32_t position = step_.positions[t];
                const std::int32_t *table = step_.block_tables + row_of(t) * step_.table_stride;
                write_to_pool(pool, attention_, table[position / kBlockTokens], position % kBlockTokens, head - heads, x,
                              v_ + t * keys_ + (head - heads) * dim);
            }
        });
    }

    std::int64_t row_of(std::int64_t token) const {
        return std::upper_bound(step_.row_starts, step_.row_starts + step_.rows + 1, static_cast<std::int32_t>(token)) -
               step_.row_starts - 1;
    }

    const Shape shape_;
    Clock clock_;
    AttentionShape attention_;
    const std::int64_t hidden_, ffn_, queries_, keys_;  // widths, padded to whole blocks
    Arena arena_, buffers_;
    Layer *layers_ = nullptr;
    Matrix embedding_, head_;
    const float *norm_ = nullptr, *frequencies_ = nullptr;
    half_t *pool_ = nullptr;
    std::int64_t layer_values_ = 0;
    std::size_t activation_row_ = 0;
    std::uint8_t *own_activations_[kMaxThreads] = {};
    float *scratch_[kMaxThreads] = {};

    // One step.
    Step step_{};
    float *logits_ = nullptr;
    std::int64_t room_tokens_ = 0, room_wanted_ = 0, room_pieces_ = 0, num_pieces_ = 0;
    float *x_ = nullptr, *delta_ = nullptr, *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *mixed_ = nullptr;
    float *gate_ = nullptr, *up_ = nullptr, *cosines_ = nullptr, *sines_ = nullptr;
    std::uint8_t *activations_ = nullptr;
    std::int32_t *wanted_ = nullptr;
    Bests best_;
    AttentionPiece *pieces_ = nullptr;

    Team team_;  // the last: its late members read all of the above
};

}  // namespace vidette

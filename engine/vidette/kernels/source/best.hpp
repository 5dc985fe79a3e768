// The best token of a row, found while its logits are computed, so that nobody has to read them again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "memory.hpp"
#include "vec.hpp"

namespace vidette {

// The largest logit of a row so far, and its token: the first of equal ones. A logit that is no number counts as
// infinite, and with the largest not finite there is no token, but -1.
struct Best {
    float value = -kInfinity;
    std::int64_t token = -1;

    // Takes the logits of `count` tokens from `first` on into account, which follow those that it knows.
    void see(Vec logits, std::int64_t first, int count) {
        if (!any_above(logits, value)) return;
        float lanes[kLanes];
        store(lanes, logits);
        for (int i = 0; i < count; ++i) {
            if (lanes[i] <= value) continue;
            const bool finite = lanes[i] < kInfinity;
            value = finite ? lanes[i] : kInfinity;
            token = finite ? first + i : -1;
        }
    }

    // Takes what another knows into account, of other tokens of the same row.
    void join(const Best &other) {
        if (other.value > value || (other.value == value && other.token < token)) *this = other;
    }
};

// The best of some rows, by a team: each member keeps its own, of the tokens that it sees, in their order.
class Bests {
  public:
    // Makes room for so many rows; false if there is no memory.
    bool reserve(Arena &arena, int members, std::int64_t rows) {
        members_ = members;
        room_ = (rows + kLineRows - 1) / kLineRows * kLineRows;
        best_ = arena.take_array<Best>(members_ * room_);
        return best_ != nullptr;
    }

    // Before the members begin.
    void clear(std::int64_t rows) {
        for (int member = 0; member < members_; ++member) std::fill_n(of(member), rows, Best{});
    }

    Best *of(int member) const { return best_ + member * room_; }

    // After they have ended.
    void write(std::int64_t rows, std::int64_t *tokens) const {
        for (std::int64_t row = 0; row < rows; ++row) {
            Best best;
            for (int member = 0; member < members_; ++member) best.join(of(member)[row]);
            tokens[row] = best.token;
        }
    }

  private:
    static constexpr std::int64_t kLineRows = 64 / sizeof(Best);  // members share no cache line

    Best *best_ = nullptr;
    int members_ = 0;
    std::int64_t room_ = 0;
};

}  // namespace vidette

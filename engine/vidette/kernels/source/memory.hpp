// Memory of a model: taken piece by piece, given back all at once, in large pages where the system has them.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace vidette {

class Arena {
  public:
    Arena() = default;
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    ~Arena() {
        while (last_) {
            Chunk *before = last_->before;
            munmap(last_, last_->nbytes);
            last_ = before;
        }
    }

    // Zeroed, at a multiple of 64; null if there is no memory left.
    void *take(std::size_t nbytes) {
        nbytes = (nbytes + 63) / 64 * 64;
        if (!last_ || last_->used + nbytes > last_->nbytes) {
            const std::size_t size = std::max<std::size_t>(kChunk, (nbytes + 64 + kPage - 1) / kPage * kPage);
            void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) return nullptr;
            madvise(memory, size, MADV_HUGEPAGE);  // a wish
            Chunk *chunk = static_cast<Chunk *>(memory);
            *chunk = {last_, size, 64};
            last_ = chunk;
        }
        void *found = reinterpret_cast<char *>(last_) + last_->used;
        last_->used += nbytes;
        return found;
    }

    template <class T>
    T *take_array(std::int64_t count) {
        return static_cast<T *>(take(static_cast<std::size_t>(count) * sizeof(T)));
    }

  private:
    struct Chunk {
        Chunk *before;
        std::size_t nbytes, used;
    };
    static_assert(sizeof(Chunk) <= 64);
    static constexpr std::size_t kPage = 2 << 20, kChunk = 16 * kPage;

    Chunk *last_ = nullptr;
};

}  // namespace vidette

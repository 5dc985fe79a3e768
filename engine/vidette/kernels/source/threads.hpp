// A team of threads for the length of one call: the caller is the first, the others sleep between calls.
//
// All members run the same code, which is cut into phases; in each, members take piece after piece until none is left.
// A phase is over when all its pieces are done, not when all members came: one that has lost its core to another program
// holds the others up only with the piece that it has in hand, and finds nothing left to do when it comes back.
//
// Inside a call the threads spin where they wait, since the next piece of work is microseconds away. Between calls they
// wait in the kernel: an idle engine takes no time at all.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <new>
#include <type_traits>

namespace vidette {

constexpr int kMaxThreads = 64;

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Team;

// One thread inside a call.
class Member {
  public:
    Member(Team &team, int number) : team_(team), number_(number) {}

    int number() const { return number_; }

    // A phase: does f(first, last) for pieces of [0, count), each by whoever is free, and waits until all are done. All
    // members call it with the same arguments; what is done must not depend on who does it. What a member reads before
    // a phase is as it should be if it then gets a piece of that phase; if it is late it may be anything.
    template <class F>
    void share(std::int64_t count, std::int64_t piece, F &&f);

  private:
    Team &team_;
    int number_;
    int turn_ = 0;
};

class Team {
  public:
    // Threads, the caller's included, and the most phases of a call.
    Team(int threads, int phases) : size_(std::clamp(threads, 1, kMaxThreads)), num_phases_(phases) {
        phases_ = new (std::nothrow) Phase[phases];
        if (!phases_) size_ = 1;
        sigset_t none, before;  // signals are for the threads of the program
        sigfillset(&none);
        pthread_sigmask(SIG_SETMASK, &none, &before);
        for (int i = 1; i < size_; ++i) {
            starts_[i] = {this, i};
            if (pthread_create(&threads_[i], nullptr, &Team::enter, &starts_[i]) != 0) {
                size_ = i;  // as many as the system lets us have
                break;
            }
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Team() {
        wait_until_left();
        job_ = nullptr;
        wake();
        for (int i = 1; i < size_; ++i) pthread_join(threads_[i], nullptr);
        delete[] phases_;
    }

    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    int size() const { return size_; }

    // Runs f(member) on every thread; returns when all its phases are over. Late members call a copy of f after that, so
    // what it refers to has to last until `wait_until_left`.
    template <class F>
    void run(F &&f) {
        Member caller(*this, 0);
        if (size_ > 1) {
            // Late members of the last call run through its phases still, over what it was called with.
            wait_until_left();
            for (int i = 0; i < num_phases_; ++i) {
                phases_[i].next.store(0, std::memory_order_relaxed);
                phases_[i].done.store(0, std::memory_order_relaxed);
            }
            inside_.store(size_ - 1, std::memory_order_relaxed);
            using Function = std::remove_reference_t<F>;
            static_assert(std::is_trivially_copyable_v<Function> && sizeof(Function) <= sizeof context_);
            std::memcpy(context_, &f, sizeof(Function));
            job_ = [](void *context, Member &member) { (*static_cast<Function *>(context))(member); };
            wake();
        }
        f(caller);
    }

    // Waits for the late members of the last call.
    void wait_until_left() {
        spin_until([this] { return inside_.load(std::memory_order_acquire) == 0; });
    }

  private:
    friend class Member;
    struct alignas(64) Phase {
        std::atomic<std::int64_t> next{0}, done{0};
    };
    struct Start {
        Team *team;
        int number;
    };

    static void *enter(void *argument) {
        const Start *start = static_cast<const Start *>(argument);
        start->team->serve(start->number);
        return nullptr;
    }

    void serve(int number) {
        for (std::uint32_t seen = 0;;) {
            while (calls_.load(std::memory_order_acquire) == seen)
                syscall(SYS_futex, &calls_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
            ++seen;
            if (!job_) return;
            Member member(*this, number);
            job_(context_, member);
            inside_.fetch_sub(1, std::memory_order_release);
        }
    }

    void wake() {
        calls_.fetch_add(1, std::memory_order_release);
        syscall(SYS_futex, &calls_, FUTEX_WAKE_PRIVATE, size_, nullptr, nullptr, 0);
    }

    // Whoever is awaited may have lost its core to somebody else, perhaps to us.
    template <class F>
    static void spin_until(F &&over) {
        for (int spins = 0; !over(); ++spins)
            if (spins < kSpins)
                pause_briefly();
            else
                sched_yield();
    }

    static constexpr int kSpins = 2000;

    int size_, num_phases_;
    Phase *phases_ = nullptr;
    void (*job_)(void *, Member &) = nullptr;
    alignas(16) unsigned char context_[96];  // what is called, by value: late members outlive the call
    pthread_t threads_[kMaxThreads];
    Start starts_[kMaxThreads];
    alignas(64) std::atomic<std::uint32_t> calls_{0};
    alignas(64) std::atomic<int> inside_{0};
};

template <class F>
inline void Member::share(std::int64_t count, std::int64_t piece, F &&f) {
    if (team_.size_ == 1) {
        if (count > 0) f(std::int64_t{0}, count);
        return;
    }
    Team::Phase &phase = team_.phases_[turn_++];
    std::int64_t mine = 0;
    for (std::int64_t first; (first = phase.next.fetch_add(piece, std::memory_order_acq_rel)) < count;) {
        const std::int64_t last = std::min(first + piece, count);
        f(first, last);
        mine += last - first;
    }
    if (mine) phase.done.fetch_add(mine, std::memory_order_acq_rel);
    Team::spin_until([&] { return phase.done.load(std::memory_order_acquire) >= count; });
}

}  // namespace vidette

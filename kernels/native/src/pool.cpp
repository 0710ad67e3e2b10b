#include "pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace baton {
namespace {

// About 50 us: longer than the gaps between the operations of a step, shorter than a gap between steps that wait
// for work. Then the core is given up in each turn, so that a neighbour on it can finish.
constexpr int kSpins = 1000;
constexpr int kYields = 64;

inline void pause() { __builtin_ia32_pause(); }

void pin(int cpu) {
#ifdef __linux__
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // not allowed: run anywhere
#endif
}

}  // namespace

Pool::Pool(int threads, const int32_t* cpus) {
  workers_.reserve(static_cast<size_t>(std::max(0, threads - 1)));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back(&Pool::work, this, cpus == nullptr ? -1 : cpus[i - 1]);
  } catch (...) {
    stop();  // a thread that runs on cannot be destroyed
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  closing_.store(true);
  epoch_.value.fetch_add(1);
  epoch_.value.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::share(int64_t chunks, Body body, void* context) {
  const uint32_t epoch = epoch_.value.load(std::memory_order_relaxed) + 1;
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  chunks_.store(static_cast<uint32_t>(chunks), std::memory_order_relaxed);
  done_.value.store(0, std::memory_order_relaxed);
  ticket_.value.store(static_cast<uint64_t>(epoch) << 32 | static_cast<uint32_t>(chunks), std::memory_order_release);
  epoch_.value.store(epoch, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) > 0) epoch_.value.notify_all();
  drain(epoch);
  for (int spins = 0; done_.value.load(std::memory_order_acquire) != chunks; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void Pool::drain(uint32_t epoch) {
  uint64_t ticket = ticket_.value.load(std::memory_order_acquire);
  while (true) {
    const auto left = static_cast<uint32_t>(ticket);
    if (static_cast<uint32_t>(ticket >> 32) != epoch || left == 0) return;
    // Read before the chunk is claimed, and worth something only if it then is: until that chunk is done, no other
    // job takes this one's place.
    const Body body = body_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const uint32_t chunks = chunks_.load(std::memory_order_relaxed);
    if (!ticket_.value.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire)) {
      continue;
    }
    body(context, chunks - left);
    done_.value.fetch_add(1, std::memory_order_acq_rel);
    ticket = ticket_.value.load(std::memory_order_acquire);
  }
}

void Pool::work(int cpu) noexcept {
  pin(cpu);
  uint32_t seen = 0;
  while (true) {
    uint32_t epoch = epoch_.value.load(std::memory_order_acquire);
    for (int spins = 0; epoch == seen && spins < kSpins + kYields; ++spins) {
      if (spins < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
      epoch = epoch_.value.load(std::memory_order_acquire);
    }
    if (epoch == seen) {
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      epoch_.value.wait(seen, std::memory_order_seq_cst);
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
      continue;
    }
    seen = epoch;
    if (closing_.load()) return;
    drain(epoch);
  }
}

void* Pool::scratch(int slot, size_t bytes) {
  if (bytes > scratch_bytes_[slot]) {
    const size_t rounded = (bytes + bytes / 2 + 4095) / 4096 * 4096;
    scratch_[slot].reset();
    scratch_bytes_[slot] = 0;
    void* memory = std::aligned_alloc(64, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    scratch_[slot].reset(memory);
    scratch_bytes_[slot] = rounded;
  }
  return scratch_[slot].get();
}

}  // namespace baton

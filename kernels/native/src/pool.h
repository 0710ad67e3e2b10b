// Persistent threads that share out the chunks of one operation at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace baton {

// run() hands chunks 0..n-1 out one by one, so a thread that is slowed down by its neighbours takes fewer. The
// calling thread takes part and returns when all chunks are done. Between calls the workers watch for the next
// one for a while (operations of one step follow each other within microseconds), then sleep.
//
// What a chunk computes must not depend on who computes it or in which order.
class Pool {
 public:
  // threads: including the caller's; cpus[i]: where worker i + 1 runs (nullptr: anywhere).
  Pool(int threads, const int32_t* cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // f(chunk) for every chunk. One chunk, or one thread: in place, at no cost.
  template <class F>
  void run(int64_t chunks, F&& f) {
    if (chunks <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < chunks; ++i) f(i);
      return;
    }
    using Body = std::remove_reference_t<F>;
    share(chunks, [](void* body, int64_t i) { (*static_cast<Body*>(body))(i); }, &f);
  }

  // Memory of this pool's current caller, kept from call to call; grows, never shrinks. Contents are undefined.
  // slot: several at a time, numbered; 64-byte aligned.
  void* scratch(int slot, size_t bytes);

 private:
  using Body = void (*)(void*, int64_t);

  void share(int64_t chunks, Body body, void* context);
  void stop();
  void work(int cpu) noexcept;
  void drain(uint32_t epoch);

  struct alignas(64) {
    std::atomic<uint64_t> value{0};  // epoch << 32 | chunks left: a late worker takes no newer job's, nor one too many
  } ticket_;
  struct alignas(64) {
    std::atomic<int64_t> value{0};
  } done_;
  struct alignas(64) {
    std::atomic<uint32_t> value{0};
  } epoch_;
  std::atomic<int> sleeping_{0};
  std::atomic<bool> closing_{false};
  std::atomic<uint32_t> chunks_{0};
  std::atomic<Body> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::vector<std::thread> workers_;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static constexpr int kSlots = 8;
  std::unique_ptr<void, Free> scratch_[kSlots];
  size_t scratch_bytes_[kSlots] = {};
};

}  // namespace baton

// What is not an operation: pools, programs, what machine this is.
#include "baton.h"

namespace baton {

namespace {

Isa machine() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  if (!avx2) return Isa::none;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? Isa::avx512 : Isa::avx2;
}

Isa chosen() {
  const Isa best = machine();
  const char* wanted = std::getenv("BATON_CPU_ISA");
  if (wanted == nullptr) return best;
  if (std::strcmp(wanted, "none") == 0) return Isa::none;
  if (std::strcmp(wanted, "avx2") == 0) return std::min(best, Isa::avx2);
  return best;
}

}  // namespace

Isa isa() {
  static const Isa value = chosen();
  return value;
}

struct Call {
  void (*op)(const void* args, Pool* pool);
  const void* args;
};

}  // namespace baton

// 0: none, 1: AVX2, 2: AVX-512
BATON_API int32_t baton_isa() { return static_cast<int32_t>(baton::isa()); }

// cpus: threads - 1 CPU numbers, one per worker, or null. Null if no thread can be started.
BATON_API baton::Pool* baton_pool_create(int32_t threads, const int32_t* cpus) {
  try {
    return new baton::Pool(threads, cpus);
  } catch (...) {
    return nullptr;
  }
}

BATON_API void baton_pool_destroy(baton::Pool* pool) { delete pool; }

BATON_API void baton_run(const baton::Call* calls, int64_t count, baton::Pool* pool) noexcept {
  for (int64_t i = 0; i < count; ++i) calls[i].op(calls[i].args, pool);
}

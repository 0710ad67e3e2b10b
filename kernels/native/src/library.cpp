// What is not an operation: pools, programs, what machine this is.
#include "baton.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace baton {

namespace {

// Linux saves the tiles of processes alone that have asked it to (Documentation/arch/x86/xstate.rst). It refuses where
// the machine has none, or a thread's stack for signals would be too small for them.
bool tiles_allowed() {
#if defined(__linux__) && __has_include(<amxint8intrin.h>)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  uint32_t a = 7, b = 0, c = 0, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr uint32_t kTile = 1u << 24, kInt8 = 1u << 25;
  return (d & kTile) != 0 && (d & kInt8) != 0 && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

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

constexpr const char* kNames[] = {"none", "avx2", "avx512", "amx"};

Isa chosen() {
  const Isa best = machine();
  if (const char* wanted = std::getenv("BATON_CPU_ISA")) {
    for (const Isa isa : {Isa::none, Isa::avx2, Isa::avx512}) {
      if (std::strcmp(wanted, kNames[static_cast<int>(isa)]) == 0) return std::min(best, isa);
    }
  }
  return best == Isa::avx512 && tiles_allowed() ? Isa::amx : best;
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

// 0: none, 1: AVX2, 2: AVX-512, 3: AMX
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

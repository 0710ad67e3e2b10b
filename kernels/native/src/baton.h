// What every operation's source includes first: the standard library before any target pragma, so that none of
// its inline functions is compiled for an instruction set that the machine may lack.
//
// An operation is one file <op>.cpp and one <op>.inl:
//
//   // <op>.h: plain C, mirrored by ctypes
//   struct FooArgs { const int64_t* rows; const float* x; ... };
//
//   // <op>.cpp
//   #include "foo.h"
//   #define BATON_SOURCE "foo.inl"
//   #include "foreach_isa.h"
//   BATON_EXPORT(foo, FooArgs)
//
//   // foo.inl, compiled once per instruction set: functions in namespace baton::BATON_ISA
//   static void foo(const FooArgs& args, Pool& pool) { ... }
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "pool.h"

namespace baton {

enum class Isa { none, avx2, avx512, amx };  // each has what is before it, too

// What this machine has, unless BATON_CPU_ISA (none, avx2, avx512, amx) asks for less; read once.
Isa isa();

}  // namespace baton

#define BATON_API extern "C" __attribute__((visibility("default")))

// Nothing is thrown into C: an operation that finds no memory for its scratch ends the process.
//
// The operation as a C function, its instruction set chosen once, and the size of its arguments for a check.
#define BATON_EXPORT(op, Args)                                                       \
  BATON_API void baton_##op(const baton::Args* args, baton::Pool* pool) noexcept {  \
    static const auto chosen = baton::isa() >= baton::Isa::avx512 ? baton::avx512::op \
                                                                  : baton::avx2::op; \
    chosen(*args, *pool);                                                            \
  }                                                                                  \
  BATON_API int64_t baton_##op##_args_bytes() { return sizeof(baton::Args); }

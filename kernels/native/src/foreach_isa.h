// Compiles BATON_SOURCE once per instruction set, each in a namespace of its own. No include guard: one use per .cpp.
#include "baton.h"

#define BATON_ISA avx2
#define BATON_AVX512 0
#define BATON_AMX 0
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,prfchw")
#include "simd.inl"
namespace baton::BATON_ISA {
#include BATON_SOURCE
}
#pragma GCC pop_options
#undef BATON_ISA
#undef BATON_AVX512
#undef BATON_AMX

#define BATON_ISA avx512
#define BATON_AVX512 1
#if __has_include(<amxint8intrin.h>)  // the compiler knows of AMX
#define BATON_AMX 1
#else
#define BATON_AMX 0
#endif
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,prfchw,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "simd.inl"
namespace baton::BATON_ISA {
#include BATON_SOURCE
}
#pragma GCC pop_options
#undef BATON_ISA
#undef BATON_AVX512
#undef BATON_AMX

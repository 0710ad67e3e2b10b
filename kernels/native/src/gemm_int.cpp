#include "gemm_int.h"

#include <iterator>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#define BATON_SOURCE "gemm_int.inl"
#include "foreach_isa.h"
BATON_EXPORT(gemm_int, GemmIntArgs)

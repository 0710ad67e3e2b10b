#include "gemm_dense.h"

#define BATON_SOURCE "gemm_dense.inl"
#include "foreach_isa.h"
BATON_EXPORT(gemm_dense, GemmDenseArgs)

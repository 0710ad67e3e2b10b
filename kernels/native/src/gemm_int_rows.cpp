#include "gemm_int.h"

#define BATON_SOURCE "gemm_int_rows.inl"
#include "foreach_isa.h"
BATON_EXPORT(gemm_int_rows, GemmIntRowsArgs)

#include "silu_mul.h"

#define BATON_SOURCE "silu_mul.inl"
#include "foreach_isa.h"
BATON_EXPORT(silu_mul, SiluMulArgs)

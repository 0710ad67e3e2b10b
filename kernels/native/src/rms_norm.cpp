#include "rms_norm.h"

#define BATON_SOURCE "rms_norm.inl"
#include "foreach_isa.h"
BATON_EXPORT(rms_norm, RmsNormArgs)

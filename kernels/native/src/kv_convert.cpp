#include "kv_convert.h"

#define BATON_SOURCE "kv_convert.inl"
#include "foreach_isa.h"
BATON_EXPORT(kv_convert, KvConvertArgs)

#include "rope_store.h"

#define BATON_SOURCE "rope_store.inl"
#include "foreach_isa.h"
BATON_EXPORT(rope_store, RopeStoreArgs)

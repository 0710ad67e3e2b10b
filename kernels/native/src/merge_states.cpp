#include "merge_states.h"

#define BATON_SOURCE "merge_states.inl"
#include "foreach_isa.h"
BATON_EXPORT(merge_states, MergeStatesArgs)

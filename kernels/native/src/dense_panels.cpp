#include "dense_panels.h"

#define BATON_SOURCE "dense_panels.inl"
#include "foreach_isa.h"
BATON_EXPORT(dense_rows, DenseRowsArgs)
BATON_EXPORT(dense_pack, DensePackArgs)

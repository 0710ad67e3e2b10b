#include "attention.h"

#include "attention_work.h"

#define BATON_SOURCE "attention.inl"
#include "foreach_isa.h"
BATON_EXPORT(attention, AttentionArgs)

// Python writes it too.
BATON_API int64_t baton_attention_rows_bytes() { return sizeof(baton::AttentionRows); }

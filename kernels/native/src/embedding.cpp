#include "embedding.h"

#define BATON_SOURCE "embedding.inl"
#include "foreach_isa.h"
BATON_EXPORT(embedding, EmbeddingArgs)

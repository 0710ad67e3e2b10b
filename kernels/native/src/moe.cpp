#include "moe.h"

#define BATON_SOURCE "moe.inl"
#include "foreach_isa.h"
BATON_EXPORT(moe_route, MoeRouteArgs)
BATON_EXPORT(moe_group, MoeGroupArgs)
BATON_EXPORT(moe_combine, MoeCombineArgs)

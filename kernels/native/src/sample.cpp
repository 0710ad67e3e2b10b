#include <bit>
#include <functional>

#include "sample.h"

#define BATON_SOURCE "sample.inl"
#include "foreach_isa.h"
BATON_EXPORT(sample, SampleArgs)
BATON_EXPORT(survey, SurveyArgs)

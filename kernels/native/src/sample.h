#pragma once

#include <cstdint>

namespace baton {

// See kernels/sample/__init__.py.
struct SampleArgs {
  const int64_t* rows;
  const float* logits;  // [rows, vocab], row stride `stride`
  const double* temperature;
  const int64_t* top_k;
  const double* top_p;
  const double* min_p;
  const double* noise;
  int64_t* ids;  // [rows]
  int64_t vocab;
  int64_t stride;
};

struct SurveyArgs {
  const int64_t* rows;
  const float* logits;
  float* best;    // [rows]
  int64_t* mass;  // [rows]
  int64_t* top;   // [rows, count]
  int64_t vocab;
  int64_t stride;
  int64_t count;
};

}  // namespace baton

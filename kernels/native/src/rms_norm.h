#pragma once

#include <cstdint>

namespace baton {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, with x[r] += residual[r] first where residual is given.
struct RmsNormArgs {
  const int64_t* rows;
  float* x;               // [rows, width], row stride x_stride; written only with a residual
  const float* residual;  // [rows, width] contiguous, or null
  const float* weight;    // [width]
  float* out;             // [rows, width], row stride out_stride; may be x
  int64_t width;
  int64_t x_stride;
  int64_t out_stride;
  float eps;
};

}  // namespace baton

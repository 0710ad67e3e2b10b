#pragma once

#include <cstdint>

namespace baton {

// See kernels/moe/__init__.py. A row's best expert comes first.
struct MoeRouteArgs {
  const int64_t* rows;
  const float* logits;  // [rows, experts], row stride logits_stride
  int64_t* ids;         // [rows, top_k]
  float* weights;       // [rows, top_k]
  int64_t experts;
  int64_t logits_stride;
  int64_t top_k;
  int32_t renormalize;
};

// Sorts (row, choice) pairs by expert, then row, and copies each pair's row of x to its place.
struct MoeGroupArgs {
  const int64_t* rows;
  const int64_t* ids;  // [rows, top_k]
  const float* x;      // [rows, width], row stride x_stride
  int64_t* counts;     // [experts]
  int64_t* starts;     // [experts]: the sum of the counts before
  int64_t* total;      // rows * top_k
  int64_t* places;     // [rows, top_k]
  float* gathered;     // [rows * top_k, width] contiguous
  int64_t experts;
  int64_t top_k;
  int64_t width;
  int64_t x_stride;
};

// out[r] = sum over choices c, in order, of weights[r, c] * y[places[r, c]]; or out[r] += that sum
struct MoeCombineArgs {
  const int64_t* rows;
  const float* y;  // [rows * top_k, width] contiguous
  const int64_t* places;
  const float* weights;
  float* out;  // [rows, width], row stride out_stride
  int64_t top_k;
  int64_t width;
  int64_t out_stride;
  int32_t residual;
};

}  // namespace baton

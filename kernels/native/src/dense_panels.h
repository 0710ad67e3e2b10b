#pragma once

#include "gemm_dense.h"

namespace baton {

// out[i] = row ids[i] of the weight in fp32, for `rows` ids; NaN where there is no such row.
struct DenseRowsArgs {
  const int64_t* rows;
  const int64_t* ids;
  const void* panels;
  const float* scale;
  float* out;  // [.., inputs], row stride out_stride
  int64_t inputs;
  int64_t outputs;
  int64_t out_stride;
  int64_t group;
  DenseFormat format;
};

// Panels from a row-major [outputs, inputs] matrix of elements of 1, 2 or 4 bytes.
struct DensePackArgs {
  const void* weight;
  void* panels;
  int64_t inputs;
  int64_t outputs;
  int64_t stride;  // elements from row to row
  int64_t element_bytes;
};

}  // namespace baton

#pragma once

#include <cstdint>

namespace baton {

// How a weight is stored; all are widened to fp32 on the way into the registers. e4m3 codes have scales.
enum class DenseFormat : int32_t { fp32, bf16, fp16, e4m3 };

// out[r] = x[r] weight^T + bias (out[r] += with residual) for `rows` rows from row `first` on.
//
// Panels: [ceil(outputs / 16)][inputs][16], the last one padded with zeros, so that a register holds sixteen
// outputs' weights for one input. Every output is one chain of fused multiply-adds over ascending inputs.
struct GemmDenseArgs {
  const int64_t* rows;
  const int64_t* first;  // or null: 0
  const float* x;        // [.., inputs], row stride x_stride
  const void* panels;
  const float* scale;    // e4m3: [panels][groups][16], times 256; groups = ceil(inputs / group)
  const float* bias;     // [panels * 16], or null
  float* out;            // [.., outputs], row stride out_stride; apart from x
  int64_t inputs;
  int64_t outputs;
  int64_t x_stride;
  int64_t out_stride;
  int64_t group;
  int64_t activation_group;  // x is rounded to e4m3 first, one scale per row and so many inputs; 0: it is not
  DenseFormat format;
  int32_t residual;
};

}  // namespace baton

#pragma once

#include <cstdint>

namespace baton {

// out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i]
struct SiluMulArgs {
  const int64_t* rows;
  const float* gate_up;  // [rows, 2 * inner], row stride gate_up_stride
  float* out;            // [rows, inner], row stride out_stride
  int64_t inner;
  int64_t gate_up_stride;
  int64_t out_stride;
};

}  // namespace baton

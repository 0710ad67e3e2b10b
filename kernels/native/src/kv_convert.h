#pragma once

#include <cstdint>

namespace baton {

// KV vectors from one dtype to another; see kernels/blocks/__init__.py. Strides in elements, of all dimensions but
// the vectors' own, which is contiguous.
struct KvSide {
  void* values;      // codes where scales are given
  uint16_t* scales;  // bf16, or null
  int64_t strides[5];
  int64_t scale_strides[5];
  int32_t format;  // 0: fp32, 1: bf16, 2: fp16, 3: int8, 4: e4m3
};

struct KvConvertArgs {
  KvSide to;
  KvSide source;
  int64_t sizes[5];
  int64_t dim;
};

}  // namespace baton

#pragma once

#include <cstdint>

namespace baton {

// out[r] = table[ids[r]] as fp32; NaN where there is no such row.
struct EmbeddingArgs {
  const int64_t* rows;
  const int64_t* ids;
  const void* table;  // [height, width] contiguous
  float* out;         // [rows, width] contiguous
  int64_t height;
  int64_t width;
  int32_t format;  // 0: fp32, 1: bf16, 2: fp16
};

}  // namespace baton

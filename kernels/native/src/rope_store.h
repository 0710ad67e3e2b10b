#pragma once

#include <cstdint>

namespace baton {

// What lies between a layer's qkv projection and its attention; see kernels/rope/__init__.py.
struct RopeStoreArgs {
  const int64_t* rows;
  float* qkv;                // [rows, heads + 2 * kv_heads, dim] contiguous
  const float* cos;          // [rows, dim] contiguous
  const float* sin;
  const float* q_norm;       // [dim], or null
  const float* k_norm;
  const int64_t* blocks;     // [rows]
  const int64_t* offsets;
  void* codes;               // [blocks, 2, block_size, kv_heads, dim]
  uint16_t* scales;          // [blocks, 2, block_size, kv_heads] bf16, or null
  int64_t code_strides[4];   // in elements, of the first four dimensions
  int64_t scale_strides[4];
  int64_t heads;
  int64_t kv_heads;
  int64_t dim;
  int32_t format;            // of codes; 0: fp32, 1: bf16, 2: fp16, 3: int8, 4: e4m3
  float eps;
};

}  // namespace baton

#pragma once

#include <cstdint>

namespace baton {

// A step's rows: see AttentionPlan in kernels/attention/plan.py. Every array has `rows` entries but `tables`.
struct AttentionRows {
  int64_t rows;
  const int64_t* starts;
  const int64_t* lengths;
  const int64_t* first_tokens;
  const int64_t* table_starts;
  const int64_t* order;
  const int64_t* shared_starts;
  const int64_t* shared_ends;
  const int64_t* tables;
};

// One array of a KvLayer: where its blocks, halves (0 keys, 1 values), slots and heads begin, in elements.
struct KvStrides {
  int64_t block;
  int64_t part;
  int64_t slot;
  int64_t head;
};

enum KvDtype : int64_t { kKvFp32, kKvBf16, kKvFp16, kKvInt8, kKvFp8 };

struct AttentionArgs {
  const AttentionRows* rows;
  const float* q;          // [tokens, heads, head_dim], contiguous in head_dim
  float* out;              // [tokens, heads, head_dim], heads contiguous
  float* lse;              // [tokens, heads], or null
  const void* codes;       // of kv_dtype
  const uint16_t* scales;  // bf16, for int8 and fp8
  KvStrides code_strides;
  KvStrides scale_strides;
  int64_t q_stride;       // from token to token
  int64_t q_head_stride;  // from head to head
  int64_t out_stride;     // from token to token
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;  // 1..256
  int64_t block_size;
  int64_t kv_dtype;
  int64_t window;  // 0: none
  float scale;
  float softcap;  // 0: none
};

}  // namespace baton

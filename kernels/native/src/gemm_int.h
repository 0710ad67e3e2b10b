#pragma once

#include <cstdint>

namespace baton {

// A weight of integer codes, as kernels/linear/native_int.py packs it:
//
//   value[o, i] = scale[o, g] * (code[o, i] - zero_point) + offset[o, g]
//
// Inputs come in blocks: one weight group and one group of activations each, filled up with inputs that are zero to
// whole steps of 8. Outputs come in panels of 16, the last one filled up with whatever.
struct IntBlock {
  int32_t begin, end;   // steps
  int32_t group;        // of the weight
  int32_t activations;  // which group of them
};

enum class IntCodes : int32_t { int8, int4, fp4 };
enum class IntScale : int32_t { fp32, fp16, bf16 };

struct IntWeight {
  const uint8_t* codes;    // [panels, steps, 2 quads, 16, 4]; int4, fp4: [panels, steps, 16, 4], quad 1 in high nibbles
  const void* scale;       // [panels, groups, 16]
  const void* offset;      // the same, or null
  const float* bias;       // [panels, 16], or null
  const int32_t* source;   // [steps, 8] which input each place holds, -1: none; null: place i holds input i
  const IntBlock* blocks;  // [count], in order of steps and of both kinds of groups
  int64_t block_count;
  int64_t in_features;
  int64_t out_features;
  int64_t steps;
  int64_t groups;
  IntCodes kind;
  int32_t zero_point;  // int8 codes are stored + 128; fp4: of the table's integers, which are twice the values
  IntScale scale_type;
  IntScale offset_type;
  float factor;        // of all scales
  int32_t narrow;      // activations are rounded to 8 bits; otherwise to 16
};

// y[r] = x[r] @ weight.T + bias for rows first .. first + rows. What becomes of it:
//
//   store: out[r] = y. add: out[r] += y. gate: out[r] = silu(the first half of y) * the second; out_features are a
//   multiple of 32.
//
// With `norm`, x[r] is normed first: x[r] / sqrt(mean(x[r]^2) + eps) * norm.
//
// x is then rounded to integers with one scale per row and group of activations, so that sums within a block are exact
// whatever their order; blocks are then added up in order, in fp32. A row that holds NaN or infinity in x becomes NaN.
enum class IntFinish : int32_t { store, add, gate };

struct GemmIntArgs {
  IntWeight weight;
  const int64_t* rows;
  const int64_t* first;  // or null: 0
  const float* x;        // row stride x_stride
  const float* norm;     // [in_features], or null
  float* out;            // row stride out_stride
  int64_t x_stride;
  int64_t out_stride;
  IntFinish finish;
  float eps;
};

// out[i] = the weight's row ids[i], as fp32; NaN where there is no such row.
struct GemmIntRowsArgs {
  IntWeight weight;
  const int64_t* rows;
  const int64_t* ids;
  float* out;  // row stride out_stride
  int64_t out_stride;
};

}  // namespace baton

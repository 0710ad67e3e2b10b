#pragma once

#include <cstdint>

namespace baton {

// Joins two attention results over different keys: see kernels/merge_states. out and out_lse may be those of a or b.
struct MergeStatesArgs {
  const int64_t* tokens;
  const float* a;      // [tokens, heads, head_dim] contiguous, like b and out
  const float* a_lse;  // [tokens, heads], like b_lse and out_lse
  const float* b;
  const float* b_lse;
  float* out;
  float* out_lse;
  int64_t heads;
  int64_t head_dim;
};

}  // namespace baton

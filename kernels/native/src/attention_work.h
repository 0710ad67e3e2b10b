// How one attention call is cut into pieces that threads take. Nothing here changes a result: keys are taken in
// tiles and segments at fixed positions, and the segments of a query are always joined in the same order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace baton {

constexpr int kTile = 64;      // keys whose scores are computed together
constexpr int kSegment = 512;  // keys that make one partial result

struct Range {
  int64_t begin, end;
};

// Tokens of one row whose queries stay together.
struct Unit {
  int64_t row;
  int64_t first_token;  // in the step
  Range positions;      // of the tokens
  Range keys;           // that any of them sees
  Range shared;         // keys that it has in the same blocks as the unit before it
  int64_t partials;     // of its first state in the partial results; -1: it makes none
  int64_t tokens() const { return positions.end - positions.begin; }
  int64_t first_segment() const { return keys.begin / kSegment; }
  int64_t segments() const { return (keys.end - 1) / kSegment - first_segment() + 1; }
  // The state of a token's head in a segment, counted from the unit's first ones.
  int64_t partial(int64_t token, int64_t head, int64_t heads, int64_t segment) const {
    return partials + ((token * heads + head) * segments()) + segment - first_segment();
  }
};

// Units [units) over segments [segments) for KV heads [heads): what one thread does in one go.
struct Item {
  Range units;
  Range segments;
  Range heads;
};

struct AttentionWork {
  const Unit* units;
  const Item* items;
  int64_t unit_count;
  int64_t item_count;
  int64_t partials;  // how many states
  bool small;        // less than sharing out would cost
};

// Valid until this thread's next call.
AttentionWork cut_attention(const AttentionArgs& args, int threads);

// Memory that a thread keeps from call to call: grows, never shrinks, 64-byte aligned.
class Memory {
 public:
  ~Memory();
  void* take(size_t bytes);  // contents are undefined
  float* floats(int64_t count) { return static_cast<float*>(take(static_cast<size_t>(count) * sizeof(float))); }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace baton

// A tile of keys and values: where it lies, and how it comes to fp32 where the arithmetic wants it.

// Where the tile's keys lie: element offsets of their slots, heads not counted.
struct Slots {
  int begin, end;
  int64_t codes[kTile];
  int64_t scales[kTile];
};

static void find_slots(const AttentionArgs& args, const int64_t* table, int64_t tile, Range keys, Slots* slots) {
  const int64_t first = tile * kTile;
  slots->begin = static_cast<int>(std::max<int64_t>(0, keys.begin - first));
  slots->end = static_cast<int>(std::min<int64_t>(kTile, keys.end - first));
  int64_t position = first + slots->begin;
  int64_t index = position / args.block_size, offset = position % args.block_size;
  for (int j = slots->begin; j < slots->end; ++index, offset = 0) {
    const int64_t block = table[index];
    const int to = static_cast<int>(std::min<int64_t>(slots->end, j + args.block_size - offset));
    const int64_t code = block * args.code_strides.block + (offset - j) * args.code_strides.slot;
    const int64_t scale = block * args.scale_strides.block + (offset - j) * args.scale_strides.slot;
    for (int i = j; i < to; ++i) slots->codes[i] = code + i * args.code_strides.slot;
    for (int i = j; i < to && args.scales != nullptr; ++i) slots->scales[i] = scale + i * args.scale_strides.slot;
    j = to;
  }
}

static inline float bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Asks for the next tile's lines in the order in which they lie in memory, spread evenly over the work on this tile. A
// core has few places for lines under way, and forgets what it is asked for while all are taken: so never many at once.
class Ahead {
 public:
  // Heads [heads) of these slots.
  Ahead(const AttentionArgs& args, const Slots& slots, Range heads, int64_t bytes)
      : slots_(slots), bytes_(bytes), slot_(args.code_strides.slot * bytes), key_(slots.begin) {
    const int64_t count = heads.end - heads.begin, keys = slots.end - slots.begin;
    codes_ = static_cast<const char*>(args.codes) + heads.begin * args.code_strides.head * bytes;
    part_ = args.code_strides.part * bytes;
    row_ = ((count - 1) * args.code_strides.head + args.head_dim) * bytes;
    lines_ = 2 * keys * (row_ + 63) / 64 / count + 1;
    if (args.scales == nullptr) return;
    constexpr int64_t kScale = sizeof(uint16_t);
    scales_ = reinterpret_cast<const char*>(args.scales + heads.begin * args.scale_strides.head);
    scale_part_ = args.scale_strides.part * kScale;
    scale_slot_ = args.scale_strides.slot * kScale;
    scale_row_ = ((count - 1) * args.scale_strides.head + 1) * kScale;
    lines_ += 2 * (keys * scale_slot_ + 63) / 64 / count + 1;
  }

  // One head of the tile that is computed takes so many units of work.
  void pace(int64_t units) { rate_ = (lines_ * kWhole + units - 1) / units; }

  // So many units are done.
  [[gnu::always_inline]] void step(int64_t units) {
    due_ += rate_ * units;
    more(due_ / kWhole);
    due_ %= kWhole;
  }

 private:
  static constexpr int64_t kWhole = 64;

  [[gnu::always_inline]] void more(int64_t lines) {
    while (lines > 0) {
      if (at_ >= end_ && !next_run()) return;
      for (; lines > 0 && at_ < end_; at_ += 64, --lines) _mm_prefetch(at_, _MM_HINT_T2);
    }
  }

  // Keys that lie side by side, their values, then the scales of both. Inlined: a call would move all sums to memory.
  [[gnu::always_inline]] bool next_run() {
    const int kind = next_++ % (scales_ == nullptr ? 2 : 4);
    if (kind == 0) {
      key_ += keys_in_run_;
      if (key_ >= slots_.end) {
        next_ = 0;
        keys_in_run_ = 0;
        return false;
      }
      find_run();
    }
    if (kind < 2) {
      at_ = codes_ + slots_.codes[key_] * bytes_ + kind * part_;
      end_ = at_ + keys_in_run_ * row_;
    } else {
      at_ = scales_ + slots_.scales[key_] * static_cast<int64_t>(sizeof(uint16_t)) + (kind - 2) * scale_part_;
      end_ = at_ + (keys_in_run_ - 1) * scale_slot_ + scale_row_;
      at_ -= reinterpret_cast<uintptr_t>(at_) % 64;
    }
    return true;
  }

  [[gnu::always_inline]] void find_run() {
    keys_in_run_ = 1;
    while (row_ == slot_ && key_ + keys_in_run_ < slots_.end &&
           (slots_.codes[key_ + keys_in_run_] - slots_.codes[key_]) * bytes_ == keys_in_run_ * slot_) {
      ++keys_in_run_;
    }
  }

  const Slots& slots_;
  const int64_t bytes_, slot_;
  const char *codes_, *scales_ = nullptr;
  int64_t part_, row_, scale_part_ = 0, scale_slot_ = 0, scale_row_ = 0;
  int64_t lines_;
  int64_t rate_ = 0, due_ = 0;  // lines, times kWhole
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  int next_ = 0;
  int key_, keys_in_run_ = 0;
};

// Units of work: of an element of sixteen keys that few queries meet, of sixteen elements of a key's values that are
// weighed, of sixteen exponentials.
constexpr int kKeyUnits = 2;
constexpr int kValueUnits = 1;
constexpr int kExpUnits = 10;

// Buffers of one tile of one KV head. Only keys [begin, end) are there; what else the arrays hold means nothing.
struct TileView {
  float* keys;                 // [head_dim][kTile]
  float* values;               // [kTile][padded]
  float* key_scales;           // [kTile], with quantised KV
  float* value_scales;         // [kTile]
  bool spoilt;                 // some of value_scales are NaN
  Ahead* ahead;                // told of the work on it
  const char* rows[kTile];     // each key's values: in `values`, or as they lie in the pool
};

// Sixteen vectors of at most 256 fp32 elements.
using VectorCopies = char[kLanes][1024];

// A head's keys (part 0) or values (1) of a tile in the pool.
template <class Kv>
class Vectors {
 public:
  Vectors(const AttentionArgs& args, const Slots& slots, int64_t head, int64_t part)
      : slots_(slots),
        base_(static_cast<const char*>(args.codes) +
              (head * args.code_strides.head + part * args.code_strides.part) * Kv::kBytes),
        stride_(args.code_strides.slot * Kv::kBytes),
        bytes_(args.head_dim * Kv::kBytes),
        in_place_(args.block_size % kLanes == 0 && bytes_ % kStepBytes == 0) {}

  const char* at(int key) const { return base_ + slots_.codes[key] * Kv::kBytes; }

  // Keys [at, at + 16) where they lie; null where they do not lie so that they are taken from there.
  Vectors16 lying(int at) const {
    if (!in_place_) return {nullptr, 0};
    const int first = std::max(at, slots_.begin);
    return {this->at(first) - (first - at) * stride_, stride_};
  }

  // Keys [at, at + 16), in whole steps, zeros beyond the last element. What lanes without a key hold means nothing.
  Vectors16 sixteen(int at, VectorCopies& copies) const {
    if (in_place_) return lying(at);
    for (int i = std::max(at, slots_.begin); i < std::min(at + kLanes, slots_.end); ++i) {
      if (bytes_ % kStepBytes != 0) std::memset(copies[i - at] + bytes_ / kStepBytes * kStepBytes, 0, kStepBytes);
      std::memcpy(copies[i - at], this->at(i), static_cast<size_t>(bytes_));
    }
    return {copies[0], sizeof copies[0]};
  }

 private:
  const Slots& slots_;
  const char* base_;
  int64_t stride_, bytes_;
  bool in_place_;
};

constexpr int kNearerFrom = 3;  // queries of a KV head; fewer leave the processor time to do so by itself

// Takes sixteen vectors from the second-level cache nearer, some at each step: vector after vector, as they lie in
// memory, is faster than a line of each, then the next of each.
class Nearer {
 public:
  Nearer(Vectors16 from, int64_t bytes, int64_t steps) : from_(from), bytes_(bytes), steps_(steps) {}

  void step() {
    if (from_.base == nullptr) return;
    due_ += kLanes;
    for (; due_ >= steps_ && taken_ < kLanes; due_ -= steps_, ++taken_) {
      const char* vector = from_.base + taken_ * from_.stride;
      for (int64_t at = 0; at < bytes_; at += 64) _mm_prefetch(vector + at, _MM_HINT_T0);
    }
  }

 private:
  const Vectors16 from_;
  const int64_t bytes_, steps_;
  int64_t due_ = 0;
  int taken_ = 0;
};

// f(at, keys [at, at + 16), what to take nearer meanwhile) for a head's keys of a tile, which so many queries meet.
template <class Kv, class F>
static inline void by_sixteen(const AttentionArgs& args, const Slots& slots, int64_t head, int64_t count, F&& f) {
  const Vectors<Kv> keys(args, slots, head, 0), values(args, slots, head, 1);
  const int64_t bytes = args.head_dim * Kv::kBytes, steps = (bytes + kStepBytes - 1) / kStepBytes;
  const int begin = slots.begin / kLanes * kLanes;
  VectorCopies copies;
  const bool nearer = count >= kNearerFrom;
  if (nearer) Nearer(keys.lying(begin), bytes, 1).step();
  for (int at = begin; at < slots.end; at += kLanes) {
    const Vectors16 next = at + kLanes < slots.end ? keys.lying(at + kLanes) : values.lying(begin);
    f(at, keys.sixteen(at, copies), Nearer(nearer ? next : Vectors16{nullptr, 0}, bytes, steps));
  }
}

template <class Kv>
static void load_keys(const AttentionArgs& args, const Slots& slots, int64_t head, float* to) {
  constexpr int64_t kElements = kStepBytes / Kv::kBytes;
  by_sixteen<Kv>(args, slots, head, kNearerFrom, [&](int at, Vectors16 from, Nearer next) {
    for (int64_t d = 0; d < args.head_dim; d += kElements) {
      next.step();
      float* column = to + d * kTile + at;
      const int64_t some = args.head_dim - d;
      for_elements<Kv>(from, d * Kv::kBytes, [column, some](int i, F16 element) {
        if (i < some) element.store(column + i * kTile);
      });
    }
  });
}

// in_place: values are read where they lie, by whoever weighs them; else as fp32 from a copy.
template <class Kv>
static void load_values(const AttentionArgs& args, const Slots& slots, int64_t head, bool in_place, TileView& view) {
  const int64_t dim = args.head_dim, whole = dim / kLanes * kLanes;
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes;
  const Vectors<Kv> values(args, slots, head, 1);
  for (int j = slots.begin; j < slots.end; ++j) {
    const char* from = values.at(j);
    float* to = view.values + j * padded;
    view.rows[j] = in_place ? from : reinterpret_cast<const char*>(to);
    if (in_place) continue;
    for (int64_t d = 0; d < whole; d += kLanes) Kv::load(from + d * Kv::kBytes).store(to + d);
    if (whole < dim) load_some<Kv>(from + whole * Kv::kBytes, static_cast<int>(dim - whole)).store(to + whole);
  }
}

static void load_scales(const AttentionArgs& args, const Slots& slots, int64_t head, TileView& view) {
  const uint16_t* scales = args.scales + head * args.scale_strides.head;
  const float unit = args.kv_dtype == kKvFp8 ? kFp8Divisor : 1.0f;
  view.spoilt = false;
  for (int j = slots.begin; j < slots.end; ++j) {
    view.key_scales[j] = bf16(scales[slots.scales[j]]) * unit;
    view.value_scales[j] = bf16(scales[slots.scales[j] + args.scale_strides.part]) * unit;
    view.spoilt |= std::isnan(view.value_scales[j]);
  }
}

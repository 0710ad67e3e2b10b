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

// Asks for the next tile's lines in the order in which they lie in memory, a few at a time while this tile is
// computed: so memory never rests, and the hardware's own prefetchers follow, which they do not when heads and rows
// are read as they are used.
class Ahead {
 public:
  // Heads [heads) of these slots.
  Ahead(const AttentionArgs& args, const Slots& slots, Range heads, int64_t bytes)
      : slots_(slots), bytes_(bytes), slot_(args.code_strides.slot * bytes), key_(slots.begin) {
    const int64_t count = heads.end - heads.begin;
    keys_ = static_cast<const char*>(args.codes) + heads.begin * args.code_strides.head * bytes;
    values_ = args.code_strides.part * bytes;
    row_ = ((count - 1) * args.code_strides.head + args.head_dim) * bytes;
    lines_ = 2 * (slots.end - slots.begin) * (row_ / 64 + 1) / count + 1;
  }

  // Lines a call, when `calls` of them go with one head of the tile that is computed.
  int64_t share(int64_t calls) const { return (lines_ + calls - 1) / calls; }

  void more(int64_t lines) {
    while (lines > 0) {
      if (at_ >= end_ && !next_run()) return;
      const char* to = std::min(end_, at_ + lines * 64);
      for (; at_ < to; at_ += 64, --lines) _mm_prefetch(at_, _MM_HINT_T1);
    }
  }

 private:
  // Keys that lie side by side, then their values.
  bool next_run() {
    if (run_ > 0) {
      at_ = keys_ + slots_.codes[key_] * bytes_ + values_;
      end_ = at_ + run_;
      key_ += keys_in_run_;
      run_ = 0;
      return true;
    }
    if (key_ >= slots_.end) return false;
    keys_in_run_ = 1;
    while (row_ == slot_ && key_ + keys_in_run_ < slots_.end &&
           (slots_.codes[key_ + keys_in_run_] - slots_.codes[key_]) * bytes_ == keys_in_run_ * slot_) {
      ++keys_in_run_;
    }
    run_ = keys_in_run_ * row_;
    at_ = keys_ + slots_.codes[key_] * bytes_;
    end_ = at_ + run_;
    return true;
  }

  const Slots& slots_;
  const int64_t bytes_, slot_;
  const char* keys_;
  int64_t values_, row_, lines_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  int64_t run_ = 0;
  int key_, keys_in_run_ = 0;
};

constexpr int kPause = 4;

// Buffers of one tile of one KV head. Only keys [begin, end) are there; what else the arrays hold means nothing.
struct TileView {
  float* keys;                 // [head_dim][kTile]
  float* values;               // [kTile][padded]
  float* key_scales;           // [kTile], with quantised KV
  float* value_scales;         // [kTile]
  Ahead* ahead;                // asked for so many lines at every kPause-th key that few queries weigh
  int64_t lines;
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

  // Keys [at, at + 16), in whole steps, zeros beyond the last element. What lanes without a key hold means nothing.
  Vectors16 sixteen(int at, VectorCopies& copies) const {
    const int first = std::max(at, slots_.begin);
    if (in_place_) return {this->at(first) - (first - at) * stride_, stride_};
    for (int i = first; i < std::min(at + kLanes, slots_.end); ++i) {
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

// Vector after vector, as they lie in memory: faster than a line of each, then the next of each.
static inline void touch(Vectors16 from, int64_t bytes) {
  for (int i = 0; i < kLanes; ++i) {
    for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(from.base + i * from.stride + at, _MM_HINT_T0);
  }
}

template <class Kv>
static void load_keys(const AttentionArgs& args, const Slots& slots, int64_t head, Ahead& ahead, float* to) {
  constexpr int64_t kElements = kStepBytes / Kv::kBytes;
  const Vectors<Kv> keys(args, slots, head, 0);
  const int64_t lines = ahead.share((kTile / kLanes) * ((args.head_dim + kElements - 1) / kElements));
  VectorCopies copies;
  for (int at = slots.begin / kLanes * kLanes; at < slots.end; at += kLanes) {
    const Vectors16 from = keys.sixteen(at, copies);
    touch(from, args.head_dim * Kv::kBytes);
    for (int64_t d = 0; d < args.head_dim; d += kElements) {
      ahead.more(lines);
      float* column = to + d * kTile + at;
      const int64_t some = args.head_dim - d;
      for_elements<Kv>(from, d * Kv::kBytes, [column, some](int i, F16 element) {
        if (i < some) element.store(column + i * kTile);
      });
    }
  }
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
  for (int j = slots.begin; j < slots.end; ++j) {
    view.key_scales[j] = bf16(scales[slots.scales[j]]) * unit;
    view.value_scales[j] = bf16(scales[slots.scales[j] + args.scale_strides.part]) * unit;
  }
}

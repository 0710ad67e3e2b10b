// A tile of keys and values: where it lies, and how it comes to fp32 where the arithmetic wants it.

// Buffers of one tile of one KV head. Only keys [begin, end) are there; what else the arrays hold means nothing.
struct TileView {
  float* keys;                 // [head_dim][kTile]
  float* values;               // [kTile][padded]
  float* key_scales;           // [kTile], with quantised KV
  float* value_scales;         // [kTile]
  const float* rows[kTile];    // each key's values: in `values`, or where they lie in the pool
};

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
// computed: the hardware's own prefetchers follow, which they do not when heads and rows are read as they are used.
class Ahead {
 public:
  // Heads [heads) of these slots.
  Ahead(const AttentionArgs& args, const Slots& slots, Range heads, int64_t bytes, int64_t calls)
      : slots_(slots), bytes_(bytes), key_(slots.begin) {
    keys_ = static_cast<const char*>(args.codes) + heads.begin * args.code_strides.head * bytes;
    values_ = args.code_strides.part * bytes;
    row_ = ((heads.end - heads.begin - 1) * args.code_strides.head + args.head_dim) * bytes;
    const int64_t lines = 2 * (slots.end - slots.begin) * (row_ / 64 + 1);
    lines_per_call_ = calls > 0 ? (lines + calls - 1) / calls : 0;
  }

  void more() {
    int64_t left = lines_per_call_;
    while (left > 0 && key_ < slots_.end) {
      const char* row = keys_ + slots_.codes[key_] * bytes_;
      const int64_t end = std::min(row_, offset_ + left * 64);
      int64_t offset = offset_;
      for (; offset < end; offset += 64, --left) _mm_prefetch(row + offset, _MM_HINT_T1);
      offset_ = offset < row_ ? offset : next_key();
    }
  }

 private:
  int64_t next_key() {
    if (++key_ == slots_.end && !second_) {
      second_ = true;
      key_ = slots_.begin;
      keys_ += values_;
    }
    return 0;
  }

  const Slots& slots_;
  const int64_t bytes_;
  const char* keys_;
  int64_t values_, row_, lines_per_call_;
  int64_t offset_ = 0;
  int key_;
  bool second_ = false;
};

// A head's part of a tile in the pool: one vector per key. Lanes without a key repeat the first one.
template <class Kv>
struct Vectors {
  Vectors(const AttentionArgs& args, const Slots& slots, int64_t head, int64_t part)
      : slots_(slots),
        base_(static_cast<const char*>(args.codes) +
              (head * args.code_strides.head + part * args.code_strides.part) * static_cast<int64_t>(Kv::kBytes)),
        dim_(static_cast<int>(args.head_dim)) {}

  const char* at(int key) const {
    const bool there = key >= slots_.begin && key < slots_.end;
    return base_ + slots_.codes[there ? key : slots_.begin] * static_cast<int64_t>(Kv::kBytes);
  }

  // Dimensions [d, d + 16), zeros beyond the last.
  F16 load(const char* vector, int d) const {
    const char* from = vector + static_cast<size_t>(d) * Kv::kBytes;
    return d + kLanes <= dim_ ? Kv::load(from) : load_some<Kv>(from, dim_ - d);
  }

 private:
  const Slots& slots_;
  const char* base_;
  int dim_;
};

// How many times a block of 16 keys and 16 dimensions asks for more: lines that are asked for all at once are
// forgotten when too many are on their way.
template <class Kv>
constexpr int kAheadCalls = Kv::kBytes > 2 ? 2 : 1;

template <class Kv>
static void load_keys(const AttentionArgs& args, const Slots& slots, int64_t head, Ahead& ahead, float* to) {
  const int dim = static_cast<int>(args.head_dim);
  const Vectors<Kv> keys(args, slots, head, 0);
  for (int at = slots.begin / kLanes * kLanes; at < slots.end; at += kLanes) {
    const char* from[kLanes];
    for (int i = 0; i < kLanes; ++i) from[i] = keys.at(at + i);
    for (int d = 0; d < dim; d += kLanes) {
      for (int i = 0; i < kAheadCalls<Kv>; ++i) ahead.more();
      F16 block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = keys.load(from[i], d);
      transpose(block);
      for (int i = 0; i < std::min(kLanes, dim - d); ++i) block[i].store(to + (d + i) * kTile + at);
    }
  }
}

// few: so few queries come that fp32 values are best read where they lie.
template <class Kv>
static void load_values(const AttentionArgs& args, const Slots& slots, int64_t head, bool few, TileView& view) {
  const int dim = static_cast<int>(args.head_dim);
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes;
  const Vectors<Kv> values(args, slots, head, 1);
  const bool in_place = Kv::kBytes == sizeof(float) && few && dim == padded;
  for (int j = slots.begin; j < slots.end; ++j) {
    const char* from = values.at(j);
    float* to = view.values + j * padded;
    view.rows[j] = in_place ? reinterpret_cast<const float*>(from) : to;
    for (int d = in_place ? dim : 0; d < dim; d += kLanes) values.load(from, d).store(to + d);
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

// Activations as integers. Rows are put together in tiles, those of a tile side by side, as the product reads them.

struct BlockScale {
  int32_t start;  // -zero_point * the sum of the block's integers: where the product's sum begins
  float scale;    // of activations and, where the weight has one, of everything
  float sum;      // of the rounded activations: what an offset is multiplied by
};

#if BATON_AVX512
constexpr int kTileRows[] = {1, 2, 4, 8, 16};  // 16 accumulators of 32 registers: results stay in the others
#else
constexpr int kTileRows[] = {1, 2, 3, 4};  // 8 accumulators of 16
#endif
constexpr int kMostRows = kTileRows[std::size(kTileRows) - 1];

// Rows in tiles of the sizes that there are: the greatest as often as it goes, then what is left.
class Tiles {
 public:
  explicit Tiles(int64_t rows) : whole_(rows / kMostRows) {
    for (int64_t left = rows % kMostRows; left > 0; left -= rest_[rests_++]) {
      rest_[rests_] = *std::find_if(std::rbegin(kTileRows), std::rend(kTileRows), [&](int n) { return n <= left; });
    }
  }
  int64_t count() const { return whole_ + rests_; }
  int size(int64_t tile) const { return tile < whole_ ? kMostRows : rest_[tile - whole_]; }
  int64_t first(int64_t tile) const {
    return std::min(tile, whole_) * kMostRows + std::accumulate(rest_, rest_ + std::max<int64_t>(0, tile - whole_), 0);
  }

 private:
  int64_t whole_;
  int rest_[4] = {};
  int rests_ = 0;
};

struct Activations {
  int32_t* units;       // per tile [units][rows of the tile]
  BlockScale* scales;   // per tile [blocks][rows]
  float* sums;          // [rows]: over all blocks
  int64_t row_units;
};

static inline F16 load_places(const IntWeight& weight, const float* x, int64_t place, int n) {
  if (weight.source == nullptr) {
    const int64_t left = weight.in_features - place;
    if (n == kLanes && left >= kLanes) return F16::load(x + place);
    return F16::load(x + place, static_cast<int>(std::min<int64_t>(n, left)));
  }
  alignas(64) float gathered[kLanes] = {};
  for (int i = 0; i < n; ++i) {
    const int32_t from = weight.source[place + i];
    if (from >= 0) gathered[i] = x[from];
  }
  return F16::load(gathered);
}

// The greatest magnitude, as the bits of a float; beyond those of infinity where there is a NaN.
static inline int32_t greatest_bits(const IntWeight& weight, const float* x, int64_t begin, int64_t end) {
  const I16 magnitude = I16::set(0x7fffffff);
  I16 greatest = I16::zero();
  for (int64_t place = begin; place < end; place += kLanes) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, end - place));
    greatest = max(greatest, bits(load_places(weight, x, place, n)) & magnitude);
  }
  return max_lane(greatest);
}

// Sixteen integers as units, `stride` apart.
template <class Form>
static inline void store_units(I16 values, int32_t* to, int64_t stride, int units) {
  alignas(32) int32_t packed[8];
  if constexpr (Form::kUnits == 1) {
#if BATON_AVX512
    _mm_store_si128(reinterpret_cast<__m128i*>(packed), _mm512_cvtepi32_epi8(values.v));
#endif
  } else {
    constexpr int evens_first = _MM_SHUFFLE(3, 1, 2, 0);
    const __m256i natural = narrow16(values);
    const __m256i paired = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(natural, evens_first), evens_first);
    _mm256_store_si256(reinterpret_cast<__m256i*>(packed), paired);
  }
  for (int i = 0; i < units; ++i) to[i * stride] = packed[i];
}

// Where one row goes in its tile.
struct Lane {
  int32_t* units;
  BlockScale* scales;
  int64_t stride;  // rows of the tile
};

// Blocks first .. last - 1, which share a scale.
template <class Form>
static void round_blocks(const IntWeight& weight, const float* x, int64_t first, int64_t last, const Lane& to) {
  const int32_t greatest =
      greatest_bits(weight, x, weight.blocks[first].begin * kStep, weight.blocks[last - 1].end * kStep);
  float absmax;
  std::memcpy(&absmax, &greatest, sizeof absmax);
  const float largest = weight.narrow ? Narrow::kLargest : Wide::kLargest;
  const bool finite = greatest < 0x7f800000;
  const float scale = finite ? absmax / largest : std::numeric_limits<float>::quiet_NaN();
  const bool zero = !finite || scale == 0.0f;
  const F16 divisor = F16::set(zero ? 1.0f : scale), high = F16::set(zero ? 0.0f : largest);
  const F16 low = F16::zero() - high;
  for (int64_t b = first; b < last; ++b) {
    const int64_t end = weight.blocks[b].end * kStep;
    I16 total = I16::zero();
    for (int64_t place = weight.blocks[b].begin * kStep; place < end; place += kLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, end - place));
      // Limits last: where one is NaN, min and max give their second operand.
      const F16 quotient = load_places(weight, x, place, n) / divisor;
      const I16 rounded = to_int(min(max(quotient, low), high));
      total = total + rounded;
      constexpr int per_step = 2 * Form::kUnits;
      store_units<Form>(rounded, to.units + place / kStep * per_step * to.stride, to.stride, n / kStep * per_step);
    }
    const int32_t integers = sum(total);
    to.scales[b * to.stride] = {-weight.zero_point * integers, scale * weight.factor,
                                scale * static_cast<float>(integers)};
  }
}

// A row; returns the sum of its rounded activations.
template <class Form>
static float round_row(const IntWeight& weight, const float* x, const Lane& to) {
  float total = 0.0f;
  int64_t first = 0;
  while (first < weight.block_count) {
    int64_t last = first + 1;
    while (last < weight.block_count && weight.blocks[last].activations == weight.blocks[first].activations) ++last;
    round_blocks<Form>(weight, x, first, last, to);
    for (int64_t b = first; b < last; ++b) total += to.scales[b * to.stride].sum;
    first = last;
  }
  return total;
}

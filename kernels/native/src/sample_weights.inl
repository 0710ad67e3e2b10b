// A row's survey and its tokens' weights, as kernels/sample/weights.py defines them: whole numbers, so that sums have
// one value in whatever order. Plain loops over doubles; the compiler makes vectors of them.

constexpr int64_t kBlock = 64;  // ids whose largest logit, or sum of weights, is kept
constexpr int kBits = 44;
constexpr int64_t kOne = int64_t{1} << kBits;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

static int64_t blocks_of(int64_t count) { return (count + kBlock - 1) / kBlock; }

// Grows, never shrinks; contents are undefined.
template <class T>
static T* grown(std::vector<T>& memory, int64_t count) {
  if (static_cast<int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

// What a thread needs for one row.
struct RowMemory {
  std::vector<float> peaks, sorted, shared, values, listed_values;
  std::vector<int64_t> ids, weights, sums, listed_weights, listed_places;
  std::vector<uint16_t> buckets;
};

// Integers in the order of the numbers; NaNs lie beyond the infinities.
static int32_t key_of(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
static float value_of(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

struct Extent {
  float best = -kInfinity;
  float least = kInfinity;  // of those above -inf
  bool nan = false;

  bool distribution() const { return !nan && best > -kInfinity; }
};

// peaks: the largest of each block.
static Extent extent_of(const float* logits, int64_t count, float* peaks) {
  constexpr int32_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
  const int32_t nothing = key_of(-kInfinity);
  int32_t top = kLow, under = kHigh;
  uint32_t bottom = ~0u;  // less `nothing` and 1, so that -inf comes last
  int32_t keys[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int n = static_cast<int>(std::min(count - begin, kBlock));
    int32_t peak = kLow, base = kHigh;
    uint32_t least = ~0u;
    for (int i = 0; i < n; ++i) keys[i] = key_of(logits[begin + i]);
    for (int i = 0; i < n; ++i) peak = std::max(peak, keys[i]);
    for (int i = 0; i < n; ++i) base = std::min(base, keys[i]);
    for (int i = 0; i < n; ++i) least = std::min(least, static_cast<uint32_t>(keys[i]) - nothing - 1);
    peaks[begin / kBlock] = value_of(peak);
    top = std::max(top, peak);
    under = std::min(under, base);
    bottom = std::min(bottom, least);
  }
  Extent extent;
  extent.nan = top > key_of(kInfinity) || under < nothing;
  extent.best = value_of(top);
  if (top > nothing) extent.least = value_of(static_cast<int32_t>(bottom + nothing + 1));
  return extent;
}

// What e^((logit - best) / temperature) is in powers of two: 2^((logit - best) * factor).
static double factor_of(double temperature) { return std::min(1.4426950408889634 / temperature, 1e300); }

// t <= 0, not NaN
static int64_t weight_of(double t) {
  constexpr double kMagic = 0x1.8p52;  // adding it leaves the nearest integer, ties to even, in the last bits
  constexpr auto kMagicBits = std::bit_cast<int64_t>(kMagic);
  // At least -64. As integers: a comparison of doubles could trap, which keeps compilers from making vectors.
  const int64_t size = std::bit_cast<int64_t>(t) & std::numeric_limits<int64_t>::max();
  t = -std::bit_cast<double>(std::min(size, std::bit_cast<int64_t>(64.0)));
  const double shifted = t + kMagic;
  const double r = t - (shifted - kMagic);
  double p = 4.4455382718708116e-10;
  p = p * r + 7.054911620801123e-09;
  p = p * r + 1.01780860092397e-07;
  p = p * r + 1.321548679014431e-06;
  p = p * r + 1.5252733804059841e-05;
  p = p * r + 0.0001540353039338161;
  p = p * r + 0.0013333558146428443;
  p = p * r + 0.009618129107628477;
  p = p * r + 0.05550410866482158;
  p = p * r + 0.24022650695910072;
  p = p * r + 0.6931471805599453;
  p = p * r + 1.0;
  const int64_t whole = std::bit_cast<int64_t>(shifted) - kMagicBits;
  const auto scale = std::bit_cast<double>((whole + kBits + 1023) << 52);
  return std::bit_cast<int64_t>(p * scale + kMagic) - kMagicBits;
}

// weights (null: not wanted) and their sum in each block; returns the sum of all. peaks: see extent_of; null: skip
// nothing. best is finite.
static int64_t weigh(const float* logits, int64_t count, float best, double factor, const float* peaks,
                     int64_t* weights, int64_t* sums) {
  constexpr double kNothing = -46.0;
  int64_t mass = 0;
  int64_t block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(count - begin, kBlock);
    int64_t* to = weights == nullptr ? block : weights + begin;
    int64_t sum = 0;
    if (peaks != nullptr && (static_cast<double>(peaks[begin / kBlock]) - best) * factor < kNothing) {
      std::fill_n(to, n, 0);
    } else {
      const float* from = logits + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = weight_of((static_cast<double>(from[i]) - best) * factor);
      for (int64_t i = 0; i < n; ++i) sum += to[i];
    }
    sums[begin / kBlock] = sum;
    mass += sum;
  }
  return mass;
}

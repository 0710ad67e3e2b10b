// Activations as integers, row by row, in the order in which the product reads them.

struct BlockScale {
  int32_t start;  // -zero_point * the sum of the block's integers: where the product's sum begins
  float scale;    // of activations and, where the weight has one, of everything
  float sum;      // of the rounded activations: what an offset is multiplied by
};

struct Activations {
  int32_t* units;      // [rows], row_units apart
  BlockScale* scales;  // [rows][blocks]
  float* sums;         // [rows]: over all blocks
  int64_t row_units;
};

// An odd number of cache lines: rows of a tile are read side by side, and must not all fall into the same sets.
static inline int64_t padded_units(int64_t units) {
  constexpr int64_t kLine = 64 / sizeof(int32_t);
  return ((units + kLine - 1) / kLine | 1) * kLine;
}

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

// Sixteen integers as units. Where they are the last eight of a block, zeros follow them, which the next block
// overwrites; a row's last block leaves them there.
template <class Form>
static inline void store_units(I16 values, int32_t* to) {
  if constexpr (Form::kUnits == 1) {
#if BATON_AVX512
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(values.v));
  } else if constexpr (Form::kSums == 2) {
    const __m512i greater = _mm512_srai_epi32(_mm512_add_epi32(values.v, _mm512_set1_epi32(128)), 8);
    const __m128i first = _mm512_cvtepi32_epi8(greater);
    const __m128i last = _mm512_cvtepi32_epi8(_mm512_sub_epi32(values.v, _mm512_slli_epi32(greater, 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi32(first, last));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 1, _mm_unpackhi_epi32(first, last));
#endif
  } else {
    constexpr int evens_first = _MM_SHUFFLE(3, 1, 2, 0);
    const __m256i natural = narrow16(values);
    const __m256i paired = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(natural, evens_first), evens_first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), paired);
  }
}

// Where one row goes.
struct Lane {
  int32_t* units;
  BlockScale* scales;
};

// Numbers divided by their scale, to the nearest integer; ties to even.
struct Rounding {
  float scale;  // the greatest magnitude / largest; NaN: not all are finite
  F16 divisor, inverse, low, high;
  bool plain;

  // greatest: see greatest_bits
  Rounding(int32_t greatest, float largest) {
    std::memcpy(&scale, &greatest, sizeof scale);
    scale = greatest < 0x7f800000 ? scale / largest : std::numeric_limits<float>::quiet_NaN();
    plain = scale >= 0x1p-80f && scale <= 0x1p80f;
    const bool nonzero = scale > 0.0f;
    divisor = F16::set(nonzero ? scale : 1.0f);
    inverse = F16::set(1.0f / scale);
    high = F16::set(nonzero ? largest : 0.0f);
    low = F16::zero() - high;
  }

  // If plain. By way of the inverse and what it leaves, at half of what a division takes; that an 8-bit integer is
  // always the division's was tried: for all mantissas of a scale, with all numbers next to a half.
  I16 plainly(F16 x) const {
    const F16 near = x * inverse;
    return to_int(fma(fnma(near, divisor, x), inverse, near));
  }
  // Scales that are not normal are coarse: limits are needed. They come last: where one operand is NaN, min and max
  // give their second.
  I16 operator()(F16 x) const { return plain ? plainly(x) : to_int(min(max(x / divisor, low), high)); }
};

static inline BlockScale block_scale(const IntWeight& weight, float scale, I16 total) {
  const int32_t integers = sum(total);
  return {-weight.zero_point * integers, scale * weight.factor, scale * static_cast<float>(integers)};
}

// Blocks first .. last - 1, which share a scale.
template <class Form>
static void round_blocks(const IntWeight& weight, const float* x, int64_t first, int64_t last, const Lane& to) {
  const Rounding rounding(
      greatest_bits(weight, x, weight.blocks[first].begin * kStep, weight.blocks[last - 1].end * kStep),
      weight.narrow ? Narrow::kLargest : Wide::kLargest);
  for (int64_t b = first; b < last; ++b) {
    const int64_t end = weight.blocks[b].end * kStep;
    I16 total = I16::zero();
    for (int64_t place = weight.blocks[b].begin * kStep; place < end; place += kLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, end - place));
      const I16 rounded = rounding(load_places(weight, x, place, n));
      total = total + rounded;
      store_units<Form>(rounded, to.units + place / 4 * Form::kUnits);
    }
    to.scales[b] = block_scale(weight, rounding.scale, total);
  }
}

// The same for one block of 64 inputs, all of them there and in order.
template <class Form>
static void round_64(const IntWeight& weight, const float* x, int32_t* units, BlockScale* scale) {
  const I16 magnitude = I16::set(0x7fffffff);
  const F16 a = F16::load(x), b = F16::load(x + 16), c = F16::load(x + 32), d = F16::load(x + 48);
  const I16 ab = max(bits(a) & magnitude, bits(b) & magnitude), cd = max(bits(c) & magnitude, bits(d) & magnitude);
  const Rounding rounding(max_lane(max(ab, cd)), weight.narrow ? Narrow::kLargest : Wide::kLargest);
  I16 p, q, r, s;
  if (rounding.plain) {
    p = rounding.plainly(a), q = rounding.plainly(b), r = rounding.plainly(c), s = rounding.plainly(d);
  } else {
    p = rounding(a), q = rounding(b), r = rounding(c), s = rounding(d);
  }
  store_units<Form>(p, units);
  store_units<Form>(q, units + 4 * Form::kUnits);
  store_units<Form>(r, units + 8 * Form::kUnits);
  store_units<Form>(s, units + 12 * Form::kUnits);
  *scale = block_scale(weight, rounding.scale, (p + q) + (r + s));
}

// A row; returns the sum of its rounded activations.
template <class Form>
static float round_row(const IntWeight& weight, const float* x, const Lane& to) {
  float total = 0.0f;
  int64_t first = 0;
  while (first < weight.block_count) {
    int64_t last = first + 1;
    const IntBlock block = weight.blocks[first];
    while (last < weight.block_count && weight.blocks[last].activations == block.activations) ++last;
    const int64_t place = block.begin * kStep;
    const bool whole = weight.source == nullptr && last == first + 1 && block.end - block.begin == 64 / kStep;
    if (whole && place + 64 <= weight.in_features) {
      round_64<Form>(weight, x + place, to.units + place / 4 * Form::kUnits, to.scales + first);
    } else {
      round_blocks<Form>(weight, x, first, last, to);
    }
    for (int64_t b = first; b < last; ++b) total += to.scales[b].sum;
    first = last;
  }
  return total;
}

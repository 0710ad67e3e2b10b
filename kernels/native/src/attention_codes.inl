// A tile of INT8 keys and values. Queries and the values' weights are rounded to eight bits as well, each query's with
// one step, its weights with one step a tile, and products of codes are summed as integers: no order changes a bit.
// As in SageAttention (arXiv:2410.02367), but for the weights, whose step follows the tile's largest: where thousands
// of keys share the attention, each weight is far below 1.

constexpr float kMostCode = 127.0f;
constexpr float kLeastStep = 0x1p-126f;

// To the nearest integers, ties to even; -127 to 127.
static inline void store_bytes(F16 x, void* to) {
#if BATON_AVX512
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
#else
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i in_order = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1));
  _mm_storeu_si128(static_cast<__m128i*>(to), bytes);
#endif
}

// Codes of a query, [size], in its own place; size is a multiple of kStepBytes.
static QueryCodes round_query(float* query, int64_t size) {
  auto* to = reinterpret_cast<int8_t*>(query);
  F16 most = F16::zero(), spoilt = F16::zero();  // by what is NaN or infinite: 0 times it is NaN
  for (int64_t d = 0; d < size; d += kLanes) {
    const F16 x = F16::load(query + d);
    most = max(most, bits_and(x, 0x7fffffff));
    spoilt = fma(x, F16::zero(), spoilt);
  }
  const bool finite = sum(spoilt) == 0.0f;
  const float step = max_lane(most) / kMostCode;
  if (!finite || step < kLeastStep) {
    std::memset(to, 0, static_cast<size_t>(size));
    return {to, finite ? 0.0f : std::numeric_limits<float>::quiet_NaN(), 0};
  }
  F16 total = F16::zero();  // of whole numbers, so exact
  for (int64_t d = 0; d < size; d += kLanes) {  // a code is where nothing is read any more
    const F16 code = round(F16::load(query + d) / F16::set(step));
    total = total + code;
    store_bytes(code, to + d);
  }
  return {to, step, BATON_AVX512 ? -128 * static_cast<int32_t>(sum(total)) : 0};
}

// What a tile's codes are packed for: sums of four products in each of the lanes of a register.
struct TileCodes {
  char* keys;               // [head_dim / 4][kTile][4]
  char* values;             // [kTile / 4][wide][4]
  int64_t wide;             // head_dim, up to a multiple of kStepBytes
  const float* key_scales;  // [kTile]
};

// Units of work, as those of attention_tile.inl: of thirty-two elements of sixteen keys, of four keys' values.
constexpr int kPackUnits = 64;
constexpr int kFourUnits = 16;

static void pack_keys(const AttentionArgs& args, const Slots& slots, int64_t head, int64_t count, Ahead& ahead,
                      const TileCodes& to) {
  by_sixteen<KvInt8>(args, slots, head, count, [&](int at, Vectors16 from, Nearer next) {
    for (int64_t d = 0; d < args.head_dim; d += kStepBytes) {
      ahead.step(kPackUnits);
      next.step();
      F16 word[8];
      transpose_words(from, d, word);
      for (int c = 0; c < 8; ++c) {
#if BATON_AVX512
        word[c].v = _mm512_xor_ps(word[c].v, _mm512_castsi512_ps(_mm512_set1_epi8(-128)));
#endif
        word[c].store(reinterpret_cast<float*>(to.keys + ((d / 4 + c) * kTile + at) * 4));
      }
    }
  });
}

// Elements [0, 32) of four vectors, element by element.
static inline void interleave(const char* const (&from)[4], int64_t offset, char* to) {
  __m256i r[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[i] + offset));
  const __m256i a = _mm256_unpacklo_epi8(r[0], r[1]), b = _mm256_unpackhi_epi8(r[0], r[1]);
  const __m256i c = _mm256_unpacklo_epi8(r[2], r[3]), d = _mm256_unpackhi_epi8(r[2], r[3]);
  const __m256i w = _mm256_unpacklo_epi16(a, c), x = _mm256_unpackhi_epi16(a, c);
  const __m256i y = _mm256_unpacklo_epi16(b, d), z = _mm256_unpackhi_epi16(b, d);
  auto* at = reinterpret_cast<__m256i*>(to);
  _mm256_store_si256(at, _mm256_permute2x128_si256(w, x, 0x20));
  _mm256_store_si256(at + 1, _mm256_permute2x128_si256(y, z, 0x20));
  _mm256_store_si256(at + 2, _mm256_permute2x128_si256(w, x, 0x31));
  _mm256_store_si256(at + 3, _mm256_permute2x128_si256(y, z, 0x31));
}

// Of fours of keys with none in the slots nothing is written; a key that is not there has zeros.
static void pack_values(const AttentionArgs& args, const Slots& slots, int64_t head, Ahead& ahead, const TileCodes& to) {
  static constexpr char kNone[256 + kStepBytes] = {};
  const Vectors<KvInt8> values(args, slots, head, 1);
  const bool whole = to.wide == args.head_dim;
  char copies[4][256 + kStepBytes];
  for (int first = slots.begin / 4 * 4; first < slots.end; first += 4) {
    ahead.step(kFourUnits);
    const char* from[4];
    for (int i = 0; i < 4; ++i) {
      from[i] = first + i >= slots.begin && first + i < slots.end ? values.at(first + i) : kNone;
      if (!whole) from[i] = static_cast<char*>(std::memcpy(copies[i], from[i], static_cast<size_t>(args.head_dim)));
    }
    for (int64_t d = 0; d < to.wide; d += kStepBytes) interleave(from, d, to.values + (first * to.wide) + d * 4);
  }
}

#if BATON_AVX512

// Sums of a register's lanes.
using Sums = __m512i;
constexpr int kSumLanes = 16;

static inline Sums set_sums(int32_t x) { return _mm512_set1_epi32(x); }
static inline Sums load_codes(const char* p) { return _mm512_loadu_si512(p); }
static inline void store_scaled(Sums sums, float step, const float* scales, float* to) {
  const __m512 in_steps = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(step));
  _mm512_storeu_ps(to, _mm512_mul_ps(in_steps, _mm512_loadu_ps(scales)));
}
static inline void add_scaled(Sums sums, float step, float factor, float* to) {
  const __m512 before = _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(factor));
  _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(step), before));
}

// In assembly, for gcc would load all queries' words ahead of their use, and move sums out to make room.
static inline __m512i every_word(const char* p) {
  __m512i words;
  asm("vpbroadcastd %1, %0" : "=v"(words) : "m"(*reinterpret_cast<const int32_t(*)>(p)));
  return words;
}
static inline Sums dot_unsigned(Sums sums, __m512i any, __m512i with_sign) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(any), "v"(with_sign));
  return sums;
}
// keys, one word of a query
static inline Sums dot_keys(Sums sums, __m512i keys, __m512i query) { return dot_unsigned(sums, keys, query); }
// values, one word of weights
static inline Sums dot_values(Sums sums, __m512i values, __m512i weights) {
  return dot_unsigned(sums, weights, values);
}

#else

using Sums = __m256i;
constexpr int kSumLanes = 8;

static inline Sums set_sums(int32_t x) { return _mm256_set1_epi32(x); }
static inline Sums load_codes(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline void store_scaled(Sums sums, float step, const float* scales, float* to) {
  const __m256 in_steps = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(step));
  _mm256_storeu_ps(to, _mm256_mul_ps(in_steps, _mm256_loadu_ps(scales)));
}
static inline void add_scaled(Sums sums, float step, float factor, float* to) {
  const __m256 before = _mm256_mul_ps(_mm256_loadu_ps(to), _mm256_set1_ps(factor));
  _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(step), before));
}
static inline __m256i every_word(const char* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm256_set1_epi32(word);
}
// Two products of codes of up to 127 each fit in 16 bits.
static inline Sums dot_unsigned(Sums sums, __m256i any, __m256i with_sign) {
  const __m256i pairs = _mm256_maddubs_epi16(any, with_sign);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline Sums dot_keys(Sums sums, __m256i keys, __m256i query) {
  return dot_unsigned(sums, _mm256_abs_epi8(keys), _mm256_sign_epi8(query, keys));
}
static inline Sums dot_values(Sums sums, __m256i values, __m256i weights) {
  return dot_unsigned(sums, weights, values);
}

#endif

// Registers that hold R queries' sums side by side.
template <int R>
constexpr int kSumsEach = BATON_AVX512 ? 4 : R == 1 ? 4 : R <= 3 ? 2 : 1;

// scores[r][j] = q[r] . keys[:, j] for lanes [at, at + N * kSumLanes)
template <int R, int N>
static inline void score_code_lanes(const Query* queries, const TileCodes& tile, int64_t head_dim, int at,
                                    float* scores) {
  Sums sums[R][N];
  const char* q[R];
  for (int r = 0; r < R; ++r) {
    q[r] = reinterpret_cast<const char*>(queries[r].codes->codes);
    for (int n = 0; n < N; ++n) sums[r][n] = set_sums(queries[r].codes->start);
  }
  const char* from = tile.keys + at * 4;
  for (int64_t d = 0; d < head_dim; d += 4, from += kTile * 4) {
    Sums key[N];
    for (int n = 0; n < N; ++n) key[n] = load_codes(from + n * kSumLanes * 4);
    for (int r = 0; r < R; ++r) {
      const Sums words = every_word(q[r] + d);
      for (int n = 0; n < N; ++n) sums[r][n] = dot_keys(sums[r][n], key[n], words);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {  // unrolled, or gcc keeps the sums in memory all the while
      const int lanes = at + n * kSumLanes;
      store_scaled(sums[r][n], queries[r].codes->step, tile.key_scales + lanes, scores + r * kTile + lanes);
    }
  }
}

// scores: [R][kTile], in all lanes that any of the queries sees
template <int R>
static void score_codes(const Query* queries, const TileCodes& tile, int64_t head_dim, float* scores) {
  constexpr int kMost = kSumsEach<R> * kSumLanes;
  int begin = kTile, end = 0;
  for (int r = 0; r < R; ++r) {
    begin = std::min(begin, queries[r].begin);
    end = std::max(end, queries[r].end);
  }
  int at = begin / kLanes * kLanes;
  for (; at + kMost <= (end + kLanes - 1) / kLanes * kLanes; at += kMost) {
    score_code_lanes<R, kSumsEach<R>>(queries, tile, head_dim, at, scores);
  }
  for (; at < end; at += kSumLanes) score_code_lanes<R, 1>(queries, tile, head_dim, at, scores);
}

// e^x for x <= 0, to 3e-6 of it (and of what rounding x loses); below 2^-125: that. NaN gives NaN. The polynomial of
// degree 4 for 2^x is exact at 0 and has the least largest error over [-0.5, 0.5].
static inline F16 exp_roughly(F16 x) {
  const F16 two = max(F16::set(-125.0f), x * F16::set(1.44269504088896341f));
  const F16 n = round(two), f = two - n;
  F16 p = F16::set(9.5828529e-3f);
  p = fma(p, f, F16::set(5.5906426e-2f));
  p = fma(p, f, F16::set(2.4024099e-1f));
  p = fma(p, f, F16::set(6.9312418e-1f));
  p = fma(p, f, F16::set(1.0f));
#if BATON_AVX512
  return {_mm512_scalef_ps(p.v, n.v)};
#else
  return scale2(p, n);
#endif
}

// A query's scores with a tile, [kTile], to codes of its values' weights, [kTile], 0 for keys that it does not see.
// Gives their step.
static inline float round_weights(const Query& query, const TileView& tile, float factor, const float* scores,
                                  uint8_t* codes) {
  constexpr float kLeast = 0x1p-118f;  // so that no quotient below is infinite
  const bool all = query.begin == 0 && query.end == kTile;
  const F16 top = F16::set(query.state->max);
  F16 sums = F16::load(query.state->sums) * F16::set(factor), weights[kTile / kLanes], most = F16::zero();
  for (int i = 0; i < kTile / kLanes; ++i) {
    const F16 weight = exp_roughly(F16::load(scores + i * kLanes) - top);
    sums = sums + weight;
    weights[i] = weight * F16::load(tile.value_scales + i * kLanes);
    if (!all) weights[i] = only(weights[i], query.begin - i * kLanes, query.end - i * kLanes, 0.0f);
    most = max(weights[i], most);
  }
  sums.store(query.state->sums);
  if (tile.spoilt) {
    for (int j = query.begin; j < query.end; ++j) {
      if (std::isnan(tile.value_scales[j])) return std::numeric_limits<float>::quiet_NaN();
    }
  }
  const float largest = max_lane(most);
  const bool none = largest < kLeast;
  const F16 inverse = F16::set(none ? 0.0f : kMostCode / largest);
  for (int i = 0; i < kTile / kLanes; ++i) store_bytes(weights[i] * inverse, codes + i * kLanes);
  return none ? 0.0f : largest * (1.0f / kMostCode);
}

// output[r] = output[r] * factors[r] + steps[r] * (weights[r] . values), dimensions from `at`
template <int R, int M>
static inline void weigh_code_lanes(const Query* queries, const float* factors, const float* steps, const char* weights,
                                    const TileCodes& tile, Range fours, int64_t at) {
  Sums sums[R][M];
  for (int r = 0; r < R; ++r) {
    for (int m = 0; m < M; ++m) sums[r][m] = set_sums(0);
  }
  const char* from = tile.values + (fours.begin * tile.wide + at) * 4;
  for (int64_t i = fours.begin; i < fours.end; ++i, from += tile.wide * 4) {
    Sums value[M];
    for (int m = 0; m < M; ++m) value[m] = load_codes(from + m * kSumLanes * 4);
    for (int r = 0; r < R; ++r) {
      const Sums words = every_word(weights + r * kTile + i * 4);
      for (int m = 0; m < M; ++m) sums[r][m] = dot_values(sums[r][m], value[m], words);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {  // as above
      add_scaled(sums[r][m], steps[r], factors[r], queries[r].state->output + at + m * kSumLanes);
    }
  }
}

// The tile's part of R queries' softmax. The shape says that nothing is left to scale.
template <int R>
static void take_codes(const Query* queries, const TileView& tile, const TileCodes& codes, const TileShape& shape) {
  constexpr int kMost = kSumsEach<R> * kSumLanes;
  alignas(64) float scores[R * kTile], factors[kLanes] = {}, steps[R];
  alignas(64) uint8_t weights[R * kTile];
  score_codes<R>(queries, codes, shape.head_dim, scores);
  raise_largest<R>(queries, tile, shape, scores, factors);
  int begin = kTile, end = 0;
  for (int r = 0; r < R; ++r) {
    begin = std::min(begin, queries[r].begin);
    end = std::max(end, queries[r].end);
    steps[r] = round_weights(queries[r], tile, factors[r], scores + r * kTile, weights + r * kTile);
    tile.ahead->step(kTile / kLanes * kExpUnits);
  }
  const Range fours{begin / 4, (end + 3) / 4};
  const char* words = reinterpret_cast<const char*>(weights);
  int64_t at = 0;
  for (; at + kMost <= shape.padded; at += kMost) {
    weigh_code_lanes<R, kSumsEach<R>>(queries, factors, steps, words, codes, fours, at);
  }
  for (; at < shape.padded; at += kSumLanes) {
    weigh_code_lanes<R, 1>(queries, factors, steps, words, codes, fours, at);
  }
}

using TakeCodes = void (*)(const Query*, const TileView&, const TileCodes&, const TileShape&);
static constexpr TakeCodes kTakeCodes[] = {nullptr,       take_codes<1>, take_codes<2>, take_codes<3>,
                                           take_codes<4>, take_codes<5>, take_codes<6>};

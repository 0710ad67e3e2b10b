// Sixteen numbers at a time, from how a pool stores them to fp32: of one vector as they lie, or one of each of sixteen
// vectors, which are transposed as words of 32 bits before they are widened.

constexpr float kFp8Divisor = 256.0f;  // of e4m3 as it is loaded: see load_e4m3_256th

#if BATON_AVX512

// As 32-bit words.
static inline F16 shift_left(F16 a, int n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), static_cast<unsigned>(n)))};
}
static inline F16 shift_right_signed(F16 a, int n) {
  return {_mm512_castsi512_ps(_mm512_srai_epi32(_mm512_castps_si512(a.v), static_cast<unsigned>(n)))};
}
static inline F16 bits_and(F16 a, uint32_t bits) {
  return {_mm512_and_ps(a.v, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits))))};
}
// The low half of each word.
static inline F16 low_fp16(F16 a) { return from_fp16(_mm512_cvtepi32_epi16(_mm512_castps_si512(a.v))); }

#else

static inline __m256i as_words(__m256 a) { return _mm256_castps_si256(a); }
static inline F16 shift_left(F16 a, int n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(as_words(a.lo), n)),
          _mm256_castsi256_ps(_mm256_slli_epi32(as_words(a.hi), n))};
}
static inline F16 shift_right_signed(F16 a, int n) {
  return {_mm256_castsi256_ps(_mm256_srai_epi32(as_words(a.lo), n)),
          _mm256_castsi256_ps(_mm256_srai_epi32(as_words(a.hi), n))};
}
static inline F16 bits_and(F16 a, uint32_t bits) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
static inline F16 low_fp16(F16 a) {
  const F16 low = bits_and(a, 0xffff);
  return from_fp16(_mm256_permute4x64_epi64(_mm256_packus_epi32(as_words(low.lo), as_words(low.hi)), 0xd8));
}

#endif

// kBytes: of an element. load: sixteen elements of a vector. pick: element i of each of sixteen words.
struct KvFp32 {
  static constexpr int kBytes = 4;
  static F16 load(const void* p) { return F16::load(static_cast<const float*>(p)); }
  template <int i>
  static F16 pick(F16 words) {
    return words;
  }
};
struct KvBf16 {
  static constexpr int kBytes = 2;
  static F16 load(const void* p) { return load_bf16(p); }
  template <int i>
  static F16 pick(F16 words) {
    return i == 0 ? shift_left(words, 16) : bits_and(words, 0xffff0000);
  }
};
struct KvFp16 {
  static constexpr int kBytes = 2;
  static F16 load(const void* p) { return load_fp16(p); }
  template <int i>
  static F16 pick(F16 words) {
    return low_fp16(i == 0 ? words : shift_right_signed(words, 16));
  }
};
struct KvInt8 {  // met as it is: see attention_codes.inl
  static constexpr int kBytes = 1;
};
struct KvFp8 {
  static constexpr int kBytes = 1;
  static F16 load(const void* p) { return load_e4m3_256th(p); }
  // Its bits where fp32 has them; 2^112 moves the exponent, and makes what is subnormal in fp32 exactly what it is.
  template <int i>
  static F16 pick(F16 words) {
    const F16 spread = shift_right_signed(i == 3 ? words : shift_left(words, 24 - 8 * i), 4);
    return bits_and(spread, 0x87f00000) * F16::set(0x1p112f);
  }
};

// Like Kv::load, of n < 16 elements; nothing beyond is touched.
template <class Kv>
static F16 load_some(const void* p, int n) {
  alignas(64) char some[64] = {};
  std::memcpy(some, p, static_cast<size_t>(n) * Kv::kBytes);
  return Kv::load(some);
}

// Sixteen vectors in memory, a stride apart.
struct Vectors16 {
  const char* base;
  int64_t stride;  // bytes
};

constexpr int kStepBytes = 32;  // that are transposed at once

// word[c], lane j: the c-th of 32-bit words 0..7 of vector j, counted from byte `offset`.
#if BATON_AVX512
// Words 0..7 of vectors 0..7, four times four in every lane of 128 bits: vectors 0..3 in the first two lanes (words c
// and 4 + c of each in word[c]), vectors 4..7 in the others.
static inline void transpose_lanes(const char* p, int64_t stride, __m512 (&word)[4]) {
  __m512 r[4];
  for (int i = 0; i < 4; ++i) {
    const auto* row = reinterpret_cast<const float*>(p + i * stride);
    const auto* later = reinterpret_cast<const float*>(p + (i + 4) * stride);
    r[i] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(row)), _mm256_loadu_ps(later), 1);
  }
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
  const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
  const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
  word[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
  word[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
  word[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
  word[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}
static inline void transpose_words(Vectors16 from, int64_t offset, F16 (&word)[8]) {
  __m512 low[4], high[4];
  transpose_lanes(from.base + offset, from.stride, low);
  transpose_lanes(from.base + offset + 8 * from.stride, from.stride, high);
  for (int i = 0; i < 4; ++i) {
    word[i].v = _mm512_shuffle_f32x4(low[i], high[i], 0x88);
    word[4 + i].v = _mm512_shuffle_f32x4(low[i], high[i], 0xdd);
  }
}
#else
// Words 0..3 of vectors 0..7.
static inline void transpose_words8(const char* p, int64_t stride, __m256 (&word)[4]) {
  __m256 r[4];
  for (int i = 0; i < 4; ++i) {
    const auto* row = reinterpret_cast<const float*>(p + i * stride);
    const auto* later = reinterpret_cast<const float*>(p + (4 + i) * stride);
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row)), _mm_loadu_ps(later), 1);
  }
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
  const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
  const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
  word[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
  word[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
  word[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
  word[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
static inline void transpose_words(Vectors16 from, int64_t offset, F16 (&word)[8]) {
  for (int half = 0; half < 2; ++half) {
    const char* p = from.base + offset + 16 * half;
    __m256 low[4], high[4];
    transpose_words8(p, from.stride, low);
    transpose_words8(p + 8 * from.stride, from.stride, high);
    for (int i = 0; i < 4; ++i) word[4 * half + i] = {low[i], high[i]};
  }
}
#endif

// f(i, element i of each of the sixteen vectors), in ascending order, of elements at bytes [offset, offset + 32).
template <class Kv, class F>
static inline void for_elements(Vectors16 from, int64_t offset, F&& f) {
  F16 word[8];
  transpose_words(from, offset, word);
  for (int c = 0; c < 8; ++c) {
    constexpr int n = 4 / Kv::kBytes;
    f(n * c, Kv::template pick<0>(word[c]));
    if constexpr (n > 1) f(n * c + 1, Kv::template pick<1>(word[c]));
    if constexpr (n > 2) f(n * c + 2, Kv::template pick<2>(word[c]));
    if constexpr (n > 2) f(n * c + 3, Kv::template pick<3>(word[c]));
  }
}

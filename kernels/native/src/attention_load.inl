// Sixteen numbers at a time, from how a pool stores them to fp32; and the transposition of sixteen times sixteen.

static inline F16 load_int8(const void* p) {
  const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
#if BATON_AVX512
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
#else
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
#endif
}

// e4m3 divided by kFp8Divisor: the fp16 numbers with the same exponent and mantissa bits, subnormals among them.
constexpr float kFp8Divisor = 256.0f;
static inline F16 load_fp8(const void* p) {
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return from_fp16(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff))));
}

struct KvFp32 {
  static constexpr size_t kBytes = 4;
  static F16 load(const void* p) { return F16::load(static_cast<const float*>(p)); }
};
struct KvBf16 {
  static constexpr size_t kBytes = 2;
  static F16 load(const void* p) { return load_bf16(p); }
};
struct KvFp16 {
  static constexpr size_t kBytes = 2;
  static F16 load(const void* p) { return load_fp16(p); }
};
struct KvInt8 {
  static constexpr size_t kBytes = 1;
  static F16 load(const void* p) { return load_int8(p); }
};
struct KvFp8 {
  static constexpr size_t kBytes = 1;
  static F16 load(const void* p) { return load_fp8(p); }
};

// Like Kv::load, of n < 16 elements; nothing beyond is touched.
template <class Kv>
static F16 load_some(const void* p, int n) {
  alignas(64) char some[64] = {};
  std::memcpy(some, p, static_cast<size_t>(n) * Kv::kBytes);
  return Kv::load(some);
}

#if BATON_AVX512

// r[i] lane j <-> r[j] lane i
static inline void transpose(F16 (&r)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  __m512 u[16];  // u[4 * b + c]: column c of each group of four lanes, rows 4 * b..4 * b + 3
  for (int b = 0; b < 4; ++b) {
    const __m512d low0 = _mm512_castps_pd(t[4 * b]), high0 = _mm512_castps_pd(t[4 * b + 1]);
    const __m512d low1 = _mm512_castps_pd(t[4 * b + 2]), high1 = _mm512_castps_pd(t[4 * b + 3]);
    u[4 * b] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
    u[4 * b + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
    u[4 * b + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
    u[4 * b + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88), e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    r[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
    r[8 + c].v = _mm512_shuffle_f32x4(a, d, 0xdd);
    r[4 + c].v = _mm512_shuffle_f32x4(b, e, 0x88);
    r[12 + c].v = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
}

#else

static inline void transpose8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int b = 0; b < 2; ++b) {
    u[4 * b] = _mm256_shuffle_ps(t[4 * b], t[4 * b + 2], 0x44);
    u[4 * b + 1] = _mm256_shuffle_ps(t[4 * b], t[4 * b + 2], 0xee);
    u[4 * b + 2] = _mm256_shuffle_ps(t[4 * b + 1], t[4 * b + 3], 0x44);
    u[4 * b + 3] = _mm256_shuffle_ps(t[4 * b + 1], t[4 * b + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}

static inline void transpose(F16 (&r)[16]) {
  __m256 a[8], b[8], c[8], d[8];
  for (int i = 0; i < 8; ++i) {
    a[i] = r[i].lo;
    b[i] = r[i].hi;
    c[i] = r[8 + i].lo;
    d[i] = r[8 + i].hi;
  }
  transpose8(a);
  transpose8(b);
  transpose8(c);
  transpose8(d);
  for (int i = 0; i < 8; ++i) {
    r[i] = {a[i], c[i]};
    r[8 + i] = {b[i], d[i]};
  }
}

#endif

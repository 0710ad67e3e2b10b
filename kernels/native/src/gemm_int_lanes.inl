// Sixteen int32 lanes, and what goes with them as weights: registers of 64 bytes, [16 outputs][4 inputs].

#if BATON_AVX512

struct I16 {
  __m512i v;

  static I16 zero() { return {_mm512_setzero_si512()}; }
  static I16 set(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static I16 load(const void* p) { return {_mm512_loadu_si512(p)}; }
  void store(void* p) const { _mm512_storeu_si512(p, v); }
};

static inline I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
static inline I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int n>
static inline I16 shift16(I16 a) {  // right, in each 16 bits
  return {_mm512_srli_epi16(a.v, n)};
}
static inline I16 lookup(__m128i table, I16 a) { return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a.v)}; }
static inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline I16 to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // to the nearest, ties to even
static inline I16 bits(F16 a) { return {_mm512_castps_si512(a.v)}; }
static inline int32_t sum(I16 a) { return _mm512_reduce_add_epi32(a.v); }
static inline int32_t max_lane(I16 a) { return _mm512_reduce_max_epi32(a.v); }
static inline __m256i narrow16(I16 a) { return _mm512_cvtepi32_epi16(a.v); }

// In assembly, for gcc would load the activations of a whole tile into registers ahead of their use, and move the
// accumulators out to make room. An operand in memory that is broadcast costs a fifth of the speed.
#define BATON_DOT1(dot)                                                            \
  asm("vpbroadcastd %2, %1\n\t" dot " %1, %3, %0" : "+v"(acc[0].v), "=&v"(every) \
      : "m"(x), "v"(w[0].v))
#define BATON_DOT3(dot)                                                                                            \
  asm("vpbroadcastd %4, %3\n\t" dot " %3, %5, %0\n\t" dot " %3, %6, %1\n\t" dot " %3, %7, %2"                   \
      : "+v"(acc[0].v), "+v"(acc[1].v), "+v"(acc[2].v), "=&v"(every) : "m"(x), "v"(w[0].v), "v"(w[1].v), "v"(w[2].v))

// acc += the sum over two inputs of u16 weights times s16 activations, the same two in all lanes
template <int n>
static inline void dots2(I16 (&acc)[n], const I16 (&w)[n], const int32_t& x) {
  static_assert(n == 1 || n == 3);
  __m512i every;
  if constexpr (n == 1) BATON_DOT1("vpdpwssd");
  if constexpr (n == 3) BATON_DOT3("vpdpwssd");
}
// acc += the sum over four inputs of u8 weights times s8 activations
template <int n>
static inline void dots4(I16 (&acc)[n], const I16 (&w)[n], const int32_t& x) {
  static_assert(n == 1 || n == 3);
  __m512i every;
  if constexpr (n == 1) BATON_DOT1("vpdpbusd");
  if constexpr (n == 3) BATON_DOT3("vpdpbusd");
}
#undef BATON_DOT1
#undef BATON_DOT3

#else

struct I16 {
  __m256i lo, hi;

  static I16 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I16 set(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I16 load(const void* p) {
    const auto* half = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
  }
  void store(void* p) const {
    auto* half = static_cast<__m256i*>(p);
    _mm256_storeu_si256(half, lo);
    _mm256_storeu_si256(half + 1, hi);
  }
};

static inline I16 operator+(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline I16 operator&(I16 a, I16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
static inline I16 max(I16 a, I16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
template <int n>
static inline I16 shift16(I16 a) {
  return {_mm256_srli_epi16(a.lo, n), _mm256_srli_epi16(a.hi, n)};
}
static inline I16 lookup(__m128i table, I16 a) {
  const __m256i both = _mm256_broadcastsi128_si256(table);
  return {_mm256_shuffle_epi8(both, a.lo), _mm256_shuffle_epi8(both, a.hi)};
}
static inline F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline I16 to_int(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
static inline I16 bits(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
static inline int32_t sum(I16 a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}
static inline int32_t max_lane(I16 a) {
  const __m256i eight = _mm256_max_epi32(a.lo, a.hi);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
  return std::max(_mm_cvtsi128_si32(two), _mm_extract_epi32(two, 1));
}
static inline __m256i narrow16(I16 a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), _MM_SHUFFLE(3, 1, 2, 0));
}
static inline void dots2(I16 (&acc)[1], const I16 (&w)[1], const int32_t& x) {
  const __m256i both = _mm256_set1_epi32(x);
  __m256i lo = _mm256_add_epi32(acc[0].lo, _mm256_madd_epi16(w[0].lo, both));
  __m256i hi = _mm256_add_epi32(acc[0].hi, _mm256_madd_epi16(w[0].hi, both));
  asm("" : "+x"(lo), "+x"(hi));  // gcc would put a tile's additions in another order, and run out of registers
  acc[0] = {lo, hi};
}

#endif

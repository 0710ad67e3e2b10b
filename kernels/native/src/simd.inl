// Sixteen fp32 lanes: one register with AVX-512, two with AVX2. Every operation works lane by lane or in one fixed
// order, so both instruction sets give the same bits. Included once per instruction set.

namespace baton::BATON_ISA {

constexpr int kLanes = 16;

#if BATON_AVX512

struct F16 {
  __m512 v;

  static F16 zero() { return {_mm512_setzero_ps()}; }
  static F16 set(float x) { return {_mm512_set1_ps(x)}; }
  static F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // The first n lanes (0 <= n <= 16), zeros beyond; nothing beyond is touched. For tails: slow with AVX2.
  static F16 load(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void stream(float* p) const { _mm512_stream_ps(p, v); }  // past the caches; p is a multiple of 64
  void store(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  static __mmask16 mask(int n) { return static_cast<__mmask16>(_bzhi_u32(0xffff, n)); }
};

static inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once
static inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// c - a * b, rounded once
static inline F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
static inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// where a < b: x, elsewhere (and with a NaN): y
static inline F16 select_less(F16 a, F16 b, F16 x, F16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// To the nearest integer, ties to even.
static inline F16 round(F16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^floor(log2 |a|); 0 for subnormal a, inf for inf and NaN
static inline F16 power_below(F16 a) { return {_mm512_and_ps(a.v, _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000)))}; }
// a * 2^n for integral n in [-126, 127]
static inline F16 scale2(F16 a, F16 n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(bits))};
}

static inline F16 load_bf16(const void* p) {
  const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
static inline F16 from_fp16(__m256i bits) { return {_mm512_cvtph_ps(bits)}; }

static inline void halves(F16 a, __m256* low, __m256* high) {
  *low = _mm512_castps512_ps256(a.v);
  *high = _mm512_extractf32x8_ps(a.v, 1);
}

#else

struct F16 {
  __m256 lo, hi;

  static F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F16 load(const float* p, int n) {
    return {_mm256_maskload_ps(p, mask(n)), n > 8 ? _mm256_maskload_ps(p + 8, mask(n - 8)) : _mm256_setzero_ps()};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  void store(float* p, int n) const {
    _mm256_maskstore_ps(p, mask(n), lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, mask(n - 8), hi);
  }
  void stream(float* p) const {
    _mm256_stream_ps(p, lo);
    _mm256_stream_ps(p + 8, hi);
  }
  static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

static inline F16 operator+(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline F16 operator-(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline F16 operator*(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline F16 operator/(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline F16 fnma(F16 a, F16 b, F16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
static inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline F16 select_less(F16 a, F16 b, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
static inline F16 round(F16 a) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
}
static inline F16 power_below(F16 a) {
  const __m256 exponent = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
  return {_mm256_and_ps(a.lo, exponent), _mm256_and_ps(a.hi, exponent)};
}
static inline __m256 scale2_half(__m256 a, __m256 n) {
  const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}
static inline F16 scale2(F16 a, F16 n) { return {scale2_half(a.lo, n.lo), scale2_half(a.hi, n.hi)}; }

static inline __m256 load_bf16_half(const __m128i* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
static inline F16 load_bf16(const void* p) {
  const auto* bits = static_cast<const __m128i*>(p);
  return {load_bf16_half(bits), load_bf16_half(bits + 1)};
}
static inline F16 from_fp16(__m256i bits) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}

static inline void halves(F16 a, __m256* low, __m256* high) {
  *low = a.lo;
  *high = a.hi;
}

#endif

// One bf16 number.
static inline float widen_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

static inline F16 load_fp16(const void* p) { return from_fp16(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
// e4m3fn divided by 256: the fp16 numbers of the same exponent and mantissa bits, subnormals among them. NaN codes
// give +-480 / 256.
static inline F16 load_e4m3_256th(const void* p) {
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return from_fp16(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(static_cast<short>(0xbfff))));
}

// The sum of all lanes, always paired the same way: 8 apart, then 4, 2, 1.
static inline float sum(F16 a) {
  __m256 low, high;
  halves(a, &low, &high);
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float max_lane(F16 a) {
  __m256 low, high;
  halves(a, &low, &high);
  const __m256 eight = _mm256_max_ps(low, high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// e^x: range reduction by ln 2 in two parts, then a polynomial of degree 6 (Cephes' expf coefficients); 2 ulp.
// Below -87.3 (and for -inf): 0. NaN gives NaN.
static inline F16 exp(F16 x) {
  // The constants first: min and max give their second operand when one is NaN.
  const F16 clipped = max(F16::set(-87.3365478515625f), min(F16::set(88.3762626647949f), x));
  const F16 n = round(clipped * F16::set(1.44269504088896341f));
  F16 r = fma(n, F16::set(-0.693359375f), clipped);
  r = fma(n, F16::set(2.12194440e-4f), r);
  F16 p = F16::set(1.9875691500e-4f);
  p = fma(p, r, F16::set(1.3981999507e-3f));
  p = fma(p, r, F16::set(8.3334519073e-3f));
  p = fma(p, r, F16::set(4.1665795894e-2f));
  p = fma(p, r, F16::set(1.6666665459e-1f));
  p = fma(p, r, F16::set(5.0000001201e-1f));
  p = fma(p, r * r, r + F16::set(1.0f));
#if BATON_AVX512
  const __mmask16 some = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-87.3365478515625f), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(some, p.v, n.v)};
#else
  const F16 y = scale2(p, n);
  const __m256 floor = _mm256_set1_ps(-87.3365478515625f);
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, floor, _CMP_LT_OQ), y.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, floor, _CMP_LT_OQ), y.hi)};
#endif
}

// x / (1 + e^-x). Where e^-x would be out of range: some -5e-37. NaN gives NaN.
static inline F16 silu(F16 x) {
  const F16 clipped = max(F16::set(-88.0f), x);
  return clipped / (F16::set(1.0f) + exp(F16::zero() - clipped));
}

}  // namespace baton::BATON_ISA

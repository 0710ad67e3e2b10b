// KV vectors as a pool stores them, bit for bit by the rule of kernels/attention/kv_layer.py. Plain loops: the
// compiler makes vectors of them, and no order of operations matters here.

static uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// To nearest, ties to even; NaN stays NaN.
static uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

// |x| <= 448. To nearest, ties to even: below 2^-6, where codes are 2^-9 apart, by adding a number whose last bit
// is worth that; above, on the bits.
static uint8_t to_e4m3(float x) {
  const uint32_t sign = bits_of(x) >> 24 & 0x80;
  const uint32_t bits = bits_of(x) & 0x7fffffff;
  const uint32_t small = bits_of(from_bits(bits) + 16384.0f) - bits_of(16384.0f);
  const uint32_t large = (bits - (120u << 23) + 0x7ffff + (bits >> 20 & 1)) >> 20;
  return static_cast<uint8_t>(sign | (bits < 121u << 23 ? small : large));
}

static void store_plain(const float* from, void* base, int64_t at, int64_t count, int32_t format) {
  if (format == 0) {
    std::memcpy(static_cast<float*>(base) + at, from, count * sizeof(float));
  } else if (format == 1) {
    uint16_t* to = static_cast<uint16_t*>(base) + at;
    for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
  } else {
    uint16_t* to = static_cast<uint16_t*>(base) + at;
    for (int64_t i = 0; i < count; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
  }
}

// The codes of one vector; returns its scale as bf16.
static uint16_t store_codes(const float* from, uint8_t* codes, int64_t count, bool e4m3) {
  constexpr uint32_t kInfinity = 0x7f800000, kLargest = 0x7f000000 /* 2^127 */, kLeast = 0x00800000 /* 2^-126 */;
  const float most = e4m3 ? 448.0f : 127.0f;
  uint32_t absmax = 0;  // of bits: the same order, and NaN is above infinity
  for (int64_t i = 0; i < count; ++i) absmax = std::max(absmax, bits_of(from[i]) & 0x7fffffff);
  const uint32_t quotient = bits_of(from_bits(std::min(absmax, kLargest)) / most);
  const bool spoilt = absmax >= kInfinity;
  if (spoilt || quotient < kLeast) {
    std::fill_n(codes, count, uint8_t{0});
    return spoilt ? 0x7fc0 : 0;
  }
  const uint16_t up = static_cast<uint16_t>((quotient + 0xffff) >> 16);
  const float scale = from_bits(static_cast<uint32_t>(up) << 16);
  if (e4m3) {
    for (int64_t i = 0; i < count; ++i) codes[i] = to_e4m3(std::min(std::max(from[i] / scale, -most), most));
  } else {
    // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the last bits.
    for (int64_t i = 0; i < count; ++i) {
      const float code = std::min(std::max(from[i] / scale, -most), most);
      codes[i] = static_cast<uint8_t>(bits_of(code + 12582912.0f));
    }
  }
  return up;
}

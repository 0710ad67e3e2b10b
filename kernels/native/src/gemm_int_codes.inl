// How codes lie in memory, and how they become operands of dot products.

constexpr int kStep = 8;  // inputs

// The first or second four inputs of a step, as u8 [16 outputs][4].
struct Int8Codes {
  static constexpr int kStepBytes = 128;
  template <int quad>
  static inline I16 load(const uint8_t* step) {
    return I16::load(step + quad * 64);
  }
};

struct Int4Codes {
  static constexpr int kStepBytes = 64;
  template <int quad>
  static inline I16 load(const uint8_t* step) {
    const I16 both = I16::load(step);
    return (quad == 0 ? both : shift16<4>(both)) & I16::set(0x0f0f0f0f);
  }
};

// Twice the e2m1 values, plus 12.
alignas(16) constexpr uint8_t kFp4Table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct Fp4Codes {
  static constexpr int kStepBytes = 64;
  template <int quad>
  static inline I16 load(const uint8_t* step) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kFp4Table));
    return lookup(table, Int4Codes::load<quad>(step));
  }
};

// Activations are read in units of 32 bits: four s8, or two s16.
//
// Narrow needs AVX-512: AVX2's product of bytes saturates, and to move the signs costs what widening does.
struct Narrow {
  static constexpr int kUnits = 1;  // for four inputs
  static constexpr float kLargest = 127.0f;
  static inline void operands(I16 codes, I16* w) { w[0] = codes; }
#if BATON_AVX512
  static inline I16 dot(I16 acc, I16 weights, const int32_t& x) { return dot4(acc, weights, x); }
#endif
};

struct Wide {
  static constexpr int kUnits = 2;  // inputs 0 2, 1 3: so an and and a shift widen weights
  static constexpr float kLargest = 32767.0f;
  static inline void operands(I16 codes, I16* w) {
    w[0] = codes & I16::set(0x00ff00ff);
    w[1] = shift16<8>(codes);
  }
  static inline I16 dot(I16 acc, I16 weights, const int32_t& x) { return dot2(acc, weights, x); }
};

// Sixteen scales or offsets of one group.
static inline F16 load_scales(const void* base, IntScale type, int64_t index) {
  switch (type) {
    case IntScale::fp16:
      return from_fp16(static_cast<const uint16_t*>(base) + index * kLanes);
    case IntScale::bf16:
      return from_bf16(static_cast<const uint16_t*>(base) + index * kLanes);
    default:
      return F16::load(static_cast<const float*>(base) + index * kLanes);
  }
}

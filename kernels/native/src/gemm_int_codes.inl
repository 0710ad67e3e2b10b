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
  static constexpr int kSums = 1;   // of each output
  static constexpr float kLargest = 127.0f;
#if BATON_AVX512
  template <int unit>
  static inline I16 operand(I16 codes) {
    return codes;
  }
  template <int n>
  static inline void dots(I16 (&acc)[n], const I16 (&w)[n], const int32_t& x) {
    dots4(acc, w, x);
  }
#endif
};

struct Wide {
  static constexpr int kUnits = 2;  // inputs 0 2, 1 3: so an and and a shift widen weights
  static constexpr int kSums = 1;
  static constexpr float kLargest = 127 * 256 + 127;  // see Split
  template <int unit>
  static inline I16 operand(I16 codes) {
    return unit == 0 ? codes & I16::set(0x00ff00ff) : shift16<8>(codes);
  }
  template <int n>
  static inline void dots(I16 (&acc)[n], const I16 (&w)[n], const int32_t& x) {
    dots2(acc, w, x);
  }
};

#if BATON_AVX512
// The integers of Wide as 256 times a s8 and another s8: weights need not be widened, in twice the sums. For few rows,
// whose sums leave registers free.
struct Split {
  static constexpr int kUnits = 2;  // of the greater parts, of the lesser
  static constexpr int kSums = 2;
  template <int unit>
  static inline I16 operand(I16 codes) {
    return codes;
  }
  template <int n>
  static inline void dots(I16 (&acc)[n], const I16 (&w)[n], const int32_t& x) {
    dots4(acc, w, x);
  }
};
#endif

// What the sums of an output come to.
template <class Form>
static inline I16 joined([[maybe_unused]] const I16& first, const I16& last) {
#if BATON_AVX512
  if constexpr (Form::kSums == 2) return {_mm512_add_epi32(_mm512_slli_epi32(first.v, 8), last.v)};
#endif
  return last;
}

// Sixteen scales or offsets of one group.
static inline F16 load_scales(const void* base, IntScale type, int64_t index) {
  switch (type) {
    case IntScale::fp16:
      return load_fp16(static_cast<const uint16_t*>(base) + index * kLanes);
    case IntScale::bf16:
      return load_bf16(static_cast<const uint16_t*>(base) + index * kLanes);
    default:
      return F16::load(static_cast<const float*>(base) + index * kLanes);
  }
}

// Those of some panels from `panel` on, for one group of several.
template <int n>
static inline void load_scales(const void* base, IntScale type, int64_t groups, int64_t panel, int64_t group,
                               F16 (&to)[n]) {
  for (int p = 0; p < n; ++p) to[p] = load_scales(base, type, (panel + p) * groups + group);
}

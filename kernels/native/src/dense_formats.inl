// Sixteen weights at a time, from how they are stored to fp32. `scale` is for those that have one (e4m3: times 256).

struct Fp32 {
  using Stored = float;
  static constexpr bool kScaled = false;
  static F16 load(const float* p, F16) { return F16::load(p); }
};

struct Bf16 {
  using Stored = uint16_t;
  static constexpr bool kScaled = false;
  static F16 load(const uint16_t* p, F16) { return load_bf16(p); }
};

struct Fp16 {
  using Stored = uint16_t;
  static constexpr bool kScaled = false;
  static F16 load(const uint16_t* p, F16) { return load_fp16(p); }
};

struct E4m3 {
  using Stored = uint8_t;
  static constexpr bool kScaled = true;
  static F16 load(const uint8_t* p, F16 scale) { return load_e4m3_256th(p) * scale; }
};

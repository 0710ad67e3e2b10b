// Activations rounded to e4m3 with one scale per row and group of inputs, still in fp32.

static F16 load_some(const float* p, int64_t count) {
  return count >= kLanes ? F16::load(p) : F16::load(p, static_cast<int>(count));
}

static void store_some(F16 a, float* p, int64_t count) {
  count >= kLanes ? a.store(p) : a.store(p, static_cast<int>(count));
}

// To the nearest e4m3 number, ties to even, for |a| <= 448: adding a number whose last bit is worth as much as the
// last bit of the result rounds away what is below it.
static F16 round_e4m3(F16 a) {
  const F16 magic = max(F16::set(0x1p-6f), power_below(a)) * F16::set(0x1.8p20f);
  return (a + magic) - magic;
}

static void round_group(const float* x, float* out, int64_t count) {
  F16 largest = F16::zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const F16 value = load_some(x + i, count - i);
    largest = max(largest, max(F16::zero() - value, value));
  }
  const float scale = max_lane(largest) / 448.0f;
  for (int64_t i = 0; i < count; i += kLanes) {
    const F16 value = load_some(x + i, count - i);
    const F16 code = round_e4m3(max(F16::set(-448.0f), min(F16::set(448.0f), value / F16::set(scale))));
    // Of zeros and NaNs: the maximum above may have lost those.
    store_some(scale == 0.0f ? value * F16::zero() : code * F16::set(scale), out + i, count - i);
  }
}

// x as the product sees it, in memory of the pool's.
static const float* rounded(const GemmDenseArgs& args, Pool& pool, int64_t rows) {
  constexpr int64_t kRows = 8;  // some microseconds' worth
  auto* all = static_cast<float*>(pool.scratch(1, sizeof(float) * rows * args.inputs));
  pool.run((rows + kRows - 1) / kRows, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * kRows);
    for (int64_t row = chunk * kRows; row < end; ++row) {
      const float* x = args.x + row * args.x_stride;
      float* out = all + row * args.inputs;
      for (int64_t k = 0; k < args.inputs; k += args.activation_group) {
        round_group(x + k, out + k, std::min(args.activation_group, args.inputs - k));
      }
    }
  });
  return all;
}

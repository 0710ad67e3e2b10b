// One row of rms_norm: out = x / sqrt(mean(x^2) + eps) * weight. out may be x.
static void norm_row(const float* x, const float* weight, float* out, int64_t width, float eps) {
  const int64_t whole = width / kLanes * kLanes;
  const int rest = static_cast<int>(width - whole);
  F16 squares = F16::zero();
  for (int64_t i = 0; i < whole; i += kLanes) squares = fma(F16::load(x + i), F16::load(x + i), squares);
  if (rest > 0) squares = fma(F16::load(x + whole, rest), F16::load(x + whole, rest), squares);
  const F16 scale = F16::set(1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps));
  for (int64_t i = 0; i < whole; i += kLanes) (F16::load(x + i) * scale * F16::load(weight + i)).store(out + i);
  if (rest > 0) (F16::load(x + whole, rest) * scale * F16::load(weight + whole, rest)).store(out + whole, rest);
}

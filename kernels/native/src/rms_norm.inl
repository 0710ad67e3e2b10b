static void rms_norm_row(const RmsNormArgs& args, int64_t row) {
  float* x = args.x + row * args.x_stride;
  float* out = args.out + row * args.out_stride;
  const float* residual = args.residual == nullptr ? nullptr : args.residual + row * args.width;
  const int64_t whole = args.width / kLanes * kLanes;
  const int rest = static_cast<int>(args.width - whole);
  F16 squares = F16::zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    F16 value = F16::load(x + i);
    if (residual != nullptr) {
      value = value + F16::load(residual + i);
      value.store(x + i);
    }
    squares = fma(value, value, squares);
  }
  if (rest > 0) {
    F16 value = F16::load(x + whole, rest);
    if (residual != nullptr) {
      value = value + F16::load(residual + whole, rest);
      value.store(x + whole, rest);
    }
    squares = fma(value, value, squares);
  }
  const float mean = sum(squares) / static_cast<float>(args.width);
  const F16 scale = F16::set(1.0f / std::sqrt(mean + args.eps));
  for (int64_t i = 0; i < whole; i += kLanes) {
    (F16::load(x + i) * scale * F16::load(args.weight + i)).store(out + i);
  }
  if (rest > 0) (F16::load(x + whole, rest) * scale * F16::load(args.weight + whole, rest)).store(out + whole, rest);
}

static void rms_norm(const RmsNormArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, together = std::max<int64_t>(1, 32768 / args.width);  // some 5 us
  pool.run((rows + together - 1) / together, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * together);
    for (int64_t row = chunk * together; row < end; ++row) rms_norm_row(args, row);
  });
}

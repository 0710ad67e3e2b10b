#include "norm_row.inl"

static void add_row(float* x, const float* residual, int64_t width) {
  const int64_t whole = width / kLanes * kLanes;
  const int rest = static_cast<int>(width - whole);
  for (int64_t i = 0; i < whole; i += kLanes) (F16::load(x + i) + F16::load(residual + i)).store(x + i);
  if (rest > 0) (F16::load(x + whole, rest) + F16::load(residual + whole, rest)).store(x + whole, rest);
}

static void rms_norm(const RmsNormArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, together = std::max<int64_t>(1, 32768 / args.width);  // some 5 us
  pool.run((rows + together - 1) / together, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * together);
    for (int64_t row = chunk * together; row < end; ++row) {
      float* x = args.x + row * args.x_stride;
      if (args.residual != nullptr) add_row(x, args.residual + row * args.width, args.width);
      norm_row(x, args.weight, args.out + row * args.out_stride, args.width, args.eps);
    }
  });
}

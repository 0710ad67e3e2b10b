static void silu_mul_span(const float* gate, const float* up, float* out, int64_t count) {
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) (silu(F16::load(gate + i)) * F16::load(up + i)).store(out + i);
  const int rest = static_cast<int>(count - whole);
  if (rest > 0) (silu(F16::load(gate + whole, rest)) * F16::load(up + whole, rest)).store(out + whole, rest);
}

static void silu_mul(const SiluMulArgs& args, Pool& pool) {
  // A chunk is some columns of one row, or several whole short rows: 5 us or so either way.
  constexpr int64_t kSpan = 8192;
  const int64_t rows = *args.rows;
  const int64_t spans = (args.inner + kSpan - 1) / kSpan;
  const int64_t together = std::max<int64_t>(1, kSpan / std::max<int64_t>(1, args.inner));
  const int64_t groups = (rows + together - 1) / together;
  pool.run(groups * spans, [&](int64_t chunk) {
    const int64_t begin = chunk % spans * kSpan;
    const int64_t count = std::min(kSpan, args.inner - begin);
    const int64_t first = chunk / spans * together;
    for (int64_t row = first; row < std::min(rows, first + together); ++row) {
      const float* gate = args.gate_up + row * args.gate_up_stride + begin;
      silu_mul_span(gate, gate + args.inner, args.out + row * args.out_stride + begin, count);
    }
  });
}

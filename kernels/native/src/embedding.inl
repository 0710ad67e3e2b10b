static void widen_bf16(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

static void widen_fp16(const uint16_t* from, float* to, int64_t count) {
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) load_fp16(from + i).store(to + i);
  for (int64_t i = whole; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}

static void embedding(const EmbeddingArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, width = args.width;
  const int64_t together = std::max<int64_t>(1, 32768 / width);  // some 5 us
  pool.run((rows + together - 1) / together, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * together);
    for (int64_t row = chunk * together; row < end; ++row) {
      const int64_t from = args.ids[row] * width;
      float* out = args.out + row * width;
      switch (args.format) {
        case 0: std::memcpy(out, static_cast<const float*>(args.table) + from, width * sizeof(float)); break;
        case 1: widen_bf16(static_cast<const uint16_t*>(args.table) + from, out, width); break;
        default: widen_fp16(static_cast<const uint16_t*>(args.table) + from, out, width); break;
      }
    }
  });
}

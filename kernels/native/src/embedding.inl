#include "widen.inl"

static void embedding_row(const EmbeddingArgs& args, int64_t id, float* out) {
  const int64_t from = id * args.width;
  const auto* halves = static_cast<const uint16_t*>(args.table) + from;
  switch (args.format) {
    case 0: std::memcpy(out, static_cast<const float*>(args.table) + from, args.width * sizeof(float)); break;
    case 1: widen(halves, out, args.width, [](const uint16_t* p) { return load_bf16(p); }); break;
    default: widen(halves, out, args.width, [](const uint16_t* p) { return load_fp16(p); }); break;
  }
}

static void embedding(const EmbeddingArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, width = args.width;
  const int64_t together = std::max<int64_t>(1, 32768 / width);  // some 5 us
  pool.run((rows + together - 1) / together, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * together);
    for (int64_t row = chunk * together; row < end; ++row) {
      const int64_t id = args.ids[row];
      float* out = args.out + row * width;
      if (id >= 0 && id < args.height) {
        embedding_row(args, id, out);
      } else {
        std::fill(out, out + width, std::numeric_limits<float>::quiet_NaN());
      }
    }
  });
}

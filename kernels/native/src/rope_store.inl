#include "kv_codes.inl"

static void head_norm(float* x, const float* weight, int64_t dim, float eps) {
  const int64_t whole = dim / kLanes * kLanes;
  const int rest = static_cast<int>(dim - whole);
  F16 squares = F16::zero();
  for (int64_t i = 0; i < whole; i += kLanes) squares = fma(F16::load(x + i), F16::load(x + i), squares);
  if (rest > 0) squares = fma(F16::load(x + whole, rest), F16::load(x + whole, rest), squares);
  const F16 scale = F16::set(1.0f / std::sqrt(sum(squares) / static_cast<float>(dim) + eps));
  for (int64_t i = 0; i < whole; i += kLanes) (F16::load(x + i) * scale * F16::load(weight + i)).store(x + i);
  if (rest > 0) (F16::load(x + whole, rest) * scale * F16::load(weight + whole, rest)).store(x + whole, rest);
}

// sin's first half is negative: its second half is the sine itself, which serves both.
static void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  const int64_t whole = half / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F16 a = F16::load(x + i), b = F16::load(x + half + i), c = F16::load(cos + i), s = F16::load(sin + half + i);
    (a * c - b * s).store(x + i);
    (b * c + a * s).store(x + half + i);
  }
  for (int64_t i = whole; i < half; ++i) {
    const float a = x[i], b = x[half + i], c = cos[i], s = sin[half + i];
    x[i] = a * c - b * s;
    x[half + i] = b * c + a * s;
  }
}

static void store_kv(const RopeStoreArgs& args, int64_t row, const float* kv) {
  const int64_t* strides = args.code_strides;
  for (int64_t part = 0; part < 2; ++part) {
    for (int64_t head = 0; head < args.kv_heads; ++head, kv += args.dim) {
      const int64_t at = args.blocks[row] * strides[0] + part * strides[1] + args.offsets[row] * strides[2] +
                         head * strides[3];
      if (args.scales == nullptr) {
        store_plain(kv, args.codes, at, args.dim, args.format);
        continue;
      }
      const int64_t* steps = args.scale_strides;
      uint16_t* scale = args.scales + args.blocks[row] * steps[0] + part * steps[1] + args.offsets[row] * steps[2] +
                        head * steps[3];
      *scale = store_codes(kv, static_cast<uint8_t*>(args.codes) + at, args.dim, args.format == 4);
    }
  }
}

static void rope_store(const RopeStoreArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, dim = args.dim, width = (args.heads + 2 * args.kv_heads) * dim;
  const int64_t together = std::max<int64_t>(1, 16384 / width);  // some 5 us
  pool.run((rows + together - 1) / together, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * together);
    for (int64_t row = chunk * together; row < end; ++row) {
      float* qkv = args.qkv + row * width;
      for (int64_t head = 0; head < args.heads + args.kv_heads; ++head) {
        const float* norm = head < args.heads ? args.q_norm : args.k_norm;
        if (norm != nullptr) head_norm(qkv + head * dim, norm, dim, args.eps);
        rotate(qkv + head * dim, args.cos + row * dim, args.sin + row * dim, dim / 2);
      }
      store_kv(args, row, qkv + args.heads * dim);
    }
  });
}

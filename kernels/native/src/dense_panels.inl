#include "dense_formats.inl"

// One weight of the panels in fp32: lane by lane what W::load gives.
template <class W>
static void dense_row(const DenseRowsArgs& args, int64_t id, float* out) {
  const int64_t panel = id / kLanes, lane = id % kLanes;
  const auto* stored = static_cast<const typename W::Stored*>(args.panels) + panel * args.inputs * kLanes + lane;
  const int64_t groups = W::kScaled ? (args.inputs + args.group - 1) / args.group : 1;
  const float* scale = W::kScaled ? args.scale + panel * groups * kLanes + lane : nullptr;
  for (int64_t k = 0; k < args.inputs; k += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, args.inputs - k));
    typename W::Stored gathered[kLanes] = {};
    float scales[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      gathered[i] = stored[(k + i) * kLanes];
      if constexpr (W::kScaled) scales[i] = scale[(k + i) / args.group * kLanes];
    }
    const F16 values = W::load(gathered, F16::load(scales));
    if (count == kLanes) {
      values.store(out + k);
    } else {
      values.store(out + k, count);
    }
  }
}

template <class W>
static void dense_rows_of(const DenseRowsArgs& args, Pool& pool) {
  constexpr int64_t kRows = 4;  // a few microseconds' worth
  const int64_t rows = *args.rows;
  pool.run((rows + kRows - 1) / kRows, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * kRows);
    for (int64_t row = chunk * kRows; row < end; ++row) {
      float* out = args.out + row * args.out_stride;
      const int64_t id = args.ids[row];
      if (id >= 0 && id < args.outputs) {
        dense_row<W>(args, id, out);
      } else {
        std::fill(out, out + args.inputs, std::numeric_limits<float>::quiet_NaN());
      }
    }
  });
}

static void dense_rows(const DenseRowsArgs& args, Pool& pool) {
  switch (args.format) {
    case DenseFormat::fp32: return dense_rows_of<Fp32>(args, pool);
    case DenseFormat::bf16: return dense_rows_of<Bf16>(args, pool);
    case DenseFormat::fp16: return dense_rows_of<Fp16>(args, pool);
    case DenseFormat::e4m3: return dense_rows_of<E4m3>(args, pool);
  }
}

// Sixteen rows become sixteen lanes. Read along the rows a cache line at a time, which is what memory likes.
template <class T>
static void pack_panel(const DensePackArgs& args, int64_t panel) {
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t row = panel * kLanes, rows = std::min<int64_t>(kLanes, args.outputs - row);
  const T* from = static_cast<const T*>(args.weight) + row * args.stride;
  T* to = static_cast<T*>(args.panels) + panel * args.inputs * kLanes;
  if (rows < kLanes) std::fill(to, to + args.inputs * kLanes, T{});
  for (int64_t k = 0; k < args.inputs; k += kLine) {
    const int64_t end = std::min(args.inputs, k + kLine);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = k; i < end; ++i) to[i * kLanes + r] = from[r * args.stride + i];
    }
  }
}

static void dense_pack(const DensePackArgs& args, Pool& pool) {
  pool.run((args.outputs + kLanes - 1) / kLanes, [&](int64_t panel) {
    switch (args.element_bytes) {
      case 4: return pack_panel<uint32_t>(args, panel);
      case 2: return pack_panel<uint16_t>(args, panel);
      default: return pack_panel<uint8_t>(args, panel);
    }
  });
}

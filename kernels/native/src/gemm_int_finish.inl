// What becomes of sums over all blocks.

struct FinishArgs {
  const float* y;     // [panels][rows][16]; gated outputs: the gates of all, then what they open
  const float* sums;  // of each row's rounded activations
  float* out;         // of the first row
  int64_t panel, panels;
  int rows;
  bool streamed;
};

// More than the caches hold beside weights, all in whole lines: past them, then, for to fetch the lines first takes as
// long as to multiply.
static inline bool streams(const GemmIntArgs& args, const float* out) {
  constexpr int64_t kCached = 1 << 20;  // numbers
  const bool lines = reinterpret_cast<uintptr_t>(out) % 64 == 0 && args.out_stride % kLanes == 0;
  return args.finish == IntFinish::store && lines && args.weight.out_features % kLanes == 0 &&
         *args.rows * args.weight.out_features > kCached;
}

// Output o of panel and row: with the scale of its whole row, where that is the only one, and bias.
static inline F16 finished(const IntWeight& weight, const float* y, int64_t panel, float sum) {
  F16 value = F16::load(y);
  if (weight.groups == 1) {
    value = value * load_scales(weight.scale, weight.scale_type, panel);
    if (weight.offset != nullptr) {
      value = fma(load_scales(weight.offset, weight.offset_type, panel), F16::set(sum), value);
    }
  }
  return weight.bias == nullptr ? value : value + F16::load(weight.bias + panel * kLanes);
}

static inline void put(F16 value, float* out, int64_t left, bool add) {
  if (left >= kLanes) {
    (add ? value + F16::load(out) : value).store(out);
  } else {
    const int n = static_cast<int>(left);
    (add ? value + F16::load(out, n) : value).store(out, n);
  }
}

// Asks for the lines that results will go to, so that nothing waits for them then.
static inline void expect_stores(const float* out, int64_t stride, int rows, int64_t panels) {
  for (int row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < panels; ++i) __builtin_prefetch(out + row * stride + i * kLanes, 1);
  }
}

static void finish_tile(const GemmIntArgs& args, const FinishArgs& tile) {
  const IntWeight& weight = args.weight;
  const int64_t half = weight.out_features / kLanes / 2, beside = tile.panels * tile.rows * kLanes;
  const bool gated = args.finish == IntFinish::gate, add = args.finish == IntFinish::add;
  const bool plain = !gated && weight.groups > 1 && weight.bias == nullptr;
  for (int row = 0; row < tile.rows; ++row) {
    for (int64_t i = 0; i < tile.panels; ++i) {
      const int64_t panel = tile.panel + i, left = weight.out_features - panel * kLanes;
      const float* y = tile.y + (i * tile.rows + row) * kLanes;
      float* out = tile.out + row * args.out_stride + panel * kLanes;
      if (tile.streamed) {
        finished(weight, y, panel, tile.sums[row]).stream(out);
      } else if (plain) {
        put(F16::load(y), out, left, add);
      } else if (!gated) {
        put(finished(weight, y, panel, tile.sums[row]), out, left, add);
      } else {
        const F16 up = finished(weight, y + beside, half + panel, tile.sums[row]);
        (silu(finished(weight, y, panel, tile.sums[row])) * up).store(out);
      }
    }
  }
}

// shares: [experts rounded up to lanes], for e^(logit - best)
static void moe_weigh(const MoeRouteArgs& args, const float* logits, float best, float* shares, int64_t row) {
  const int64_t padded = (args.experts + kLanes - 1) / kLanes * kLanes;
  std::copy(logits, logits + args.experts, shares);
  std::fill(shares + args.experts, shares + padded, -std::numeric_limits<float>::infinity());
  F16 sums = F16::zero();
  for (int64_t e = 0; e < padded; e += kLanes) {
    const F16 share = exp(F16::load(shares + e) - F16::set(best));
    share.store(shares + e);
    sums = sums + share;
  }
  const int64_t* ids = args.ids + row * args.top_k;
  float* weights = args.weights + row * args.top_k;
  float total = 0.0f;
  for (int64_t c = 0; c < args.top_k; ++c) total += shares[ids[c]];
  if (!args.renormalize) total = sum(sums);
  for (int64_t c = 0; c < args.top_k; ++c) weights[c] = shares[ids[c]] / total;
}

// The top_k largest in order, the first of equal ones first. left: [experts], for what is not chosen yet.
static void moe_choose(const MoeRouteArgs& args, const float* logits, float* left, int64_t* ids) {
  constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();
  std::copy(logits, logits + args.experts, left);
  for (int64_t c = 0; c < args.top_k; ++c) {
    int64_t best = 0;
    while (std::isnan(left[best])) ++best;
    for (int64_t e = best + 1; e < args.experts; ++e) {
      if (left[e] > left[best]) best = e;  // false for those taken
    }
    ids[c] = best;
    left[best] = kTaken;
  }
}

static void moe_route_row(const MoeRouteArgs& args, float* scratch, int64_t row) {
  const float* logits = args.logits + row * args.logits_stride;
  float best = -std::numeric_limits<float>::infinity();
  bool nan = false;
  for (int64_t e = 0; e < args.experts; ++e) {
    nan |= std::isnan(logits[e]);
    best = std::max(best, logits[e]);
  }
  int64_t* ids = args.ids + row * args.top_k;
  if (nan || !std::isfinite(best)) {
    for (int64_t c = 0; c < args.top_k; ++c) {
      ids[c] = c;
      args.weights[row * args.top_k + c] = std::numeric_limits<float>::quiet_NaN();
    }
    return;
  }
  moe_choose(args, logits, scratch, ids);
  moe_weigh(args, logits, best, scratch, row);
}

static void moe_route(const MoeRouteArgs& args, Pool& pool) {
  constexpr int64_t kRows = 8;
  const int64_t rows = *args.rows, chunks = (rows + kRows - 1) / kRows;
  const int64_t padded = (args.experts + kLanes - 1) / kLanes * kLanes;
  auto* scratch = static_cast<float*>(pool.scratch(4, chunks * padded * sizeof(float)));
  pool.run(chunks, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * kRows);
    for (int64_t row = chunk * kRows; row < end; ++row) moe_route_row(args, scratch + chunk * padded, row);
  });
}

static void moe_group(const MoeGroupArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, pairs = rows * args.top_k;
  std::fill(args.counts, args.counts + args.experts, 0);
  for (int64_t i = 0; i < pairs; ++i) ++args.counts[args.ids[i]];
  auto* next = static_cast<int64_t*>(pool.scratch(4, args.experts * sizeof(int64_t)));
  for (int64_t e = 0, start = 0; e < args.experts; start += args.counts[e++]) args.starts[e] = next[e] = start;
  for (int64_t i = 0; i < pairs; ++i) args.places[i] = next[args.ids[i]]++;
  *args.total = pairs;
  constexpr int64_t kRows = 4;
  pool.run((rows + kRows - 1) / kRows, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * kRows);
    for (int64_t i = chunk * kRows * args.top_k; i < end * args.top_k; ++i) {
      const float* from = args.x + i / args.top_k * args.x_stride;
      std::copy(from, from + args.width, args.gathered + args.places[i] * args.width);
    }
  });
}

static void moe_combine(const MoeCombineArgs& args, Pool& pool) {
  constexpr int64_t kRows = 4;
  const int64_t rows = *args.rows, width = args.width;
  pool.run((rows + kRows - 1) / kRows, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * kRows);
    for (int64_t row = chunk * kRows; row < end; ++row) {
      const int64_t* places = args.places + row * args.top_k;
      const float* weights = args.weights + row * args.top_k;
      float* out = args.out + row * args.out_stride;
      for (int64_t i = 0; i < width; i += kLanes) {
        const int lanes = static_cast<int>(std::min<int64_t>(kLanes, width - i));
        F16 total = F16::zero();
        for (int64_t c = 0; c < args.top_k; ++c) {
          const float* y = args.y + places[c] * width + i;
          total = fma(F16::set(weights[c]), lanes == kLanes ? F16::load(y) : F16::load(y, lanes), total);
        }
        if (lanes == kLanes) {
          (args.residual ? F16::load(out + i) + total : total).store(out + i);
        } else {
          (args.residual ? F16::load(out + i, lanes) + total : total).store(out + i, lanes);
        }
      }
    }
  });
}

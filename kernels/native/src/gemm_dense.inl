#include "dense_formats.inl"

// Rows of x that one pass over a panel serves. Few: straight from x, as many panels at once as registers allow, so
// that a core has several streams from memory under way. Many: from a packed copy of x, [inputs][kTile].
constexpr int kFewRows = 8;
#if BATON_AVX512
constexpr int kTile = 14;
constexpr int kTilePanels = 2;
constexpr int few_panels(int rows) { return rows <= 4 ? 4 : 2; }
#else
constexpr int kTile = 6;
constexpr int kTilePanels = 1;
constexpr int few_panels(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#endif
constexpr int64_t kBlockTiles = 224 / kTile;  // packed at a time: fits a core's L2 beside two panels
constexpr int64_t kDepth = 2048;              // inputs per pass: two fp32 panels take a quarter of L2
#ifndef KDIRECT
#define KDIRECT 0
#endif
constexpr bool kDirect=KDIRECT;
#ifndef PF
#define PF 1024
#endif
constexpr int64_t kPrefetchBytes = PF;

// acc[r][p] = fma(x[r][k], weight[p][k], acc[r][p]) for ascending k. x[r][k] is x[r * row + k * step].
template <class W, int R, int P, bool kPrefetch>
[[gnu::always_inline]] static inline void accumulate(F16 (&acc)[R][P], const float* x, int64_t row, int64_t step,
                                                     const typename W::Stored* panels, int64_t panel,
                                                     const F16 (&scale)[P], int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    F16 weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const auto* at = panels + p * panel + k * kLanes;
      if constexpr (kPrefetch) _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes, _MM_HINT_T0);
      weight[p] = W::load(at, scale[p]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F16 value = F16::set(x[r * row + k * step]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[r][p] = fma(value, weight[p], acc[r][p]);
    }
  }
}

template <int R, int P>
static void finish(const GemmDenseArgs& args, const F16 (&acc)[R][P], int64_t row, int64_t panel) {
  for (int p = 0; p < P; ++p) {
    const int64_t output = (panel + p) * kLanes;
    const F16 bias = args.bias == nullptr ? F16::zero() : F16::load(args.bias + output);
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, args.outputs - output));
    for (int r = 0; r < R; ++r) {
      float* out = args.out + (row + r) * args.out_stride + output;
      F16 y = args.bias == nullptr ? acc[r][p] : acc[r][p] + bias;
      if (lanes == kLanes) {
        if (args.residual) y = F16::load(out) + y;
        y.store(out);
      } else {
        if (args.residual) y = F16::load(out, lanes) + y;
        y.store(out, lanes);
      }
    }
  }
}

// R rows from `row` on times P panels from `panel` on.
template <class W, int R, int P>
static void few_rows_panels(const GemmDenseArgs& args, int64_t row, int64_t panel) {
  const auto* panels = static_cast<const typename W::Stored*>(args.panels) + panel * args.inputs * kLanes;
  const float* x = args.x + row * args.x_stride;
  F16 acc[R][P];
  for (auto& one : acc) {
    for (auto& value : one) value = F16::zero();
  }
  F16 scale[P] = {};
  if constexpr (W::kScaled) {
    const int64_t groups = (args.inputs + args.group - 1) / args.group;
    for (int64_t g = 0; g < groups; ++g) {
      for (int p = 0; p < P; ++p) scale[p] = F16::load(args.scale + ((panel + p) * groups + g) * kLanes);
      const int64_t k = g * args.group;
      accumulate<W, R, P, true>(acc, x + k, args.x_stride, 1, panels + k * kLanes, args.inputs * kLanes, scale,
                                std::min(args.group, args.inputs - k));
    }
  } else {
    accumulate<W, R, P, true>(acc, x, args.x_stride, 1, panels, args.inputs * kLanes, scale, args.inputs);
  }
  finish(args, acc, row, panel);
}

template <class W, int R>
static void few_rows(const GemmDenseArgs& args, int64_t row, int64_t panel, int64_t end) {
  constexpr int P = few_panels(R);
  for (; panel + P <= end; panel += P) few_rows_panels<W, R, P>(args, row, panel);
  if constexpr (P > 1) {
    for (; panel < end; ++panel) few_rows_panels<W, R, 1>(args, row, panel);
  }
}

// Rows [row, end_row) times panels [panel, end).
template <class W>
static void few_rows(const GemmDenseArgs& args, int64_t row, int64_t end_row, int64_t panel, int64_t end) {
  using Some = void (*)(const GemmDenseArgs&, int64_t, int64_t, int64_t);
  static constexpr Some some[] = {nullptr,         few_rows<W, 1>, few_rows<W, 2>, few_rows<W, 3>, few_rows<W, 4>,
                                  few_rows<W, 5>, few_rows<W, 6>, few_rows<W, 7>, few_rows<W, 8>};
  while (row < end_row) {
    const int64_t passes = (end_row - row + kFewRows - 1) / kFewRows;
    const int64_t rows = (end_row - row + passes - 1) / passes;
    some[rows](args, row, panel, end);
    row += rows;
  }
}

// A chunk is at least a few microseconds of reading, and each thread should have several.
template <class W>
static void stream(const GemmDenseArgs& args, Pool& pool, int64_t first, int64_t rows) {
  const int64_t panels = (args.outputs + kLanes - 1) / kLanes;
  const int64_t bytes = args.inputs * kLanes * static_cast<int64_t>(sizeof(typename W::Stored));
  const int64_t least = (64 * 1024 + bytes - 1) / bytes;
  const int64_t fair = panels / (8 * pool.threads());
  const int64_t step = pool.threads() == 1 ? 8: std::max<int64_t>(4, std::max(least, fair)) / 4 * 4;
  pool.run((panels + step - 1) / step, [&](int64_t chunk) {
    const int64_t begin = chunk * step, end = std::min(panels, begin + step);
    // Group by group, so that rows after the first few find the weights in the cache.
    for (int64_t panel = begin; panel < end; panel += 4) {
      few_rows<W>(args, first, first + rows, panel, std::min(end, panel + 4));
    }
  });
}

// What a thread keeps from chunk to chunk.
struct Workspace {
  alignas(64) float wide[kDepth * kTilePanels * kLanes];                   // weights in fp32
  alignas(64) float partial[kBlockTiles * kTile * kTilePanels * kLanes];  // sums so far, between passes
};

static Workspace& workspace() {
  static thread_local std::unique_ptr<Workspace> own;
  if (own == nullptr) own.reset(new Workspace);
  return *own;
}

static void pack_tile(const GemmDenseArgs& args, int64_t row, float* packed) {
  const float* x = args.x + row * args.x_stride;
  for (int64_t k = 0; k < args.inputs; ++k) {
    for (int r = 0; r < kTile; ++r) packed[k * kTile + r] = x[r * args.x_stride + k];
  }
}

// Some inputs of some panels, and some tiles of packed rows: what one chunk works on.
struct Block {
  int64_t row, tiles, panel, k, depth;
  const float* x;  // of the first tile
  float* partial;
};

template <class W, int P>
static void tiles(const GemmDenseArgs& args, const Block& block, const typename W::Stored* weight, int64_t stride) {
  const F16 scale[P] = {};
  for (int64_t t = 0; t < block.tiles; ++t) {
    float* partial = block.partial + t * kTile * P * kLanes;
    F16 acc[kTile][P];
    for (int i = 0; i < kTile * P; ++i) {
      acc[i / P][i % P] = block.k == 0 ? F16::zero() : F16::load(partial + i * kLanes);
    }
    const float* x = block.x + (t * args.inputs + block.k) * kTile;
    accumulate<W, kTile, P, false>(acc, x, 1, kTile, weight, stride, scale, block.depth);
    if (block.k + block.depth == args.inputs) {
      finish(args, acc, block.row + t * kTile, block.panel);
    } else {
      for (int i = 0; i < kTile * P; ++i) acc[i / P][i % P].store(partial + i * kLanes);
    }
  }
}

template <class W>
static void widen(const GemmDenseArgs& args, const Block& block, int panels, float* wide) {
  const int64_t groups = W::kScaled ? (args.inputs + args.group - 1) / args.group : 1;
  for (int p = 0; p < panels; ++p) {
    const auto* stored = static_cast<const typename W::Stored*>(args.panels) + (block.panel + p) * args.inputs * kLanes;
    int64_t k = block.k;
    const int64_t end = block.k + block.depth;
    while (k < end) {
      F16 scale = F16::zero();
      int64_t until = end;
      if constexpr (W::kScaled) {
        const int64_t g = k / args.group;
        scale = F16::load(args.scale + ((block.panel + p) * groups + g) * kLanes);
        until = std::min(end, (g + 1) * args.group);
      }
      for (; k < until; ++k, wide += kLanes) W::load(stored + k * kLanes, scale).store(wide);
    }
  }
}

// Tiles of packed rows times P panels, a few inputs at a time.
template <class W, int P>
static void tiles_panels(const GemmDenseArgs& args, Block block, bool direct) {
  Workspace& own = workspace();
  block.partial = own.partial;
  const int64_t passes = (args.inputs + kDepth - 1) / kDepth;
  const int64_t depth = (args.inputs + passes - 1) / passes;
  for (block.k = 0; block.k < args.inputs; block.k += depth) {
    block.depth = std::min(depth, args.inputs - block.k);
    if (direct) {
      const auto* stored = static_cast<const typename W::Stored*>(args.panels);
      tiles<W, P>(args, block, stored + (block.panel * args.inputs + block.k) * kLanes, args.inputs * kLanes);
    } else {
      widen<W>(args, block, P, own.wide);
      tiles<Fp32, P>(args, block, own.wide, block.depth * kLanes);
    }
  }
}

template <class W>
static void blocks(const GemmDenseArgs& args, Pool& pool, int64_t first, int64_t rows) {
  const int64_t panels = (args.outputs + kLanes - 1) / kLanes;
  const int64_t pairs = (panels + 1) / 2;
  const int64_t all_tiles = rows / kTile;
  const int64_t passes = (all_tiles + kBlockTiles - 1) / kBlockTiles;
  const int64_t per_pass = (all_tiles + passes - 1) / passes;
  auto* packed = static_cast<float*>(pool.scratch(0, sizeof(float) * per_pass * kTile * args.inputs));
  for (int64_t done = 0; done < all_tiles; done += per_pass) {
    const int64_t here = std::min(per_pass, all_tiles - done);
    const int64_t row = first + done * kTile;
    pool.run(here, [&](int64_t t) { pack_tile(args, row + t * kTile, packed + t * kTile * args.inputs); });
    const int64_t wanted = (8 * pool.threads() + pairs - 1) / pairs;
    const int64_t parts = pool.threads() == 1 ? 1 : std::min(here, wanted);
    const int64_t part = (here + parts - 1) / parts;
    pool.run(pairs * parts, [&](int64_t chunk) {
      const int64_t begin = chunk / parts * 2, end = std::min(panels, begin + 2);
      const int64_t tile = chunk % parts * part, tile_end = std::min(here, tile + part);
      if (tile < tile_end) {
        Block block = {row + tile * kTile, tile_end - tile, begin, 0, 0, packed + tile * kTile * args.inputs, nullptr};
        const bool direct = std::is_same_v<W, Fp32> || (!W::kScaled && kDirect);
        if (end - begin == kTilePanels) {
          tiles_panels<W, kTilePanels>(args, block, direct);
        } else {
          for (; block.panel < end; ++block.panel) tiles_panels<W, 1>(args, block, direct);
        }
      }
      if (chunk % parts == parts - 1 && done + here == all_tiles) {
        few_rows<W>(args, first + all_tiles * kTile, first + rows, begin, end);
      }
    });
  }
}

template <class W>
static void gemm(const GemmDenseArgs& args, Pool& pool) {
  const int64_t rows = *args.rows, first = args.first == nullptr ? 0 : *args.first;
  if (rows < kTile) {
    stream<W>(args, pool, first, rows);
  } else {
    blocks<W>(args, pool, first, rows);
  }
}

static void gemm_dense(const GemmDenseArgs& args, Pool& pool) {
  switch (args.format) {
    case DenseFormat::fp32: return gemm<Fp32>(args, pool);
    case DenseFormat::bf16: return gemm<Bf16>(args, pool);
    case DenseFormat::fp16: return gemm<Fp16>(args, pool);
    case DenseFormat::e4m3: return gemm<E4m3>(args, pool);
  }
}

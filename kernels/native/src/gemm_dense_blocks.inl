// Many rows: the time goes into multiplying. x is packed, weights are read once per block of rows.

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
  const float* x;      // of the first tile
  float* partial;
  int64_t ahead;  // bytes to the panels that this thread is likely to go on with
};

// kWidened: `weight` is not what the panels that come next look like.
template <class W, int P, bool kWidened>
static void tiles(const GemmDenseArgs& args, const Block& block, const typename W::Stored* weight, int64_t stride) {
  const F16 scale[P] = {};
  for (int64_t t = 0; t < block.tiles; ++t) {
    float* partial = block.partial + t * kTile * P * kLanes;
    F16 acc[kTile][P];
    for (int i = 0; i < kTile * P; ++i) {
      acc[i / P][i % P] = block.k == 0 ? F16::zero() : F16::load(partial + i * kLanes);
    }
    const bool last = t + 1 == block.tiles && !kWidened;
    const Ahead ahead = last ? Ahead{block.ahead, block.depth} : Ahead{};
    const float* x = block.x + (t * args.inputs + block.k) * kTile;
    accumulate<W, kTile, P>(acc, x, 1, kTile, weight, stride, scale, block.depth, ahead);
    if (block.k + block.depth == args.inputs) {
      finish(args, acc, block.row + t * kTile, block.panel);
    } else {
      for (int i = 0; i < kTile * P; ++i) acc[i / P][i % P].store(partial + i * kLanes);
    }
  }
}

// Weights that take long to widen are widened once, for all tiles.
template <class W>
static void widen(const GemmDenseArgs& args, const Block& block, int panels, float* wide) {
  const int64_t groups = (args.inputs + args.group - 1) / args.group;
  for (int64_t panel = block.panel; panel < block.panel + panels; ++panel) {
    const auto* stored = static_cast<const typename W::Stored*>(args.panels) + panel * args.inputs * kLanes;
    for (int64_t k = block.k; k < block.k + block.depth;) {
      const int64_t group = k / args.group;
      const int64_t end = std::min(block.k + block.depth, (group + 1) * args.group);
      const F16 scale = F16::load(args.scale + (panel * groups + group) * kLanes);
      for (; k < end; ++k, wide += kLanes) W::load(stored + k * kLanes, scale).store(wide);
    }
  }
}

// Tiles of packed rows times P panels, a few inputs at a time.
template <class W, int P>
static void tiles_panels(const GemmDenseArgs& args, Block block) {
  Workspace& own = workspace();
  block.partial = own.partial;
  const int64_t passes = (args.inputs + kDepth - 1) / kDepth;
  const int64_t depth = (args.inputs + passes - 1) / passes;
  for (block.k = 0; block.k < args.inputs; block.k += depth) {
    block.depth = std::min(depth, args.inputs - block.k);
    if constexpr (W::kScaled) {
      widen<W>(args, block, P, own.wide);
      tiles<Fp32, P, true>(args, block, own.wide, block.depth * kLanes);
    } else {
      const auto* stored = static_cast<const typename W::Stored*>(args.panels);
      tiles<W, P, false>(args, block, stored + (block.panel * args.inputs + block.k) * kLanes, args.inputs * kLanes);
    }
  }
}

// A chunk is two panels and all rows, or some of them where there are more threads than panels to go round.
template <class W>
static void blocks(const GemmDenseArgs& args, Pool& pool, int64_t rows) {
  const int64_t panels = panels_of(args);
  const int64_t pairs = (panels + 1) / 2;
  const int64_t all_tiles = rows / kTile;
  const int64_t passes = (all_tiles + kBlockTiles - 1) / kBlockTiles;
  const int64_t per_pass = (all_tiles + passes - 1) / passes;
  auto* packed = static_cast<float*>(pool.scratch(0, sizeof(float) * per_pass * kTile * args.inputs));
  for (int64_t done = 0; done < all_tiles; done += per_pass) {
    const int64_t here = std::min(per_pass, all_tiles - done);
    const int64_t row = done * kTile;
    pool.run(here, [&](int64_t t) { pack_tile(args, row + t * kTile, packed + t * kTile * args.inputs); });
    const int64_t wanted = (8 * pool.threads() + pairs - 1) / pairs;
    const int64_t parts = pool.threads() == 1 ? 1 : std::min(here, wanted);
    const int64_t part = (here + parts - 1) / parts;
    pool.run(pairs * parts, [&](int64_t chunk) {
      const int64_t begin = chunk / parts * 2, end = std::min(panels, begin + 2);
      const int64_t tile = chunk % parts * part, tile_end = std::min(here, tile + part);
      if (tile < tile_end) {
        Block block = {row + tile * kTile, tile_end - tile, begin, 0, 0, packed + tile * kTile * args.inputs, nullptr,
                       2 * pool.threads() * args.inputs * kLanes * static_cast<int64_t>(sizeof(typename W::Stored))};
        if (end - begin == kTilePanels) {
          tiles_panels<W, kTilePanels>(args, block);
        } else {
          for (; block.panel < end; ++block.panel) tiles_panels<W, 1>(args, block);
        }
      }
      if (chunk % parts == parts - 1 && done + here == all_tiles) {
        few_rows<W>(args, all_tiles * kTile, rows, {begin, end, end});
      }
    });
  }
}

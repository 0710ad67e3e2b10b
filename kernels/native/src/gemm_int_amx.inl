// The same product by AMX, for more than a few rows: 16 of them at a time, with 16 outputs and 64 inputs an instruction.
//
// Its sums are exact too, so bits are those of the other ways. Codes of 8 bits in blocks of 64 inputs lie as it takes
// them. Others become bytes first, a panel at a time, in pieces of 64 inputs that are filled up with zeros: what a tile
// of activations reads beyond its block counts nothing.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

namespace amx {

constexpr int kRows = 16;
constexpr int kPieceSteps = 64 / kStep;
constexpr int kPieceBytes = 64 * kLanes;

// Rows from which on it is faster: where codes are taken as they are, and where not.
constexpr int64_t kFewest = 5, kFewestUnpacked = 48;

struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles of one thread, while it lives. Released ones need not be saved when another thread takes the core.
class Registers {
 public:
  Registers() {
    const Config config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Registers() { asm volatile("tilerelease"); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

// Of one thread, kept from call to call; contents are undefined.
class Memory {
 public:
  uint8_t* get(size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
      if (memory_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  size_t bytes_ = 0;
};

// Activations of 16 rows and one panel's codes, to be multiplied.
struct Work {
  const int32_t* units;      // row r: row_units * r further on
  const BlockScale* scales;  // row r: block_count * r further on
  int64_t row_units;
  const uint8_t* codes;      // [pieces][16 quads][16 outputs][4]
  int64_t panel;
  Ahead ahead;
  int rows;
};

static int64_t pieces(const IntBlock& block) { return (block.end - block.begin + kPieceSteps - 1) / kPieceSteps; }

static int64_t pieces(const IntWeight& weight) {
  int64_t count = 0;
  for (int64_t b = 0; b < weight.block_count; ++b) count += pieces(weight.blocks[b]);
  return count;
}

static bool whole(const IntWeight& weight) {
  return weight.kind == IntCodes::int8 &&
         std::all_of(weight.blocks, weight.blocks + weight.block_count,
                     [](const IntBlock& block) { return (block.end - block.begin) % kPieceSteps == 0; });
}

static bool pays(const IntWeight& weight, int64_t rows) {
  return rows >= kFewestUnpacked || (rows >= kFewest && whole(weight));
}

// That a panel takes with so many rows: about 56 for a tile of them and a block, 24 to unpack a piece.
static double cycles(const IntWeight& weight, int64_t rows) {
  const int64_t tiles = (rows + kRows - 1) / kRows;
  return static_cast<double>(56 * tiles * weight.block_count + (whole(weight) ? 0 : 24 * pieces(weight)));
}

template <class Codes>
static void unpack(const IntWeight& weight, int64_t panel, uint8_t* to) {
  const uint8_t* from = weight.codes + panel * weight.steps * Codes::kStepBytes;
  for (int64_t b = 0; b < weight.block_count; ++b) {
    const int64_t steps = weight.blocks[b].end - weight.blocks[b].begin;
    for (int64_t step = 0; step < steps; ++step, from += Codes::kStepBytes, to += 128) {
      Codes::template load<0>(from).store(to);
      Codes::template load<1>(from).store(to + 64);
    }
    const int64_t missing = pieces(weight.blocks[b]) * kPieceSteps - steps;
    std::memset(to, 0, missing * 128);
    to += missing * 128;
  }
}

static void unpack(const IntWeight& weight, int64_t panel, uint8_t* to) {
  switch (weight.kind) {
    case IntCodes::int8:
      return unpack<Int8Codes>(weight, panel, to);
    case IntCodes::int4:
      return unpack<Int4Codes>(weight, panel, to);
    default:
      return unpack<Fp4Codes>(weight, panel, to);
  }
}

// The three registers of tiles that a block takes: sums, activations, codes. Blocks take turns.
#define BATON_TILES(sums, rows, codes)                                                                        \
  asm volatile("tilezero %%" sums ::: "memory");                                                              \
  for (; pieces > 0; --pieces, units += 64 / sizeof(int32_t), codes_at += kPieceBytes) {                      \
    asm volatile("tileloadd (%0,%1,1), %%" rows "\n\ttileloadd (%2,%3,1), %%" codes "\n\ttdpbsud %%" codes    \
                 ", %%" rows ", %%" sums ::"r"(units), "r"(row_bytes), "r"(codes_at), "r"(int64_t{64})       \
                 : "memory");                                                                                 \
  }

static inline BATON_INLINE void multiply_block(bool odd, const int32_t* units, int64_t row_bytes,
                                               const uint8_t* codes_at, int64_t pieces) {
  if (odd) {
    BATON_TILES("tmm3", "tmm4", "tmm5")
  } else {
    BATON_TILES("tmm0", "tmm1", "tmm2")
  }
}
#undef BATON_TILES

static inline BATON_INLINE void store_sums(bool odd, int32_t* sums) {
  if (odd) {
    asm volatile("tilestored %%tmm3, (%0,%1,1)" ::"r"(sums), "r"(int64_t{64}) : "memory");
  } else {
    asm volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sums), "r"(int64_t{64}) : "memory");
  }
}

// y: [rows][16]. A block's sums are stored a block later, and scaled two blocks later: so nothing waits for them.
template <bool kGroups>
static void multiply_panel(const IntWeight& weight, const Work& work, float* y) {
  alignas(64) int32_t sums[2][kRows * kLanes];
  F16 total[kRows];
  each<kRows>([&](auto r) BATON_INLINE { total[r] = F16::zero(); });
  const int64_t blocks = weight.block_count, row_bytes = work.row_units * static_cast<int64_t>(sizeof(int32_t));
  const uint8_t* fetched = work.ahead.begin;
  const uint8_t* codes = work.codes;
  for (int64_t b = 0; b < blocks + 2; ++b) {
    if (b < blocks) {
      const IntBlock& block = weight.blocks[b];
      const int64_t count = pieces(block);
      multiply_block(b % 2, work.units + block.begin * 2, row_bytes, codes, count);
      codes += count * kPieceBytes;
      for (int64_t pairs = work.ahead.pairs; pairs > 0; --pairs) {
        _mm_prefetch(fetched, _MM_HINT_T1);
        _mm_prefetch(fetched + 64, _MM_HINT_T1);
        fetched = std::min(fetched + work.ahead.bytes, work.ahead.end);
      }
    }
    if (b > 0 && b <= blocks) store_sums((b - 1) % 2, sums[(b - 1) % 2]);
    if (b < 2) continue;
    const int32_t* before = sums[b % 2];
    const BlockScale* scales = work.scales + b - 2;
    const auto sum_of = [&](int r) BATON_INLINE {
      return to_float(I16::load(before + r * kLanes) + I16::set(scales[r * blocks].start));
    };
    if constexpr (!kGroups) {  // the weight's scales wait for the end
      each<kRows>([&](auto r) BATON_INLINE {
        total[r] = fma(sum_of(r), F16::set(scales[r * blocks].scale), total[r]);
      });
    } else {
      const int64_t group = weight.blocks[b - 2].group;
      F16 scale[1];
      load_scales(weight.scale, weight.scale_type, weight.groups, work.panel, group, scale);
      each<kRows>([&](auto r) BATON_INLINE {
        const F16 of_row = F16::set(scales[r * blocks].scale);
        total[r] = fma(sum_of(r), scale[0] * of_row, total[r]);
      });
      if (weight.offset == nullptr) continue;
      load_scales(weight.offset, weight.offset_type, weight.groups, work.panel, group, scale);
      each<kRows>([&](auto r) BATON_INLINE {
        total[r] = fma(scale[0], F16::set(scales[r * blocks].sum), total[r]);
      });
    }
  }
  each<kRows>([&](auto r) BATON_INLINE {
    if (r < work.rows) total[r].store(y + r * kLanes);
  });
}

// What one of some tiles fetches of a panel.
static Ahead part_of(const IntWeight& weight, int64_t panel, int64_t tile, int64_t tiles) {
  const int64_t bytes = weight.steps * step_bytes(weight), lines = bytes / 64;
  const int64_t from = lines * tile / tiles, to = lines * (tile + 1) / tiles;
  const uint8_t* codes = weight.codes + panel * bytes;
  return {codes + from * 64, codes + to * 64, 128,
          (to - from + 2 * weight.block_count - 1) / (2 * weight.block_count)};
}

static void multiply_rows(const GemmIntArgs& args, const Activations& x, float* out, const Panels& some) {
  const Registers registers;
  alignas(64) float y[2 * kTrio * kRows * kLanes];
  static thread_local Memory unpacked;
  const IntWeight& weight = args.weight;
  const bool gated = args.finish == IntFinish::gate, streamed = streams(args, out);
  const int64_t rows = *args.rows, tiles = (rows + kRows - 1) / kRows;
  const int64_t half = weight.out_features / kLanes / 2, panel_bytes = pieces(weight) * kPieceBytes;
  const int64_t stored_bytes = weight.steps * step_bytes(weight);
  const bool as_it_is = whole(weight);
  const auto multiply_panel = weight.groups == 1 ? amx::multiply_panel<false> : amx::multiply_panel<true>;
  uint8_t* const bytes = as_it_is ? nullptr : unpacked.get(2 * kTrio * panel_bytes);
  for (int64_t panel = some.begin; panel < some.end; panel += kTrio) {
    const int64_t count = std::min<int64_t>(kTrio, some.end - panel);
    const int64_t next = panel + count < some.end ? panel + count : some.then;
    const int64_t all = gated ? 2 * count : count;
    const auto place = [&](int64_t begin, int64_t i) { return begin + (i < count ? i : half + i - count); };
    for (int64_t i = 0; i < all && !as_it_is; ++i) unpack(weight, place(panel, i), bytes + i * panel_bytes);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = t * kRows;
      const int size = static_cast<int>(std::min<int64_t>(kRows, rows - first));
      if (!streamed) expect_stores(out + first * args.out_stride + panel * kLanes, args.out_stride, size, count);
      for (int64_t i = 0; i < all; ++i) {
        const int64_t now = place(panel, i);
        const uint8_t* codes = as_it_is ? weight.codes + now * stored_bytes : bytes + i * panel_bytes;
        multiply_panel(weight,
                       {x.units + first * x.row_units, x.scales + first * weight.block_count, x.row_units, codes, now,
                        part_of(weight, place(next, i), t, tiles), size},
                       y + i * size * kLanes);
      }
      finish_tile(args, {y, x.sums + first, out + first * args.out_stride, panel, count, size, streamed});
    }
  }
  if (streamed) _mm_sfence();
}

}  // namespace amx

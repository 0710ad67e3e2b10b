// The product of one tile of rows with one panel of outputs or several.

#if BATON_AVX512
constexpr int kTileRows[] = {1, 2, 4};
constexpr int kTilePanels = 3;  // beside one another, for the greatest tiles: 24 accumulators of 32 registers
#else
constexpr int kTileRows[] = {1, 2, 3, 4};  // 8 accumulators of 16
constexpr int kTilePanels = 1;
#endif
constexpr int kMostRows = kTileRows[std::size(kTileRows) - 1];

// Rows in tiles of the sizes that there are: the greatest as often as it goes, then what is left.
class Tiles {
 public:
  explicit Tiles(int64_t rows) : whole_(rows / kMostRows) {
    for (int64_t left = rows % kMostRows; left > 0; left -= rest_[rests_++]) {
      rest_[rests_] = *std::find_if(std::rbegin(kTileRows), std::rend(kTileRows), [&](int n) { return n <= left; });
    }
  }
  int64_t count() const { return whole_ + rests_; }
  bool few() const { return whole_ == 0; }  // rows, so that they wait for memory
  int size(int64_t tile) const { return tile < whole_ ? kMostRows : rest_[tile - whole_]; }
  int64_t first(int64_t tile) const {
    return std::min(tile, whole_) * kMostRows + std::accumulate(rest_, rest_ + std::max<int64_t>(0, tile - whole_), 0);
  }

 private:
  int64_t whole_;
  int rest_[4] = {};
  int rests_ = 0;
};

// The machine reads on by itself, but for two cases: among scales and offsets, for it reads one stream at full speed
// but not several (codes of 8 bits outweigh them), and where rows keep it busy.
template <class Codes, int kRows>
constexpr bool kAhead = Codes::kStepBytes == 64 || kRows == kMostRows;

// What to fetch meanwhile: `pairs` of lines (at least one) per step from `begin` on, `bytes` from one to the next, up to `end`.
struct Ahead {
  const uint8_t *begin, *end;
  int64_t bytes;
  int64_t pairs;
};

struct TileArgs {
  const int32_t* units;      // row r: row_units * r further on
  const BlockScale* scales;  // row r: block_count * r further on
  int64_t row_units;
  int64_t panel;
  Ahead ahead;
};

// f(0), ..., f(n - 1), each with a constant, so that what they index can be registers.
#define BATON_INLINE __attribute__((always_inline))
template <int n, class F>
static inline BATON_INLINE void each(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) BATON_INLINE {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

// Where a tile's codes go on, what to fetch, and its rows: these by two pointers and a distance, which the processor
// adds up by itself.
struct Cursor {
  const uint8_t *codes, *ahead;
  const int32_t *x0, *x3;
};

template <int row>
static inline BATON_INLINE const int32_t& unit_at(const Cursor& at, int64_t row_units, int unit) {
  static_assert(row < 6);
  return (row < 3 ? at.x0 : at.x3)[row % 3 * row_units + unit];
}

// Adds the products of some steps, exactly, and moves on.
template <class Codes, class Form, int kRows, int kPanels>
static inline BATON_INLINE void add_products(Cursor& at, int64_t steps, int64_t row_units, int64_t panel_bytes,
                                             const Ahead& ahead, I16 (&acc)[kRows * Form::kSums][kPanels]) {
  constexpr int kUnits = Form::kUnits, kSums = Form::kSums;
  constexpr auto kHint = kPanels > 1 ? _MM_HINT_T1 : _MM_HINT_T0;
  for (const uint8_t* end = at.codes + steps * Codes::kStepBytes; at.codes != end; at.codes += Codes::kStepBytes) {
    if constexpr (kAhead<Codes, kRows>) {
      int64_t pairs = ahead.pairs;
      do {
        _mm_prefetch(at.ahead, kHint);
        _mm_prefetch(at.ahead + 64, kHint);
        at.ahead = std::min(at.ahead + ahead.bytes, ahead.end);
      } while (--pairs > 0);
    }
    each<2 * kUnits>([&](auto u) BATON_INLINE {
      I16 w[kPanels];
      each<kPanels>([&](auto p) BATON_INLINE {
        w[p] = Form::template operand<u % kUnits>(Codes::template load<u / kUnits>(at.codes + p * panel_bytes));
      });
      each<kRows>([&](auto r) BATON_INLINE { Form::dots(acc[r * kSums + u % kSums], w, unit_at<r>(at, row_units, u)); });
    });
    at.x0 += 2 * kUnits;
    at.x3 += 2 * kUnits;
  }
}

// y: [panels][rows][16]
template <class Codes, class Form, int kRows, int kPanels>
static void multiply_tile(const IntWeight& weight, const TileArgs& tile, float* y) {
  constexpr int kSums = Form::kSums;
  const int64_t panel_bytes = weight.steps * Codes::kStepBytes, row_units = tile.row_units;
  const int64_t row_scales = weight.block_count, groups = weight.groups;
  const int32_t* units = tile.units;
  F16 total[kRows][kPanels];
  each<kRows * kPanels>([&](auto i) BATON_INLINE { total[i / kPanels][i % kPanels] = F16::zero(); });
  const Ahead ahead = tile.ahead;
  Cursor at{weight.codes + tile.panel * panel_bytes, ahead.begin, units, units + 3 * row_units};
  for (int64_t b = 0; b < weight.block_count; ++b) {
    const IntBlock block = weight.blocks[b];
    const BlockScale* scales = tile.scales + b;
    I16 acc[kRows * kSums][kPanels];
    each<kRows>([&](auto r) BATON_INLINE {
      const I16 start = I16::set(scales[r * row_scales].start);
      each<kPanels>([&](auto p) BATON_INLINE {
        if constexpr (kSums > 1) acc[r * kSums][p] = I16::zero();
        acc[(r + 1) * kSums - 1][p] = start;
      });
    });
    add_products<Codes, Form, kRows, kPanels>(at, block.end - block.begin, row_units, panel_bytes, ahead, acc);
    if (groups == 1) {  // the weight's scales wait for the end
      each<kRows>([&](auto r) BATON_INLINE {
        const F16 of_row = F16::set(scales[r * row_scales].scale);
        each<kPanels>([&](auto p) BATON_INLINE {
          total[r][p] = fma(to_float(joined<Form>(acc[r * kSums][p], acc[(r + 1) * kSums - 1][p])), of_row, total[r][p]);
        });
      });
      continue;
    }
    F16 scale[kPanels];  // of the weight
    load_scales(weight.scale, weight.scale_type, groups, tile.panel, block.group, scale);
    each<kRows>([&](auto r) BATON_INLINE {
      const F16 of_row = F16::set(scales[r * row_scales].scale);
      each<kPanels>([&](auto p) BATON_INLINE {
        const I16 sums = joined<Form>(acc[r * kSums][p], acc[(r + 1) * kSums - 1][p]);
        total[r][p] = fma(to_float(sums), scale[p] * of_row, total[r][p]);
      });
    });
    if (weight.offset == nullptr) continue;
    load_scales(weight.offset, weight.offset_type, groups, tile.panel, block.group, scale);
    each<kRows>([&](auto r) BATON_INLINE {
      each<kPanels>([&](auto p) BATON_INLINE {
        total[r][p] = fma(scale[p], F16::set(scales[r * row_scales].sum), total[r][p]);
      });
    });
  }
  each<kRows * kPanels>([&](auto i) BATON_INLINE { total[i / kPanels][i % kPanels].store(y + (i % kPanels * kRows + i / kPanels) * kLanes); });
}

using MultiplyTile = void (*)(const IntWeight&, const TileArgs&, float*);

template <class Codes, class Form, size_t... i>
static MultiplyTile choose_rows(int rows, std::index_sequence<i...>) {
  MultiplyTile found = nullptr;
  const auto consider = [&](auto n) {
    if constexpr (Form::kSums == 1 || n < kMostRows) {
      if (n == rows) found = multiply_tile<Codes, Form, n, 1>;
    }
  };
  (consider(std::integral_constant<int, kTileRows[i]>()), ...);
  return found;
}

template <class Codes, class Form>
static MultiplyTile choose_tile(int rows, int panels) {
  if constexpr (Form::kSums == 1) {
    if (panels > 1) return multiply_tile<Codes, Form, kMostRows, kTilePanels>;
  }
  return choose_rows<Codes, Form>(rows, std::make_index_sequence<std::size(kTileRows)>());
}

// panels: 1, or kTilePanels with the greatest tiles.
template <class Form>
static MultiplyTile choose(const IntWeight& weight, int rows, int panels) {
  switch (weight.kind) {
    case IntCodes::int8:
      return choose_tile<Int8Codes, Form>(rows, panels);
    case IntCodes::int4:
      return choose_tile<Int4Codes, Form>(rows, panels);
    default:
      return choose_tile<Fp4Codes, Form>(rows, panels);
  }
}

// The product of one tile of rows with one panel of outputs.

struct TileArgs {
  const int32_t* units;
  const BlockScale* scales;
  const float* sums;
  float* out;
  int64_t out_stride;
  int64_t panel;
  bool residual;
};

// f(0), ..., f(n - 1), each with a constant, so that what they index can be registers.
#define BATON_INLINE __attribute__((always_inline))
template <int n, class F>
static inline BATON_INLINE void each(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) BATON_INLINE {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

// Codes are asked for so many bytes ahead where the machine alone does not look far enough: among scales and offsets,
// for it reads one stream at full speed but not several (codes of 8 bits outweigh them), and for as many rows as keep
// it busy (a third faster at 16).
constexpr int kAheadBytes = 4096;
template <class Codes, int kRows>
constexpr bool kAhead = Codes::kStepBytes == 64 || kRows >= 16;

// Exact sums of a block's products.
template <class Codes, class Form, int kRows>
static inline BATON_INLINE void block_sums(const uint8_t* codes, const int32_t* units, int64_t begin, int64_t end,
                                           I16 (&acc)[kRows]) {
  constexpr int kUnits = Form::kUnits;
  units += begin * 2 * kUnits * kRows;
  for (int64_t step = begin; step < end; ++step) {
    const uint8_t* at = codes + step * Codes::kStepBytes;
    if constexpr (kAhead<Codes, kRows>) {
      for (int line = 0; line < Codes::kStepBytes; line += 64) _mm_prefetch(at + kAheadBytes + line, _MM_HINT_T0);
    }
    each<2>([&](auto quad) BATON_INLINE {
      I16 w[kUnits];
      Form::operands(Codes::template load<quad>(at), w);
      each<kUnits * kRows>([&](auto i) BATON_INLINE {
        acc[i % kRows] = Form::dot(acc[i % kRows], w[i / kRows], units[quad * kUnits * kRows + i]);
      });
    });
    units += 2 * kUnits * kRows;
  }
}

// What follows the last block: a scale of the whole row, its offset, bias, residual.
static inline void finish(const IntWeight& weight, const TileArgs& tile, int row, F16 value) {
  const int64_t panel = tile.panel;
  if (weight.groups == 1) {
    value = value * load_scales(weight.scale, weight.scale_type, panel);
    if (weight.offset != nullptr) {
      value = fma(load_scales(weight.offset, weight.offset_type, panel), F16::set(tile.sums[row]), value);
    }
  }
  if (weight.bias != nullptr) value = value + F16::load(weight.bias + panel * kLanes);
  float* out = tile.out + row * tile.out_stride + panel * kLanes;
  if (const int64_t left = weight.out_features - panel * kLanes; left >= kLanes) {
    if (tile.residual) value = value + F16::load(out);
    value.store(out);
  } else {
    const int n = static_cast<int>(left);
    if (tile.residual) value = value + F16::load(out, n);
    value.store(out, n);
  }
}

template <class Codes, class Form, int kRows>
static void multiply_tile(const IntWeight& weight, const TileArgs& tile) {
  const uint8_t* codes = weight.codes + tile.panel * weight.steps * Codes::kStepBytes;
  const bool grouped = weight.groups > 1;
  const BlockScale* scales = tile.scales;
  F16 y[kRows];
  each<kRows>([&](auto r) BATON_INLINE { y[r] = F16::zero(); });
  for (int64_t b = 0; b < weight.block_count; ++b, scales += kRows) {
    const IntBlock block = weight.blocks[b];
    I16 acc[kRows];
    each<kRows>([&](auto r) BATON_INLINE { acc[r] = I16::set(scales[r].start); });
    block_sums<Codes, Form>(codes, tile.units, block.begin, block.end, acc);
    if (!grouped) {
      each<kRows>([&](auto r) BATON_INLINE { y[r] = fma(to_float(acc[r]), F16::set(scales[r].scale), y[r]); });
      continue;
    }
    const int64_t index = tile.panel * weight.groups + block.group;
    const F16 scale = load_scales(weight.scale, weight.scale_type, index);
    each<kRows>([&](auto r) BATON_INLINE { y[r] = fma(to_float(acc[r]), scale * F16::set(scales[r].scale), y[r]); });
    if (weight.offset == nullptr) continue;
    const F16 offset = load_scales(weight.offset, weight.offset_type, index);
    each<kRows>([&](auto r) BATON_INLINE { y[r] = fma(offset, F16::set(scales[r].sum), y[r]); });
  }
  each<kRows>([&](auto r) BATON_INLINE { finish(weight, tile, r, y[r]); });
}

using MultiplyTile = void (*)(const IntWeight&, const TileArgs&);

template <class Codes, class Form, size_t... i>
static MultiplyTile choose_rows(int rows, std::index_sequence<i...>) {
  MultiplyTile found = nullptr;
  ((kTileRows[i] == rows ? void(found = multiply_tile<Codes, Form, kTileRows[i]>) : void()), ...);
  return found;
}

template <class Form>
static MultiplyTile choose(IntCodes kind, int rows) {
  constexpr auto all = std::make_index_sequence<std::size(kTileRows)>();
  switch (kind) {
    case IntCodes::int8:
      return choose_rows<Int8Codes, Form>(rows, all);
    case IntCodes::int4:
      return choose_rows<Int4Codes, Form>(rows, all);
    default:
      return choose_rows<Fp4Codes, Form>(rows, all);
  }
}

#include "norm_row.inl"
#include "gemm_int_lanes.inl"
#include "gemm_int_codes.inl"
#include "gemm_int_activations.inl"
#include "gemm_int_tile.inl"
#include "gemm_int_finish.inl"

constexpr int64_t kAheadBytes = 4096;
constexpr int kTrio = 3;  // panels that go together, or a multiple of it: kTilePanels where that is not 1

static int64_t step_bytes(const IntWeight& weight) {
  return weight.kind == IntCodes::int8 ? Int8Codes::kStepBytes : Int4Codes::kStepBytes;
}

// How many of `units` equal pieces make a chunk, if all take so many cycles: less than 4 us are not worth sharing, and
// chunks of 3 us even out what threads are held up.
static int64_t chunk_size(int64_t units, double cycles) {
  const auto chunks = cycles < 12e3 ? 1 : std::max<int64_t>(2, static_cast<int64_t>(cycles / 10e3));
  return std::max<int64_t>(1, (units + chunks - 1) / chunks);
}

// Rows after the last, up to a multiple of `together`, hold anything, with scales of 0; a line more may be read.
template <class Form>
static Activations round_rows(const GemmIntArgs& args, const float* x, int64_t together, Pool& pool) {
  const IntWeight& weight = args.weight;
  const int64_t rows = *args.rows, all = (rows + together - 1) / together * together;
  Activations to;
  to.row_units = padded_units((weight.steps + 1) * 2 * Form::kUnits);  // one more: see store_units
  to.units = static_cast<int32_t*>(pool.scratch(0, all * to.row_units * sizeof(int32_t) + 64));
  const size_t scales_bytes = all * weight.block_count * sizeof(BlockScale);
  auto* memory = static_cast<char*>(pool.scratch(1, scales_bytes + rows * sizeof(float)));
  to.scales = reinterpret_cast<BlockScale*>(memory);
  to.sums = reinterpret_cast<float*>(memory + scales_bytes);
  std::memset(to.scales + rows * weight.block_count, 0, (all - rows) * weight.block_count * sizeof(BlockScale));
  const int64_t per_chunk = chunk_size(rows, static_cast<double>(rows * weight.steps) * kStep);
  pool.run((rows + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    static thread_local std::vector<float> normed;
    if (args.norm != nullptr) normed.resize(weight.in_features);
    const int64_t end = std::min(rows, (chunk + 1) * per_chunk);
    for (int64_t row = chunk * per_chunk; row < end; ++row) {
      const float* from = x + row * args.x_stride;
      if (args.norm != nullptr) {
        norm_row(from, args.norm, normed.data(), weight.in_features, args.eps);
        from = normed.data();
      }
      to.sums[row] =
          round_row<Form>(weight, from, {to.units + row * to.row_units, to.scales + row * weight.block_count});
    }
  });
  return to;
}

// While few rows are multiplied, what follows a little further on is fetched, once; while many are, the panels that
// come next, each tile its part. `count` panels, then those from `next` on.
static Ahead ahead_of(const IntWeight& weight, const Tiles& tiles, int64_t tile, int64_t panel, int64_t next,
                      int64_t count) {
  const int64_t panel_bytes = weight.steps * step_bytes(weight);
  const uint8_t* codes = weight.codes + panel * panel_bytes;
  if (tiles.few()) {
    if (tile > 0) return {codes, codes, 0, 1};
    return {codes + kAheadBytes, codes + kAheadBytes + count * panel_bytes, step_bytes(weight), 1};
  }
  const int64_t lines = count * panel_bytes / 64, from = lines * tile / tiles.count();
  const int64_t to = lines * (tile + 1) / tiles.count();
  codes = weight.codes + next * panel_bytes;
  return {codes + from * 64, codes + to * 64, 128, (to - from + 2 * weight.steps - 1) / (2 * weight.steps)};
}

// Some panels; where outputs are gated, as many again, half of all further on.
struct Panels {
  int64_t begin, end, then;  // then: which this thread is likely to go on with
};

// `count` panels from `panel` on with one tile of rows; y: [count][rows][16].
template <class Form>
static void multiply_panels(const IntWeight& weight, const Activations& x, const Tiles& tiles, int64_t t,
                            int64_t panel, int64_t next, int64_t count, float* y) {
  const int rows = tiles.size(t);
  const int64_t first = tiles.first(t);
  TileArgs tile{x.units + first * x.row_units, x.scales + first * weight.block_count, x.row_units, panel, {}};
  for (const int64_t end = panel + count; tile.panel < end;) {
    const int together = end - tile.panel >= kTilePanels && rows == kMostRows ? kTilePanels : 1;
    tile.ahead = ahead_of(weight, tiles, t, tile.panel, next, together);
    choose<Form>(weight, rows, together)(weight, tile, y);
    tile.panel += together;
    next += together;
    y += together * rows * kLanes;
  }
}

template <class Form>
static void multiply_rows(const GemmIntArgs& args, const Activations& x, float* out, const Tiles& tiles,
                          const Panels& some) {
  constexpr int kMostTogether = 8;
  alignas(64) float y[2 * kMostTogether * kMostRows * kLanes];
  const IntWeight& weight = args.weight;
  const bool gated = args.finish == IntFinish::gate, streamed = streams(args, out);
  const int64_t most = tiles.few() ? kMostTogether : kTrio, half = weight.out_features / kLanes / 2;
  for (int64_t panel = some.begin; panel < some.end; panel += most) {
    const int64_t count = std::min(most, some.end - panel);
    const int64_t next = panel + count < some.end ? panel + count : some.then;
    for (int64_t t = 0; t < tiles.count(); ++t) {
      const int64_t first = tiles.first(t);
      const int rows = tiles.size(t);
      if (!streamed) expect_stores(out + first * args.out_stride + panel * kLanes, args.out_stride, rows, count);
      multiply_panels<Form>(weight, x, tiles, t, panel, next, count, y);
      if (gated) {
        float* beside = y + count * rows * kLanes;
        multiply_panels<Form>(weight, x, tiles, t, half + panel, half + next, count, beside);
      }
      finish_tile(args, {y, x.sums + first, out + first * args.out_stride, panel, count, rows, streamed});
    }
  }
  if (streamed) _mm_sfence();
}

#if BATON_AMX
#include "gemm_int_amx.inl"
#endif

template <class Form>
static void multiply(const GemmIntArgs& args, Pool& pool) {
  const IntWeight& weight = args.weight;
  const int64_t first_row = args.first == nullptr ? 0 : *args.first;
  const Tiles tiles(*args.rows);
  float* out = args.out + first_row * args.out_stride;
  const int64_t all = (weight.out_features + kLanes - 1) / kLanes;
  const int64_t panels = args.finish == IntFinish::gate ? all / 2 : all;
  int64_t together = 1;
  double products = static_cast<double>(*args.rows * weight.steps * 2 * Form::kUnits);  // cycles, of a panel
#if BATON_AMX
  const bool amx = weight.narrow && isa() == Isa::amx && amx::pays(weight, *args.rows);
  if (amx) {
    together = amx::kRows;
    products = amx::cycles(weight, *args.rows);
  }
#endif
  const Activations x = round_rows<Form>(args, args.x + first_row * args.x_stride, together, pool);
  // Reading all panels, or multiplying them.
  const double cycles = std::max(static_cast<double>(weight.steps * step_bytes(weight)) / 8, products);
  int64_t per_chunk = chunk_size(panels, static_cast<double>(all) * cycles);
  if (!tiles.few()) per_chunk = (per_chunk + kTrio - 1) / kTrio * kTrio;
  const int64_t chunks = (panels + per_chunk - 1) / per_chunk;
  pool.run(chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * per_chunk, end = std::min(panels, begin + per_chunk);
    const Panels some{begin, end, std::min(panels - 1, begin + pool.threads() * per_chunk)};
#if BATON_AMX
    if (amx) return amx::multiply_rows(args, x, out, some);
#endif
    multiply_rows<Form>(args, x, out, tiles, some);
  });
}

static void gemm_int(const GemmIntArgs& args, Pool& pool) {
  if (*args.rows <= 0) return;
#if BATON_AVX512
  if (args.weight.narrow) return multiply<Narrow>(args, pool);
  if (Tiles(*args.rows).few()) return multiply<Split>(args, pool);
#endif
  multiply<Wide>(args, pool);
}

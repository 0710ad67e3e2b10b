#include "gemm_int_lanes.inl"
#include "gemm_int_codes.inl"
#include "gemm_int_activations.inl"
#include "gemm_int_tile.inl"

static int64_t step_bytes(const IntWeight& weight) {
  return weight.kind == IntCodes::int8 ? Int8Codes::kStepBytes : Int4Codes::kStepBytes;
}

// How many of `units` equal pieces make a chunk, if all take so many cycles: less than 10 us are not worth sharing, and
// chunks of 3 us even out what threads are held up.
static int64_t chunk_size(int64_t units, double cycles) {
  const auto chunks = cycles < 30e3 ? 1 : static_cast<int64_t>(cycles / 10e3);
  return std::max<int64_t>(1, (units + chunks - 1) / chunks);
}

template <class Form>
static Activations round_rows(const GemmIntArgs& args, const float* x, const Tiles& tiles, Pool& pool) {
  const IntWeight& weight = args.weight;
  const int64_t rows = *args.rows;
  Activations to;
  to.row_units = weight.steps * 2 * Form::kUnits;
  to.units = static_cast<int32_t*>(pool.scratch(0, rows * to.row_units * sizeof(int32_t)));
  const size_t scales_bytes = rows * weight.block_count * sizeof(BlockScale);
  auto* memory = static_cast<char*>(pool.scratch(1, scales_bytes + rows * sizeof(float)));
  to.scales = reinterpret_cast<BlockScale*>(memory);
  to.sums = reinterpret_cast<float*>(memory + scales_bytes);
  const int64_t per_chunk = chunk_size(tiles.count(), static_cast<double>(rows * weight.steps) * kStep);
  pool.run((tiles.count() + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    const int64_t end = std::min(tiles.count(), (chunk + 1) * per_chunk);
    for (int64_t tile = chunk * per_chunk; tile < end; ++tile) {
      const int64_t first = tiles.first(tile);
      const int size = tiles.size(tile);
      Lane lane{to.units + first * to.row_units, to.scales + first * weight.block_count, size};
      for (int64_t row = first; row < first + size; ++row, ++lane.units, ++lane.scales) {
        to.sums[row] = round_row<Form>(weight, x + row * args.x_stride, lane);
      }
    }
  });
  return to;
}

template <class Form>
static void multiply(const GemmIntArgs& args, Pool& pool) {
  const IntWeight& weight = args.weight;
  const int64_t first_row = args.first == nullptr ? 0 : *args.first;
  const Tiles tiles(*args.rows);
  const Activations x = round_rows<Form>(args, args.x + first_row * args.x_stride, tiles, pool);
  float* out = args.out + first_row * args.out_stride;
  const int64_t panels = (weight.out_features + kLanes - 1) / kLanes;
  // Reading a panel, or multiplying it.
  const double cycles = std::max(static_cast<double>(weight.steps * step_bytes(weight)) / 8,
                                 static_cast<double>(*args.rows * weight.steps * 2 * Form::kUnits));
  const int64_t per_chunk = chunk_size(panels, static_cast<double>(panels) * cycles);
  pool.run((panels + per_chunk - 1) / per_chunk, [&](int64_t chunk) {
    const int64_t end = std::min(panels, (chunk + 1) * per_chunk);
    for (int64_t panel = chunk * per_chunk; panel < end; ++panel) {
      for (int64_t t = 0; t < tiles.count(); ++t) {
        const int64_t first = tiles.first(t);
        const TileArgs tile{x.units + first * x.row_units,
                            x.scales + first * weight.block_count,
                            x.sums + first,
                            out + first * args.out_stride,
                            args.out_stride,
                            panel,
                            args.residual != 0};
        choose<Form>(weight.kind, tiles.size(t))(weight, tile);
      }
    }
  });
}

static void gemm_int(const GemmIntArgs& args, Pool& pool) {
  if (*args.rows <= 0) return;
#if BATON_AVX512
  if (args.weight.narrow) return multiply<Narrow>(args, pool);
#endif
  multiply<Wide>(args, pool);
}

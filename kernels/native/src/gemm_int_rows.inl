#include "gemm_int_lanes.inl"
#include "gemm_int_codes.inl"

static inline float scale_at(const void* base, IntScale type, int64_t index) {
  if (type == IntScale::fp32) return static_cast<const float*>(base)[index];
  const uint16_t half = static_cast<const uint16_t*>(base)[index];
  return type == IntScale::fp16 ? _cvtsh_ss(half) : widen_bf16(half);
}

// The four codes of output `lane` in one quad of a panel.
static inline void quad_codes(const IntWeight& weight, const uint8_t* panel, int64_t step, int quad, int lane,
                              uint8_t* codes) {
  if (weight.kind == IntCodes::int8) {
    std::memcpy(codes, panel + step * Int8Codes::kStepBytes + quad * 64 + lane * 4, 4);
    return;
  }
  std::memcpy(codes, panel + step * Int4Codes::kStepBytes + lane * 4, 4);
  for (int i = 0; i < 4; ++i) {
    codes[i] = quad == 0 ? codes[i] & 15 : codes[i] >> 4;
    if (weight.kind == IntCodes::fp4) codes[i] = kFp4Table[codes[i]];
  }
}

static void read_row(const IntWeight& weight, int64_t id, float* out) {
  const int64_t panel = id / kLanes;
  const int lane = static_cast<int>(id % kLanes);
  const int step_bytes = weight.kind == IntCodes::int8 ? Int8Codes::kStepBytes : Int4Codes::kStepBytes;
  const uint8_t* codes = weight.codes + panel * weight.steps * step_bytes;
  for (int64_t b = 0; b < weight.block_count; ++b) {
    const IntBlock block = weight.blocks[b];
    const int64_t index = (panel * weight.groups + block.group) * kLanes + lane;
    const float scale = scale_at(weight.scale, weight.scale_type, index) * weight.factor;
    const float offset = weight.offset == nullptr ? 0.0f : scale_at(weight.offset, weight.offset_type, index);
    for (int64_t quad = block.begin * 2; quad < block.end * 2; ++quad) {
      uint8_t four[4];
      quad_codes(weight, codes, quad / 2, static_cast<int>(quad % 2), lane, four);
      for (int i = 0; i < 4; ++i) {
        const int64_t place = quad * 4 + i;
        const int64_t input = weight.source == nullptr ? place : weight.source[place];
        if (input < 0 || input >= weight.in_features) continue;
        const float value = static_cast<float>(four[i] - weight.zero_point) * scale;
        out[input] = value + offset;
      }
    }
  }
}

static void gemm_int_rows(const GemmIntRowsArgs& args, Pool& pool) {
  constexpr int64_t kRows = 8;  // some 10 us
  const int64_t rows = *args.rows;
  pool.run((rows + kRows - 1) / kRows, [&](int64_t chunk) {
    const int64_t end = std::min(rows, (chunk + 1) * kRows);
    for (int64_t row = chunk * kRows; row < end; ++row) {
      float* out = args.out + row * args.out_stride;
      const int64_t id = args.ids[row];
      if (id >= 0 && id < args.weight.out_features) {
        read_row(args.weight, id, out);
      } else {
        std::fill_n(out, args.weight.in_features, std::numeric_limits<float>::quiet_NaN());
      }
    }
  });
}

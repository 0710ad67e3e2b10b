#include "kv_codes.inl"
#include "widen.inl"

static void load_values(const KvSide& side, int64_t at, int64_t scale_at, int64_t count, float* to) {
  const auto* bytes = static_cast<const uint8_t*>(side.values) + at;
  const auto* halves = static_cast<const uint16_t*>(side.values) + at;
  switch (side.format) {
    case 0:
      std::memcpy(to, static_cast<const float*>(side.values) + at, count * sizeof(float));
      return;
    case 1:
      widen(halves, to, count, [](const uint16_t* from) { return load_bf16(from); });
      return;
    case 2:
      widen(halves, to, count, [](const uint16_t* from) { return load_fp16(from); });
      return;
    case 3:
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<int8_t>(bytes[i]));
      break;
    default:
      widen(bytes, to, count, [](const uint8_t* from) { return load_e4m3_256th(from) * F16::set(256.0f); });
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t nan = (bytes[i] & 0x7f) == 0x7f ? 0x7fc00000 : 0;
        to[i] = from_bits(bits_of(to[i]) | nan);
      }
  }
  const float scale = from_bits(static_cast<uint32_t>(side.scales[scale_at]) << 16);
  for (int64_t i = 0; i < count; ++i) to[i] *= scale;
}

static void store_values(const KvSide& side, int64_t at, int64_t scale_at, int64_t count, const float* from) {
  if (side.scales == nullptr) {
    store_plain(from, side.values, at, count, side.format);
  } else {
    side.scales[scale_at] = store_codes(from, static_cast<uint8_t*>(side.values) + at, count, side.format == 4);
  }
}

static int64_t place_of(const int64_t* index, const int64_t* strides) {
  int64_t place = 0;
  for (int i = 0; i < 5; ++i) place += index[i] * strides[i];
  return place;
}

static void kv_convert(const KvConvertArgs& args, Pool& pool) {
  const int64_t* sizes = args.sizes;
  const int64_t inner = sizes[2] * sizes[3] * sizes[4];
  pool.run(sizes[0] * sizes[1], [&](int64_t chunk) {
    std::vector<float> vector(args.dim);
    for (int64_t i = 0; i < inner; ++i) {
      const int64_t index[5] = {chunk / sizes[1], chunk % sizes[1], i / (sizes[3] * sizes[4]), i / sizes[4] % sizes[3],
                                i % sizes[4]};
      const KvSide &from = args.source, &to = args.to;
      load_values(from, place_of(index, from.strides), place_of(index, from.scale_strides), args.dim, vector.data());
      store_values(to, place_of(index, to.strides), place_of(index, to.scale_strides), args.dim, vector.data());
    }
  });
}

// A tile of keys and values, from how the pool stores them to fp32 where the arithmetic wants them.

static inline F16 load_int8(const void* p) {
  const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
#if BATON_AVX512
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
#else
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
#endif
}

struct KvFp32 {
  static constexpr size_t kBytes = 4;
  static F16 load(const void* p) { return F16::load(static_cast<const float*>(p)); }
};
struct KvBf16 {
  static constexpr size_t kBytes = 2;
  static F16 load(const void* p) { return load_bf16(p); }
};
struct KvFp16 {
  static constexpr size_t kBytes = 2;
  static F16 load(const void* p) { return load_fp16(p); }
};
struct KvInt8 {
  static constexpr size_t kBytes = 1;
  static F16 load(const void* p) { return load_int8(p); }
};
struct KvFp8 {
  static constexpr size_t kBytes = 1;
  static F16 load(const void* p) { return load_e4m3(p); }
};

// Like Kv::load, of n < 16 elements; nothing beyond is touched.
template <class Kv>
static F16 load_some(const void* p, int n) {
  alignas(64) char some[64] = {};
  std::memcpy(some, p, static_cast<size_t>(n) * Kv::kBytes);
  return Kv::load(some);
}

#if BATON_AVX512

// r[i] lane j <-> r[j] lane i
static inline void transpose(F16 (&r)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  __m512 u[16];  // u[4 * b + c]: column c of each group of four lanes, rows 4 * b..4 * b + 3
  for (int b = 0; b < 4; ++b) {
    const __m512d low0 = _mm512_castps_pd(t[4 * b]), high0 = _mm512_castps_pd(t[4 * b + 1]);
    const __m512d low1 = _mm512_castps_pd(t[4 * b + 2]), high1 = _mm512_castps_pd(t[4 * b + 3]);
    u[4 * b] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
    u[4 * b + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
    u[4 * b + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
    u[4 * b + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88), e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    r[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
    r[8 + c].v = _mm512_shuffle_f32x4(a, d, 0xdd);
    r[4 + c].v = _mm512_shuffle_f32x4(b, e, 0x88);
    r[12 + c].v = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
}

#else

static inline void transpose8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int b = 0; b < 2; ++b) {
    u[4 * b] = _mm256_shuffle_ps(t[4 * b], t[4 * b + 2], 0x44);
    u[4 * b + 1] = _mm256_shuffle_ps(t[4 * b], t[4 * b + 2], 0xee);
    u[4 * b + 2] = _mm256_shuffle_ps(t[4 * b + 1], t[4 * b + 3], 0x44);
    u[4 * b + 3] = _mm256_shuffle_ps(t[4 * b + 1], t[4 * b + 3], 0xee);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}

static inline void transpose(F16 (&r)[16]) {
  __m256 a[8], b[8], c[8], d[8];
  for (int i = 0; i < 8; ++i) {
    a[i] = r[i].lo;
    b[i] = r[i].hi;
    c[i] = r[8 + i].lo;
    d[i] = r[8 + i].hi;
  }
  transpose8(a);
  transpose8(b);
  transpose8(c);
  transpose8(d);
  for (int i = 0; i < 8; ++i) {
    r[i] = {a[i], c[i]};
    r[8 + i] = {b[i], d[i]};
  }
}

#endif

// Buffers of one tile of one KV head. Only keys [begin, end) are there; what else the arrays hold means nothing.
struct TileView {
  float* keys;          // [head_dim][kTile]
  float* values;        // [kTile][padded]
  float* key_scales;    // [kTile], with quantised KV
  float* value_scales;  // [kTile]
};

// Where the tile's keys lie: element offsets of their slots, heads not counted.
struct Slots {
  int begin, end;
  int64_t codes[kTile];
  int64_t scales[kTile];
};

static void find_slots(const AttentionArgs& args, const int64_t* table, int64_t tile, Range keys, Slots* slots) {
  const int64_t first = tile * kTile;
  slots->begin = static_cast<int>(std::max<int64_t>(0, keys.begin - first));
  slots->end = static_cast<int>(std::min<int64_t>(kTile, keys.end - first));
  int64_t position = first + slots->begin;
  int64_t index = position / args.block_size, offset = position % args.block_size;
  for (int j = slots->begin; j < slots->end; ++index, offset = 0) {
    const int64_t block = table[index];
    int64_t code = block * args.code_strides.block + offset * args.code_strides.slot;
    int64_t scale = block * args.scale_strides.block + offset * args.scale_strides.slot;
    for (; offset < args.block_size && j < slots->end; ++offset, ++j) {
      slots->codes[j] = code;
      slots->scales[j] = scale;
      code += args.code_strides.slot;
      scale += args.scale_strides.slot;
    }
  }
}

static inline float bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Head `head` of the tile's keys and values into `view`. Unmeasured lanes repeat the first key.
template <class Kv>
static void load_tile(const AttentionArgs& args, const Slots& slots, int64_t head, const TileView& view) {
  const int dim = static_cast<int>(args.head_dim), whole = dim / kLanes * kLanes;
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes;
  const char* keys = static_cast<const char*>(args.codes) + head * args.code_strides.head * Kv::kBytes;
  const char* values = keys + args.code_strides.part * Kv::kBytes;
  for (int at = slots.begin / kLanes * kLanes; at < slots.end; at += kLanes) {
    const char* from[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const bool there = at + i >= slots.begin && at + i < slots.end;
      from[i] = keys + slots.codes[there ? at + i : slots.begin] * static_cast<int64_t>(Kv::kBytes);
    }
    F16 block[kLanes];
    for (int d = 0; d < whole; d += kLanes) {
      for (int i = 0; i < kLanes; ++i) block[i] = Kv::load(from[i] + static_cast<size_t>(d) * Kv::kBytes);
      transpose(block);
      for (int i = 0; i < kLanes; ++i) block[i].store(view.keys + (d + i) * kTile + at);
    }
    if (whole < dim) {
      for (int i = 0; i < kLanes; ++i) {
        block[i] = load_some<Kv>(from[i] + static_cast<size_t>(whole) * Kv::kBytes, dim - whole);
      }
      transpose(block);
      for (int i = 0; i < dim - whole; ++i) block[i].store(view.keys + (whole + i) * kTile + at);
    }
  }
  for (int j = slots.begin; j < slots.end; ++j) {
    const char* from = values + slots.codes[j] * static_cast<int64_t>(Kv::kBytes);
    float* to = view.values + j * padded;
    for (int d = 0; d < whole; d += kLanes) Kv::load(from + static_cast<size_t>(d) * Kv::kBytes).store(to + d);
    if (whole < dim) load_some<Kv>(from + static_cast<size_t>(whole) * Kv::kBytes, dim - whole).store(to + whole);
  }
  if (args.scales == nullptr) return;
  const uint16_t* scales = args.scales + head * args.scale_strides.head;
  for (int j = slots.begin; j < slots.end; ++j) {
    view.key_scales[j] = bf16(scales[slots.scales[j]]);
    view.value_scales[j] = bf16(scales[slots.scales[j] + args.scale_strides.part]);
  }
}

using LoadTile = void (*)(const AttentionArgs&, const Slots&, int64_t, const TileView&);

static LoadTile tile_loader(int64_t dtype) {
  switch (dtype) {
    case kKvBf16: return load_tile<KvBf16>;
    case kKvFp16: return load_tile<KvFp16>;
    case kKvInt8: return load_tile<KvInt8>;
    case kKvFp8: return load_tile<KvFp8>;
    default: return load_tile<KvFp32>;
  }
}

// Scores of the few queries of a decode step: keys are transposed in registers and met there, since a tile's memory
// would be written and read back for little. The sums are those of `score`, in its order.

template <class Kv, int R>
static void score_few_rows(const AttentionArgs& args, const Slots& slots, int64_t head, const Query* queries,
                           Ahead& ahead, float* scores) {
  const int dim = static_cast<int>(args.head_dim);
  const Vectors<Kv> keys(args, slots, head, 0);
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = queries[r].q;
  for (int at = slots.begin / kLanes * kLanes; at < slots.end; at += kLanes) {
    const char* from[kLanes];
    for (int i = 0; i < kLanes; ++i) from[i] = keys.at(at + i);
    F16 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = F16::zero();
    for (int d = 0; d < dim; d += kLanes) {
      F16 block[kLanes];
      if constexpr (kAheadCalls<Kv> == 1) ahead.more();
      for (int i = 0; i < kLanes; ++i) {
        if (kAheadCalls<Kv> > 1 && i % (kLanes / kAheadCalls<Kv>) == 0) ahead.more();
        block[i] = keys.load(from[i], d);
      }
      transpose(block);
      // Dimensions beyond the last are 0 in both: adding 0 * 0 changes nothing.
      for (int i = 0; i < kLanes; ++i) {
        for (int r = 0; r < R; ++r) sums[r] = fma(F16::set(q[r][d + i]), block[i], sums[r]);
      }
    }
    for (int r = 0; r < R; ++r) sums[r].store(scores + r * kTile + at);
  }
}

constexpr int64_t kFewest = 4;

// 1 to 4 queries. scores: [kQueries][kTile]
template <class Kv>
static void score_few(const AttentionArgs& args, const Slots& slots, int64_t head, const Query* queries, int64_t count,
                      Ahead& ahead, float* scores) {
  switch (count) {
    case 1: return score_few_rows<Kv, 1>(args, slots, head, queries, ahead, scores);
    case 2: return score_few_rows<Kv, 2>(args, slots, head, queries, ahead, scores);
    case 3: return score_few_rows<Kv, 3>(args, slots, head, queries, ahead, scores);
    default: return score_few_rows<Kv, 4>(args, slots, head, queries, ahead, scores);
  }
}

// What depends on how KV is stored.
struct KvFormat {
  int64_t bytes;
  int64_t ahead_calls;
  void (*load_keys)(const AttentionArgs&, const Slots&, int64_t, Ahead&, float*);
  void (*load_values)(const AttentionArgs&, const Slots&, int64_t, bool, TileView&);
  void (*score_few)(const AttentionArgs&, const Slots&, int64_t, const Query*, int64_t, Ahead&, float*);
};

template <class Kv>
static constexpr KvFormat format_of() {
#if BATON_AVX512
  return {Kv::kBytes, kAheadCalls<Kv>, load_keys<Kv>, load_values<Kv>, score_few<Kv>};
#else
  return {Kv::kBytes, kAheadCalls<Kv>, load_keys<Kv>, load_values<Kv>, nullptr};  // sixteen registers do not hold a block
#endif
}

// By KvDtype.
static constexpr KvFormat kFormats[] = {format_of<KvFp32>(), format_of<KvBf16>(), format_of<KvFp16>(),
                                        format_of<KvInt8>(), format_of<KvFp8>()};

// Scores of the few queries of a decode step: keys are transposed in registers and met there, since a tile's memory
// would be written and read back for little. The sums are those of `score`, in its order.

// Of G times sixteen keys.
template <class Kv, int R, int G>
static inline void score_few_lanes(const Vectors16 (&from)[G], const float* const (&q)[R], int64_t bytes, Ahead& ahead,
                                   float* scores) {
  // Two thirds of what is asked for ahead, as scores take longer than weighing.
  const int64_t lines = ahead.share((kTile / kLanes) * ((bytes + kStepBytes - 1) / kStepBytes) * 3 / 2);
  F16 sums[G][R];
  for (int g = 0; g < G; ++g) {
    for (int r = 0; r < R; ++r) sums[g][r] = F16::zero();
    touch(from[g], bytes);
  }
  for (int64_t offset = 0; offset < bytes; offset += kStepBytes) {
    const int64_t d = offset / Kv::kBytes;
    for (int g = 0; g < G; ++g) {
      ahead.more(lines);
      for_elements<Kv>(from[g], offset, [&](int i, F16 element) {
        for (int r = 0; r < R; ++r) sums[g][r] = fma(F16::set(q[r][d + i]), element, sums[g][r]);
      });
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int r = 0; r < R; ++r) sums[g][r].store(scores + r * kTile + g * kLanes);
  }
}

template <class Kv, int R>
static void score_few_rows(const AttentionArgs& args, const Slots& slots, int64_t head, const Query* queries,
                           Ahead& ahead, float* scores) {
  const Vectors<Kv> keys(args, slots, head, 0);
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = queries[r].q;
  const int64_t bytes = args.head_dim * Kv::kBytes;
  VectorCopies copies[2];
  int at = slots.begin / kLanes * kLanes;
#if BATON_AVX512
  for (; at + kLanes < slots.end; at += 2 * kLanes) {
    const Vectors16 from[2] = {keys.sixteen(at, copies[0]), keys.sixteen(at + kLanes, copies[1])};
    score_few_lanes<Kv, R, 2>(from, q, bytes, ahead, scores + at);
  }
#endif
  for (; at < slots.end; at += kLanes) {
    const Vectors16 from[1] = {keys.sixteen(at, copies[0])};
    score_few_lanes<Kv, R, 1>(from, q, bytes, ahead, scores + at);
  }
}

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
  void (*load_keys)(const AttentionArgs&, const Slots&, int64_t, Ahead&, float*);
  void (*load_values)(const AttentionArgs&, const Slots&, int64_t, bool, TileView&);
  void (*score_few)(const AttentionArgs&, const Slots&, int64_t, const Query*, int64_t, Ahead&, float*);
  const TakeScores* take_scores;
};

template <class Kv>
static constexpr KvFormat format_of() {
  return {Kv::kBytes, load_keys<Kv>, load_values<Kv>, score_few<Kv>, kTakeScores<Kv>};
}

// By KvDtype.
static constexpr KvFormat kFormats[] = {format_of<KvFp32>(), format_of<KvBf16>(), format_of<KvFp16>(),
                                        format_of<KvInt8>(), format_of<KvFp8>()};

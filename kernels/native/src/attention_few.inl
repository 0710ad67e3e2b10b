// Scores of the few queries of a decode step: keys are transposed in registers and met there, since a tile's memory
// would be written and read back for little. The sums are those of `score`, in its order.

// q * x + sum, rounded once. Written out, as gcc takes many queries' numbers ahead and spreads each in a register.
static inline F16 fma_of(const float& q, F16 x, F16 sum) {
#if BATON_AVX512
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(x.v), "m"(q));
  return sum;
#else
  return fma(F16::set(q), x, sum);
#endif
}

template <class Kv, int R>
static inline void score_sixteen(Vectors16 from, const float* const (&q)[R], int64_t head_dim, Ahead& ahead,
                                 Nearer& next, float* scores) {
  constexpr int64_t kElements = kStepBytes / Kv::kBytes;
  F16 sums[R];
  for (int r = 0; r < R; ++r) sums[r] = F16::zero();
  for (int64_t d = 0; d < head_dim; d += kElements) {
    ahead.step(kElements * kKeyUnits);
    next.step();
    for_elements<Kv>(from, d * Kv::kBytes, [&](int i, F16 element) {
      for (int r = 0; r < R; ++r) sums[r] = fma_of(q[r][d + i], element, sums[r]);
    });
  }
  for (int r = 0; r < R; ++r) sums[r].store(scores + r * kTile);
}

template <class Kv, int R>
static void score_few_rows(const AttentionArgs& args, const Slots& slots, int64_t head, const Query* queries,
                           Ahead& ahead, float* scores) {
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = queries[r].q;
  by_sixteen<Kv>(args, slots, head, R, [&](int at, Vectors16 from, Nearer next) {
    score_sixteen<Kv, R>(from, q, args.head_dim, ahead, next, scores + at);
  });
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
  void (*load_keys)(const AttentionArgs&, const Slots&, int64_t, float*);
  void (*load_values)(const AttentionArgs&, const Slots&, int64_t, bool, TileView&);
  void (*score_few)(const AttentionArgs&, const Slots&, int64_t, const Query*, int64_t, Ahead&, float*);
  const TakeScores* take_scores;
};

template <class Kv>
static constexpr KvFormat format_of() {
  return {Kv::kBytes, load_keys<Kv>, load_values<Kv>, score_few<Kv>, kTakeScores<Kv>};
}

// By KvDtype. INT8 goes another way: see attention_codes.inl.
static constexpr KvFormat kFormats[] = {format_of<KvFp32>(), format_of<KvBf16>(), format_of<KvFp16>(),
                                        {KvInt8::kBytes, nullptr, nullptr, nullptr, nullptr}, format_of<KvFp8>()};

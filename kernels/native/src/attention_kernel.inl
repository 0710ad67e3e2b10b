// The arithmetic of up to kQueries queries with one tile. Every score is summed over the head's dimensions in
// ascending order, every output over the keys in ascending order, each in one fp32 accumulator with fma: how many
// queries go together, or which, changes no bit.

constexpr int kQueries = 6;
constexpr int kFewest = 4;  // so few are bound by memory
constexpr int kPause = 8;   // keys that more of them weigh between two looks ahead

// One query's running softmax over the keys of a segment so far.
struct State {
  float max;
  float* sums;    // [kLanes]: of the exponentials, by key % kLanes
  float* output;  // [padded]: the exponentials times the values
};

// A query times the softmax's scale: codes * step.
struct QueryCodes {
  const int8_t* codes;  // [head_dim], then zeros to the end of a step of kStepBytes
  float step;           // NaN: not a number, or not a finite one, is among its elements
  int32_t start;        // of its sums: with AVX-512 keys are taken as unsigned, 128 above what they are
};

struct Query {
  const float* q;  // [head_dim], scaled, then zeros to the end of a step of kStepBytes elements
  const QueryCodes* codes;  // with INT8 KV, instead
  State* state;
  int begin, end;  // of the tile's keys, those it sees; never empty
};

struct TileShape {
  int64_t head_dim;
  int64_t padded;
  float softcap;  // 0: none
  bool scaled;    // keys and values have scales
};

// scores[r][j] = q[r] . keys[:, j] for lanes [at, at + N * kLanes)
template <int R, int N>
static inline void score_lanes(const Query* queries, const float* keys, int64_t head_dim, int at, float* scores) {
  F16 sums[R][N];
  const float* q[R];
  for (int r = 0; r < R; ++r) {
    q[r] = queries[r].q;
    for (int n = 0; n < N; ++n) sums[r][n] = F16::zero();
  }
  const float* from = keys + at;
  for (int64_t d = 0; d < head_dim; ++d, from += kTile) {
    F16 key[N];
    for (int n = 0; n < N; ++n) key[n] = F16::load(from + n * kLanes);
    for (int r = 0; r < R; ++r) {
      const F16 value = F16::set(q[r][d]);
      for (int n = 0; n < N; ++n) sums[r][n] = fma(value, key[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n].store(scores + r * kTile + at + n * kLanes);
  }
}

// Registers: R * N sums, N keys and a query's number.
template <int R>
static void score(const Query* queries, const float* keys, int64_t head_dim, float* scores) {
  int begin = kTile, end = 0;
  for (int r = 0; r < R; ++r) {
    begin = std::min(begin, queries[r].begin);
    end = std::max(end, queries[r].end);
  }
  constexpr int kMost = BATON_AVX512 ? 4 : R == 1 ? 4 : R == 2 ? 2 : 1;
  int at = begin / kLanes * kLanes;
  for (; at + kMost * kLanes <= (end + kLanes - 1) / kLanes * kLanes; at += kMost * kLanes) {
    score_lanes<R, kMost>(queries, keys, head_dim, at, scores);
  }
  if constexpr (kMost > 1) {
    for (; at < end; at += kLanes) score_lanes<R, 1>(queries, keys, head_dim, at, scores);
  }
}

// output[r] = output[r] * factors[r] + sum over keys [begin, end) of weights[r][j] * values[j][:], dimensions from `at`
template <class Kv, int R, int M>
static inline void weigh_lanes(State* const* states, const float* factors, const float* weights,
                               const TileView& tile, Range keys, int64_t at) {
  F16 sums[R][M];
  for (int r = 0; r < R; ++r) {
    const F16 factor = F16::set(factors[r]);
    for (int m = 0; m < M; ++m) sums[r][m] = F16::load(states[r]->output + at + m * kLanes) * factor;
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (R <= kFewest || j % kPause == 0) tile.ahead->step((R <= kFewest ? 1 : kPause) * M * kValueUnits);
    const char* from = tile.rows[j] + at * Kv::kBytes;
    F16 value[M];
    for (int m = 0; m < M; ++m) value[m] = Kv::load(from + m * kLanes * Kv::kBytes);
    for (int r = 0; r < R; ++r) {
      const F16 weight = F16::set(weights[r * kTile + j]);
      for (int m = 0; m < M; ++m) sums[r][m] = fma(weight, value[m], sums[r][m]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int m = 0; m < M; ++m) sums[r][m].store(states[r]->output + at + m * kLanes);
  }
}

template <class Kv, int R>
static void weigh(State* const* states, const float* factors, const float* weights, const TileView& tile,
                  Range keys, int64_t padded) {
  constexpr int kMost = BATON_AVX512 ? 4 : R == 1 ? 4 : R == 2 ? 2 : 1;
  int64_t at = 0;
  for (; at + kMost * kLanes <= padded; at += kMost * kLanes) {
    weigh_lanes<Kv, R, kMost>(states, factors, weights, tile, keys, at);
  }
  if constexpr (kMost > 1) {
    for (; at < padded; at += kLanes) weigh_lanes<Kv, R, 1>(states, factors, weights, tile, keys, at);
  }
}

// tanh(x): near 0 a polynomial (Cephes' tanhf), elsewhere by e^2x.
static inline F16 tanh(F16 x) {
  const F16 z = x * x;
  F16 p = F16::set(-5.70498872745e-3f);
  p = fma(p, z, F16::set(2.06390887954e-2f));
  p = fma(p, z, F16::set(-5.37397155531e-2f));
  p = fma(p, z, F16::set(1.33314422036e-1f));
  p = fma(p, z, F16::set(-3.33332819422e-1f));
  const F16 near = fma(p * z, x, x);
  const F16 far = F16::set(1.0f) - F16::set(2.0f) / (exp(x + x) + F16::set(1.0f));
  return select_less(z, F16::set(0.625f * 0.625f), near, far);
}

// Lanes [begin, end) of x; `other` elsewhere, whatever x has there.
static inline F16 only(F16 x, int begin, int end, float other) {
  alignas(64) static constexpr float kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F16 lane = F16::load(kLaneNumbers), none = F16::set(other);
  const F16 before = select_less(lane, F16::set(static_cast<float>(begin)), none, x);
  return select_less(lane, F16::set(static_cast<float>(end)), before, none);
}

// Scores to what softmax takes, in place: with scale, soft cap and mask. Gives the largest.
static inline float prepare_scores(const Query& query, const TileShape& shape, const float* key_scales, float* scores) {
  const bool all = query.begin == 0 && query.end == kTile;
  const bool as_they_are = all && !shape.scaled && shape.softcap <= 0;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  F16 most = F16::set(kNone);
  for (int at = 0; at < kTile; at += kLanes) {
    F16 x = F16::load(scores + at);
    if (shape.scaled) x = x * F16::load(key_scales + at);
    if (shape.softcap > 0) x = F16::set(shape.softcap) * tanh(x / F16::set(shape.softcap));
    if (!all) x = only(x, query.begin - at, query.end - at, kNone);
    if (!as_they_are) x.store(scores + at);
    most = max(x, most);
  }
  return max_lane(most);
}

// R queries' scores [R][kTile] with a tile, and their largest so far; factors: of what came before it.
template <int R>
static inline void raise_largest(const Query* queries, const TileView& tile, const TileShape& shape, float* scores,
                                 float* factors) {
  for (int r = 0; r < R; ++r) {
    const float here = prepare_scores(queries[r], shape, tile.key_scales, scores + r * kTile);
    const float most = std::max(queries[r].state->max, here);
    factors[r] = queries[r].state->max - most;
    queries[r].state->max = most;
  }
  exp(F16::load(factors)).store(factors);
}

// Scores become the values' weights, in place. Not inlined: one for all kinds of values.
template <int R>
[[gnu::noinline]] static void weights_of(const Query* queries, const TileView& tile, const TileShape& shape,
                                         float* scores, float* factors) {
  raise_largest<R>(queries, tile, shape, scores, factors);
  for (int r = 0; r < R; ++r) {
    const F16 most = F16::set(queries[r].state->max);
    F16 sums = F16::load(queries[r].state->sums) * F16::set(factors[r]);
    for (int at = 0; at < kTile; at += kLanes) {
      if (R <= kFewest) tile.ahead->step(kExpUnits);
      F16 weight = exp(F16::load(scores + r * kTile + at) - most);
      sums = sums + weight;
      if (shape.scaled) weight = weight * F16::load(tile.value_scales + at);
      weight.store(scores + r * kTile + at);
    }
    sums.store(queries[r].state->sums);
  }
}

// The tile's part of R queries' softmax, from their scores [R][kTile], which it overwrites. The tile's values are Kv's.
template <class Kv, int R>
static void take_scores(const Query* queries, const TileView& tile, const TileShape& shape, float* scores) {
  alignas(64) float factors[kLanes] = {};
  State* states[R];
  int first = kTile, all_from = 0, all_to = kTile;
  for (int r = 0; r < R; ++r) {
    states[r] = queries[r].state;
    first = std::min(first, queries[r].begin);
    all_from = std::max(all_from, queries[r].begin);
    all_to = std::min(all_to, queries[r].end);
  }
  weights_of<R>(queries, tile, shape, scores, factors);
  // Keys that all of them see go together. The others, a few at the edges of what each sees, go one by one: a key's
  // values never meet a query that does not see it, even with weight 0.
  if (all_from >= all_to) {
    for (int r = 0; r < R; ++r) {
      weigh<Kv, 1>(states + r, factors + r, scores + r * kTile, tile, {queries[r].begin, queries[r].end}, shape.padded);
    }
    return;
  }
  alignas(64) static constexpr float kOnes[kQueries] = {1, 1, 1, 1, 1, 1};
  const bool edge = first < all_from;
  if (edge) {
    for (int r = 0; r < R; ++r) {
      weigh<Kv, 1>(states + r, factors + r, scores + r * kTile, tile, {queries[r].begin, all_from}, shape.padded);
    }
  }
  weigh<Kv, R>(states, edge ? kOnes : factors, scores, tile, {all_from, all_to}, shape.padded);
  for (int r = 0; r < R; ++r) {
    if (queries[r].end == all_to) continue;
    weigh<Kv, 1>(states + r, kOnes, scores + r * kTile, tile, {all_to, queries[r].end}, shape.padded);
  }
}

using Score = void (*)(const Query*, const float*, int64_t, float*);
using TakeScores = void (*)(const Query*, const TileView&, const TileShape&, float*);
static constexpr Score kScore[] = {nullptr, score<1>, score<2>, score<3>, score<4>, score<5>, score<6>};
template <class Kv>
static constexpr TakeScores kTakeScores[] = {nullptr,
                                             take_scores<Kv, 1>,
                                             take_scores<Kv, 2>,
                                             take_scores<Kv, 3>,
                                             take_scores<Kv, 4>,
                                             take_scores<KvFp32, 5>,
                                             take_scores<KvFp32, 6>};

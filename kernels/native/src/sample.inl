#include "sample_weights.inl"
// Uses those.
#include "sample_filters.inl"

// A row's candidates: all of its logits, or some of them in the order of their ids.
struct Candidates {
  const float* values;
  const int64_t* ids;  // null: the place is the id
  const float* peaks;  // null where ids are given
  int64_t count;
  float best, least;
};

static Cut nucleus(const Candidates& all, double factor, int64_t need, const int64_t* weights, RowMemory& memory) {
  Nucleus search(all.values, weights, all.count, memory);
  constexpr double kListed = 10.0, kDepth = 46.0;  // in powers of two below the best
  if (all.peaks != nullptr) search.shorten(static_cast<float>(all.best - kListed / factor), all.peaks, need);
  float low = std::max(all.least, static_cast<float>(all.best - kDepth / factor));
  if (all.least < all.best) low = std::min(low, std::nextafter(all.best, -kInfinity));
  return search.find(all.best, low, need);
}

// The first place at which the running sum of weights exceeds `target`.
static int64_t pick(const int64_t* weights, const int64_t* sums, int64_t target) {
  int64_t block = 0;
  while (sums[block] <= target) target -= sums[block++];
  int64_t i = block * kBlock;
  while (weights[i] <= target) target -= weights[i++];
  return i;
}

static Candidates candidates_of(const float* logits, const SampleArgs& args, int64_t row, const Extent& extent,
                                RowMemory& memory) {
  const int64_t top_k = args.top_k[row];
  if (top_k <= 0 || top_k >= args.vocab) {
    return {logits, nullptr, memory.peaks.data(), args.vocab, extent.best, extent.least};
  }
  const int64_t count = first_ids(logits, args.vocab, top_k, memory.peaks.data(), memory);
  float* values = grown(memory.values, count);
  float least = extent.best;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = logits[memory.ids[i]];
    least = std::min(least, values[i]);
  }
  return {values, memory.ids.data(), nullptr, count, extent.best, least};
}

static int64_t draw(const Candidates& all, const SampleArgs& args, int64_t row, RowMemory& memory) {
  const double factor = factor_of(args.temperature[row]), top_p = args.top_p[row], min_p = args.min_p[row];
  int64_t* weights = grown(memory.weights, all.count);
  int64_t* sums = grown(memory.sums, blocks_of(all.count));
  int64_t mass = weigh(all.values, all.count, all.best, factor, all.peaks, weights, sums);
  Cut cut{-kInfinity, all.count};
  if (top_p < 1.0) {
    const auto need = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(mass)));
    cut = nucleus(all, factor, std::min(std::max<int64_t>(need, 1), mass), weights, memory);
  }
  const auto least = static_cast<int64_t>(std::ceil(min_p * static_cast<double>(kOne)));
  if (top_p < 1.0 || least > 0) mass = keep(all.values, all.count, cut, least, weights, sums);
  const auto target = static_cast<int64_t>(std::floor(args.noise[row] * static_cast<double>(mass)));
  const int64_t place = pick(weights, sums, std::min(target, mass - 1));
  return all.ids == nullptr ? place : all.ids[place];
}

static int64_t sample_row(const SampleArgs& args, int64_t row, RowMemory& memory) {
  constexpr int64_t kNone = -1;
  const float* logits = args.logits + row * args.stride;
  float* peaks = grown(memory.peaks, blocks_of(args.vocab));
  Extent extent = extent_of(logits, args.vocab, peaks);
  if (!extent.distribution()) return kNone;
  if (args.temperature[row] == 0.0) {
    int64_t block = 0;
    while (peaks[block] != extent.best) ++block;
    return std::find(logits + block * kBlock, logits + args.vocab, extent.best) - logits;
  }
  if (extent.best == kInfinity) {  // those share everything
    float* shared = grown(memory.shared, args.vocab);
    for (int64_t i = 0; i < args.vocab; ++i) shared[i] = logits[i] == kInfinity ? 0.0f : -kInfinity;
    logits = shared;
    extent = extent_of(logits, args.vocab, peaks);
  }
  return draw(candidates_of(logits, args, row, extent, memory), args, row, memory);
}

static void sample(const SampleArgs& args, Pool& pool) {
  pool.run(*args.rows, [&](int64_t row) {
    static thread_local RowMemory memory;
    args.ids[row] = sample_row(args, row, memory);
  });
}

static int64_t mass_of(const float* logits, int64_t vocab, const Extent& extent, RowMemory& memory) {
  if (!extent.distribution()) return 0;
  if (extent.best == kInfinity) return kOne * std::count(logits, logits + vocab, kInfinity);
  int64_t* sums = grown(memory.sums, blocks_of(vocab));
  return weigh(logits, vocab, extent.best, factor_of(1.0), memory.peaks.data(), nullptr, sums);
}

static void survey_row(const SurveyArgs& args, int64_t row, RowMemory& memory) {
  const float* logits = args.logits + row * args.stride;
  float* peaks = grown(memory.peaks, blocks_of(args.vocab));
  const Extent extent = extent_of(logits, args.vocab, peaks);
  args.best[row] = extent.nan ? std::numeric_limits<float>::quiet_NaN() : extent.best;
  args.mass[row] = mass_of(logits, args.vocab, extent, memory);
  if (extent.nan || args.count == 0) return;
  int64_t* top = args.top + row * args.count;
  const int64_t found = first_ids(logits, args.vocab, args.count, peaks, memory);
  std::copy(memory.ids.data(), memory.ids.data() + found, top);
  std::stable_sort(top, top + found, [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  for (int64_t i = 0, next = found; next < args.count; ++i) {
    if (logits[i] == -kInfinity) top[next++] = i;
  }
}

static void survey(const SurveyArgs& args, Pool& pool) {
  pool.run(*args.rows, [&](int64_t row) {
    static thread_local RowMemory memory;
    survey_row(args, row, memory);
  });
}

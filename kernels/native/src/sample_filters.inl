// Which tokens are left. "First" is by logit, and among equal logits by id.

// Those above `value`, and of those equal to it the ones before place `end`.
struct Cut {
  float value;
  int64_t end;
};

// Some number that at least `count` logits are not below: of the peaks, or of all logits, the count-th largest.
static float bound_of(const float* logits, int64_t vocab, int64_t count, const float* peaks, RowMemory& memory) {
  const int64_t blocks = blocks_of(vocab);
  const bool few = count <= blocks;
  const float* from = few ? peaks : logits;
  const int64_t length = few ? blocks : vocab;
  float* sorted = grown(memory.sorted, length);
  std::copy(from, from + length, sorted);
  std::nth_element(sorted, sorted + count - 1, sorted + length, std::greater<float>());
  return sorted[count - 1];
}

// Ids of the first `count` tokens, ascending; fewer where fewer have a logit above -inf. 1 <= count <= vocab.
static int64_t first_ids(const float* logits, int64_t vocab, int64_t count, const float* peaks, RowMemory& memory) {
  const float bound = bound_of(logits, vocab, count, peaks, memory);
  int64_t found = 0;
  int64_t* ids = grown(memory.ids, vocab);
  for (int64_t block = 0; block < blocks_of(vocab); ++block) {
    if (peaks[block] < bound) continue;
    for (int64_t i = block * kBlock; i < std::min(vocab, (block + 1) * kBlock); ++i) {
      if (logits[i] >= bound && logits[i] > -kInfinity) ids[found++] = i;
    }
  }
  if (found <= count) return found;
  std::nth_element(ids, ids + count, ids + found, [&](int64_t a, int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::sort(ids, ids + count);
  return count;
}

constexpr int kBuckets = 512;

// Finds the fewest first tokens whose weights sum to `need`, which all of them reach: in a histogram over logits the
// bucket in which the boundary falls, then in one over that bucket's tokens, until they are all alike.
class Nucleus {
 public:
  Nucleus(const float* values, const int64_t* weights, int64_t count, RowMemory& memory)
      : values_(values), weights_(weights), count_(count), memory_(memory) {}

  // Looks at no more than the tokens that are not below `bound`, if they reach `need` and are few.
  void shorten(float bound, const float* peaks, int64_t need) {
    constexpr int64_t kMost = 4096;
    List list(memory_, kMost + kBlock);
    int64_t mass = 0;
    for (int64_t block = 0; block < blocks_of(count_) && list.count < kMost; ++block) {
      if (peaks[block] < bound) continue;
      for (int64_t i = block * kBlock; i < std::min(count_, (block + 1) * kBlock); ++i) {
        if (values_[i] < bound) continue;
        mass += weights_[i];
        list.add(values_[i], weights_[i], i);
      }
    }
    if (list.count < kMost && mass >= need) take(list);
  }

  // high: the largest of the values; low: about where weights begin, below `high` unless all are alike.
  Cut find(float high, float low, int64_t need) {
    while (high > low) narrow(locate(high, low, &need), &high, &low);
    int64_t last = 0;
    for (int64_t i = 0; i < count_ && need > 0; ++i) {
      if (values_[i] != high) continue;
      need -= weights_[i];
      last = i;
    }
    return {high, place(last) + 1};
  }

 private:
  struct List {
    float* values;
    int64_t* weights;
    int64_t* places;
    int64_t count = 0;

    List(RowMemory& memory, int64_t most)
        : values(grown(memory.listed_values, most)),
          weights(grown(memory.listed_weights, most)),
          places(grown(memory.listed_places, most)) {}

    void add(float value, int64_t weight, int64_t place) {
      values[count] = value;
      weights[count] = weight;
      places[count++] = place;
    }
  };

  void take(const List& list) {
    values_ = list.values;
    weights_ = list.weights;
    places_ = list.places;
    count_ = list.count;
  }

  int64_t place(int64_t i) const { return places_ == nullptr ? i : places_[i]; }

  // The bucket of the boundary; `need` becomes what is needed of it.
  uint16_t locate(float high, float low, int64_t* need) {
    constexpr double kLast = kBuckets - 1;
    const double top = high, scale = kLast / (top - static_cast<double>(low));
    uint16_t* buckets = grown(memory_.buckets, count_);
    for (int64_t i = 0; i < count_; ++i) {
      const double at = (top - static_cast<double>(values_[i])) * scale;
      buckets[i] = static_cast<uint16_t>(static_cast<int32_t>(at < kLast ? at : kLast));
    }
    int64_t mass[4][kBuckets] = {};  // in turn: an addition need not wait for the one before it
    const int64_t whole = count_ / 4 * 4;
    for (int64_t i = 0; i < whole; i += 4) {
      mass[0][buckets[i]] += weights_[i];
      mass[1][buckets[i + 1]] += weights_[i + 1];
      mass[2][buckets[i + 2]] += weights_[i + 2];
      mass[3][buckets[i + 3]] += weights_[i + 3];
    }
    for (int64_t i = whole; i < count_; ++i) mass[0][buckets[i]] += weights_[i];
    for (uint16_t bucket = 0;; ++bucket) {
      const int64_t inside = mass[0][bucket] + mass[1][bucket] + mass[2][bucket] + mass[3][bucket];
      if (inside >= *need || bucket == kBuckets - 1) return bucket;
      *need -= inside;
    }
  }

  // Goes on with that bucket's tokens.
  void narrow(uint16_t bucket, float* high, float* low) {
    constexpr int64_t kAtOnce = 16;
    List list(memory_, count_);  // over an older list: never ahead of where it is read
    const uint16_t* buckets = memory_.buckets.data();
    *high = -kInfinity;
    *low = kInfinity;
    for (int64_t begin = 0; begin < count_; begin += kAtOnce) {
      const int64_t end = std::min(count_, begin + kAtOnce);
      uint16_t some = 0;
      for (int64_t i = begin; i < end; ++i) some |= buckets[i] == bucket;
      if (!some) continue;
      for (int64_t i = begin; i < end; ++i) {
        if (buckets[i] != bucket || weights_[i] == 0) continue;
        *high = std::max(*high, values_[i]);
        *low = std::min(*low, values_[i]);
        list.add(values_[i], weights_[i], place(i));
      }
    }
    take(list);
  }

  const float* values_;
  const int64_t* weights_;
  const int64_t* places_ = nullptr;  // null: each where it is
  int64_t count_;
  RowMemory& memory_;
};

// Takes the weight of all that are not left; returns the sum of what is.
static int64_t keep(const float* values, int64_t count, Cut cut, int64_t least, int64_t* weights, int64_t* sums) {
  int64_t mass = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const bool left = (values[i] > cut.value) | ((values[i] == cut.value) & (i < cut.end));
      weights[i] = left & (weights[i] >= least) ? weights[i] : 0;
      sum += weights[i];
    }
    sums[begin / kBlock] = sum;
    mass += sum;
  }
  return mass;
}

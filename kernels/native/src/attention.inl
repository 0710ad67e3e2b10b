// clang-format off: each builds on those before it
#include "attention_load.inl"
#include "attention_tile.inl"
#include "attention_kernel.inl"
#include "attention_few.inl"
#include "attention_codes.inl"
// clang-format on

constexpr int64_t kFew = 2 * kQueries;  // queries of a KV head, for which fp32 values are not copied

// A thread's memory, kept from call to call.
struct AttentionScratch {
  Memory tile, q, codes, states, floats, totals, queries;
};

// A softmax over some keys: the largest score, the sum of e^(score - max), and the values in these proportions.
struct Part {
  float max;
  float sum;
  const float* output;  // [padded]
};

// Adds `part`, the keys after those that `max`, `sum`, `output` stand for. A part that saw no key changes nothing.
static void join(Part part, int64_t padded, float* max, float* sum, float* output) {
  if (part.sum == 0) return;
  const float most = std::max(*max, part.max);
  alignas(64) float factors[kLanes] = {*max - most, part.max - most};
  exp(F16::load(factors)).store(factors);
  const F16 before = F16::set(factors[0]), added = F16::set(factors[1]);
  for (int64_t d = 0; d < padded; d += kLanes) {
    fma(F16::load(output + d), before, F16::load(part.output + d) * added).store(output + d);
  }
  *sum = std::fma(*sum, factors[0], part.sum * factors[1]);
  *max = most;
}

static void finish(const AttentionArgs& args, Part part, int64_t token, int64_t head) {
  float* out = args.out + token * args.out_stride + head * args.head_dim;
  const int64_t whole = args.head_dim / kLanes * kLanes;
  const F16 scale = F16::set(part.sum == 0 ? 0.0f : 1.0f / part.sum);
  for (int64_t d = 0; d < whole; d += kLanes) (F16::load(part.output + d) * scale).store(out + d);
  if (whole < args.head_dim) {
    alignas(64) float rest[kLanes];
    (F16::load(part.output + whole) * scale).store(rest);
    std::memcpy(out + whole, rest, static_cast<size_t>(args.head_dim - whole) * sizeof(float));
  }
  if (args.lse == nullptr) return;
  const double log_sum = std::log(static_cast<double>(part.sum));  // -infinity for a part without keys
  args.lse[token * args.heads + head] = static_cast<float>(static_cast<double>(part.max) + log_sum);
}

// A state in the partial results: output, then max and sum in a line of their own.
static inline int64_t partial_floats(int64_t padded) { return padded + kLanes; }

static constexpr Slots kNoSlots{};

// One item: its units' queries against tiles in ascending order. A tile that neighbours share is loaded once.
class ItemRun {
 public:
  // next: what this thread takes next, probably; null: nothing.
  ItemRun(const AttentionArgs& args, const Unit* units, const Item* item, const Item* next, float* partials,
          AttentionScratch& memory)
      : args_(args), units_(units), item_(*item), next_(next), partials_(partials), format_(kFormats[args.kv_dtype]) {
    group_ = args.heads / args.kv_heads;
    padded_ = (args.head_dim + kLanes - 1) / kLanes * kLanes;
    tokens_ = 0;
    for (int64_t i = item_.units.begin; i < item_.units.end; ++i) tokens_ += units[i].tokens();
    per_head_ = tokens_ * group_;
    count_ = per_head_ * (item_.heads.end - item_.heads.begin);
    // Keys come by steps of kStepBytes, of up to as many elements; beyond the last dimension theirs are 0, and 0 times
    // whatever memory holds may be NaN, so a query goes on with zeros as well.
    q_stride_ = (args.head_dim + kStepBytes - 1) / kStepBytes * kStepBytes;
    q_ = memory.q.floats(count_ * q_stride_);
    float* tile = memory.tile.floats(kTile * (2 * q_stride_ + 2));
    tile_.keys = tile;
    tile_.values = tile + kTile * q_stride_;
    tile_.key_scales = tile_.values + kTile * q_stride_;
    tile_.value_scales = tile_.key_scales + kTile;
    if (args.kv_dtype == kKvInt8) {
      codes_ = static_cast<QueryCodes*>(memory.codes.take(static_cast<size_t>(count_) * sizeof(QueryCodes)));
      tile_codes_ = {reinterpret_cast<char*>(tile_.keys), reinterpret_cast<char*>(tile_.values), q_stride_,
                     tile_.key_scales};
    }
    states_ = static_cast<State*>(memory.states.take(static_cast<size_t>(count_) * sizeof(State)));
    floats_ = memory.floats.floats(count_ * (padded_ + kLanes));
    queries_ = static_cast<Query*>(memory.queries.take(static_cast<size_t>(per_head_) * sizeof(Query)));
    folds_ = item_.segments.end - item_.segments.begin > 1;
    if (folds_) totals_ = memory.totals.floats(count_ * partial_floats(padded_));
  }

  void run() {
    take_queries();
    for (int64_t segment = item_.segments.begin; segment < item_.segments.end; ++segment) {
      begin_segment();
      for (int64_t tile = segment * (kSegment / kTile); tile < (segment + 1) * (kSegment / kTile); ++tile) {
        run_tile(tile);
      }
      for_each([&](const Unit& unit, int64_t token, int64_t head, int64_t index) {
        end_segment(unit, token, head, index, segment);
      });
    }
  }

 private:
  // f(unit, token of the unit, query head, index of the query here)
  template <class F>
  void for_each(F&& f) {
    int64_t index = 0;
    for (int64_t kv_head = item_.heads.begin; kv_head < item_.heads.end; ++kv_head) {
      for (int64_t i = item_.units.begin; i < item_.units.end; ++i) {
        for (int64_t token = 0; token < units_[i].tokens(); ++token) {
          for (int64_t g = 0; g < group_; ++g) f(units_[i], token, kv_head * group_ + g, index++);
        }
      }
    }
  }

  void take_queries() {
    const F16 scale = F16::set(args_.scale);
    const int64_t whole = args_.head_dim / kLanes * kLanes;
    for_each([&](const Unit& unit, int64_t token, int64_t head, int64_t index) {
      const float* from = args_.q + (unit.first_token + token) * args_.q_stride + head * args_.q_head_stride;
      float* to = q_ + index * q_stride_;
      for (int64_t d = 0; d < whole; d += kLanes) (F16::load(from + d) * scale).store(to + d);
      for (int64_t d = whole; d < q_stride_; ++d) to[d] = d < args_.head_dim ? from[d] * args_.scale : 0.0f;
      if (codes_ != nullptr) codes_[index] = round_query(to, q_stride_);
      float* own = floats_ + index * (padded_ + kLanes);
      states_[index] = {0, own, own + kLanes};
      if (!folds_) return;
      float* total = totals_ + index * partial_floats(padded_);
      std::memset(total, 0, static_cast<size_t>(partial_floats(padded_)) * sizeof(float));
      total[padded_] = -std::numeric_limits<float>::infinity();
    });
  }

  void begin_segment() {
    std::memset(floats_, 0, static_cast<size_t>(count_ * (padded_ + kLanes)) * sizeof(float));
    for (int64_t i = 0; i < count_; ++i) states_[i].max = -std::numeric_limits<float>::infinity();
  }

  void end_segment(const Unit& unit, int64_t token, int64_t head, int64_t index, int64_t segment) {
    const int64_t last = unit.first_segment() + unit.segments() - 1;
    if (segment < unit.first_segment() || segment > last) return;
    const Part part{states_[index].max, sum(F16::load(states_[index].sums)), states_[index].output};
    if (unit.partials >= 0) {
      float* to = partials_ + unit.partial(token, head, args_.heads, segment) * partial_floats(padded_);
      std::memcpy(to, part.output, static_cast<size_t>(padded_) * sizeof(float));
      to[padded_] = part.max;
      to[padded_ + 1] = part.sum;
    } else if (unit.segments() == 1) {
      finish(args_, part, unit.first_token + token, head);
    } else {
      float* total = totals_ + index * partial_floats(padded_);
      join(part, padded_, total + padded_, total + padded_ + 1, total);
      if (segment == last) finish(args_, {total[padded_], total[padded_ + 1], total}, unit.first_token + token, head);
    }
  }

  void run_tile(int64_t tile) {
    const Range here{tile * kTile, (tile + 1) * kTile};
    int64_t token = 0;  // of the item
    for (int64_t i = item_.units.begin; i < item_.units.end;) {
      Range keys = units_[i].keys;
      int64_t tokens = units_[i].tokens(), to = i + 1;
      for (; to < item_.units.end && units_[to].shared.begin <= here.begin && here.end <= units_[to].shared.end; ++to) {
        keys = {std::min(keys.begin, units_[to].keys.begin), std::max(keys.end, units_[to].keys.end)};
        tokens += units_[to].tokens();
      }
      if (keys.begin < here.end && here.begin < keys.end) run_shared({i, to}, keys, tile, token);
      token += tokens;
      i = to;
    }
  }

  // Units that have this tile's keys in the same blocks; `token` is the first one's, counted over the item.
  void run_shared(Range units, Range keys, int64_t tile, int64_t token) {
    const Slots& slots = slots_of(units_[units.begin], tile, keys, tile % 2);
    Ahead ahead = after(units_[units.begin], tile);
    const TileShape shape{args_.head_dim, padded_, args_.softcap, args_.scales != nullptr};
    alignas(64) float scores[kQueries * kTile];
    for (int64_t head = item_.heads.begin; head < item_.heads.end; ++head) {
      const int64_t first = (head - item_.heads.begin) * per_head_ + token * group_;
      const int64_t count = take_seeing(units, tile, first);
      if (count == 0) continue;
      const int64_t groups = (count + kQueries - 1) / kQueries;
      tile_.ahead = &ahead;
      if (shape.scaled) load_scales(args_, slots, head, tile_);
      if (codes_ != nullptr) {
        run_codes(slots, head, count, groups);
        continue;
      }
      const bool at_once = count <= kFewest;
      const int64_t alone = at_once ? args_.head_dim * kKeyUnits + count * kExpUnits : 0;
      ahead.pace(groups * kTile * (padded_ / kLanes) * kValueUnits + kTile / kLanes * alone);
      if (at_once) {
        format_.score_few(args_, slots, head, queries_, count, ahead, scores);
      } else {
        format_.load_keys(args_, slots, head, tile_.keys);
      }
      const bool few = count <= (format_.bytes == sizeof(float) ? kFew : kFewest);
      const bool in_place = few && padded_ == args_.head_dim;
      const TakeScores* take = in_place ? format_.take_scores : kTakeScores<KvFp32>;
      format_.load_values(args_, slots, head, in_place, tile_);
      for (int64_t i = 0; i < groups; ++i) {
        const int64_t begin = count * i / groups, end = count * (i + 1) / groups;
        if (!at_once) kScore[end - begin](queries_ + begin, tile_.keys, args_.head_dim, scores);
        take[end - begin](queries_ + begin, tile_, shape, scores);
      }
    }
  }

  // The queries_ with a tile of INT8 KV.
  void run_codes(const Slots& slots, int64_t head, int64_t count, int64_t groups) {
    const TileShape shape{args_.head_dim, padded_, args_.softcap, false};
    Ahead& ahead = *tile_.ahead;
    const int64_t steps = q_stride_ / kStepBytes;
    ahead.pace(kTile / kLanes * (steps * kPackUnits + count * kExpUnits) + kTile / 4 * kFourUnits);
    pack_keys(args_, slots, head, count, ahead, tile_codes_);
    pack_values(args_, slots, head, ahead, tile_codes_);
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t begin = count * i / groups, end = count * (i + 1) / groups;
      kTakeCodes[end - begin](queries_ + begin, tile_, tile_codes_, shape);
    }
  }

  // The tile that comes next: of this item, or of the next one.
  Ahead after(const Unit& unit, int64_t tile) {
    const int64_t end = std::min(unit.keys.end, item_.segments.end * kSegment);
    if ((tile + 1) * kTile < end) {
      return {args_, slots_of(unit, tile + 1, unit.keys, (tile + 1) % 2), item_.heads, format_.bytes};
    }
    if (next_ == nullptr) return {args_, kNoSlots, item_.heads, format_.bytes};
    const Unit& other = units_[next_->units.begin];
    const int64_t first = std::max(other.keys.begin, next_->segments.begin * kSegment) / kTile;
    return {args_, slots_of(other, first, other.keys, (tile + 1) % 2), next_->heads, format_.bytes};
  }

  // One tile's slots are found while the tile before it is computed, and then again.
  const Slots& slots_of(const Unit& unit, int64_t tile, Range keys, int64_t where) {
    Found& found = found_[where];
    const int64_t* table = args_.rows->tables + args_.rows->table_starts[unit.row];
    if (found.table != table || found.tile != tile || found.keys.begin != keys.begin || found.keys.end != keys.end) {
      found.table = table;
      found.tile = tile;
      found.keys = keys;
      find_slots(args_, table, tile, keys, &found.slots);
    }
    return found.slots;
  }

  // The units' queries, from index `first` on, that see some of the tile: into queries_; gives how many.
  int64_t take_seeing(Range units, int64_t tile, int64_t first) {
    int64_t count = 0;
    for (int64_t i = units.begin; i < units.end; ++i) {
      for (int64_t at = units_[i].positions.begin; at < units_[i].positions.end; ++at, first += group_) {
        const int64_t from = args_.window > 0 ? std::max<int64_t>(0, at - args_.window + 1) : 0;
        const int64_t begin = std::max<int64_t>(0, from - tile * kTile);
        const int64_t end = std::min<int64_t>(kTile, at + 1 - tile * kTile);
        if (begin >= end) continue;
        for (int64_t g = 0; g < group_; ++g) {
          const int64_t index = first + g;
          const QueryCodes* codes = codes_ == nullptr ? nullptr : codes_ + index;
          queries_[count++] = {q_ + index * q_stride_, codes, states_ + index, static_cast<int>(begin),
                               static_cast<int>(end)};
        }
      }
    }
    return count;
  }

  const AttentionArgs& args_;
  const Unit* units_;
  const Item& item_;
  const Item* next_;
  float* partials_;
  const KvFormat& format_;
  struct Found {
    const int64_t* table = nullptr;
    int64_t tile;
    Range keys;
    Slots slots;
  } found_[2];
  int64_t group_, padded_, tokens_, per_head_, count_;
  bool folds_;
  TileView tile_;
  TileCodes tile_codes_{};
  float* q_;
  QueryCodes* codes_ = nullptr;
  int64_t q_stride_;
  float* floats_;  // what states_ point at
  float* totals_ = nullptr;
  State* states_;
  Query* queries_;
};

static void join_unit(const AttentionArgs& args, const Unit& unit, const float* partials) {
  alignas(64) float output[256];
  const int64_t padded = (args.head_dim + kLanes - 1) / kLanes * kLanes;
  for (int64_t token = 0; token < unit.tokens(); ++token) {
    for (int64_t head = 0; head < args.heads; ++head) {
      std::memset(output, 0, sizeof output);
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (int64_t s = 0; s < unit.segments(); ++s) {
        const int64_t state = unit.partial(token, head, args.heads, unit.first_segment() + s);
        const float* part = partials + state * partial_floats(padded);
        join({part[padded], part[padded + 1], part}, padded, &max, &sum, output);
      }
      finish(args, {max, sum, output}, unit.first_token + token, head);
    }
  }
}

static void attention(const AttentionArgs& args, Pool& pool) {
  const AttentionWork work = cut_attention(args, pool.threads());
  const int64_t padded = (args.head_dim + kLanes - 1) / kLanes * kLanes;
  float* partials = nullptr;
  if (work.partials > 0) {
    partials = static_cast<float*>(
        pool.scratch(2, static_cast<size_t>(work.partials * partial_floats(padded)) * sizeof(float)));
  }
  const int64_t together = work.small ? std::max<int64_t>(1, work.item_count) : 1;
  pool.run((work.item_count + together - 1) / together, [&](int64_t chunk) {
    static thread_local AttentionScratch memory;  // here, where each thread passes: so each gives its own back
    for (int64_t i = chunk * together; i < std::min(work.item_count, (chunk + 1) * together); ++i) {
      const int64_t next = together > 1 ? i + 1 : i + pool.threads();
      const Item* after = next < work.item_count ? work.items + next : nullptr;
      ItemRun(args, work.units, work.items + i, after, partials, memory).run();
    }
  });
  if (work.partials == 0) return;
  constexpr int64_t kJoins = 256;  // states that are joined in a few microseconds
  const int64_t chunks = std::clamp<int64_t>(work.partials / kJoins, 1, work.unit_count);
  pool.run(chunks, [&](int64_t chunk) {
    for (int64_t i = work.unit_count * chunk / chunks; i < work.unit_count * (chunk + 1) / chunks; ++i) {
      if (work.units[i].partials >= 0) join_unit(args, work.units[i], partials);
    }
  });
}

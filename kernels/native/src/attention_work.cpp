#include "attention_work.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

namespace baton {
namespace {

constexpr int64_t kShortTokens = 16;   // rows of so many tokens may share keys (MOST_TOKENS in order.py)
constexpr int64_t kLongQueries = 144;  // of one KV head, in one unit of a longer row: amortises a tile's loading
constexpr int64_t kSharedQueries = 192;
constexpr int64_t kSmall = 6;          // tiles (times heads) that one thread does sooner than two agree
constexpr int64_t kFewQueries = 24;  // below this a tile's keys are bound by memory: all heads, as they lie there

struct Store {
  std::vector<Unit> units;
  std::vector<Item> items;
};

class Cutter {
 public:
  Cutter(const AttentionArgs& args, int threads, Store& work)
      : args_(args), rows_(*args.rows), threads_(threads), group_(args.heads / args.kv_heads), work_(work) {}

  AttentionWork cut() {
    work_.units.clear();
    work_.items.clear();
    const int64_t long_units = units_of_long_rows();
    const bool split = long_units * args_.kv_heads < 4 * threads_;
    // The last units of a row see the most keys, and what takes longest goes first.
    for (int64_t i = long_units - 1; i >= 0; --i) {
      if (split) take_partials(work_.units[i]);
      add_long(i, split);
    }
    units_of_short_rows();
    const auto first = static_cast<size_t>(long_units);
    for (size_t i = first; i < work_.units.size(); ++i) take_partials(work_.units[i]);
    if (work_.units.size() > first) add_short(long_units, static_cast<int64_t>(work_.units.size()));
    int64_t tiles = 0;
    for (const Unit& unit : work_.units) {
      tiles += ((unit.keys.end - unit.keys.begin) / kTile + 1) * (unit.tokens() * group_ / kFewQueries + 1);
    }
    return {work_.units.data(),
            work_.items.data(),
            static_cast<int64_t>(work_.units.size()),
            static_cast<int64_t>(work_.items.size()),
            partials_,
            tiles * args_.kv_heads <= kSmall};
  }

 private:
  Range visible(int64_t begin, int64_t end) const {
    return {args_.window > 0 ? std::max<int64_t>(0, begin - args_.window + 1) : 0, end};
  }

  void add_unit(int64_t row, int64_t begin, int64_t end, Range shared) {
    const int64_t start = rows_.starts[row];
    work_.units.push_back({row, rows_.first_tokens[row] + begin, {start + begin, start + end},
                           visible(start + begin, start + end), shared, -1});
  }

  int64_t units_of_long_rows() {
    const int64_t step = std::max<int64_t>(8, kLongQueries / group_);
    for (int64_t row = 0; row < rows_.rows; ++row) {
      const int64_t length = rows_.lengths[row];
      if (length <= kShortTokens) continue;
      for (int64_t begin = 0; begin < length; begin += step) add_unit(row, begin, std::min(length, begin + step), {});
    }
    return static_cast<int64_t>(work_.units.size());
  }

  void units_of_short_rows() {
    bool neighbour = false;
    for (int64_t i = 0; i < rows_.rows; ++i) {
      const int64_t row = rows_.order[i], length = rows_.lengths[row];
      const bool here = length > 0 && length <= kShortTokens;
      Range shared{};
      if (here && neighbour) shared = {rows_.shared_starts[i], rows_.shared_ends[i]};
      if (here) add_unit(row, 0, length, shared);
      neighbour = here;
    }
  }

  void take_partials(Unit& unit) {
    if (unit.segments() == 1) return;
    unit.partials = partials_;
    partials_ += unit.tokens() * args_.heads * unit.segments();
  }

  void add_long(int64_t i, bool split) {
    const Unit& unit = work_.units[i];
    const int64_t first = unit.first_segment(), end = first + unit.segments();
    for (int64_t head = 0; head < args_.kv_heads; ++head) {
      for (int64_t at = first; at < end; at = split ? at + 1 : end) {
        work_.items.push_back({{i, i + 1}, {at, split ? at + 1 : end}, {head, head + 1}});
      }
    }
  }

  // Segment by segment the runs of units that share at least one tile with their neighbour there.
  void add_short(int64_t begin, int64_t end) {
    int64_t last_segment = 0, pieces = 0, queries = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Unit& unit = work_.units[i];
      last_segment = std::max(last_segment, unit.first_segment() + unit.segments());
      pieces += unit.segments();
      queries += unit.tokens() * args_.heads;
    }
    // Segments and heads are shared out, too: splitting queries as well loads their keys again.
    const int64_t most = std::clamp<int64_t>(queries * last_segment / (2 * threads_), kFewQueries, kSharedQueries);
    const bool by_head = pieces < 4 * threads_;
    for (int64_t segment = 0; segment < last_segment; ++segment) {
      for (int64_t i = begin; i < end;) {
        if (!sees(work_.units[i], segment)) {
          ++i;
          continue;
        }
        int64_t to = i + 1, run = queries_of(i);
        for (; to < end && sees(work_.units[to], segment) && shares(work_.units[to], segment); ++to) {
          run += queries_of(to);
        }
        add_runs({i, to}, run, most, segment, by_head);
        i = to;
      }
    }
  }

  int64_t queries_of(int64_t unit) const { return work_.units[unit].tokens() * group_; }

  // Units of so many queries in pieces of at most `most`, about equal ones.
  void add_runs(Range units, int64_t queries, int64_t most, int64_t segment, bool by_head) {
    int64_t pieces = (queries + most - 1) / most;
    for (int64_t i = units.begin; i < units.end; --pieces) {
      const int64_t share = pieces > 1 ? (queries + pieces - 1) / pieces : queries;
      int64_t to = i + 1, run = queries_of(i);
      for (; to < units.end && run + queries_of(to) <= share; ++to) run += queries_of(to);
      add_run({i, to}, segment, by_head || run > kFewQueries);
      queries -= run;
      i = to;
    }
  }

  void add_run(Range units, int64_t segment, bool by_head) {
    const int64_t step = by_head ? 1 : args_.kv_heads;
    for (int64_t head = 0; head < args_.kv_heads; head += step) {
      work_.items.push_back({units, {segment, segment + 1}, {head, head + step}});
    }
  }

  static bool sees(const Unit& unit, int64_t segment) {
    return unit.keys.begin < (segment + 1) * kSegment && unit.keys.end > segment * kSegment;
  }

  static bool shares(const Unit& unit, int64_t segment) {
    const int64_t begin = (std::max(unit.shared.begin, segment * kSegment) + kTile - 1) / kTile;
    const int64_t end = std::min(unit.shared.end, (segment + 1) * kSegment) / kTile;
    return begin < end;
  }

  const AttentionArgs& args_;
  const AttentionRows& rows_;
  const int64_t threads_;
  const int64_t group_;
  Store& work_;
  int64_t partials_ = 0;
};

}  // namespace

AttentionWork cut_attention(const AttentionArgs& args, int threads) {
  static thread_local Store store;
  return Cutter(args, threads, store).cut();
}

Memory::~Memory() { std::free(data_); }

void* Memory::take(size_t bytes) {
  if (bytes > bytes_) {
    const size_t rounded = (bytes + bytes / 2 + 4095) / 4096 * 4096;
    std::free(data_);
    bytes_ = 0;
    data_ = std::aligned_alloc(64, rounded);
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = rounded;
  }
  return data_;
}

}  // namespace baton

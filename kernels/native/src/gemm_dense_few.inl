// Few rows: the time goes into reading the weights.

// R rows from `row` on times P panels from `panel` on.
template <class W, int R, int P>
static void few_rows_panels(const GemmDenseArgs& args, int64_t row, int64_t panel, Ahead ahead) {
  const auto* panels = static_cast<const typename W::Stored*>(args.panels) + panel * args.inputs * kLanes;
  const float* x = args.x + row * args.x_stride;
  F16 acc[R][P];
  for (auto& one : acc) {
    for (auto& value : one) value = F16::zero();
  }
  F16 scale[P] = {};
  if constexpr (W::kScaled) {
    const int64_t groups = (args.inputs + args.group - 1) / args.group;
    for (int64_t g = 0; g < groups; ++g) {
      for (int p = 0; p < P; ++p) scale[p] = F16::load(args.scale + ((panel + p) * groups + g) * kLanes);
      const int64_t k = g * args.group;
      accumulate<W, R, P>(acc, x + k, args.x_stride, 1, panels + k * kLanes, args.inputs * kLanes, scale,
                          std::min(args.group, args.inputs - k), {ahead.bytes, ahead.inputs - k});
    }
  } else {
    accumulate<W, R, P>(acc, x, args.x_stride, 1, panels, args.inputs * kLanes, scale, args.inputs, ahead);
  }
  finish(args, acc, row, panel);
}

// A range of panels; `then`: the one that this thread is likely to go on with.
struct Panels {
  int64_t begin, end, then;
};

// While `count` panels from `panel` on are multiplied, what will be next is fetched. Left to read, the processor finds
// out for itself what follows, but for the beginning; busy multiplying too, it looks less far ahead.
template <class W, int R>
static Ahead ahead_of(const GemmDenseArgs& args, int64_t panel, int64_t count, Panels some) {
  constexpr int64_t kRow = kLanes * sizeof(typename W::Stored);
  constexpr int kPerFloat = sizeof(float) / sizeof(typename W::Stored);
  constexpr bool kBusy = R * kPerFloat + (kPerFloat > 1) > kIdle;
  const int64_t next = panel + count < some.end ? panel + count : some.then;
  const bool fits = count * args.inputs * kRow <= kMostAheadBytes;
  return {(next - panel) * args.inputs * kRow, kBusy && fits ? args.inputs : kPageBytes / kRow};
}

template <class W, int R, int P>
static int64_t few_rows_groups(const GemmDenseArgs& args, int64_t row, int64_t panel, Panels some) {
  for (; panel + P <= some.end; panel += P) {
    few_rows_panels<W, R, P>(args, row, panel, ahead_of<W, R>(args, panel, P, some));
  }
  return panel;
}

// What is less than a group of panels is not worth code for every number of rows.
template <class W, int R>
static void few_rows_singly(const GemmDenseArgs& args, int64_t row, int64_t panel, Panels some) {
  constexpr int kRows = R >= 8 ? 8 : R >= 4 ? 4 : R >= 2 ? 2 : 1;
  few_rows_groups<W, kRows, 1>(args, row, panel, some);
  if constexpr (R > kRows) few_rows_singly<W, R - kRows>(args, row + kRows, panel, some);
}

template <class W, int R>
static void few_rows_at(const GemmDenseArgs& args, int64_t row, Panels some) {
  const int64_t panel = few_rows_groups<W, R, few_panels(R)>(args, row, some.begin, some);
  if (panel < some.end) few_rows_singly<W, R>(args, row, panel, some);
}

// Rows [row, end) times some panels.
template <class W>
static void few_rows(const GemmDenseArgs& args, int64_t row, int64_t end, Panels some) {
  using At = void (*)(const GemmDenseArgs&, int64_t, Panels);
  static constexpr At at[] = {nullptr,           few_rows_at<W, 1>, few_rows_at<W, 2>, few_rows_at<W, 3>,
                              few_rows_at<W, 4>, few_rows_at<W, 5>, few_rows_at<W, 6>,
#if BATON_AVX512
                              few_rows_at<W, 7>, few_rows_at<W, 8>
#endif
  };
  while (row < end) {
    const int64_t passes = (end - row + kFewRows - 1) / kFewRows;
    const int64_t rows = (end - row + passes - 1) / passes;
    at[rows](args, row, some);
    row += rows;
  }
}

// As many chunks of whole groups as give every thread equally many; what is left goes panel by panel.
template <class W>
static void stream(const GemmDenseArgs& args, Pool& pool, int64_t rows) {
  const int64_t panels = panels_of(args), threads = pool.threads();
  const int64_t bytes = args.inputs * kLanes * static_cast<int64_t>(sizeof(typename W::Stored));
  const int64_t group = few_panels(static_cast<int>(std::min<int64_t>(rows, kFewRows)));
  int64_t step = group * ((kChunkBytes + group * bytes - 1) / (group * bytes));
  if (threads == 1) step = panels;
  const int64_t whole = panels / step / threads * threads;
  const int64_t single = (std::min<int64_t>(kChunkBytes, panels * bytes) + bytes - 1) / bytes;
  const int64_t rest = (panels - whole * step + single - 1) / single;
  pool.run(whole + rest, [&](int64_t chunk) {
    const int64_t begin = chunk < whole ? chunk * step : whole * step + (chunk - whole) * single;
    const int64_t size = chunk < whole ? step : single;
    const int64_t end = std::min(panels, begin + size);
    few_rows<W>(args, 0, rows, {begin, end, std::min(begin + threads * size, panels)});
  });
}

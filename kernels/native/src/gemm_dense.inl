#include "dense_formats.inl"

// Rows of x that one pass over a panel serves. Few: straight from x, and as many panels at once as registers allow,
// so that a core has several streams from memory under way. Many: from a packed copy of x, [inputs][kTile].
#if BATON_AVX512
constexpr int kFewRows = 8;
constexpr int kIdle = 5;  // rows per fp32 weight that leave the processor time to look ahead for itself
constexpr int few_panels(int rows) { return rows <= 4 ? 4 : 3; }
constexpr int kTile = 14;
constexpr int kTilePanels = 2;
#else
constexpr int kFewRows = 6;
constexpr int kIdle = 2;
constexpr int few_panels(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
constexpr int kTile = 6;
constexpr int kTilePanels = 1;
#endif
constexpr int64_t kBlockTiles = 224 / kTile;     // packed at a time: fits a core's L2 beside two panels
constexpr int64_t kDepth = 2048;                 // inputs per pass: two fp32 panels take a quarter of L2
constexpr int64_t kChunkBytes = 64 << 10;        // some microseconds of reading
constexpr int64_t kMostAheadBytes = 384 << 10;   // what L2 can hold besides
constexpr int64_t kPageBytes = 4096;             // after which the processor's own prefetcher has caught on

static int64_t panels_of(const GemmDenseArgs& args) { return (args.outputs + kLanes - 1) / kLanes; }

// acc[r][p] = fma(x[r], weight[p], acc[r][p]) for one input, where x[r] is x[r * row].
template <class W, int R, int P>
[[gnu::always_inline]] static inline void step(F16 (&acc)[R][P], const float* x, int64_t row,
                                               const typename W::Stored* panels, int64_t panel, const F16 (&scale)[P]) {
  F16 weight[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) weight[p] = W::load(panels + p * panel, scale[p]);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const F16 value = F16::set(x[r * row]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) acc[r][p] = fma(value, weight[p], acc[r][p]);
  }
}

// What to fetch into L2 meanwhile: of the first `inputs` inputs, the weights that lie `bytes` further on.
struct Ahead {
  int64_t bytes, inputs;
};

// For ascending inputs, where x[r] of input k is x[r * row + k * stride].
template <class W, int R, int P>
[[gnu::always_inline]] static inline void accumulate(F16 (&acc)[R][P], const float* x, int64_t row, int64_t stride,
                                                     const typename W::Stored* panels, int64_t panel,
                                                     const F16 (&scale)[P], int64_t depth, Ahead ahead) {
  constexpr int kLine = 64 / (kLanes * sizeof(typename W::Stored));  // inputs to a cache line
  const int64_t fetching = std::min(depth, ahead.inputs) / kLine * kLine;
  int64_t k = 0;
  for (; k < fetching; k += kLine) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      _mm_prefetch(reinterpret_cast<const char*>(panels + p * panel + k * kLanes) + ahead.bytes, _MM_HINT_T1);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kLine; ++i) step<W>(acc, x + (k + i) * stride, row, panels + (k + i) * kLanes, panel, scale);
  }
  for (; k < depth; ++k) step<W>(acc, x + k * stride, row, panels + k * kLanes, panel, scale);
}

template <int R, int P>
static void finish(const GemmDenseArgs& args, const F16 (&acc)[R][P], int64_t row, int64_t panel) {
  for (int p = 0; p < P; ++p) {
    const int64_t output = (panel + p) * kLanes;
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, args.outputs - output));
    const F16 bias = args.bias == nullptr ? F16::zero() : F16::load(args.bias + output);
    for (int r = 0; r < R; ++r) {
      float* out = args.out + (row + r) * args.out_stride + output;
      F16 y = args.bias == nullptr ? acc[r][p] : acc[r][p] + bias;
      if (lanes == kLanes) {
        if (args.residual) y = F16::load(out) + y;
        y.store(out);
      } else {
        if (args.residual) y = F16::load(out, lanes) + y;
        y.store(out, lanes);
      }
    }
  }
}

#include "round_e4m3.inl"
#include "gemm_dense_few.inl"
#include "gemm_dense_blocks.inl"

template <class W>
static void gemm(const GemmDenseArgs& args, Pool& pool, int64_t rows) {
  if (rows < kTile) {
    stream<W>(args, pool, rows);
  } else {
    blocks<W>(args, pool, rows);
  }
}

static void gemm_dense(const GemmDenseArgs& given, Pool& pool) {
  const int64_t rows = *given.rows;
  if (rows <= 0) return;
  GemmDenseArgs args = given;
  if (args.first != nullptr) {
    args.x += *args.first * args.x_stride;
    args.out += *args.first * args.out_stride;
  }
  if (args.activation_group > 0) {
    args.x = rounded(args, pool, rows);
    args.x_stride = args.inputs;
  }
  switch (args.format) {
    case DenseFormat::fp32: return gemm<Fp32>(args, pool, rows);
    case DenseFormat::bf16: return gemm<Bf16>(args, pool, rows);
    case DenseFormat::fp16: return gemm<Fp16>(args, pool, rows);
    case DenseFormat::e4m3: return gemm<E4m3>(args, pool, rows);
  }
}

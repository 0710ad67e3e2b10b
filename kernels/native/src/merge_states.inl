static void merge_state(const MergeStatesArgs& args, int64_t index) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float a_lse = args.a_lse[index] == kInfinity ? -kInfinity : args.a_lse[index];
  const float b_lse = args.b_lse[index] == kInfinity ? -kInfinity : args.b_lse[index];
  const bool no_a = a_lse == -kInfinity, no_b = b_lse == -kInfinity;
  const float* a = args.a + index * args.head_dim;
  const float* b = args.b + index * args.head_dim;
  float* out = args.out + index * args.head_dim;
  if (no_a || no_b) {
    // What an empty part holds is not looked at.
    const float* only = no_a ? b : a;
    for (int64_t d = 0; d < args.head_dim; ++d) out[d] = no_a && no_b ? 0.0f : only[d];
    args.out_lse[index] = no_a ? b_lse : a_lse;
    return;
  }
  const float most = std::max(a_lse, b_lse);
  alignas(64) float weights[kLanes] = {a_lse - most, b_lse - most};
  exp(F16::load(weights)).store(weights);
  const float total = weights[0] + weights[1];
  const F16 of_a = F16::set(weights[0] / total), of_b = F16::set(weights[1] / total);
  int64_t d = 0;
  for (; d + kLanes <= args.head_dim; d += kLanes) {
    fma(F16::load(a + d), of_a, F16::load(b + d) * of_b).store(out + d);
  }
  if (d < args.head_dim) {
    const int rest = static_cast<int>(args.head_dim - d);
    fma(F16::load(a + d, rest), of_a, F16::load(b + d, rest) * of_b).store(out + d, rest);
  }
  args.out_lse[index] = most + static_cast<float>(std::log(static_cast<double>(total)));
}

static void merge_states(const MergeStatesArgs& args, Pool& pool) {
  constexpr int64_t kStates = 128;  // a few microseconds' worth
  const int64_t states = *args.tokens * args.heads;
  pool.run((states + kStates - 1) / kStates, [&](int64_t chunk) {
    const int64_t end = std::min(states, (chunk + 1) * kStates);
    for (int64_t i = chunk * kStates; i < end; ++i) merge_state(args, i);
  });
}

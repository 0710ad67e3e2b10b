// Numbers as they are stored, to fp32: `load` takes sixteen of them.

// Sixteen at a time; the last ones by way of a copy, so that nothing beyond `count` is read.
template <class T, class Load>
static void widen(const T* from, float* to, int64_t count, Load load) {
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) load(from + i).store(to + i);
  if (whole == count) return;
  T last[kLanes] = {};
  float wide[kLanes];
  std::copy(from + whole, from + count, last);
  load(last).store(wide);
  std::copy(wide, wide + (count - whole), to + whole);
}

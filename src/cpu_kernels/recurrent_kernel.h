// One sequence's step of a recurrent layer and of its backward (recurrent.h), for any instruction set: included where Vec
// stands with its arithmetic (lane_math.h), load(), store(), load_first(), store_first() and kLanes.

inline __attribute__((always_inline)) Vec lanes_at(const float* p, int64_t j, int64_t left) {
  return left >= kLanes ? load(p + j) : load_first(p + j, left);
}
inline __attribute__((always_inline)) void put_lanes(float* p, int64_t j, Vec x, int64_t left) {
  left >= kLanes ? store(p + j, x) : store_first(p + j, x, left);
}

template <RecurrentMode mode>
void recur(const RecurrentStep& s) {
  const int64_t n = s.size;
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t left = n - j;
    const auto sum = [&](int64_t gate) __attribute__((always_inline)) {
      return lanes_at(s.input + gate * n, j, left) + lanes_at(s.hidden + gate * n, j, left);
    };
    const auto keep = [&](int64_t part, Vec x) __attribute__((always_inline)) {
      if (s.kept) put_lanes(s.kept + part * n, j, x, left);
    };
    if constexpr (mode == RecurrentMode::kGru) {
      const Vec reset = lane_sigmoid(sum(0)), update = lane_sigmoid(sum(1));
      const Vec of_hidden = lanes_at(s.hidden + 2 * n, j, left);
      const Vec fresh = lane_tanh(fma(reset, of_hidden, lanes_at(s.input + 2 * n, j, left)));
      put_lanes(s.new_h, j, fma(lanes_at(s.h, j, left) - fresh, update, fresh), left);
      keep(0, reset);
      keep(1, update);
      keep(2, fresh);
      keep(3, of_hidden);
    } else if constexpr (mode == RecurrentMode::kLstm) {
      const Vec in = lane_sigmoid(sum(0)), forget = lane_sigmoid(sum(1)), cell = lane_tanh(sum(2)),
                out = lane_sigmoid(sum(3));
      const Vec c = fma(forget, lanes_at(s.c, j, left), in * cell);
      put_lanes(s.new_c, j, c, left);
      put_lanes(s.new_h, j, out * lane_tanh(c), left);
      keep(0, in);
      keep(1, forget);
      keep(2, cell);
      keep(3, out);
      keep(4, c);
    } else {
      put_lanes(s.new_h, j, mode == RecurrentMode::kTanh ? lane_tanh(sum(0)) : lane_relu(sum(0)), left);
    }
  }
}

template <RecurrentMode mode>
void recur_backward(const RecurrentGradient& s) {
  const int64_t n = s.size;
  const Vec one = spread(1.f);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t left = n - j;
    const auto kept = [&](int64_t part) __attribute__((always_inline)) { return lanes_at(s.kept + part * n, j, left); };
    const auto put = [&](float* to, int64_t gate, Vec x) __attribute__((always_inline)) {
      put_lanes(to + gate * n, j, x, left);
    };
    const Vec dh = lanes_at(s.dh, j, left);
    if constexpr (mode == RecurrentMode::kGru) {
      const Vec reset = kept(0), update = kept(1), fresh = kept(2), of_hidden = kept(3);
      const Vec d_fresh = dh * (one - update) * (one - fresh * fresh);
      const Vec d_reset = d_fresh * of_hidden * reset * (one - reset);
      const Vec d_update = dh * (lanes_at(s.h, j, left) - fresh) * update * (one - update);
      put(s.d_input, 0, d_reset);
      put(s.d_input, 1, d_update);
      put(s.d_input, 2, d_fresh);
      put(s.d_hidden, 0, d_reset);
      put(s.d_hidden, 1, d_update);
      put(s.d_hidden, 2, d_fresh * reset);
      put_lanes(s.dh, j, dh * update, left);
    } else if constexpr (mode == RecurrentMode::kLstm) {
      const Vec in = kept(0), forget = kept(1), cell = kept(2), out = kept(3), large = lane_tanh(kept(4));
      const Vec dc = fma(dh * out, one - large * large, lanes_at(s.dc, j, left));
      put(s.d_input, 0, dc * cell * in * (one - in));
      put(s.d_input, 1, dc * lanes_at(s.c, j, left) * forget * (one - forget));
      put(s.d_input, 2, dc * in * (one - cell * cell));
      put(s.d_input, 3, dh * large * out * (one - out));
      put_lanes(s.dc, j, dc * forget, left);
      put_lanes(s.dh, j, spread(0.f), left);
    } else {
      const Vec y = lanes_at(s.y, j, left);
      const Vec slope = mode == RecurrentMode::kTanh ? one - y * y : where_size_is(0.f, y, spread(0.f), one);
      put(s.d_input, 0, dh * slope);
      put_lanes(s.dh, j, spread(0.f), left);
    }
  }
}

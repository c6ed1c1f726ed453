// Small graphs for tests: helpers to write them, inputs for them, and a generator of random ones.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "graph/builder.h"
#include "planner/evaluator_for_test.h"

namespace flashover::planner::testing {

using graph::Builder;
using graph::Graph;

inline TensorType f32(std::vector<int64_t> sizes) {
  TensorType t;
  t.dtype = DType::kF32;
  for (int64_t s : sizes) t.sizes.emplace_back(s);
  t.strides = contiguous_strides(t.sizes);
  return t;
}
inline TensorType typed(DType d, std::vector<int64_t> sizes) {
  TensorType t = f32(std::move(sizes));
  t.dtype = d;
  return t;
}
inline void returns(Graph& g, ValueId v) {
  graph::Output o;
  o.value = v;
  o.type = g.type(v);
  g.outputs.push_back(o);
}
inline ValueId extern_call(Builder& b, ValueId x) {
  TensorType t = b.type(x);
  return b.emit("test.extern.default", {Ref{x}}, t);
}

inline std::vector<Array> random_inputs(const Graph& g, uint32_t seed, int64_t index_limit = 2) {
  std::mt19937 random(seed);
  std::vector<Array> inputs;
  for (const graph::Input& in : g.inputs) {
    const TensorType& t = g.type(in.value);
    Array a;
    int64_t n = 1;
    for (sym::Expr s : t.sizes) {
      a.sizes.push_back(s.value());
      n *= s.value();
    }
    for (int64_t i = 0; i < n; ++i) {
      double v = std::normal_distribution<double>()(random);
      if (is_integral(t.dtype)) v = static_cast<double>(random() % static_cast<uint32_t>(index_limit));
      if (t.dtype == DType::kBool) v = random() % 2;
      if (t.dtype == DType::kF32) v = static_cast<float>(v);
      if (t.dtype == DType::kBF16) v = static_cast<float>(std::round(v * 16) / 16);
      a.data.push_back(v);
    }
    inputs.push_back(std::move(a));
  }
  return inputs;
}

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}
  Graph make() {
    Builder b(g_);
    // Sometimes wide enough for whole vectors and their tails.
    const int64_t w = pick(3) == 0 ? 1 + static_cast<int64_t>(pick(40)) : 1;
    const std::vector<std::vector<int64_t>> shapes = {{4, 6 * w}, {2, 3, 4 * w}, {2, 4, 2, 3 * w}, {6 * w}, {4, 1}};
    for (int i = 0; i < 4; ++i) {
      TensorType t = f32(shapes[pick(shapes.size())]);
      if (pick(3) == 0 && t.rank() > 1) {  // a non-contiguous input
        Sizes s;
        sym::Expr stride = 1;
        s.resize(t.rank());
        for (size_t d = 0; d < t.rank(); ++d) s[d] = stride, stride *= t.sizes[d];
        t.strides = s;
      }
      pool_.push_back(g_.add_input(t, i == 3 ? graph::InputKind::kParameter : graph::InputKind::kUser, "x"));
    }
    const int steps = 4 + static_cast<int>(pick(14));
    for (int i = 0; i < steps; ++i) step(b);
    const int outputs = 1 + static_cast<int>(pick(3));
    for (int i = 0; i < outputs; ++i) {
      ValueId v = pool_[pool_.size() - 1 - pick(std::min<size_t>(pool_.size(), 5))];
      bool twice = false;
      for (auto& o : g_.outputs) twice |= o.value == v;
      if (!twice) returns(g_, v);
    }
    return std::move(g_);
  }

 private:
  size_t pick(size_t n) { return random_() % n; }
  int64_t numel(ValueId v) { return g_.type(v).numel().value(); }
  ValueId any() {
    return pool_[pick(2) ? pool_.size() - 1 - pick(std::min<size_t>(pool_.size(), 3)) : pick(pool_.size())];
  }
  // y made to have the sizes of x
  ValueId fit(Builder& b, ValueId y, ValueId x) {
    if (same_sizes(b.sizes(x), b.sizes(y))) return y;
    if (numel(x) == numel(y)) return b.reshape(y, b.sizes(x));
    std::vector<int64_t> dims = b.all_dims(y);
    ValueId s = b.amax(y, dims);
    return b.expand(s, b.sizes(x));
  }
  void step(Builder& b) {
    ValueId x = any();
    const size_t rank = b.rank(x);
    auto dim = [&] { return static_cast<int64_t>(pick(std::max<size_t>(rank, 1))); };
    ValueId r = kNoValue;
    switch (pick(20)) {
      case 0:
        r = b.neg(x);
        break;
      case 1:
        r = b.tanh(x);
        break;
      case 2:
        r = b.sigmoid(x);
        break;
      case 3:
        r = b.relu(x);
        break;
      case 4:
      case 5:
        r = b.add(x, fit(b, any(), x));
        break;
      case 6:
        r = b.mul(x, fit(b, any(), x));
        break;
      case 7:
        r = b.maximum(x, fit(b, any(), x));
        break;
      case 8:
        r = b.where(b.lt(x, fit(b, any(), x)), x, b.scalar_like(x, 0.5));
        break;
      case 9:
        if (rank) r = b.sum(x, {dim()}, pick(2));
        break;
      case 10:
        if (rank) r = b.amax(x, {dim()}, pick(2));
        break;
      case 11:
        if (rank) {
          int64_t d = dim();
          r = b.sub(x, b.amax(x, {d}, true));
          if (pick(2)) {
            ValueId e = b.exp(r);
            r = b.div(e, b.sum(e, {d}, true));
          }
        }
        break;
      case 12:
        if (rank > 1) {
          std::vector<int64_t> p;
          for (size_t i = 0; i < rank; ++i) p.push_back(static_cast<int64_t>(i));
          std::shuffle(p.begin(), p.end(), random_);
          r = b.permute(x, p);
        }
        break;
      case 13: {
        int64_t n = numel(x);
        int64_t k = 1 + static_cast<int64_t>(pick(6));
        if (n % k == 0) r = b.reshape(x, {k, n / k});
        break;
      }
      case 14:
        if (rank) {
          int64_t d = dim(), size = b.size(x, d).value();
          if (size > 1) {
            int64_t start = static_cast<int64_t>(pick(static_cast<size_t>(size)));
            r = b.slice(x, d, start, size, 1 + static_cast<int64_t>(pick(2)));
          }
        }
        break;
      case 15:
        if (rank && numel(x) < 4000) {
          int64_t d = dim();
          ValueId y = any();
          r = b.cat({x, pick(2) ? x : fit(b, y, x)}, d);
        }
        break;
      case 16:
        if (rank && numel(x) < 4000) {
          Sizes lo(rank, 0), hi(rank, 0);
          lo[dim()] = static_cast<int64_t>(pick(3));
          hi[dim()] = static_cast<int64_t>(pick(3));
          r = b.pad(x, lo, hi, 0.25);
        }
        break;
      case 17:
        r = extern_call(b, x);
        break;
      case 18:
        if (rank) r = pick(2) ? b.flip(x, {dim()}) : b.cumsum(b.tanh(x), dim());
        break;
      case 19:
        if (rank && numel(x) / std::max<int64_t>(b.size(x, 0).value(), 1) > 0) {
          int64_t d = dim();
          if (b.size(x, d).value() > 1) {
            auto [var, mean] = b.var(x, {d}, 0, true);
            r = b.mul(b.sub(x, mean), b.rsqrt(b.add(var, b.scalar_like(var, 1.0))));
          }
        }
        break;
    }
    if (r != kNoValue && b.rank(r) < 6) pool_.push_back(r);
  }
  std::mt19937 random_;
  Graph g_{graph::kNewProgram};
  std::vector<ValueId> pool_;
};

}  // namespace flashover::planner::testing

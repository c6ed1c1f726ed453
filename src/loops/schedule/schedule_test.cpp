#include "loops/schedule/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/check.h"
#include "graph/builder.h"
#include "loops/schedule/evaluator_for_test.h"

namespace flashover::loops {
namespace {

using graph::Builder;
using graph::Graph;
using testing::Array;

TensorType f32(std::vector<int64_t> sizes) {
  TensorType t;
  t.dtype = DType::kF32;
  for (int64_t s : sizes) t.sizes.emplace_back(s);
  t.strides = contiguous_strides(t.sizes);
  return t;
}
TensorType typed(DType d, std::vector<int64_t> sizes) {
  TensorType t = f32(std::move(sizes));
  t.dtype = d;
  return t;
}
void returns(Graph& g, ValueId v) {
  graph::Output o;
  o.value = v;
  o.type = g.type(v);
  g.outputs.push_back(o);
}
ValueId extern_call(Builder& b, ValueId x) {
  TensorType t = b.type(x);
  return b.emit("test.extern.default", {Ref{x}}, t);
}

std::vector<Array> random_inputs(const Graph& g, uint32_t seed, int64_t index_limit = 2) {
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

// Schedules, runs through the interpreter, compares with the plain evaluator.
Schedule check(const Graph& g, double tolerance = 2e-5, int64_t index_limit = 2, uint32_t seed = 1) {
  verify(g, graph::Form::kCore);
  Schedule s = schedule(g);
  plan::Plan with_kernels = s.plan;
  with_kernels.binaries.emplace_back();
  for (size_t i = 0; i < s.kernels.size(); ++i) with_kernels.kernels.push_back({"k", 0, {}});
  try {
    plan::verify(with_kernels);
  } catch (const InternalError& e) {
    ADD_FAILURE() << e.what() << "\n" << graph::print(g) << s.text << plan::print(s.plan);
    return s;
  }
  auto inputs = random_inputs(g, seed, index_limit);
  auto expected = testing::evaluate(g, inputs);
  auto got = testing::run_plan(s, inputs);
  EXPECT_EQ(got.error, 0);
  for (size_t o = 0; o < g.outputs.size() && got.error == 0; ++o) {
    const Array& want = expected[g.outputs[o].value];
    EXPECT_EQ(got.outputs[o].sizes, want.sizes);
    for (size_t i = 0; i < want.data.size(); ++i) {
      const double a = got.outputs[o].data[i], b = want.data[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      if (std::fabs(a - b) <= tolerance * (1 + std::fabs(b))) continue;
      ADD_FAILURE() << "output " << o << " [" << i << "]: " << a << " expected " << b << "\n" << graph::print(g) << s.text;
      for (const Kernel& k : s.kernels) std::cerr << print(k);
      return s;
    }
  }
  return s;
}
int64_t launches(const Schedule& s) {
  int64_t n = 0;
  for (const plan::Step& step : s.plan.steps) n += step.kind == plan::StepKind::kLaunch;
  return n;
}
int64_t slab(const Schedule& s) { return s.plan.slab_bytes.value(); }

TEST(Schedule, PointwiseChainIsOneLoop) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({4, 6}), graph::InputKind::kUser, "x"), bias = g.add_input(f32({6}), graph::InputKind::kUser, "b");
  ValueId y = b.relu(b.add(x, bias));
  returns(g, b.mul(y, b.sigmoid(y)));
  Schedule s = check(g);
  EXPECT_EQ(launches(s), 1);
  EXPECT_EQ(s.kernels[0].outer.size(), 2u);
  EXPECT_EQ(s.kernels[0].vector, Vector::kOuter);
  Graph flat;
  Builder c(flat);
  ValueId z = flat.add_input(f32({4, 6, 8}), graph::InputKind::kUser, "x");
  returns(flat, c.exp(z));
  EXPECT_EQ(check(flat).kernels[0].outer.size(), 1u);
}

TEST(Schedule, SoftmaxIsOneKernelOfRows) {
  for (int dim : {-1, 0, 1}) {
    Graph g;
    Builder b(g);
    ValueId x = g.add_input(f32({5, 8, 16}), graph::InputKind::kUser, "x");
    ValueId e = b.exp(b.sub(x, b.amax(x, {dim}, true)));
    returns(g, b.div(e, b.sum(e, {dim}, true)));
    Schedule s = check(g);
    EXPECT_EQ(launches(s), 1) << s.text;
    EXPECT_EQ(s.kernels[0].stages.size(), 3u);
    EXPECT_EQ(s.kernels[0].scratch.size(), 1u);
    EXPECT_EQ(s.kernels[0].vector, dim == -1 ? Vector::kInner : Vector::kOuter);
  }
}

ValueId layer_norm(Builder& b, ValueId x, ValueId w, ValueId bias) {
  auto [var, mean] = b.var(x, {-1}, 0, true);
  ValueId r = b.rsqrt(b.add(var, b.scalar_like(var, 1e-5)));
  return b.add(b.mul(b.mul(b.sub(x, mean), r), w), bias);
}

TEST(Schedule, ResidualLayerNormIsOneKernel) {
  for (DType d : {DType::kF32, DType::kBF16}) {
    Graph g;
    Builder b(g);
    ValueId x = g.add_input(typed(d, {4, 6, 32}), graph::InputKind::kUser, "x"), y = g.add_input(typed(d, {4, 6, 32}), graph::InputKind::kUser, "y");
    ValueId w = g.add_input(f32({32}), graph::InputKind::kParameter, "w"), bias = g.add_input(f32({32}), graph::InputKind::kParameter, "b");
    ValueId h = b.add(x, extern_call(b, y));
    ValueId n = layer_norm(b, d == DType::kF32 ? h : b.convert(h, DType::kF32), w, bias);
    ValueId z = extern_call(b, n);
    returns(g, b.add(d == DType::kF32 ? h : b.convert(h, DType::kF32), z));
    Schedule s = check(g, d == DType::kF32 ? 1e-4 : 5e-2);
    EXPECT_EQ(launches(s), 2) << s.text;
  }
}

TEST(Schedule, GroupNormSplitsChannels) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({2, 6, 4, 4}), graph::InputKind::kUser, "x"), w = g.add_input(f32({6}), graph::InputKind::kUser, "w");
  ValueId r = b.reshape(x, {2, 3, 2 * 16});
  auto [var, mean] = b.var(r, {-1}, 0, true);
  ValueId y = b.reshape(b.mul(b.sub(r, mean), b.rsqrt(b.add(var, b.scalar_like(var, 1e-5)))), {2, 6, 4, 4});
  returns(g, b.mul(y, b.reshape(w, {6, 1, 1})));
  Schedule s = check(g, 1e-4);
  EXPECT_EQ(launches(s), 1) << s.text;
}

TEST(Schedule, ColumnSumsUseTheOuterLoopForLanes) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({12, 40}), graph::InputKind::kUser, "x");
  returns(g, b.sum(x, {0}));
  Schedule s = check(g);
  EXPECT_EQ(s.kernels[0].vector, Vector::kOuter);
}

TEST(Schedule, ViewsAreFreeAndTransposesAreMarked) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({2, 8, 4, 16}), graph::InputKind::kUser, "x");
  ValueId t = b.reshape(b.permute(x, {0, 2, 1, 3}), {8, 128});
  returns(g, b.neg(b.slice(t, 1, 3, 120, 2)));
  EXPECT_EQ(launches(check(g)), 1);
  Graph h;
  Builder c(h);
  ValueId y = h.add_input(f32({32, 48}), graph::InputKind::kUser, "y");
  ValueId copy = c.emit("prim.copy", {Ref{c.permute(y, {1, 0})}}, f32({48, 32}));
  returns(h, copy);
  Schedule s = check(h);
  EXPECT_GE(s.kernels[0].transpose, 0) << print(s.kernels[0]);
}

TEST(Schedule, ExternOperandsThatAreViewsAreNotCopied) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({6, 8}), graph::InputKind::kUser, "x");
  ValueId y = b.exp(x);
  ValueId t = b.permute(b.slice(y, 1, 2, 6), {1, 0});
  returns(g, extern_call(b, t));
  Schedule s = check(g);
  EXPECT_EQ(launches(s), 1) << s.text;
}

TEST(Schedule, CatWritesItsParts) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({3, 4}), graph::InputKind::kUser, "x"), y = g.add_input(f32({3, 5}), graph::InputKind::kUser, "y");
  returns(g, b.cat({b.exp(x), y, x}, 1));
  check(g);
  Graph h;
  Builder c(h);
  x = h.add_input(f32({3, 4}), graph::InputKind::kUser, "x"), y = h.add_input(f32({3, 5}), graph::InputKind::kUser, "y");
  ValueId z = c.cat({c.slice(x, 1, 2, 4), c.neg(c.slice(x, 1, 0, 2)), y}, 1);
  returns(h, c.mul(c.relu(z), c.pad(z, {0, 0}, {0, 0}, 0.0)));
  check(h);
}

TEST(Schedule, PadPoolAndWindows) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({2, 3, 8, 10}), graph::InputKind::kUser, "x");
  ValueId p = b.pad(b.relu(x), {0, 0, 1, 2}, {0, 0, 2, 1}, -1.0);
  ValueId m = b.max_pool(p, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false);
  returns(g, b.avg_pool(m, {2, 2}, {1, 1}, {1, 1}, false, false));
  check(g);
  Graph h;
  Builder c(h);
  x = h.add_input(f32({1, 2, 18, 18}), graph::InputKind::kUser, "x");
  returns(h, c.max_pool(x, {9, 9}, {1, 1}, {4, 4}, {1, 1}, false));
  returns(h, c.avg_pool(x, {8, 8}, {2, 2}, {0, 0}, false, true));
  check(h);
}

TEST(Schedule, EmbeddingAndNorm) {
  Graph g;
  Builder b(g);
  ValueId table = g.add_input(f32({11, 16}), graph::InputKind::kParameter, "t"), ids = g.add_input(typed(DType::kI64, {2, 5}), graph::InputKind::kUser, "i");
  ValueId w = g.add_input(f32({16}), graph::InputKind::kParameter, "w");
  ValueId e = b.index(table, {Ref{ids}});
  returns(g, layer_norm(b, e, w, w));
  Schedule s = check(g, 1e-4, 11);
  EXPECT_EQ(launches(s), 1) << s.text;
  auto inputs = random_inputs(g, 1, 11);
  inputs[1].data[3] = 11;
  EXPECT_EQ(testing::run_plan(s, inputs).error, 1);
  EXPECT_EQ(s.kernels[0].errors[0], "index out of bounds for dimension 0 with size 11");
}

TEST(Schedule, ScatterGatherScan) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({4, 6}), graph::InputKind::kUser, "x"), i = g.add_input(typed(DType::kI64, {4, 3}), graph::InputKind::kUser, "i");
  ValueId src = g.add_input(f32({4, 3}), graph::InputKind::kUser, "s");
  ValueId gathered = b.gather(b.exp(x), 1, i);
  ValueId scattered = b.scatter(x, 1, i, src, "add");
  ValueId set = b.scatter(b.neg(x), 1, i, src, "none");
  returns(g, b.cumsum(scattered, 1));
  returns(g, b.add(gathered, src));
  returns(g, b.cumsum(set, 0));
  check(g, 2e-5, 6);
}

TEST(Schedule, MutationsAndInPlaceReuse) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x"), y = g.add_input(f32({8, 8}), graph::InputKind::kUser, "y");
  ValueId z = b.add(x, y);
  g.mutations.push_back({0, z});
  returns(g, b.mul(x, z));
  Schedule s = check(g);
  auto inputs = random_inputs(g, 1);
  auto got = testing::run_plan(s, inputs);
  for (int i = 0; i < 64; ++i) EXPECT_FLOAT_EQ(got.inputs_after[0].data[i], inputs[0].data[i] + inputs[1].data[i]);

  // exp lies over the extern's operand chain: one slab tensor at a time
  Graph h;
  Builder c(h);
  x = h.add_input(f32({64}), graph::InputKind::kUser, "x");
  ValueId a = c.exp(x);
  ValueId e1 = extern_call(c, a);
  ValueId d = c.mul(a, e1);
  ValueId e2 = extern_call(c, d);
  returns(h, c.add(e2, d));
  EXPECT_EQ(slab(check(h)), 256);
}

TEST(Schedule, WritesInputsInPlace) {
  // x += y: made in x; and a cache: only the slice, or the indexed rows, are stored
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x"), y = g.add_input(f32({8, 8}), graph::InputKind::kUser, "y");
  ValueId cache = g.add_input(f32({2, 16, 4}), graph::InputKind::kBuffer, "k"), k = g.add_input(f32({2, 3, 4}), graph::InputKind::kUser, "n");
  ValueId rows = g.add_input(f32({16, 4}), graph::InputKind::kBuffer, "r"), at = g.add_input(typed(DType::kI64, {2, 3}), graph::InputKind::kUser, "i");
  ValueId z = b.add(x, y);
  ValueId c = b.slice_scatter(cache, k, 1, 5, 8);
  ValueId r = b.index_put(rows, {Ref{at}}, k, false);
  g.mutations = {{0, z}, {2, c}, {4, r}};
  returns(g, b.mul(b.sum(c, {0, 1, 2}), b.sum(r, {0, 1})));
  Schedule s = schedule(g);
  for (const plan::Step& step : s.plan.steps) EXPECT_NE(step.kind, plan::StepKind::kCopy);
  EXPECT_LE(launches(s), 5) << plan::print(s.plan) << s.text;
  auto inputs = random_inputs(g, 1, 16);
  auto got = testing::run_plan(s, inputs);
  for (int i = 0; i < 64; ++i) EXPECT_FLOAT_EQ(got.inputs_after[0].data[i], inputs[0].data[i] + inputs[1].data[i]);
  std::vector<double> want = inputs[2].data, want_rows = inputs[4].data;
  double sum = 0, sum_rows = 0;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int l = 0; l < 4; ++l) {
        want[(i * 16 + 5 + j) * 4 + l] = inputs[3].data[(i * 3 + j) * 4 + l];
        want_rows[static_cast<size_t>(inputs[5].data[i * 3 + j]) * 4 + l] = inputs[3].data[(i * 3 + j) * 4 + l];
      }
  EXPECT_EQ(got.inputs_after[2].data, want);
  EXPECT_EQ(got.inputs_after[4].data, want_rows);
  for (double v : want) sum += v;
  for (double v : want_rows) sum_rows += v;
  EXPECT_NEAR(got.outputs[0].data[0], sum * sum_rows, 1e-3);
}

TEST(Schedule, OldContentIsReadBeforeItIsOverwritten) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x");
  ValueId z = b.add(b.permute(x, {1, 0}), x);
  g.mutations = {{0, z}};
  returns(g, b.mul(x, b.scalar_like(x, 2.0)));
  Schedule s = check(g);
  auto inputs = random_inputs(g, 1);
  auto got = testing::run_plan(s, inputs);
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) EXPECT_FLOAT_EQ(got.inputs_after[0].data[i * 8 + j], inputs[0].data[i * 8 + j] + inputs[0].data[j * 8 + i]);
}

TEST(Schedule, LongReductionsAreShared) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({2, 700, 100}), graph::InputKind::kUser, "x");
  ValueId y = b.exp(x);
  returns(g, b.sum(y, {0, 1, 2}));
  returns(g, b.amax(x, {1, 2}));
  Schedule s = check(g, 1e-3);
  EXPECT_EQ(launches(s), 4) << s.text;
}

TEST(Schedule, FrozenPartIsApart) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({4, 6, 8}), graph::InputKind::kUser, "x");
  ValueId var = g.add_input(f32({6}), graph::InputKind::kBuffer, "var"), w = g.add_input(f32({6}), graph::InputKind::kParameter, "w");
  ValueId scale = b.mul(b.rsqrt(b.add(var, b.scalar_like(var, 1.0 + 9))), w);
  returns(g, b.mul(x, b.reshape(scale, {6, 1})));
  Schedule s = schedule(g);
  EXPECT_EQ(s.plan.frozen_steps.size(), 1u);
  EXPECT_TRUE(s.plan.inputs[1].frozen);
  auto inputs = random_inputs(g, 1);
  for (double& v : inputs[1].data) v = std::fabs(v);
  auto expected = testing::evaluate(g, inputs);
  auto got = testing::run_plan(s, inputs);
  for (size_t i = 0; i < got.outputs[0].data.size(); ++i) EXPECT_NEAR(got.outputs[0].data[i], expected[g.outputs[0].value].data[i], 1e-5);
}

TEST(Schedule, EqualKernelsAreOne) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({4, 32}), graph::InputKind::kUser, "x"), w = g.add_input(f32({32}), graph::InputKind::kParameter, "w");
  for (int i = 0; i < 3; ++i) x = extern_call(b, layer_norm(b, x, w, w));
  returns(g, x);
  Schedule s = check(g, 1e-3);
  EXPECT_EQ(launches(s), 3);
  EXPECT_EQ(s.kernels.size(), 1u);
}

TEST(Schedule, ArgmaxOverSeveralDims) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({3, 4, 5}), graph::InputKind::kUser, "x");
  returns(g, b.argmax(x, {0, 2}));
  returns(g, b.argmax(x, {0, 1, 2}));
  check(g);
}

TEST(Schedule, EmptyAndScalar) {
  Graph g;
  Builder b(g);
  ValueId x = g.add_input(f32({0, 4}), graph::InputKind::kUser, "x"), s = g.add_input(f32({}), graph::InputKind::kUser, "s");
  returns(g, b.exp(x));
  returns(g, b.exp(s));
  returns(g, b.sum(b.broadcast(s, {3, 3}, {}), {0, 1}));
  check(g);
}

// ---- random programs
class Fuzz : public ::testing::TestWithParam<int> {};

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}
  Graph make() {
    Builder b(g_);
    const std::vector<std::vector<int64_t>> shapes = {{4, 6}, {2, 3, 4}, {2, 4, 2, 3}, {6}, {4, 1}};
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
  ValueId any() { return pool_[pick(2) ? pool_.size() - 1 - pick(std::min<size_t>(pool_.size(), 3)) : pick(pool_.size())]; }
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
      case 0: r = b.neg(x); break;
      case 1: r = b.tanh(x); break;
      case 2: r = b.sigmoid(x); break;
      case 3: r = b.relu(x); break;
      case 4:
      case 5: r = b.add(x, fit(b, any(), x)); break;
      case 6: r = b.mul(x, fit(b, any(), x)); break;
      case 7: r = b.maximum(x, fit(b, any(), x)); break;
      case 8: r = b.where(b.lt(x, fit(b, any(), x)), x, b.scalar_like(x, 0.5)); break;
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
        if (rank && numel(x) < 200) {
          int64_t d = dim();
          ValueId y = any();
          r = b.cat({x, pick(2) ? x : fit(b, y, x)}, d);
        }
        break;
      case 16:
        if (rank && numel(x) < 200) {
          Sizes lo(rank, 0), hi(rank, 0);
          lo[dim()] = static_cast<int64_t>(pick(3));
          hi[dim()] = static_cast<int64_t>(pick(3));
          r = b.pad(x, lo, hi, 0.25);
        }
        break;
      case 17: r = extern_call(b, x); break;
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
  Graph g_;
  std::vector<ValueId> pool_;
};

TEST_P(Fuzz, ScheduledProgramsAgreeWithTheEvaluator) {
  for (int i = 0; i < 10; ++i) {
    const auto seed = static_cast<uint32_t>(GetParam() * 10 + i);
    Graph g = Generator(seed).make();
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(check(g, 2e-4, 2, seed)) << seed;
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, ::testing::Range(0, 60));

}  // namespace
}  // namespace flashover::loops

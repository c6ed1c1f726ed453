// Graphs through the scheduler and the interpreter against a plain evaluator; how many kernels and bytes it takes.
#include "planner/planner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/check.h"
#include "graph/builder.h"
#include "planner/evaluator_for_test.h"
#include "planner/random_graph_for_test.h"

namespace flashover::planner {
namespace {

using graph::Builder;
using graph::Graph;
using graph::kNewProgram;
using loops::Kernel;
using loops::Vector;
using testing::Array;
using testing::extern_call;
using testing::f32;
using testing::random_inputs;
using testing::returns;
using testing::typed;

// Schedules, runs through the interpreter, compares with the plain evaluator.
Schedule check(const Graph& g, double tolerance = 2e-5, int64_t index_limit = 2, uint32_t seed = 1) {
  verify(g, graph::Form::kCore);
  Schedule s = schedule(g);
  plan::Plan with_kernels = s.plan;
  with_kernels.binaries.emplace_back();
  for (size_t i = 0; i < s.kernels.size(); ++i) with_kernels.kernels.push_back({"k", 0, {}, {}});
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
      ADD_FAILURE() << "output " << o << " [" << i << "]: " << a << " expected " << b << "\n"
                    << graph::print(g) << s.text;
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
int64_t arena(const Schedule& s) { return s.plan.arena_bytes.value(); }

TEST(Schedule, PointwiseChainIsOneLoop) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({4, 6}), graph::InputKind::kUser, "x"),
          bias = g.add_input(f32({6}), graph::InputKind::kUser, "b");
  ValueId y = b.relu(b.add(x, bias));
  returns(g, b.mul(y, b.sigmoid(y)));
  Schedule s = check(g);
  EXPECT_EQ(launches(s), 1);
  EXPECT_EQ(s.kernels[0].outer.size(), 2u);
  EXPECT_EQ(s.kernels[0].vector, Vector::kOuter);
  Graph flat(kNewProgram);
  Builder c(flat);
  ValueId z = flat.add_input(f32({4, 6, 8}), graph::InputKind::kUser, "x");
  returns(flat, c.exp(z));
  EXPECT_EQ(check(flat).kernels[0].outer.size(), 1u);
}

TEST(Schedule, SoftmaxIsOneKernelOfRows) {
  for (int dim : {-1, 0, 1}) {
    Graph g(kNewProgram);
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
    Graph g(kNewProgram);
    Builder b(g);
    ValueId x = g.add_input(typed(d, {4, 6, 32}), graph::InputKind::kUser, "x"),
            y = g.add_input(typed(d, {4, 6, 32}), graph::InputKind::kUser, "y");
    ValueId w = g.add_input(f32({32}), graph::InputKind::kParameter, "w"),
            bias = g.add_input(f32({32}), graph::InputKind::kParameter, "b");
    ValueId h = b.add(x, extern_call(b, y));
    ValueId n = layer_norm(b, d == DType::kF32 ? h : b.convert(h, DType::kF32), w, bias);
    ValueId z = extern_call(b, n);
    returns(g, b.add(d == DType::kF32 ? h : b.convert(h, DType::kF32), z));
    Schedule s = check(g, d == DType::kF32 ? 1e-4 : 5e-2);
    EXPECT_EQ(launches(s), 2) << s.text;
  }
}

TEST(Schedule, GroupNormSplitsChannels) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({2, 6, 4, 4}), graph::InputKind::kUser, "x"),
          w = g.add_input(f32({6}), graph::InputKind::kUser, "w");
  ValueId r = b.reshape(x, {2, 3, 2 * 16});
  auto [var, mean] = b.var(r, {-1}, 0, true);
  ValueId y = b.reshape(b.mul(b.sub(r, mean), b.rsqrt(b.add(var, b.scalar_like(var, 1e-5)))), {2, 6, 4, 4});
  returns(g, b.mul(y, b.reshape(w, {6, 1, 1})));
  Schedule s = check(g, 1e-4);
  EXPECT_EQ(launches(s), 1) << s.text;
}

TEST(Schedule, ColumnSumsUseTheOuterLoopForLanes) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({12, 40}), graph::InputKind::kUser, "x");
  returns(g, b.sum(x, {0}));
  Schedule s = check(g);
  EXPECT_EQ(s.kernels[0].vector, Vector::kOuter);
}

TEST(Schedule, ViewsAreFreeAndTransposesAreMarked) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({2, 8, 4, 16}), graph::InputKind::kUser, "x");
  ValueId t = b.reshape(b.permute(x, {0, 2, 1, 3}), {8, 128});
  returns(g, b.neg(b.slice(t, 1, 3, 120, 2)));
  EXPECT_EQ(launches(check(g)), 1);
  Graph h(kNewProgram);
  Builder c(h);
  ValueId y = h.add_input(f32({32, 48}), graph::InputKind::kUser, "y");
  ValueId copy = c.emit("prim.copy", {Ref{c.permute(y, {1, 0})}}, f32({48, 32}));
  returns(h, copy);
  Schedule s = check(h);
  EXPECT_GE(s.kernels[0].transpose, 0) << print(s.kernels[0]);
}

TEST(Schedule, ExternOperandsThatAreViewsAreNotCopied) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({6, 8}), graph::InputKind::kUser, "x");
  ValueId y = b.exp(x);
  ValueId t = b.permute(b.slice(y, 1, 2, 6), {1, 0});
  returns(g, extern_call(b, t));
  Schedule s = check(g);
  EXPECT_EQ(launches(s), 1) << s.text;
}

TEST(Schedule, ViewsForExternsAreOfTheMemoryThatTheOutputHas) {
  Graph g(kNewProgram);
  Builder b(g);
  TensorType columns = f32({6, 8});
  columns.strides = {1, 6};
  ValueId x = g.add_input(columns, graph::InputKind::kUser, "x");
  ValueId y = b.exp(x);
  ValueId part = b.slice(y, 1, 2, 6);
  ASSERT_TRUE(b.type(part).strides[0].is_const(1));
  ValueId z = extern_call(b, part);
  returns(g, y);
  g.outputs.back().type = f32({6, 8});  // written row by row
  returns(g, z);
  check(g);
}

TEST(Schedule, CatWritesItsParts) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({3, 4}), graph::InputKind::kUser, "x"),
          y = g.add_input(f32({3, 5}), graph::InputKind::kUser, "y");
  returns(g, b.cat({b.exp(x), y, x}, 1));
  check(g);
  Graph h(kNewProgram);
  Builder c(h);
  x = h.add_input(f32({3, 4}), graph::InputKind::kUser, "x"),
  y = h.add_input(f32({3, 5}), graph::InputKind::kUser, "y");
  ValueId z = c.cat({c.slice(x, 1, 2, 4), c.neg(c.slice(x, 1, 0, 2)), y}, 1);
  returns(h, c.mul(c.relu(z), c.pad(z, {0, 0}, {0, 0}, 0.0)));
  check(h);
}

TEST(Schedule, PadPoolAndWindows) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({2, 3, 8, 10}), graph::InputKind::kUser, "x");
  ValueId p = b.pad(b.relu(x), {0, 0, 1, 2}, {0, 0, 2, 1}, -1.0);
  ValueId m = b.max_pool(p, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false);
  returns(g, b.avg_pool(m, {2, 2}, {1, 1}, {1, 1}, false, false));
  check(g);
  Graph h(kNewProgram);
  Builder c(h);
  x = h.add_input(f32({1, 2, 18, 18}), graph::InputKind::kUser, "x");
  returns(h, c.max_pool(x, {9, 9}, {1, 1}, {4, 4}, {1, 1}, false));
  returns(h, c.avg_pool(x, {8, 8}, {2, 2}, {0, 0}, false, true));
  check(h);
}

TEST(Schedule, EmbeddingAndNorm) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId table = g.add_input(f32({11, 16}), graph::InputKind::kParameter, "t"),
          ids = g.add_input(typed(DType::kI64, {2, 5}), graph::InputKind::kUser, "i");
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
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({4, 6}), graph::InputKind::kUser, "x"),
          i = g.add_input(typed(DType::kI64, {4, 3}), graph::InputKind::kUser, "i");
  ValueId src = g.add_input(f32({4, 3}), graph::InputKind::kUser, "s");
  ValueId gathered = b.gather(b.exp(x), 1, i);
  ValueId scattered = b.scatter(x, 1, i, src, "add");
  ValueId set = b.scatter(b.neg(x), 1, i, src, "none");
  returns(g, b.cumsum(scattered, 1));
  returns(g, b.add(gathered, src));
  returns(g, b.cumsum(set, 0));
  check(g, 2e-5, 6);
}

TEST(Schedule, AnIndexFromMemoryIsNoLoop) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({17}), graph::InputKind::kUser, "x");
  ValueId i = g.add_input(typed(DType::kI64, {1}), graph::InputKind::kUser, "i");
  ValueId y = b.mul(x, x);
  ValueId one = b.index(y, {Ref{i}});
  returns(g, y);
  returns(g, one);
  returns(g, b.add(y, x));
  check(g);
}

TEST(Schedule, MutationsAndInPlaceReuse) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x"),
          y = g.add_input(f32({8, 8}), graph::InputKind::kUser, "y");
  ValueId z = b.add(x, y);
  g.mutations.push_back({0, z});
  returns(g, b.mul(x, z));
  Schedule s = check(g);
  auto inputs = random_inputs(g, 1);
  auto got = testing::run_plan(s, inputs);
  for (int i = 0; i < 64; ++i) EXPECT_FLOAT_EQ(got.inputs_after[0].data[i], inputs[0].data[i] + inputs[1].data[i]);

  // exp lies over the extern's operand chain: one arena tensor at a time
  Graph h(kNewProgram);
  Builder c(h);
  x = h.add_input(f32({64}), graph::InputKind::kUser, "x");
  ValueId a = c.exp(x);
  ValueId e1 = extern_call(c, a);
  ValueId d = c.mul(a, e1);
  ValueId e2 = extern_call(c, d);
  returns(h, c.add(e2, d));
  EXPECT_EQ(arena(check(h)), 256);
}

TEST(Schedule, WritesInputsInPlace) {
  // x += y: made in x; and a cache: only the slice, or the indexed rows, are stored
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x"),
          y = g.add_input(f32({8, 8}), graph::InputKind::kUser, "y");
  ValueId cache = g.add_input(f32({2, 16, 4}), graph::InputKind::kBuffer, "k"),
          k = g.add_input(f32({2, 3, 4}), graph::InputKind::kUser, "n");
  ValueId rows = g.add_input(f32({16, 4}), graph::InputKind::kBuffer, "r"),
          at = g.add_input(typed(DType::kI64, {2, 3}), graph::InputKind::kUser, "i");
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

TEST(Schedule, IndexChecksOfInputsAreForeseen) {
  const auto bounds = [](auto&& index) {
    Graph g(kNewProgram);
    Builder b(g);
    ValueId table = g.add_input(f32({11, 16}), graph::InputKind::kUser, "t"),
            ids = g.add_input(typed(DType::kI64, {5}), graph::InputKind::kUser, "i");
    returns(g, b.index(table, {Ref{index(b, ids)}}));
    const Schedule s = schedule(g);
    const plan::Step& step = s.plan.steps[0];
    if (!step.foreseen) return std::string("unknown");
    std::string out;
    for (const plan::Bounds& b : step.bounds) out += std::to_string(b.lo) + ".." + std::to_string(b.hi);
    return out;
  };
  const auto number = [](Builder& b, ValueId i, int64_t n) { return b.scalar_like(i, sym::Expr(n)); };
  EXPECT_EQ(bounds([](Builder&, ValueId i) { return i; }), "-11..10");
  EXPECT_EQ(bounds([&](Builder& b, ValueId i) { return b.add(i, number(b, i, 2)); }), "-13..8");
  EXPECT_EQ(bounds([&](Builder& b, ValueId i) { return b.sub(i, number(b, i, 1)); }), "-10..11");
  EXPECT_EQ(bounds([&](Builder& b, ValueId i) { return b.maximum(i, number(b, i, 1)); }),
            std::to_string(-INT64_MAX) + "..10");
  EXPECT_EQ(bounds([&](Builder& b, ValueId i) { return b.minimum(b.maximum(i, number(b, i, 0)), number(b, i, 10)); }),
            "");
  EXPECT_EQ(bounds([&](Builder& b, ValueId i) { return b.maximum(i, number(b, i, 11)); }), "unknown");
  EXPECT_EQ(bounds([](Builder& b, ValueId i) { return b.mul(i, i); }), "unknown");
}

TEST(Schedule, InputsAreWrittenBehindWhatMayRaise) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x"),
          y = g.add_input(f32({3, 8}), graph::InputKind::kUser, "y"),
          i = g.add_input(typed(DType::kI64, {5}), graph::InputKind::kUser, "i");
  ValueId z = b.add(x, b.scalar_like(x, 1.0));
  g.mutations = {{0, z}};
  returns(g, b.sum(z, {0}));
  returns(g, b.index(y, {Ref{b.mul(i, i)}}));
  Schedule s = check(g, 1e-5, 2);
  ASSERT_EQ(s.plan.steps.size(), 2u) << plan::print(s.plan);
  EXPECT_FALSE(s.kernels[s.plan.steps[0].kernel].errors.empty()) << plan::print(s.plan);
}

// Rows go into the table that they are added to, unless a step reads it afterwards, or it is the caller's.
TEST(Schedule, OperatorsWriteOverOperandsThatDie) {
  const auto calls = [](const Schedule& s) {
    std::string names;
    for (const plan::Step& step : s.plan.steps)
      if (step.kind == plan::StepKind::kCall) names += step.op + " ";
    return names;
  };
  const auto make = [](bool by_kernel, bool read_later, bool given, bool returned) {
    Graph g(kNewProgram);
    Builder b(g);
    ValueId x = g.add_input(f32({8, 4}), graph::InputKind::kUser, "x");
    ValueId rows = g.add_input(f32({2, 4}), graph::InputKind::kUser, "rows");
    ValueId at = g.add_input(typed(DType::kI64, {2}), graph::InputKind::kUser, "at");
    ValueId table = given ? x : by_kernel ? b.exp(x) : extern_call(b, x);
    ValueId sum = b.emit("flashover.add_rows.default", {Ref{table}, Ref{rows}, Ref{at}, sym::Expr(-1)}, f32({8, 4}));
    std::vector<ValueId> results{returned ? sum : b.exp(sum)};
    if (read_later) results.push_back(b.mul(table, sum));
    for (ValueId r : results) returns(g, r);
    verify(g, graph::Form::kCore);
    Schedule s = schedule(g);
    plan::Plan p = s.plan;
    p.binaries.emplace_back();
    for (size_t i = 0; i < s.kernels.size(); ++i) p.kernels.push_back({"k", 0, {}, {}});
    plan::verify(p);
    return s;
  };
  for (bool by_kernel : {false, true})
    for (bool returned : {false, true}) {
      EXPECT_NE(calls(make(by_kernel, false, false, returned)).find("add_rows_."), std::string::npos);
      EXPECT_EQ(calls(make(by_kernel, true, false, returned)).find("add_rows_."), std::string::npos);
    }
  EXPECT_EQ(calls(make(false, false, true, true)).find("add_rows_."), std::string::npos);
}

TEST(Schedule, OldContentIsReadBeforeItIsOverwritten) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({8, 8}), graph::InputKind::kUser, "x");
  ValueId z = b.add(b.permute(x, {1, 0}), x);
  g.mutations = {{0, z}};
  returns(g, b.mul(x, b.scalar_like(x, 2.0)));
  Schedule s = check(g);
  auto inputs = random_inputs(g, 1);
  auto got = testing::run_plan(s, inputs);
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j)
      EXPECT_FLOAT_EQ(got.inputs_after[0].data[i * 8 + j], inputs[0].data[i * 8 + j] + inputs[0].data[j * 8 + i]);
}

TEST(Schedule, LongReductionsAreShared) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({2, 700, 100}), graph::InputKind::kUser, "x");
  ValueId y = b.exp(x);
  returns(g, b.sum(y, {0, 1, 2}));
  returns(g, b.amax(x, {1, 2}));
  Schedule s = check(g, 1e-3);
  EXPECT_EQ(launches(s), 4) << s.text;
}

TEST(Schedule, FrozenPartIsApart) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({4, 6, 8}), graph::InputKind::kUser, "x");
  ValueId var = g.add_input(f32({6}), graph::InputKind::kBuffer, "var"),
          w = g.add_input(f32({6}), graph::InputKind::kParameter, "w");
  ValueId scale = b.mul(b.rsqrt(b.add(var, b.scalar_like(var, 1.0 + 9))), w);
  returns(g, b.mul(x, b.reshape(scale, {6, 1})));
  Schedule s = schedule(g);
  EXPECT_EQ(s.plan.frozen_steps.size(), 1u);
  EXPECT_TRUE(s.plan.inputs[1].frozen);
  auto inputs = random_inputs(g, 1);
  for (double& v : inputs[1].data) v = std::fabs(v);
  auto expected = testing::evaluate(g, inputs);
  auto got = testing::run_plan(s, inputs);
  for (size_t i = 0; i < got.outputs[0].data.size(); ++i)
    EXPECT_NEAR(got.outputs[0].data[i], expected[g.outputs[0].value].data[i], 1e-5);
}

TEST(Schedule, EqualKernelsAreOne) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({4, 32}), graph::InputKind::kUser, "x"),
          w = g.add_input(f32({32}), graph::InputKind::kParameter, "w");
  for (int i = 0; i < 3; ++i) x = extern_call(b, layer_norm(b, x, w, w));
  returns(g, x);
  Schedule s = check(g, 1e-3);
  EXPECT_EQ(launches(s), 3);
  EXPECT_EQ(s.kernels.size(), 1u);
}

TEST(Schedule, KernelsThatDifferInSizesAreOne) {
  Graph g(kNewProgram);
  Builder b(g);
  std::vector<ValueId> outs;
  for (auto [n, c, hw] : {std::tuple{2, 3, 16}, {2, 5, 49}, {3, 4, 20}}) {
    ValueId x = g.add_input(f32({n, c, hw}), graph::InputKind::kUser, "x"),
            w = g.add_input(f32({c, 1}), graph::InputKind::kUser, "w");
    ValueId p = g.add_input(f32({c, hw}), graph::InputKind::kParameter, "p");
    ValueId norm = b.div(p, b.sum(b.exp(p), {1}, true));
    returns(g, b.relu(b.mul(b.add(extern_call(b, b.mul(x, w)), x), norm)));
  }
  Schedule s = check(g);
  EXPECT_EQ(s.plan.frozen_steps.size(), 3u);
  EXPECT_EQ(launches(s), 6);
  EXPECT_EQ(s.kernels.size(), 3u);
  for (const Kernel& k : s.kernels) EXPECT_FALSE(k.sizes.empty()) << print(k);
}

TEST(Schedule, KernelsOverAPartAndTheWholeAreOne) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({16, 17}), graph::InputKind::kUser, "x");
  ValueId part = b.slice(x, {0, 0}, {1, 17}, {1, 1});
  returns(g, b.mul(part, b.full({1, 17}, 2.0, DType::kF32, {})));
  returns(g, b.mul(x, b.full({16, 17}, 2.0, DType::kF32, {})));
  EXPECT_EQ(check(g).kernels.size(), 1u);
}

TEST(Schedule, ReductionsOverNothing) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({4, 16, 3}), graph::InputKind::kUser, "x");
  ValueId none = b.slice(x, {0, 0, 2}, {4, 16, 2}, {1, 1, 1});
  returns(g, b.sum(none, {0, 1, 2}));
  returns(g, b.prod(none, {1, 2}));
  check(g);
}

TEST(Schedule, ArgmaxOverSeveralDims) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({3, 4, 5}), graph::InputKind::kUser, "x");
  returns(g, b.argmax(x, {0, 2}));
  returns(g, b.argmax(x, {0, 1, 2}));
  check(g);
}

TEST(Schedule, EmptyAndScalar) {
  Graph g(kNewProgram);
  Builder b(g);
  ValueId x = g.add_input(f32({0, 4}), graph::InputKind::kUser, "x"),
          s = g.add_input(f32({}), graph::InputKind::kUser, "s");
  returns(g, b.exp(x));
  returns(g, b.exp(s));
  returns(g, b.sum(b.broadcast(s, {3, 3}, {}), {0, 1}));
  check(g);
}

// ---- random programs
class Fuzz : public ::testing::TestWithParam<int> {};

TEST_P(Fuzz, ScheduledProgramsAgreeWithTheEvaluator) {
  for (int i = 0; i < 10; ++i) {
    const auto seed = static_cast<uint32_t>(GetParam() * 10 + i);
    Graph g = testing::Generator(seed).make();
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(check(g, 2e-4, 2, seed)) << seed;
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, ::testing::Range(0, 60));

}  // namespace
}  // namespace flashover::planner

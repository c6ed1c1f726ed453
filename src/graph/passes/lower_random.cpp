// Replaces random operators by prims of seed, offset and element number, as eager's grid would draw.
#include "graph/passes/lower_random.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "graph/decompose/rules.h"
#include "graph/passes/dce.h"
#include "graph/rewrite/replace.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Eager's kernels count elements in 32 bits below this.
constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kBlock = 256;
// Where each element costs a call for four (3.6 ps on an H200, where writing and reading four bytes takes 1.9 ps),
// more than so many are left to eager's operator.
constexpr int64_t kMostApart = 1 << 20;

// How eager's operator draws.
struct Draw {
  int64_t numel = 0, threads = 0, width = 1;
  Sizes strides;      // of an element's number
  int64_t calls = 0;  // by which the generator moves on, in calls for four numbers
};

class Random {
 public:
  Random(Graph& g, const target::Providers& p) : g_(g), providers_(p), producer_(g.values.size(), -1) {
    for (size_t i = 0; i < g.nodes.size(); ++i)
      for (ValueId v : g.nodes[i].outs)
        if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
    input_.assign(g.values.size(), -1);
    for (size_t i = 0; i < g.inputs.size(); ++i) input_[g.inputs[i].value] = static_cast<int32_t>(i);
  }

  Graph run() {
    find();
    if (groups_.empty()) return std::move(g_);
    Graph out(std::move(g_.facts));
    out.values = std::move(g_.values);
    out.inputs = std::move(g_.inputs);
    Replacement replacement(out.values.size());
    std::vector<ValueId> states(groups_.size(), kNoValue);
    std::vector<int64_t> drawn(groups_.size(), 0);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      Node& n = g_.nodes[i];
      replacement.apply(n);
      if (group_[i] < 0) {
        out.nodes.push_back(std::move(n));
        continue;
      }
      const auto group = static_cast<size_t>(group_[i]);
      const Draw& draw = *draws_[i];
      Builder b(out, n.location);
      ValueId& state = states[group];
      if (state == kNoValue) state = b.emit("flashover.philox_state.default", {sym::Expr(groups_[group] * 4), device_});
      const size_t first_node = out.nodes.size();
      const Drawer drawer{b, state, drawn[group], draw};
      std::vector<ValueId> results;
      recipe(n)->build(drawer, n, results);
      drawn[group] += draw.calls;
      for (size_t r = 0; r < results.size(); ++r) {
        if (n.outs[r] == kNoValue) continue;
        results[r] = in_layout(b, first_node, results[r], b.type(n.outs[r]));
        replacement.set(n.outs[r], results[r]);
      }
    }
    out.outputs = std::move(g_.outputs);
    out.mutations = std::move(g_.mutations);
    replacement.apply_results(out);
    return dce(std::move(out));
  }

 private:
  struct Drawer {
    Builder& b;
    ValueId state;
    int64_t first;
    const Draw& draw;
    ValueId operator()(Prim prim, const Sizes& sizes) const {
      return b.emit(
          prim, {Ref{state}, sizes, draw.strides, sym::Expr(first), sym::Expr(draw.threads), sym::Expr(draw.width)});
    }
  };
  struct Recipe {
    std::string_view op;
    std::optional<Draw> (Random::*draw)(const Node& n) const;
    void (*build)(const Drawer& drawer, const Node& n, Values& results);
  };
  static const Recipe* recipe(const Node& n) {
    static constexpr Recipe kRecipes[] = {
        {op::native_dropout, &Random::of_dropout, dropout},
        {op::bernoulli_p, &Random::of_bernoulli, bernoulli},
        {op::rand, &Random::of_floats, rand},
        {op::rand_like, &Random::of_floats, rand},
        {op::uniform, &Random::of_range, uniform},
        {op::randn, &Random::of_floats, randn},
        {op::randn_like, &Random::of_floats, randn},
        {op::normal_functional, &Random::of_range, normal},
    };
    for (const Recipe& r : kRecipes)
      if (r.op == n.op->name) return &r;
    return nullptr;
  }

  // What each random operator draws, and which of them share a state.
  void find() {
    group_.assign(g_.nodes.size(), -1);
    draws_.resize(g_.nodes.size());
    bool open = false;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (!n.op->nondeterministic && !n.op->effectful) {
        open &= is_known(n);
        continue;
      }
      const Recipe* r = recipe(n);
      if (r) draws_[i] = (this->*r->draw)(n);
      if (!draws_[i]) {
        open &= draws_nothing(n);
        continue;
      }
      if (!open) groups_.push_back(0);
      open = true;
      group_[i] = static_cast<int32_t>(groups_.size()) - 1;
      groups_.back() += draws_[i]->calls;
    }
  }
  // Operators of the program's own may draw and not say so.
  static bool is_known(const Node& n) {
    const std::string_view name = n.op->name;
    return n.op->is_prim() || op::is_aten(name) || name.starts_with("functional.aten.") ||
           name.starts_with("flashover.");
  }
  // Attention is random when it drops something out.
  static bool draws_nothing(const Node& n) {
    static constexpr std::pair<std::string_view, size_t> kDropout[] = {
        {op::_scaled_dot_product_flash_attention, 3},
        {op::_scaled_dot_product_efficient_attention, 5},
        {op::_scaled_dot_product_cudnn_attention, 5},
    };
    for (const auto& [name, at] : kDropout)
      if (n.op->name == name) return n.args.size() <= at || ops::is_number(n.args[at], 0);
    return false;
  }

  std::optional<Draw> grid(const TensorType& t) const {
    const auto numel = t.numel().as_const();
    if (t.device.type != DeviceType::kCUDA || !numel || *numel <= 0 || *numel >= kMost) return std::nullopt;
    Draw d;
    d.numel = *numel;
    d.threads = std::min(providers_.random_threads, (d.numel + kBlock - 1) / kBlock * kBlock);
    d.calls = (d.numel - 1) / (d.threads * 4) + 1;
    d.strides = contiguous_strides(t.sizes);
    return d;
  }
  std::optional<Draw> with_device(std::optional<Draw> d, const TensorType& t) const {
    if (d) device_ = t.device;
    return d;
  }

  // (x, p, train)
  std::optional<Draw> of_dropout(const Node& n) const {
    const ValueId x = ops::as_value(n.args[0]);
    const TensorType& t = g_.type(x);
    const auto p = rules::number(n.args[1]);
    const bool* train = std::get_if<bool>(&n.args[2]);
    if (!p || *p == 1 || (train && !*train) || !is_floating(t.dtype) || !rules::plain(t.dtype)) return std::nullopt;
    auto d = grid(t);
    if (!d || !begins_aligned(x)) return std::nullopt;
    // As wide as 16 bytes, where that leaves no rest.
    d->width = std::min<int64_t>(8, 16 / info(t.dtype).bytes);
    while (d->width > 1 && d->numel % d->width) d->width /= 2;
    // Elements are numbered as they lie in memory.
    if (d->numel > kMostApart && (d->width < 4 || !in_fours(t))) return std::nullopt;
    if (!is_contiguous(t)) {
      if (d->width == 1 || !ops::is_dense(t.sizes, t.strides)) return std::nullopt;
      d->strides = t.strides;
    }
    for (ValueId v : n.outs)
      if (v != kNoValue && !same_strides(g_.type(v), t)) return std::nullopt;
    return with_device(std::move(d), t);
  }
  static void dropout(const Drawer& draw, const Node& n, Values& results) {
    Builder& b = draw.b;
    const ValueId x = ops::as_value(n.args[0]);
    const DType d = b.dtype(x), m = rules::math(d);
    const double p = *rules::number(n.args[1]);
    double keep = 1 - p;
    if (m == DType::kF32) keep = static_cast<float>(keep);
    double scale = 1 / keep;
    if (m == DType::kF32) scale = static_cast<float>(scale);
    const ValueId u = b.convert(draw(Prim::uniform, b.sizes(x)), m);
    const ValueId mask = b.lt(u, rules::constant(b, u, keep));
    const ValueId factor = rules::constant(b, u, scale), kept = b.convert(mask, m);
    const ValueId y = b.mul(b.mul(b.convert(x, m), kept), factor);
    results = {b.convert(y, d), mask};
  }

  // What eager's common kernel fills: each thread takes every so many-th element, so neighbours share nothing and each
  // costs a whole call.
  std::optional<Draw> of_result(const Node& n) const {
    if (n.outs[0] == kNoValue) return std::nullopt;
    const TensorType& t = g_.type(n.outs[0]);
    if (!is_contiguous(t) || !rules::plain(t.dtype)) return std::nullopt;
    auto d = grid(t);
    if (d && d->numel > kMostApart) d.reset();
    return with_device(std::move(d), t);
  }
  bool is_float(const Node& n) const {
    const DType d = n.outs[0] == kNoValue ? DType::kUndefined : g_.type(n.outs[0]).dtype;
    return d == DType::kF32 || is_reduced(d);
  }
  static bool has_generator(const Node& n, size_t at) { return n.args.size() > at && !is_none(n.args[at]); }
  // (x, p, generator)
  std::optional<Draw> of_bernoulli(const Node& n) const {
    const auto p = rules::number(n.args[1]);
    const bool wide = n.outs[0] != kNoValue && g_.type(n.outs[0]).dtype == DType::kF64;
    if (!p || !(*p >= 0 && *p <= 1) || has_generator(n, 2) || wide) return std::nullopt;
    return of_result(n);
  }
  static void bernoulli(const Drawer& draw, const Node& n, Values& results) {
    Builder& b = draw.b;
    const TensorType t = b.type(n.outs[0]);
    const ValueId u = draw(Prim::uniform, t.sizes);
    const auto p = static_cast<float>(*rules::number(n.args[1]));
    results = {b.convert(b.lt(u, rules::constant(b, u, p)), t.dtype)};
  }
  std::optional<Draw> of_floats(const Node& n) const { return is_float(n) ? of_result(n) : std::nullopt; }
  // (x, first number, second number, generator)
  std::optional<Draw> of_range(const Node& n) const {
    const auto a = rules::number(n.args[1]), b = rules::number(n.args[2]);
    if (!a || !b || !std::isfinite(*a) || !std::isfinite(*b) || has_generator(n, 3)) return std::nullopt;
    const bool between = n.op->name == op::uniform;
    if (between ? *a > *b : *b < 0) return std::nullopt;
    auto d = of_floats(n);  // (ends of 16 bits are rounded, and so is the difference)
    return d && between && g_.type(n.outs[0]).dtype != DType::kF32 ? std::nullopt : std::move(d);
  }
  // Rounded where eager rounds.
  static ValueId as(Builder& b, ValueId x, DType d) {
    return d == DType::kF32 ? x : b.emit(Prim::convert, {Ref{x}, d, true});
  }
  // From the left end, which counts, to the right end, which does not; eager draws them the other way round.
  static void between(const Drawer& draw, const Node& n, float from, float to, Values& results) {
    Builder& b = draw.b;
    const TensorType t = b.type(n.outs[0]);
    const float range = to - from;
    ValueId u = draw(Prim::uniform, t.sizes);
    const auto whole = [&](double v) { return b.expand(rules::constant(b, u, v), t.sizes); };
    if (range != 1 || from != 0) {
      const ValueId shift = whole(from);
      u = b.fma(u, whole(range), shift);
    }
    const ValueId v = as(b, u, t.dtype);
    const ValueId instead = rules::constant(b, v, from);
    results = {b.where(b.eq(v, rules::constant(b, v, to)), instead, v)};
  }
  static void rand(const Drawer& draw, const Node& n, Values& results) { between(draw, n, 0, 1, results); }
  static void uniform(const Drawer& draw, const Node& n, Values& results) {
    between(draw, n, static_cast<float>(*rules::number(n.args[1])), static_cast<float>(*rules::number(n.args[2])),
            results);
  }
  static void around(const Drawer& draw, const Node& n, double mean, double deviation, Values& results) {
    Builder& b = draw.b;
    const TensorType t = b.type(n.outs[0]);
    ValueId v = draw(Prim::normal, t.sizes);
    const auto whole = [&](double x) { return b.expand(rules::constant(b, v, x), t.sizes); };
    if (mean != 0 || deviation != 1) {
      const ValueId shift = whole(mean);
      v = b.fma(v, whole(deviation), shift);
    }
    results = {as(b, v, t.dtype)};
  }
  static void randn(const Drawer& draw, const Node& n, Values& results) { around(draw, n, 0, 1, results); }
  static void normal(const Drawer& draw, const Node& n, Values& results) {
    around(draw, n, *rules::number(n.args[1]), *rules::number(n.args[2]), results);
  }

  // Rows of a multiple of four: neighbours that share a call lie in one row.
  static bool in_fours(const TensorType& t) {
    for (size_t i = 0; i < t.rank(); ++i)
      if (t.strides[i].is_const(1) && !t.sizes[i].is_const(1)) return sym::known_divisible(t.sizes[i], 4);
    return true;
  }

  // In eager: memory of its own, or an input from its first element on. (Parts of tensors may begin anywhere.)
  bool begins_aligned(ValueId v) const {
    for (;;) {
      if (!g_.type(v).offset.is_const(0)) return false;
      if (input_[v] >= 0) return true;
      const Node& n = g_.nodes[static_cast<size_t>(producer_[v])];
      if (n.op->kind != ops::OpKind::kView) return true;
      if (!is_any_of(n.op->prim, {Prim::reshape, Prim::permute, Prim::broadcast})) return false;
      v = ops::as_value(n.args[0]);
    }
  }

  Graph& g_;
  const target::Providers& providers_;
  std::vector<int32_t> producer_, input_;
  std::vector<int32_t> group_;  // by node; -1: not ours
  std::vector<std::optional<Draw>> draws_;
  std::vector<int64_t> groups_;  // calls of all
  mutable Device device_;
};

}  // namespace

int64_t random_threads(int multiprocessors, int threads) { return multiprocessors * (threads / kBlock) * kBlock; }

Graph lower_random(Graph core, const target::Providers& providers) {
  return providers.random_threads > 0 ? Random(core, providers).run() : core;
}

}  // namespace flashover::graph

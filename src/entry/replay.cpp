// Cuts the forward out of a joint graph, and evaluates it.
#include "entry/replay.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "eager/eval.h"
#include "graph/passes/functionalize.h"
#include "ops/names.h"

namespace flashover::entry {
namespace {

// Batch norm in training moves its running statistics, arguments 3 and 4, and does not compute with them.
bool is_running_statistic(const graph::Node& n, size_t arg) {
  if (arg != 3 && arg != 4) return false;
  const std::string& name = n.op->on_clones ? n.op->on_clones->name : n.op->name;
  if (!op::is_any_of(name, {op::native_batch_norm, op::_native_batch_norm_legit_functional})) return false;
  const bool* training = std::get_if<bool>(&n.args.at(5));
  return training != nullptr && *training;
}

}  // namespace

Replay::Replay(graph::Graph traced, graph::Joint joint)
    : graph_(joint.followed ? std::move(traced) : graph::Graph(graph::kNewProgram)), joint_(std::move(joint)) {
  for (const graph::Joint::Result& r : joint_.results) follows_.emplace_back(r.follows.begin(), r.follows.end());
}

const std::string& Replay::impossible() const {
  prepare();
  return impossible_;
}

bool Replay::takes(size_t i) const {
  prepare();
  return takes_.at(i);
}

bool Replay::depends_on(size_t i) const {
  prepare();
  return depends_.at(i);
}

void Replay::prepare() const {
  std::call_once(once_, [&] { impossible_ = cut(); });
}

// The traced graph without writes and views.
graph::Graph Replay::functional() const {
  std::vector<size_t> passed;
  for (const std::vector<size_t>& of : follows_) passed.insert(passed.end(), of.begin(), of.end());
  std::vector<ValueId> values;
  for (size_t i : passed) values.push_back(graph_.outputs.at(i).value);
  graph::Graph g = graph::functionalize(graph_, values);
  passed_.assign(follows_.size(), kNoValue);
  for (size_t k = 0; k < passed.size(); ++k) passed_[passed[k]] = values[k];
  return g;
}

std::string Replay::cut() const {
  if (!joint_.followed) return "parts of it are hidden from autograd (no_grad, detach, a torch.autograd.Function)";
  if (writes_followed_inputs()) return "it writes inputs that autograd is to see written";
  if (!joint_.late.empty()) return "its backward reads inputs";
  graph::Graph g = functional();
  std::vector<graph::Output> outputs(joint_.tangents.size(), graph::Output{});
  for (size_t i = 0; i < joint_.results.size(); ++i) {
    const int32_t tangent = joint_.results[i].tangent;
    if (tangent < 0) continue;
    if (!g.outputs[i].owns_memory()) return "a result is memory of an input or of another result";
    graph::Output& o = outputs.at(static_cast<size_t>(tangent));
    o = g.outputs[i];
    if (passed_[i] != kNoValue) o.value = passed_[i];  // where its history ends (results_apart)
  }
  std::vector<bool> needed(g.values.size()), taken(g.values.size());
  for (const graph::Output& o : outputs) {
    if (o.value == kNoValue) return "it makes tensors of a class of its own";
    needed[o.value] = true;
  }
  std::vector<graph::Node> nodes;
  for (auto n = g.nodes.rbegin(); n != g.nodes.rend(); ++n) {
    if (std::ranges::none_of(n->outs, [&](ValueId v) { return v != kNoValue && (needed[v] || taken[v]); })) continue;
    if (n->op->nondeterministic) return "it draws random numbers";
    for (size_t i = 0; i < n->args.size(); ++i)
      graph::for_each_ref(n->args[i], [&](ValueId v) { (is_running_statistic(*n, i) ? taken : needed)[v] = true; });
    nodes.push_back(std::move(*n));
  }
  std::ranges::reverse(nodes);
  for (const graph::Mutation& m : g.mutations)
    if (needed[g.inputs[static_cast<size_t>(m.input)].value]) return "it writes an input that its results depend on";
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    if (g.inputs[i].kind == graph::InputKind::kTangent) continue;
    inputs_.push_back(i);
    depends_.push_back(needed[g.inputs[i].value]);
    takes_.push_back(depends_.back() || taken[g.inputs[i].value]);
  }
  g.nodes = std::move(nodes);
  g.outputs = std::move(outputs);
  g.mutations.clear();
  graph_ = std::move(g);
  return {};
}

std::vector<at::Tensor> Replay::all_inputs(const std::vector<at::Tensor>& of_call) const {
  prepare();
  std::vector<at::Tensor> all(graph_.inputs.size());
  for (size_t i = 0; i < inputs_.size(); ++i) all[inputs_[i]] = of_call.at(i);
  return all;
}

std::vector<at::Tensor> Replay::results(const std::vector<at::Tensor>& inputs) const {
  return aten::eval_under_autograd(graph_, all_inputs(inputs));
}

Replay::Apart Replay::results_apart(const std::vector<at::Tensor>& inputs) const {
  const std::vector<at::Tensor> all = all_inputs(inputs);
  aten::HistoryCuts cuts{.values = passed_};
  std::vector<at::Tensor> results = aten::eval_under_autograd(graph_, all, &cuts);
  return {std::move(results), std::move(cuts.leaves)};
}

std::optional<Replay::Tolerance> Replay::tolerance() const {
  const auto any = [&](auto&& of) {
    return std::ranges::any_of(graph_.values, [&](const graph::Value& v) { return of(v.type.dtype); });
  };
  if (any(is_reduced)) return std::nullopt;
  if (any([](DType d) { return d == DType::kF32 || d == DType::kC64; })) return Tolerance{2e-3, 2e-4};
  return Tolerance{1e-6, 1e-7};
}

std::vector<at::Tensor> Replay::moved(const std::vector<at::Tensor>& inputs) {
  constexpr double kSteps = 8;  // of the type's precision
  std::vector<at::Tensor> out;
  for (const at::Tensor& t : inputs) {
    const bool moves = t.defined() && (t.is_floating_point() || t.is_complex());
    const double step = !moves ? 0 : c10::toRealValueType(t.scalar_type()) == at::kDouble ? 0x1p-52 : 0x1p-23;
    const c10::AutoGradMode not_followed(false);
    out.push_back(moves ? t.mul(1 + kSteps * step).set_requires_grad(t.requires_grad()) : t);
  }
  return out;
}

bool are_same_gradients(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& other,
                        Replay::Tolerance tolerance, const std::vector<at::Tensor>& nearby) {
  constexpr double kTimes = 10;  // what a few steps of precision move may differ so many times as much
  const c10::AutoGradMode not_followed(false);
  const auto size_of = [](const at::Tensor& t) { return t.abs().max().to(at::kDouble).item<double>(); };
  struct Found {
    double error, scale, moves;
  };
  std::vector<Found> found;
  double largest = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor &a = gradients[i], &b = other[i];
    if (!a.defined() && !b.defined()) continue;
    const bool both = a.defined() && b.defined();
    const at::Tensor& one = a.defined() ? a : b;             // the other may be undefined where nothing but zeros come
    if (both && !a.sizes().equals(b.sizes())) return false;  // (the engine converts types)
    if (one.numel() == 0) continue;
    const double scale = size_of(one);
    const bool is_moved = b.defined() && i < nearby.size() && nearby[i].defined();
    found.push_back({both ? size_of(a.sub(b)) : scale, scale, is_moved ? size_of(b.sub(nearby[i])) : 0});
    largest = std::max(largest, scale);
  }
  return std::ranges::all_of(found, [&](const Found& f) {
    return !(f.error > std::max({tolerance.of_its_own * f.scale, tolerance.of_all * largest, kTimes * f.moves}));
  });
}

}  // namespace flashover::entry

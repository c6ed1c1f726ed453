// Calls that need the values of tensors: computed while tracing where these follow from constants only, else assumed
// where one answer leads to an exception, else the trace is declined.
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/logical_not.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "eager/eval.h"
#include "graph/written.h"
#include "ops/names.h"
#include "trace/assume.h"
#include "trace/bounds.h"
#include "trace/map_tensors.h"
#include "trace/outside.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// Buffers that may be known by what they hold.
bool is_small_buffer(const graph::Graph& g, const graph::Input& in) {
  const TensorType& t = g.type(in.value);
  return in.kind == graph::InputKind::kBuffer && !in.requires_grad && t.device.type == DeviceType::kCPU &&
         t.numel().value() == 1;
}

// Marks memory that depends on anything but constants (and small buffers), in program order.
std::vector<bool> tainted_storages(const graph::Graph& g, size_t storages, bool buffers) {
  std::vector<bool> tainted(storages, false);
  const auto storage_of = [&](ValueId v) { return v == kNoValue ? -1 : g.values[v].storage; };
  for (const graph::Input& in : g.inputs)
    if (in.kind != graph::InputKind::kConstant && storage_of(in.value) >= 0 && !(buffers && is_small_buffer(g, in)))
      tainted[storage_of(in.value)] = true;
  // Two inputs of one memory: neither is known.
  std::vector<int> inputs_of(storages, 0);
  for (const graph::Input& in : g.inputs)
    if (storage_of(in.value) >= 0 && ++inputs_of[storage_of(in.value)] > 1) tainted[storage_of(in.value)] = true;
  // Aliases may be written after they were read: iterate until nothing changes (twice is the rule).
  for (bool changed = true; changed;) {
    changed = false;
    for (const graph::Node& n : g.nodes) {
      bool dirty = n.op->nondeterministic || n.op->effectful;
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId v) { dirty = dirty || (storage_of(v) >= 0 && tainted[storage_of(v)]); });
      if (!dirty) continue;
      const auto mark = [&](ValueId v) {
        if (storage_of(v) >= 0 && !tainted[storage_of(v)]) changed = tainted[storage_of(v)] = true;
      };
      for (ValueId v : n.outs) mark(v);
      graph::for_each_written(n, mark);
    }
  }
  return tainted;
}

// The memory that what lies in `storage` was computed from, itself included.
std::vector<bool> needed_storages(const graph::Graph& g, size_t storages, int32_t storage) {
  std::vector<bool> needed(storages, false);
  needed[storage] = true;
  const auto is_needed = [&](ValueId v) {
    return v != kNoValue && g.values[v].storage >= 0 && needed[g.values[v].storage];
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t at = g.nodes.size(); at-- > 0;) {
      const graph::Node& n = g.nodes[at];
      bool makes = std::any_of(n.outs.begin(), n.outs.end(), is_needed);
      graph::for_each_written(n, [&](ValueId v) { makes = makes || is_needed(v); });
      if (!makes) continue;
      for (const Arg& a : n.args)
        graph::for_each_ref(a, [&](ValueId v) {
          const int32_t s = v == kNoValue ? -1 : g.values[v].storage;
          if (s >= 0 && !needed[s]) changed = needed[s] = true;
        });
    }
  }
  return needed;
}

// Only whole numbers and truths: every device has the same.
bool is_whole(const graph::Graph& g) {
  bool whole = true;
  const auto look = [&](ValueId v) {
    const DType d = v == kNoValue ? DType::kI64 : g.type(v).dtype;
    whole = whole && (is_integral(d) || d == DType::kBool);
  };
  for (const graph::Input& i : g.inputs) look(i.value);
  for (const graph::Node& n : g.nodes)
    for (ValueId v : n.outs) look(v);
  return whole;
}

// Asking another device takes long.
void to_cpu(graph::Graph& g) {
  for (graph::Value& v : g.values) v.type.device = Device{};
  for (graph::Node& n : g.nodes)
    for (Arg& a : n.args)
      if (auto* device = std::get_if<Device>(&a)) *device = Device{};
  for (graph::Output& o : g.outputs) o.type.device = Device{};
}

}  // namespace

std::optional<at::Tensor> Recorder::constant_value(const at::Tensor& t) { return constant_value(t, nullptr); }

std::optional<at::Tensor> Recorder::value_at_these_sizes(const at::Tensor& t) {
  if (sizes_->empty() || in_backward_) return std::nullopt;
  std::vector<sym::Expr> sizes;
  std::optional<at::Tensor> value = constant_value(t, &sizes);
  if (value)
    for (sym::Expr e : sizes) sizes_->specialize(e);
  return value;
}

// `sizes`: where those go that it depends on; null: it may depend on none.
std::optional<at::Tensor> Recorder::constant_value(const at::Tensor& t, std::vector<sym::Expr>* sizes) {
  constexpr int64_t kMaxElements = 1 << 20;
  const TraceImpl* impl = trace_impl(t);
  if (!impl || impl->storage_id < 0) return std::nullopt;
  const std::vector<bool> tainted = tainted_storages(graph_, storages_.size(), static_cast<bool>(element_read));
  if (tainted[impl->storage_id]) return std::nullopt;
  const std::vector<bool> needed = needed_storages(graph_, storages_.size(), impl->storage_id);
  BelowEverything plain;
  InternalScope internal;
  graph::Graph slice(graph_.facts);
  slice.values = graph_.values;
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < constants_.size(); ++i) {
    slice.inputs.push_back(graph_.inputs[constant_inputs_[i]]);
    inputs.push_back(constants_[i].clone());
  }
  for (const InputRecord& in : inputs_) {
    const graph::Input& input = graph_.inputs[in.number];
    if (tainted[in.impl->storage_id] || !needed[in.impl->storage_id] || !is_small_buffer(graph_, input)) continue;
    if (!element_read || in.impl->input != in.number) return std::nullopt;
    {
      pybind11::gil_scoped_acquire gil;
      if (!element_read(in.number)) return std::nullopt;
    }
    slice.inputs.push_back(input);
    inputs.push_back(in.impl->real.clone());
  }
  for (const graph::Node& n : graph_.nodes) {
    bool clean = !n.op->nondeterministic && !n.op->effectful && !n.outs.empty();
    bool is_read = false;
    const auto check_needed = [&](ValueId v) {
      const int32_t s = v == kNoValue ? -1 : graph_.values[v].storage;
      is_read = is_read || (s >= 0 && needed[s]);
    };
    for (ValueId v : n.outs) check_needed(v);
    graph::for_each_written(n, check_needed);
    if (!is_read) continue;
    const auto check = [&](ValueId v) {
      const int32_t s = graph_.values[v].storage;
      clean = clean && s >= 0 && !tainted[s];
    };
    for (const Arg& a : n.args) graph::for_each_ref(a, check);
    const auto is_known = [&](sym::Expr e) { return e.is_const() || (sizes != nullptr && !sym::has_data_size(e)); };
    graph::Node numbered = n;
    const auto number = [&](sym::Expr& e) {
      if (e.is_const()) return;
      clean = clean && is_known(e);
      if (!clean) return;
      sizes->push_back(e);
      e = sizes_->now(e);
    };
    for (Arg& a : numbered.args) {
      if (auto* e = std::get_if<sym::Expr>(&a)) number(*e);
      if (auto* list = std::get_if<Sizes>(&a))
        for (sym::Expr& e : *list) number(e);
    }
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      check(v);
      const sym::Expr numel = graph_.type(v).numel();
      clean = clean && is_known(numel) && sizes_->now(numel) <= kMaxElements;
    }
    if (!clean) return std::nullopt;
    slice.nodes.push_back(std::move(numbered));
  }
  graph::Output out;
  out.value = impl->value;
  out.type = graph_.type(impl->value);
  slice.outputs.push_back(out);
  if (!t.device().is_cpu() && is_whole(slice)) {
    to_cpu(slice);
    for (at::Tensor& i : inputs) i = i.cpu();
  }
  return aten::eval_graph(slice, inputs)[0];
}

Assumption& assumption() {
  thread_local Assumption a;
  return a;
}

namespace {

// bool(tensor) where one answer leads to an exception: the graph checks that it is the other one.
bool assume(Stack& stack) {
  const at::Tensor t = stack.back().toTensor();
  if (t.is_complex()) return false;
  const int truth = std::exchange(assumption().truth, -1);
  // Elsewhere it is waited for, as the program waits: an assertion that fails on the GPU would end the process's context.
  at::_assert_async((truth == 1 ? t : t.logical_not()).cpu());
  assumption().made = true;
  stack.pop_back();
  stack.emplace_back(t.is_floating_point()          ? at::Scalar(static_cast<double>(truth))
                     : t.scalar_type() == at::kBool ? at::Scalar(truth == 1)
                                                    : at::Scalar(static_cast<int64_t>(truth)));
  return true;
}

}  // namespace

bool own_operators() {
  const Session* session = current();
  return session != nullptr && session->own_operators;
}

int64_t randomness() {
  auto* recorder = static_cast<Recorder*>(current());
  if (recorder == nullptr) return 0;
  const auto& nodes = recorder->graph().nodes;
  return std::count_if(nodes.begin(), nodes.end(), [](const graph::Node& n) { return n.op->nondeterministic; });
}

Position position() {
  auto* recorder = static_cast<Recorder*>(current());
  if (recorder == nullptr) return {};
  const graph::Graph& g = recorder->graph();
  return {static_cast<int64_t>(g.nodes.size()), static_cast<int64_t>(g.values.size())};
}

bool has_effects_since(Position since) {
  auto* recorder = static_cast<Recorder*>(current());
  if (recorder == nullptr) return false;
  const graph::Graph& g = recorder->graph();
  std::unordered_set<int32_t> from_before;
  for (size_t v = 0; v < std::min(g.values.size(), static_cast<size_t>(since.values)); ++v)
    from_before.insert(g.values[v].storage);
  for (const graph::Input& in : g.inputs) from_before.insert(g.values[in.value].storage);  // met since then, too
  bool any = false;
  for (size_t n = static_cast<size_t>(since.nodes); n < g.nodes.size() && !any; ++n) {
    const graph::Node& node = g.nodes[n];
    any = node.op->nondeterministic || node.op->effectful;
    graph::for_each_written(node, [&](ValueId v) { any = any || from_before.contains(g.values[v].storage); });
  }
  return any;
}

// bool(tensor) of a comparison that can only come out one way.
bool Recorder::truth_is_known(Stack& stack) const {
  const TraceImpl* impl = trace_impl(stack.back().toTensor());
  if (!impl || impl->value == kNoValue || graph_.type(impl->value).dtype != DType::kBool) return false;
  const std::optional<bool> truth = known_truth(graph_, impl->value);
  if (!truth) return false;
  stack.pop_back();
  stack.emplace_back(at::Scalar(*truth));
  return true;
}

bool Recorder::call_on_constants(OpFacts& facts, Stack& stack, size_t base) {
  const auto& specs = facts.schema.args;
  bool any = false, unknown = false, all_on_cpu = true;
  c10::Device device = c10::kCPU;
  Stack real;
  const auto find_values = [&](bool at_these_sizes) {
    any = unknown = false;
    all_on_cpu = true;
    real.clear();
    for (size_t i = 0; i < specs.size(); ++i)
      real.push_back(map_tensors(stack[base + i], specs[i], [&](const at::Tensor& t) {
        any = true;
        if (!t.device().is_cpu()) device = t.device();
        auto value = !trace_impl(t) ? std::nullopt : at_these_sizes ? value_at_these_sizes(t) : constant_value(t);
        unknown = unknown || !value;
        all_on_cpu = all_on_cpu && value && value->device().is_cpu();
        return value.value_or(t);
      }));
  };
  find_values(false);
  if (unknown || facts.schema.any_written) {
    if (facts.may_ask_meta && !(data_sizes && stack[base + 1].isNone())) return false;
    if (facts.schema.name == op::_local_scalar_dense && truth_is_known(stack)) return true;
    if (assumption().truth >= 0 && facts.schema.name == op::_local_scalar_dense && assume(stack)) return true;
    if (find_sizes(facts, stack, base)) return true;
    if (!facts.schema.any_written) find_values(true);
    if (unknown || facts.schema.any_written)
      throw Declined("data-dependent: " + facts.schema.name + " needs the value of a traced tensor");
  }
  if (!any) return false;
  {
    BelowEverything plain;
    InternalScope internal;
    const auto move_to = [&](c10::Device d, const std::vector<aten::ArgSpec>& which) {
      for (size_t i = 0; i < real.size(); ++i)
        real[i] = map_tensors(real[i], which[i], [&](const at::Tensor& t) { return t.to(d); });
    };
    if (!all_on_cpu) move_to(device, specs);
    facts.schema.handle.callBoxed(real);
    move_to(device, facts.schema.returns);
  }
  torch::jit::drop(stack, stack.size() - base);
  for (size_t i = 0; i < real.size(); ++i)
    stack.push_back(
        map_tensors(real[i], facts.schema.returns[i], [&](const at::Tensor& t) { return add_constant(t); }));
  return true;
}

}  // namespace flashover::trace

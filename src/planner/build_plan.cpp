// See build_plan.h: one function for each kind of step, over what has been built so far.
#include "planner/build_plan.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "graph/analysis/uninitialized.h"
#include "graph/origin.h"
#include "loops/schedule/attention.h"
#include "loops/schedule/build.h"
#include "planner/value_tensors.h"

namespace flashover::planner {
namespace {

using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

struct Building {
  Building(loops::LoopProgram& p, const Options& o)
      : program(p), options(o), tensors(p, out.plan), only_written(graph::only_written(p.graph)) {
    out.plan.device = o.device;
  }

  loops::LoopProgram& program;
  const Options& options;
  Schedule out;
  ValueTensors tensors;
  std::vector<bool> only_written;                   // by value: its memory is never looked at, so it has none
  std::map<ValueId, TensorId> on_device;            // copies of numbers that lie elsewhere
  std::unordered_map<Hash128, int32_t> kernel_ids;  // by identity

  const graph::Graph& graph() const { return program.graph; }
  plan::Plan& plan() { return out.plan; }
  void add(Step s, bool frozen = false) { (frozen ? out.plan.frozen_steps : out.plan.steps).push_back(std::move(s)); }
  bool used(ValueId v) const { return v != kNoValue && program.facts[v].used; }
};

Step copy_step(TensorId from, TensorId to, const char* label) {
  Step s;
  s.kind = StepKind::kCopy;
  s.reads = {from};
  s.writes = {to};
  s.label = label;
  return s;
}

// ---- operators

std::string location(const graph::Graph& g, const graph::Node& n) {
  if (n.location < 0 || n.location >= static_cast<int32_t>(g.facts.locations.size())) return "";
  const std::string where = graph::without_origin(g.facts.locations[n.location]);
  return where.empty() ? "" : " " + where;
}

// f(Ref&) for each tensor among the arguments.
template <typename F>
void for_each_tensor(Arg& a, F&& f) {
  const auto one = [&](Ref& r) {
    if (r.id != kNoValue) f(r);
  };
  if (auto* r = std::get_if<Ref>(&a)) one(*r);
  if (auto* l = std::get_if<RefList>(&a))
    for (Ref& r : *l) one(r);
}

// The operator writes copies of its arguments.
void add_call_on_clones(Building& b, const graph::Node& node) {
  const ops::OpRow& op = *node.op->on_clones;
  Step s;
  s.kind = StepKind::kCall;
  s.op = op.name;
  s.mutates = op.mutates;
  s.label = s.op + location(b.graph(), node);
  const size_t own = node.outs.size() - clones_of(node);
  size_t next = own;
  for (size_t i = 0; i < node.args.size(); ++i) {
    Arg a = node.args[i];
    const bool written = i < 32 && (op.mutates >> i & 1);
    for_each_tensor(a, [&](Ref& r) {
      const ValueId original = r.id;
      if (!b.only_written[original]) r.id = b.tensors.of(original);
      if (!written) return;
      const ValueId clone = node.outs[next++];
      TensorType type = b.tensors.memory_type(clone != kNoValue ? clone : original);
      TensorId to;
      if (b.used(clone)) {
        to = b.tensors.of(clone);
        b.tensors.allocate_beside(to);
      } else {
        to = b.tensors.temporary(std::move(type));
      }
      if (!b.only_written[original]) b.add(copy_step(r.id, to, kClone));
      r.id = to;
    });
    s.args.push_back(std::move(a));
  }
  for (size_t i = 0; i < own; ++i) s.writes.push_back(b.used(node.outs[i]) ? b.tensors.of(node.outs[i]) : -1);
  b.add(std::move(s));
}

void add_call(Building& b, const graph::Node& node) {
  if (node.op->on_clones) return add_call_on_clones(b, node);
  if (node.outs.size() == 1 && node.outs[0] != kNoValue && b.only_written[node.outs[0]]) return;
  Step s;
  s.kind = StepKind::kCall;
  s.op = node.op->name;
  s.label = node.op->name + location(b.graph(), node);
  s.args = node.args;
  for (Arg& a : s.args) for_each_tensor(a, [&](Ref& r) { r.id = b.tensors.of(r.id); });
  bool frozen = !node.outs.empty();
  for (ValueId v : node.outs) {
    // What nothing reads is dropped as it comes: some operators leave such results out.
    s.writes.push_back(b.used(v) ? b.tensors.of(v) : -1);
    frozen = frozen && v != kNoValue && b.program.facts[v].frozen;
  }
  b.add(std::move(s), frozen);
}

// ---- kernels

std::string name_of(Device d) { return d.type == DeviceType::kCPU ? "the CPU" : "a CUDA device"; }

// A tensor that a kernel reads: a number in a CPU tensor is first copied to the device.
TensorId on_device(Building& b, ValueId v, bool frozen) {
  const TensorId t = b.tensors.of(v);
  const TensorType& type = b.plan().tensors[t].type;
  const Device device = b.plan().device;
  if (type.device == device) return t;
  if (device.type == DeviceType::kCPU || !b.graph().type(v).sizes.empty())
    throw Declined("a kernel on " + name_of(device) + " reads a tensor on " + name_of(type.device));
  if (const auto it = b.on_device.find(v); it != b.on_device.end()) return it->second;
  plan::Tensor copy{type, frozen ? StorageKind::kFrozen : StorageKind::kArena};
  copy.type.device = device;
  copy.type.offset = 0;
  const TensorId made = b.tensors.add(std::move(copy));
  b.add(copy_step(t, made, "copy to the device"), frozen);
  return b.on_device[v] = made;
}

// The kernel's number; equal code has one.
int32_t number_of(Building& b, loops::Kernel kernel) {
  std::vector<loops::Kernel>& kernels = b.out.kernels;
  auto [it, fresh] = b.kernel_ids.try_emplace(identity(kernel), static_cast<int32_t>(kernels.size()));
  // Error texts differ where the code does not; they are in the kernel, so such kernels stay apart.
  if (!fresh && kernels[it->second].errors != kernel.errors)
    fresh = true, it->second = static_cast<int32_t>(kernels.size());
  if (fresh) kernels.push_back(std::move(kernel));
  return it->second;
}

void add_launch(Building& b, loops::Built built, bool frozen) {
  if (built.kernel.stages.empty()) return;
  built.kernel.exact = b.options.exact;
  verify(built.kernel);
  Step s;
  s.kind = StepKind::kLaunch;
  s.label = built.kernel.label;
  s.operators = std::move(built.operators);
  for (size_t i = 0; i < built.params.size(); ++i) {
    const loops::Param& param = built.kernel.params[i];
    const ValueId v = built.params[i];
    if (!param.written) {
      s.reads.push_back(param.number ? b.tensors.of(v) : on_device(b, v, frozen));
      continue;
    }
    s.writes.push_back(b.tensors.of(v));
    const Device written = b.plan().tensors[s.writes.back()].type.device;
    if (written != b.plan().device)
      throw Declined("a graph that computes on " + name_of(written) + " and on " + name_of(b.plan().device));
  }
  s.sizes = built.kernel.sizes;
  s.kernel = number_of(b, std::move(built.kernel));
  b.add(std::move(s), frozen);
}

void add_kernel_of(Building& b, const graph::Node& node) {
  const bool empty = b.graph().type(node.outs[0]).numel().is_const(0);
  if (!empty) add_launch(b, build_attention(b.program, node), b.program.facts[node.outs[0]].frozen);
}

// ---- results

// Whether `have` lies in `whole`, the result of an extern call, as output o lies in its memory.
bool lies_as_wanted(const graph::Output& o, const plan::Tensor& have, const plan::Tensor& whole) {
  const sym::Expr offset = o.kind == graph::Output::Kind::kSlice ? sym::Expr(0) : o.type.offset;
  const Sizes &strides = loops::written_strides(o), &sizes = have.type.sizes;
  if (!sym::known_eq(have.type.offset, offset) || strides.size() != sizes.size()) return false;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!sizes[d].is_const(1) && !sym::known_eq(strides[d], have.type.strides[d])) return false;
  // As much memory as in eager.
  return o.memory.is_const(0) || sym::known_eq(o.memory, plan::span(whole.type));
}

// The tensor that output i hands out.
TensorId output_tensor(Building& b, int32_t i) {
  const graph::Output& o = b.graph().outputs[i];
  const TensorId t = b.tensors.of(o.value), owner = plan::root(b.plan(), t);
  const plan::Tensor &have = b.plan().tensors[t], &whole = b.plan().tensors[owner];
  if (b.tensors.output_of(o.value) == i) {
    if (whole.storage == StorageKind::kOutput) return owner;
    if (whole.storage == StorageKind::kExtern && (o.type.opaque || lies_as_wanted(o, have, whole))) return owner;
  }
  TensorType written = have.type;
  b.add(copy_step(t, b.tensors.make_output(i, std::move(written)), "copy"));
  return b.tensors.memory_of_output(i);
}

void add_outputs(Building& b) {
  for (size_t i = 0; i < b.graph().outputs.size(); ++i) {
    const graph::Output& o = b.graph().outputs[i];
    plan::OutputRef out;
    out.type = o.type;
    out.type.wrapped_number = false;
    if (o.kind == graph::Output::Kind::kInputAlias) {
      out.alias_input = o.base;
    } else if (o.kind == graph::Output::Kind::kOutputAlias) {
      out.alias_output = o.base;
    } else {
      out.tensor = output_tensor(b, static_cast<int32_t>(i));
    }
    b.plan().outputs.push_back(std::move(out));
  }
}

// All reads of inputs are over here; an input that is another's new value is saved first.
void add_mutations(Building& b) {
  std::vector<Step> writes;
  for (const graph::Mutation& m : b.graph().mutations) {
    TensorId from = b.tensors.of(m.value);
    const TensorId to = b.tensors.of(b.graph().inputs[m.input].value);
    if (from == to) continue;
    if (const plan::Tensor& t = b.plan().tensors[from]; t.storage == StorageKind::kInput) {
      TensorType type = t.type;
      type.strides = contiguous_strides(type.sizes);
      const TensorId saved = b.tensors.temporary(std::move(type));
      b.add(copy_step(from, saved, "copy"));
      from = saved;
    }
    writes.push_back(copy_step(from, to, kWriteBack));
  }
  for (Step& s : writes) b.add(std::move(s));
}

}  // namespace

Schedule build_plan(loops::LoopProgram& program, const loops::Fused& fused, const Options& options) {
  Building b(program, options);
  for (const loops::Unit& u : fused.order) {
    if (u.node < 0) {
      const loops::Group& group = fused.groups[u.group];
      add_launch(
          b, build(program, group, {.gpu = options.loops.processors > 0, .order_by_dims = options.loops.order_by_dims}),
          group.frozen);
    } else {
      const graph::Node& node = program.graph.nodes[u.node];
      node.op->generated ? add_kernel_of(b, node) : add_call(b, node);
    }
  }
  add_outputs(b);
  add_mutations(b);
  return std::move(b.out);
}

}  // namespace flashover::planner

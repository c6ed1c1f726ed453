// Operators whose results' sizes follow from data: each such size is a symbol of its own, which has no number in the
// trace. What the program does with it is recorded for all its values; where that is not possible the usual case is
// recorded, with a check.
#include <ATen/ops/nonzero.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "base/check.h"
#include "graph/graph.h"
#include "graph/written.h"
#include "ops/args.h"
#include "ops/names.h"
#include "torch/size_node.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using Types = std::vector<TensorType>;

TensorType list_of(const TensorType& like, DType dtype, sym::Expr size) {
  TensorType out;
  out.dtype = dtype;
  out.device = like.device;
  out.sizes = {size};
  out.strides = {1};
  return out;
}

// The sizes of `like`, dense, or none where it was not asked for.
TensorType indices_like(const TensorType& like, bool wanted) {
  if (!wanted) return list_of(like, DType::kI64, 0);
  TensorType out = list_of(like, DType::kI64, 0);
  out.sizes = like.sizes;
  out.strides = contiguous_strides(like.sizes);
  return out;
}

// No more elements than there are; of none it is known.
sym::Expr size_within(sym::Environment& sizes, sym::Expr most) {
  if (most.is_const(0)) return 0;
  const sym::Expr size = sizes.add_data_size();
  sizes.know({sym::Relation::kLessEqual, size, most});
  return size;
}

// The results of such an operator; empty: not this call.
Types results_of(const OpFacts& facts, const Stack& stack, size_t base, sym::Environment& sizes, const TensorType& x) {
  const std::string& name = facts.schema.name;
  const auto flag = [&](size_t i) { return stack[base + i].isBool() && stack[base + i].toBool(); };
  if (name == op::nonzero) {
    if (x.rank() == 0) return {};
    const sym::Expr n = size_within(sizes, x.numel());
    TensorType out = list_of(x, DType::kI64, n);
    out.sizes = {n, static_cast<int64_t>(x.rank())};
    // Eager finds the positions of each dimension one after the other. (On CUDA the stride of none of them is 1. To say so
    // would leave open how views of them lie.)
    const bool none = n.is_const(0) && x.device.type == DeviceType::kCUDA;
    out.strides = {1, none ? sym::Expr(1) : n};
    return {out};
  }
  if (name == op::_unique2 || (name == op::unique_consecutive && stack[base + 3].isNone())) {
    const size_t first = name == op::_unique2 ? 2 : 1;
    const sym::Expr n = size_within(sizes, x.numel());
    // (Of no elements CUDA's gives them unasked.)
    const bool unasked = x.device.type == DeviceType::kCUDA && x.numel().is_const(0);
    return {list_of(x, x.dtype, n), indices_like(x, flag(first) || unasked),
            list_of(x, DType::kI64, flag(first + 1) ? n : sym::Expr(0))};
  }
  if (name == op::repeat_interleave_Tensor && stack[base + 1].isNone() && x.rank() == 1)
    return {list_of(x, x.dtype, x.sizes[0].is_const(0) ? sym::Expr(0) : sizes.add_data_size())};
  const auto least = name == op::bincount && x.rank() == 1 ? aten::expr_of(stack[base + 2]) : std::nullopt;
  if (least) {
    DType dtype = DType::kI64;
    if (stack[base + 1].isTensor() && stack[base + 1].toTensor().defined())
      dtype = stack[base + 1].toTensor().scalar_type() == at::kFloat ? DType::kF32 : DType::kF64;
    const sym::Expr n = sizes.add_data_size();
    sizes.know({sym::Relation::kLessEqual, *least, n});
    return {list_of(x, dtype, n)};
  }
  if (name == op::nms && x.rank() == 2) return {list_of(x, DType::kI64, size_within(sizes, x.sizes[0]))};
  return {};
}

}  // namespace

bool Recorder::find_sizes(OpFacts& facts, Stack& stack, size_t base) {
  if (!data_sizes || in_backward_ || !facts.op->data_sized || !stack[base].isTensor()) return false;
  std::vector<Arg> args = collect(facts, stack, base);
  if (operands_.empty() || !operands_.front().impl) return false;
  const TensorType x = type_of(operands_.front().tensor_of_trace());
  const bool positions = facts.schema.name == op::nonzero;
  const ValueId operand = operands_.front().value;
  if (positions)
    if (const auto known = nonzeros_found_.find(operand); known != nonzeros_found_.end()) {
      const at::Tensor& found = known->second.positions[0];
      const auto same = [&](ValueId v) { return is_unwritten_since(v, known->second.nodes); };
      if (value_of(found) == known->second.value && same(operand) && same(known->second.value)) {
        torch::jit::drop(stack, stack.size() - base);
        stack.emplace_back(found.clone());
        return true;
      }
    }
  Types outs = results_of(facts, stack, base, *sizes_, x);
  if (outs.empty()) return false;
  ++stats_.ops;
  ++stats_.own_rules;
  const std::vector<ValueId> values = add_node(facts.op, std::move(args), std::move(outs)).outs;
  torch::jit::drop(stack, stack.size() - base);
  for (ValueId v : values) stack.emplace_back(fresh(v));
  if (positions)
    nonzeros_found_.insert_or_assign(operand, Found{graph_.nodes.size(), {}, {stack.back().toTensor()}, values[0]});
  return true;
}

// The same memory holds the same numbers as when the graph had so many nodes.
bool Recorder::is_unwritten_since(ValueId value, size_t node) const {
  const int32_t storage = graph_.values[static_cast<size_t>(value)].storage;
  bool written = false;
  for (size_t n = node; n < graph_.nodes.size() && !written; ++n)
    graph::for_each_written(graph_.nodes[n],
                            [&](ValueId v) { written |= graph_.values[static_cast<size_t>(v)].storage == storage; });
  return !written;
}

// Whether two values hold the same numbers: one value, or made by the same operators of the same memory, which was not
// written since.
bool Recorder::is_same(ValueId a, ValueId b, int depth) const {
  constexpr int kDepth = 6;
  if (a == b || a == kNoValue || b == kNoValue) return a == b;
  const size_t first = maker_of(a), second = maker_of(b), none = graph_.nodes.size();
  if (first == none || second == none || depth == kDepth) return false;
  const graph::Node &x = graph_.nodes[first], &y = graph_.nodes[second];
  const bool alike = x.op == y.op && !x.op->once() && x.args.size() == y.args.size() && x.outs.size() == y.outs.size();
  if (!alike || !is_unwritten_since(a, first) || !is_unwritten_since(b, second)) return false;
  for (size_t i = 0; i < x.outs.size(); ++i)
    if ((x.outs[i] == a) != (y.outs[i] == b)) return false;
  for (size_t i = 0; i < x.args.size(); ++i) {
    const auto *p = std::get_if<Ref>(&x.args[i]), *q = std::get_if<Ref>(&y.args[i]);
    if (!p || !q ? !(x.args[i] == y.args[i]) : !is_same(p->id, q->id, depth + 1)) return false;
    if (p && p->id != kNoValue && !is_unwritten_since(p->id, first)) return false;
  }
  return true;
}

// The node that made it; as many as there are: none did.
size_t Recorder::maker_of(ValueId value) const {
  const auto makes = [&](const graph::Node& n) { return std::ranges::find(n.outs, value) != n.outs.end(); };
  return static_cast<size_t>(std::ranges::find_if(graph_.nodes, makes) - graph_.nodes.begin());
}

// Asked twice, the same mask has the same number of elements: one symbol, also in the backward.
std::optional<std::vector<at::Tensor>> Recorder::positions_of(const at::Tensor& mask) {
  const TraceImpl* impl = trace_impl(mask);
  if (!data_sizes || !impl || mask.dim() == 0) return std::nullopt;
  const ValueId value = impl->value;
  if (const auto known = positions_found_.find(value);
      known != positions_found_.end() && is_unwritten_since(value, known->second.nodes))
    return known->second.positions;
  if (in_backward_) return std::nullopt;
  const at::Tensor found = at::nonzero(mask);
  Found out;
  for (int64_t d = 0; d < mask.dim(); ++d) out.positions.push_back(found.select(1, d));
  out.nodes = graph_.nodes.size();
  return positions_found_.insert_or_assign(value, std::move(out)).first->second.positions;
}

std::optional<sym::Expr> Recorder::size_of_data(PyObject* object) {
  if (!data_sizes || in_backward_ || declined_ || !THPVariable_Check(object)) return std::nullopt;
  const at::Tensor& t = THPVariable_Unpack(object);
  const TraceImpl* impl = trace_impl(t);
  if (!impl || impl->liveness.get() != liveness_.get()) return std::nullopt;
  const TensorType type = type_of(t);
  const bool one = std::ranges::all_of(type.sizes, [](sym::Expr e) { return e.is_const(1); });
  if (!one || !is_integral(type.dtype) || type.dtype == DType::kBool || constant_value(t)) return std::nullopt;
  const ValueId value = impl->value;
  const auto holds = [&](const auto& found) { return is_unwritten_since(found.first, found.second.nodes); };
  if (const auto known = numbers_found_.find(value); known != numbers_found_.end() && holds(*known))
    return sizes_->canonical(known->second.size);
  for (const auto& found : numbers_found_)
    if (is_same(found.first, value) && holds(found)) return sizes_->canonical(found.second.size);
  TensorType out;
  out.dtype = DType::kBool;
  const sym::Expr size = sizes_->add_data_size();
  out.sizes = {size};
  out.strides = {0};
  std::vector<Arg> args = {Ref{value}};
  std::vector<TensorType> outs = {std::move(out)};
  const ValueId made = add_node(ops::find(op::size_of_data), std::move(args), std::move(outs)).outs[0];
  graph_.values[static_cast<size_t>(made)].storage = new_storage(make_storage(1));
  numbers_found_.insert_or_assign(value, Found{graph_.nodes.size(), size, {}, kNoValue});
  return size;
}

// The program that is compiled holds for the usual case: a call of another one is found before it goes wrong.
void Recorder::assume_of_data(const sym::SizeGuard& fact, std::string words) {
  std::vector<Arg> args = {fact.a, fact.b, sym::Expr(static_cast<int64_t>(fact.relation)), std::move(words)};
  add_node(ops::find(op::check_sizes), std::move(args), {});
}

}  // namespace flashover::trace

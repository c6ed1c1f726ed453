// Numbers in tensors that the program hands out or computes with: copies of what the tensors held when it asked, and what
// stands for such a number in calls of torch.
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/graph.h"
#include "ops/args.h"
#include "ops/names.h"
#include "trace/number.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

bool is_plain_number(DType d) {
  return d == DType::kBool || is_integral(d) || d == DType::kF16 || d == DType::kBF16 || d == DType::kF32 ||
         d == DType::kF64;
}

// Whether eager can convert any number of `from` to `to` as a Scalar, which raises for those out of range.
bool holds_all(DType to, DType from) {
  if (to == from || from == DType::kBool || to == DType::kF64) return true;
  if (is_floating(to)) {
    if (to == DType::kF16) return from == DType::kI8 || from == DType::kU8;
    const bool wide = to == DType::kF32 || to == DType::kBF16;
    return wide && (is_integral(from) || from == DType::kF16 || (from == DType::kBF16 && to == DType::kF32));
  }
  if (!is_integral(to) || !is_integral(from)) return false;
  return info(to).is_signed && info(to).bytes > info(from).bytes;
}

}  // namespace

// Null: not a tensor of this trace whose numbers are unknown.
const at::Tensor* Recorder::tensor_of_data(PyObject* object) const {
  if (!data_sizes || in_backward_ || declined_ || !THPVariable_Check(object)) return nullptr;
  const at::Tensor& t = THPVariable_Unpack(object);
  const TraceImpl* impl = trace_impl(t);
  if (!impl || impl->liveness.get() != liveness_.get() || t.is_conj() || t.is_neg()) return nullptr;
  const TensorType type = type_of(t);
  const bool known = std::ranges::all_of(type.sizes, [](sym::Expr e) { return e.is_const(); });
  return known && is_plain_number(type.dtype) ? &t : nullptr;
}

PyObject* Recorder::copy_of_data(PyObject* object) {
  const at::Tensor* t = tensor_of_data(object);
  if (!t || constant_value(*t)) return nullptr;
  const ValueId value = trace_impl(*t)->value;
  if (const auto known = copies_found_.find(value);
      known != copies_found_.end() && is_unwritten_since(value, known->second.nodes))
    return THPVariable_Wrap(known->second.positions[0]);
  const c10::AutoGradMode no_gradients(false);
  const at::Tensor alone = t->detach();
  const at::Tensor copy = (t->numel() == 1 ? alone.reshape({}) : alone).clone(at::MemoryFormat::Contiguous);
  copies_found_.insert_or_assign(value, Found{graph_.nodes.size(), {}, {copy}, kNoValue});
  return THPVariable_Wrap(copy);
}

PyObject* Recorder::symbol_of_data(PyObject* copy, PyObject* number, ValueId& value) {
  const at::Tensor* t = tensor_of_data(copy);
  const DType dtype = t ? type_of(*t).dtype : DType::kUndefined;
  if (!t || t->dim() != 0 || dtype == DType::kBool || dtype == DType::kU64) return nullptr;
  TensorType out;
  out.dtype = is_floating(dtype) ? DType::kF64 : DType::kI64;
  out.device = type_of(*t).device;
  out.wrapped_number = true;
  std::vector<Arg> args = {Ref{trace_impl(*t)->value}};
  std::vector<TensorType> outs = {std::move(out)};
  value = add_node(ops::find(op::number), std::move(args), std::move(outs)).outs[0];
  graph_.values[static_cast<size_t>(value)].storage = new_storage(make_storage(8));
  data_numbers_.emplace(value, DataNumber{*t});
  ++numbers_;
  return make_symbol(value, number);
}

PyObject* Recorder::tensor_of_size(sym::Expr e) {
  TensorType type;
  type.dtype = DType::kI64;
  return THPVariable_Wrap(fresh(add_number(std::move(type), e)));
}

// Whether eager takes such numbers whatever they are, where this operator computes; in_range: if these are in f32's
// range.
bool Recorder::fits_data(const OpFacts& facts, const std::vector<Arg>& args, const std::vector<TensorType>& outs,
                         std::vector<ValueId>& in_range) const {
  if (data_numbers_.empty()) return true;
  for (size_t i = 0; i < args.size(); ++i) {
    bool fits = true;
    graph::for_each_ref(args[i], [&](ValueId v) {
      const auto known = data_numbers_.find(v);
      if (known == data_numbers_.end()) return;
      const Device here = graph_.type(v).device;
      const bool elsewhere = here.type != DeviceType::kCPU;
      // A tensor in the number's place is converted; what is no tensor has to be in range.
      const bool converted = facts.schema.args[i].kind == aten::ArgKind::kTensor;
      const DType from = type_of(known->second.copy).dtype;
      const auto holds = [&](DType to) {
        if (holds_all(to, from)) return true;
        const bool checked = to == DType::kF32 && from == DType::kF64;
        if (checked) in_range.push_back(v);
        return checked;
      };
      for (const TensorType& t : outs) {
        if (t.dtype == DType::kUndefined) continue;
        fits = fits && !(elsewhere && t.device != here);
        const bool compares = t.dtype == DType::kBool;
        fits = fits && (compares || (converted && is_floating(t.dtype)) || holds(t.dtype));
      }
      for (const Operand& o : operands_) {
        const TensorType& t = graph_.type(o.value);
        fits = fits && !(elsewhere && o.impl && t.device != here);
        fits = fits && (converted || t.wrapped_number || !is_floating(t.dtype) || holds(t.dtype));
      }
    });
    if (!fits) return false;
  }
  return true;
}

// Eager raises for a finite number that f32 does not hold. True: there are new nodes.
bool Recorder::check_range(const std::vector<ValueId>& numbers) {
  bool any = false;
  for (ValueId v : numbers) {
    DataNumber& number = data_numbers_.at(v);
    if (std::exchange(number.checked, true)) continue;
    const at::Tensor size = number.copy.abs();
    const at::Tensor outside =
        size.gt(static_cast<double>(std::numeric_limits<float>::max())).logical_and(size.isfinite());
    // (Elsewhere it is waited for, as the program waits: an assertion that fails on the GPU ends the process's context.)
    at::_assert_async(outside.logical_not().cpu(), "value cannot be converted to type float without overflow");
    any = true;
  }
  return any;
}

// A number that was asked for as a size may be negative where nothing has this size and the program was told nothing
// that is so of sizes only (`if n >= 0`).
void Recorder::drop_unread_sizes() {
  const ops::OpRow* const size_of = ops::find(op::size_of_data);
  std::vector<sym::Expr> read = sizes_->relied_on();
  const auto note = [&](sym::Expr e) {
    if (!e.is_const() && sym::has_data_size(e)) sym::collect_vars(e, read);
  };
  const auto note_type = [&](const TensorType& t) {
    for (sym::Expr e : t.sizes) note(e);
    for (sym::Expr e : t.strides) note(e);
    note(t.offset);
  };
  std::vector<bool> only_sizes(graph_.values.size());
  for (const graph::Node& n : graph_.nodes) {
    if (n.op == size_of) only_sizes[static_cast<size_t>(n.outs[0])] = true;
    for (const Arg& a : n.args) {
      if (const auto* e = std::get_if<sym::Expr>(&a)) note(*e);
      if (const auto* list = std::get_if<Sizes>(&a))
        for (sym::Expr e : *list) note(e);
    }
  }
  for (size_t v = 0; v < graph_.values.size(); ++v)
    if (!only_sizes[v]) note_type(graph_.values[v].type);
  for (const graph::Output& o : graph_.outputs) note_type(o.type);
  for (graph::Node& n : graph_.nodes) {
    if (n.op != size_of) continue;
    TensorType& type = graph_.values[static_cast<size_t>(n.outs[0])].type;
    if (type.sizes[0].kind() != sym::Kind::kVar || std::ranges::find(read, type.sizes[0]) != read.end()) continue;
    n.op = ops::find(op::number);  // which has no effect: what nothing reads goes away
    type.dtype = DType::kI64;
    type.sizes.clear();
    type.strides.clear();
    type.wrapped_number = true;
  }
}

}  // namespace flashover::trace

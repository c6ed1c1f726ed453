// Operators that the general way would record badly.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/index.h>
#include <ATen/ops/nonzero.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "ops/names.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

void replace(Stack& stack, size_t base, c10::IValue result) {
  torch::jit::drop(stack, stack.size() - base);
  stack.push_back(std::move(result));
}

TraceImpl* traced_self(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  const at::Tensor& self = stack[base].toTensor();
  recorder.lift(self, facts.schema.name.c_str());
  TraceImpl* impl = trace_impl(self);
  return impl;
}

// Asked where a tangent is set: as a question about sizes that are symbols, no number.
bool same_storage_numel(Recorder&, OpFacts&, Stack& stack, size_t base) {
  const TraceImpl *a = trace_impl(stack[base].toTensor()), *b = trace_impl(stack[base + 1].toTensor());
  const auto same = a && b ? a->same_memory_size(*b) : std::nullopt;
  if (same) replace(stack, base, *same);
  return same.has_value();
}

// ------------------------------------------------------------------------------------------------------- constants

// torch.tensor([...]) and friends build a real tensor and pass it here.
bool lift_fresh(Recorder& recorder, OpFacts&, Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor();
  if (trace_impl(self)) return true;  // the result is the argument
  replace(stack, base, recorder.add_constant(self));
  return true;
}

// torch.tensor([...], device="cuda") moves the real tensor it built before it passes it to lift_fresh.
bool to_copy(Recorder& recorder, OpFacts&, Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor();
  if (self.dim() > 0 && self.is_cpu() && !trace_impl(self) && !self.requires_grad() &&
      self.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr)
    stack[base] = recorder.add_constant(self);
  return false;
}

// ------------------------------------------------------------------------------------------------------ aliases

bool detach(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  const TraceImpl* impl = traced_self(recorder, facts, stack, base);
  if (!impl) return false;
  // The same value in another tensor object.
  at::Tensor out = recorder.view_of(*impl, impl->value);
  replace(stack, base, std::move(out));
  return true;
}

bool detach_in_place(Recorder&, OpFacts&, Stack&, size_t) { return true; }  // autograd did it

// conj() and neg() that only flip a bit, of a tensor with symbols: torch's shape functions need its numbers.
bool bit_view(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  const TraceImpl* impl = traced_self(recorder, facts, stack, base);
  if (!impl || !impl->is_symbolic()) return false;
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  std::vector<TensorType> outs = {TensorType(recorder.graph().type(impl->value))};
  ++recorder.counters().ops;
  ++recorder.counters().own_rules;
  at::Tensor out = recorder.view_of(*impl, recorder.add_node(facts.op, std::move(args), std::move(outs)).outs[0]);
  const bool conjugates = facts.schema.name == op::_conj;
  trace_impl(out)->set_bits(impl->is_conj() ^ conjugates, impl->is_neg() ^ !conjugates);
  replace(stack, base, std::move(out));
  return true;
}

// ------------------------------------------------------------------------------- in-place changes of metadata

// Records `view_op` and gives its result's geometry to self.
void become_view(Recorder& recorder, TraceImpl& self, const ops::OpRow* view_op, std::vector<Arg> args,
                 TensorType type) {
  if (self.input >= 0) throw Declined("metadata of a tensor that outlives the call changed in place: " + view_op->name);
  type.wrapped_number = false;
  std::vector<TensorType> outs = {std::move(type)};
  ++recorder.counters().ops;
  const ValueId value = recorder.add_node(view_op, std::move(args), std::move(outs)).outs[0];
  recorder.graph().values[value].storage = self.storage_id;
  self.value = value;
  recorder.give_geometry(self, recorder.graph().type(value));
}

// t_, transpose_, squeeze_, unsqueeze_, as_strided_: the operator without the underscore, asked on a companion.
bool metadata_in_place(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  TraceImpl* self = recorder.operands().at(0).impl;
  FLASHOVER_CHECK(self) << "in-place view of a number";
  const size_t dot = facts.schema.name.rfind('.');
  const std::string view_name = facts.schema.name == op::transpose_
                                    ? op::transpose_int
                                    : facts.schema.name.substr(0, dot - 1) + facts.schema.name.substr(dot);
  const aten::Operator* view = aten::find_operator(view_name);
  FLASHOVER_CHECK(view) << "no view operator for " << facts.schema.name;
  OpFacts& rule = facts_of(view->handle);
  std::vector<TensorType> outs;
  const bool ruled = !recorder.sizes().empty() && recorder.infer_by_rule(rule, args, outs);
  TensorType type;
  if (ruled) {
    type = std::move(outs.at(0));
  } else {
    if (!recorder.sizes().empty()) {
      recorder.read_sizes(facts, stack, base);
      args = recorder.collect(facts, stack, base);
    }
    at::Tensor companion = tagged_companion(*self);
    BelowEverything plain;
    type = aten::type_of(aten::call(*view, args, [&](ValueId) { return companion; }).at(0));
  }
  type.device = recorder.graph().type(self->value).device;
  ops::SchemaFacts schema_facts;
  schema_facts.is_aten_view = true;
  become_view(recorder, *self, ops::find(view_name, schema_facts), std::move(args), std::move(type));
  if (ruled) recorder.note_rule(rule);
  torch::jit::drop(stack, stack.size() - base - 1);
  return true;
}

const ops::OpRow* as_strided_op() {
  static const ops::OpRow* op = [] {
    ops::SchemaFacts facts;
    facts.is_aten_view = true;
    return ops::find(op::as_strided, facts);
  }();
  return op;
}

// self becomes a strided window of `source` (a value in memory `storage_id`).
void become_window(Recorder& recorder, TraceImpl& self, int32_t storage_id, Sizes sizes, Sizes strides,
                   sym::Expr offset) {
  if (self.input >= 0) throw Declined("the memory of a tensor that outlives the call was replaced (set_, resize_)");
  const DType dtype = aten::from_aten(c10::typeMetaToScalarType(self.dtype()));
  const ValueId source = recorder.value_in_storage(storage_id, dtype);
  if (source == kNoValue) throw Declined("set_ or resize_ to memory of another dtype");
  TensorType type = recorder.graph().type(source);
  type.sizes = sizes;
  type.strides = strides;
  type.offset = offset;
  self.rebase(recorder.storage(storage_id), storage_id);
  std::vector<Arg> args = {Ref{source}, std::move(sizes), std::move(strides), offset};
  become_view(recorder, self, as_strided_op(), std::move(args), std::move(type));
}

bool resize(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  TraceImpl* self = traced_self(recorder, facts, stack, base);
  if (!self) throw Declined("resize_ of a tensor that is not traced");
  if (!stack[base + 2].isNone() && stack[base + 2].toMemoryFormat() != at::MemoryFormat::Contiguous)
    throw Declined("resize_ with a memory format");
  Sizes sizes;
  for (const c10::IValue& v : stack[base + 1].toListRef()) sizes.emplace_back(v.toInt());
  const Sizes strides = contiguous_strides(sizes);
  const auto needed =
      static_cast<size_t>(sym::product(sizes).value() == 0 ? 0 : sym::product(sizes).value() + self->storage_offset()) *
      self->dtype().itemsize();
  if (aten::to_ints(sizes) != self->sizes().vec()) {
    if (needed > self->storage().nbytes()) {
      if (self->storage().nbytes() != 0 || self->input >= 0) throw Declined("resize_ grows a tensor that has elements");
      if (fills_new_memory()) throw Declined("resize_ grows a tensor, and new memory is filled for determinism");
      // Nothing was there: new memory.
      static const ops::OpRow* empty = ops::find(op::empty_memory_format);
      TensorType type = recorder.graph().type(self->value);
      type.sizes = sizes;
      type.strides = strides;
      type.offset = 0;
      std::vector<Arg> args = {sizes, type.dtype, {}, type.device, {}, {}};
      std::vector<TensorType> outs = {type};
      ++recorder.counters().ops;
      const ValueId value = recorder.add_node(empty, std::move(args), std::move(outs)).outs[0];
      at::Tensor made = recorder.fresh(value);
      const TraceImpl* impl = trace_impl(made);
      self->rebase(made.storage(), impl->storage_id);
      self->set_geometry(made.sizes(), made.strides(), 0);
      self->value = value;
    } else {
      become_window(recorder, *self, self->storage_id, sizes, strides, self->storage_offset());
    }
  }
  torch::jit::drop(stack, stack.size() - base - 1);
  return true;
}

bool set_tensor(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  TraceImpl* self = traced_self(recorder, facts, stack, base);
  TraceImpl* source = trace_impl(stack[base + 1].toTensor());
  if (!self || !source) throw Declined("set_ with a tensor that is not traced");
  const TensorType type = recorder.graph().type(source->value);
  become_window(recorder, *self, source->storage_id, type.sizes, type.strides, type.offset);
  torch::jit::drop(stack, stack.size() - base - 1);
  return true;
}

bool set_storage(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  TraceImpl* self = traced_self(recorder, facts, stack, base);
  const c10::Storage storage = stack[base + 1].toStorage();
  const int32_t id = recorder.find_storage(storage.unsafeGetStorageImpl());
  if (!self || id < 0) throw Declined("set_ with memory that is not traced");
  if (facts.schema.args.size() == 2) {
    const Sizes sizes = {static_cast<int64_t>(storage.nbytes() / self->dtype().itemsize())};
    become_window(recorder, *self, id, sizes, {1}, 0);
  } else {
    const auto list = [&](size_t i) {
      Sizes out;
      for (const c10::IValue& v : stack[base + i].toListRef()) out.emplace_back(v.toInt());
      return out;
    };
    Sizes sizes = list(3), strides = list(4);
    if (strides.empty() && !sizes.empty()) strides = contiguous_strides(sizes);
    become_window(recorder, *self, id, std::move(sizes), std::move(strides), stack[base + 2].toInt());
  }
  torch::jit::drop(stack, stack.size() - base - 1);
  return true;
}

// ------------------------------------------------------------------------------------------------------ writes

// Its schema does not say that it writes the running statistics; its twin's does.
bool native_batch_norm(Recorder&, OpFacts&, Stack& stack, size_t base) {
  if (!stack[base + 5].toBool()) return false;
  const auto defined = [&](size_t i) { return stack[base + i].isTensor() && stack[base + i].toTensor().defined(); };
  static const c10::OperatorHandle with =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_native_batch_norm_legit", "");
  static const c10::OperatorHandle without =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_native_batch_norm_legit", "no_stats");
  if (defined(3) && defined(4)) {
    with.callBoxed(stack);
    return true;
  }
  if (defined(3) || defined(4)) return false;
  stack.erase(stack.begin() + static_cast<int64_t>(base) + 3, stack.begin() + static_cast<int64_t>(base) + 5);
  without.callBoxed(stack);
  return true;
}

// ------------------------------------------------------------------------------------------------- masks

bool is_mask(const c10::IValue& v) {
  return v.isTensor() && v.toTensor().defined() &&
         (v.toTensor().scalar_type() == at::kBool || v.toTensor().scalar_type() == at::kByte);
}

// Where a mask that depends on constants only is true, one constant of positions a dim.
std::optional<std::vector<at::Tensor>> positions(Recorder& recorder, const at::Tensor& mask, at::IntArrayRef expanded) {
  auto value = recorder.constant_value(mask);
  if (!value || value->dim() == 0) return std::nullopt;
  at::Tensor found;
  {
    BelowEverything plain;
    InternalScope internal;
    found = at::nonzero(expanded.empty() ? *value : value->expand(expanded));
  }
  std::vector<at::Tensor> out;
  for (int64_t d = 0; d < found.size(1); ++d) {
    at::Tensor column;
    {
      BelowEverything plain;
      InternalScope internal;
      column = found.select(1, d).contiguous().to(mask.device());
    }
    out.push_back(recorder.add_constant(column));
  }
  return out;
}

bool is_one_number(const Recorder& recorder, const c10::IValue& v) {
  return !v.isTensor() || !v.toTensor().defined() || recorder.type_of(v.toTensor()).numel().is_const(1);
}

// Eager raises where a mask has not the sizes of the dims that it stands for; positions would hide that.
bool masks_fit(const at::Tensor& self, c10::ArrayRef<c10::IValue> list) {
  int64_t at = 0;
  for (const c10::IValue& v : list) {
    if (!is_mask(v)) {
      ++at;
      continue;
    }
    const at::Tensor mask = v.toTensor();
    for (int64_t d = 0; d < mask.dim(); ++d, ++at)
      if (at == self.dim() || mask.sym_size(d) != self.sym_size(at)) return false;
  }
  return true;
}

// x[mask]: how many elements that are is known only if the mask is.
bool index_by_masks(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  const auto list = stack[base + 1].toListRef();
  if (std::none_of(list.begin(), list.end(), is_mask)) return false;
  if (!masks_fit(stack[base].toTensor(), list)) throw Declined("a mask has other sizes than what it indexes");
  c10::List<std::optional<at::Tensor>> out;
  for (const c10::IValue& v : list) {
    if (!is_mask(v)) {
      out.push_back(v.isTensor() && v.toTensor().defined() ? std::optional<at::Tensor>(v.toTensor()) : std::nullopt);
      continue;
    }
    auto found = positions(recorder, v.toTensor(), {});
    // (One number is put there without asking how many places there are.)
    if (!found && facts.schema.name != op::index_Tensor && !is_one_number(recorder, stack[base + 2]))
      found = recorder.positions_of(v.toTensor());
    if (!found && facts.schema.any_written) return false;
    if (!found && facts.schema.name != op::index_Tensor) return false;
    if (!found) found = recorder.positions_of(v.toTensor());
    if (!found) throw Declined("data-dependent: indexing by a mask of the program's data");
    for (at::Tensor& t : *found) out.push_back(std::move(t));
  }
  stack[base + 1] = std::move(out);
  return false;
}

bool masked_select(Recorder& recorder, OpFacts&, Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor(), mask = stack[base + 1].toTensor();
  if (!is_mask(stack[base + 1])) return false;
  if (recorder.data_sizes && !recorder.constant_value(mask)) {
    const auto sizes = at::infer_size_symint(self.sym_sizes(), mask.sym_sizes());
    auto found = recorder.positions_of(mask.expand_symint(sizes));
    if (!found) return false;
    c10::List<std::optional<at::Tensor>> list;
    for (at::Tensor& t : *found) list.push_back(std::move(t));
    replace(stack, base, at::index(self.expand_symint(sizes), list));
    return true;
  }
  const std::vector<int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  auto found = positions(recorder, mask, sizes);
  if (!found) return false;
  c10::List<std::optional<at::Tensor>> list;
  for (at::Tensor& t : *found) list.push_back(std::move(t));
  replace(stack, base, at::index(self.expand(sizes), list));
  return true;
}

// `self.data = source` as an operator (from torch 2.15 on), which graphs of torch.compile's have.
bool assign_data(Recorder&, OpFacts&, Stack&, size_t) {
  throw Declined("an operator gives a tensor the memory of another one");
}

// No graph has sparse tensors: where the gradient would be one, the program's line is left to eager.
template <size_t flag>
bool with_sparse_gradient(Recorder&, OpFacts&, Stack& stack, size_t base) {
  if (stack[base + flag].toBool() && c10::GradMode::is_enabled() && stack[base].toTensor().requires_grad())
    throw Declined("training: the gradient is a sparse tensor");
  return false;
}

}  // namespace

Special special_of(std::string_view name) {
  static const std::unordered_map<std::string_view, Special> table = {
      {op::lift_fresh, lift_fresh},
      {op::lift, lift_fresh},
      {op::_to_copy, to_copy},
      {op::detach, detach},
      {op::detach_, detach_in_place},
      {op::_conj, bit_view},
      {op::_neg_view, bit_view},
      {op::t_, metadata_in_place},
      {op::transpose_, metadata_in_place},
      {op::squeeze_, metadata_in_place},
      {op::squeeze__dim, metadata_in_place},
      {op::squeeze__dims, metadata_in_place},
      {op::unsqueeze_, metadata_in_place},
      {op::as_strided_, metadata_in_place},
      {op::resize_, resize},
      {op::set__source_Tensor, set_tensor},
      {op::set__source_Storage, set_storage},
      {op::set__source_Storage_storage_offset, set_storage},
      {op::native_batch_norm, native_batch_norm},
      {op::index_Tensor, index_by_masks},
      {op::index_put, index_by_masks},
      {op::index_put_, index_by_masks},
      {op::masked_select, masked_select},
      {op::_has_same_storage_numel, same_storage_numel},
      {op::embedding, with_sparse_gradient<4>},
      {op::gather, with_sparse_gradient<3>},
  };
  if (name.starts_with("aten.shallow_copy_data_.")) return assign_data;
  if (name.starts_with("aten._embedding_bag.")) return with_sparse_gradient<5>;
  auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

}  // namespace flashover::trace

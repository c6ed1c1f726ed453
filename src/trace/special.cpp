// Operators that the general way would record badly.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/ConvUtils.h>
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

// ------------------------------------------------------------------------------- in-place changes of metadata

// Records `view_op` and gives its result's geometry to self.
void become_view(Recorder& recorder, TraceImpl& self, const ops::Op* view_op, std::vector<Arg> args, TensorType type) {
  if (self.input >= 0) throw Declined("metadata of a tensor that outlives the call changed in place: " + view_op->name);
  type.wrapped_number = false;
  const auto sizes = aten::to_ints(type.sizes), strides = aten::to_ints(type.strides);
  const int64_t offset = type.offset.value();
  std::vector<TensorType> outs = {std::move(type)};
  ++recorder.counters().ops;
  const ValueId value = recorder.add_node(view_op, std::move(args), std::move(outs)).outs[0];
  recorder.graph().values[value].storage = self.storage_id;
  self.value = value;
  self.set_geometry(sizes, strides, offset);
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
  at::Tensor companion = tagged_companion(*self);
  TensorType type;
  {
    BelowEverything plain;
    type = aten::type_of(aten::call(*view, args, [&](ValueId) { return companion; }).at(0));
  }
  type.device = recorder.graph().type(self->value).device;
  ops::SchemaFacts schema_facts;
  schema_facts.is_aten_view = true;
  become_view(recorder, *self, ops::find(view_name, schema_facts), std::move(args), std::move(type));
  torch::jit::drop(stack, stack.size() - base - 1);
  return true;
}

const ops::Op* as_strided_op() {
  static const ops::Op* op = [] {
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
      // Nothing was there: new memory.
      static const ops::Op* empty = ops::find(op::empty_memory_format);
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

// x[mask]: how many elements that are is known only if the mask is.
bool index_by_masks(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  const auto list = stack[base + 1].toListRef();
  if (std::none_of(list.begin(), list.end(), is_mask)) return false;
  c10::List<std::optional<at::Tensor>> out;
  for (const c10::IValue& v : list) {
    if (!is_mask(v)) {
      out.push_back(v.isTensor() && v.toTensor().defined() ? std::optional<at::Tensor>(v.toTensor()) : std::nullopt);
      continue;
    }
    auto found = positions(recorder, v.toTensor(), {});
    if (!found && facts.schema.any_written) return false;
    if (!found && facts.schema.name != op::index_Tensor) return false;
    if (!found) throw Declined("data-dependent: indexing by a mask of the program's data");
    for (at::Tensor& t : *found) out.push_back(std::move(t));
  }
  stack[base + 1] = std::move(out);
  return false;
}

bool masked_select(Recorder& recorder, OpFacts&, Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor(), mask = stack[base + 1].toTensor();
  if (!is_mask(stack[base + 1])) return false;
  const std::vector<int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  auto found = positions(recorder, mask, sizes);
  if (!found) return false;
  c10::List<std::optional<at::Tensor>> list;
  for (at::Tensor& t : *found) list.push_back(std::move(t));
  replace(stack, base, at::index(self.expand(sizes), list));
  return true;
}

// ------------------------------------------------------------------------------------------------- convolution

std::vector<int64_t> dense_strides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0; step *= sizes[i]) strides[i] = step;
  return strides;
}

c10::SymIntArrayRef sym_ints(const std::vector<int64_t>& v) { return c10::fromIntArrayRefSlow(v); }

// The layout of the result is the backend's choice, which looks at the device, the strides of both operands and the
// machine: ask ATen with tensors that have them all.
bool convolution(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  const auto& operands = recorder.operands();
  TraceImpl *x = operands.at(0).impl, *w = operands.at(1).impl;
  if (!x || !w) return false;
  const bool transposed = std::get<bool>(args[6]);
  std::vector<int64_t> stride = aten::to_ints(std::get<Sizes>(args[3])),
                       padding = aten::to_ints(std::get<Sizes>(args[4])),
                       dilation = aten::to_ints(std::get<Sizes>(args[5])),
                       output_padding = aten::to_ints(std::get<Sizes>(args[7]));
  const int64_t groups = std::get<sym::Expr>(args[8]).value();
  const int64_t rank = x->dim(), spatial = rank - 2;
  if (rank < 3 || rank > 5 || w->dim() != rank || x->dtype() != w->dtype() || x->has_no_elements() ||
      w->has_no_elements() || groups <= 0)
    return false;
  for (auto* list : {&stride, &padding, &dilation, &output_padding}) {
    if (list->size() == 1) list->resize(spatial, (*list)[0]);
    if (static_cast<int64_t>(list->size()) != spatial) return false;
  }
  const auto x_sizes = x->sizes(), w_sizes = w->sizes();
  if (x_sizes[1] != (transposed ? w_sizes[0] : w_sizes[1] * groups)) return false;  // ATen words the error
  std::vector<int64_t> sizes = {x_sizes[0], transposed ? w_sizes[1] * groups : w_sizes[0]};
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t reach = dilation[d] * (w_sizes[d + 2] - 1) + 1;
    if (stride[d] <= 0 || padding[d] < 0 || dilation[d] <= 0) return false;
    sizes.push_back(transposed ? (x_sizes[d + 2] - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d]
                               : (x_sizes[d + 2] + 2 * padding[d] - reach) / stride[d] + 1);
    if ((!transposed && x_sizes[d + 2] + 2 * padding[d] < reach) || sizes.back() <= 0) return false;
  }

  at::Tensor input = tagged_companion(*x), weight = tagged_companion(*w), bias;
  const bool has_bias = !is_none(args[2]);
  if (has_bias) {
    if (!operands.at(2).impl) return false;
    bias = tagged_companion(*operands[2].impl);
    if (bias.dim() != 1 || bias.size(0) != sizes[1] || bias.dtype() != input.dtype()) return false;
  }
  at::MemoryFormat format;
  {
    BelowEverything plain;
    if (rank == 3) {  // runs as a 2-d convolution of a contiguous input; ATen would copy the data to see its strides
      const auto n = input.size(0), c = input.size(1), l = input.size(2);
      input.unsafeGetTensorImpl()->set_storage_keep_dtype(  // (what is expanded has less memory than a contiguous one)
          make_storage(n * c * l * static_cast<int64_t>(input.element_size())));
      input.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef({n, c, l}), c10::IntArrayRef({c * l, l, 1}));
    }
    const auto backend = at::native::select_conv_backend(
        input, weight, has_bias ? std::optional<at::Tensor>(bias) : std::nullopt, sym_ints(stride), sym_ints(padding),
        sym_ints(dilation), transposed, sym_ints(output_padding), groups, at::OptionalSymIntArrayRef());
    if (backend == at::native::ConvBackend::Overrideable) return false;
    if (rank == 3) {
      input = input.unsqueeze(2);
      weight = weight.unsqueeze(2);
    }
    format = at::native::_determine_backend_memory_format(input, weight, backend);
  }
  if (rank == 3) sizes.insert(sizes.begin() + 2, 1);
  std::vector<int64_t> strides(sizes.size());
  if (format == at::MemoryFormat::ChannelsLast) {
    strides = c10::get_channels_last_strides_2d(sizes);
  } else if (format == at::MemoryFormat::ChannelsLast3d) {
    strides = c10::get_channels_last_strides_3d(sizes);
  } else {
    strides = dense_strides(sizes);
  }
  if (rank == 3) {
    sizes.erase(sizes.begin() + 2);
    strides.erase(strides.begin() + 2);
  }
  TensorType type;
  type.dtype = aten::from_aten(c10::typeMetaToScalarType(x->dtype()));
  type.device = aten::from_aten(x->device());
  type.sizes.assign(sizes.begin(), sizes.end());
  type.strides.assign(strides.begin(), strides.end());
  ++recorder.counters().ops;
  ++recorder.counters().own_rules;
  std::vector<TensorType> outs = {std::move(type)};
  const ValueId value = recorder.add_node(facts.op, std::move(args), std::move(outs)).outs[0];
  replace(stack, base, recorder.fresh(value));
  return true;
}

// Likewise its gradients, in two dimensions on the CPU: both have the format that the forward's backend works in.
bool convolution_backward(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  const auto& operands = recorder.operands();
  TraceImpl *g = operands.at(0).impl, *x = operands.at(1).impl, *w = operands.at(2).impl;
  if (!g || !x || !w || std::get<bool>(args[7])) return false;
  const auto* bias_sizes = std::get_if<Sizes>(&args[3]);
  const auto* mask = std::get_if<std::vector<bool>>(&args[10]);
  if (x->dim() != 4 || w->dim() != 4 || g->dim() != 4 || x->dtype() != w->dtype() || x->dtype() != g->dtype() ||
      !x->device().is_cpu() || x->has_no_elements() || w->has_no_elements() || g->has_no_elements() || !mask ||
      mask->size() != 3)
    return false;
  const auto ints = [&](size_t i) {
    std::vector<int64_t> v = aten::to_ints(std::get<Sizes>(args[i]));
    if (v.size() == 1) v.resize(2, v[0]);
    return v;
  };
  const std::vector<int64_t> stride = ints(4), padding = ints(5), dilation = ints(6), output_padding = ints(8);
  const int64_t groups = std::get<sym::Expr>(args[9]).value();
  const at::Tensor input = tagged_companion(*x), weight = tagged_companion(*w);
  at::MemoryFormat format;
  bool library = false;
  {
    BelowEverything plain;
    const auto backend = at::native::select_conv_backend(
        input, weight, std::nullopt, sym_ints(stride), sym_ints(padding), sym_ints(dilation), false,
        sym_ints(output_padding), groups, at::OptionalSymIntArrayRef());
    library = backend == at::native::ConvBackend::Mkldnn;
    if (!library && backend != at::native::ConvBackend::Slow2d) return false;
    format = at::native::_determine_backend_memory_format(input, weight, backend);
  }
  const auto type_of = [&](const TraceImpl& like, bool as_it_is) {
    TensorType type = aten::type_of(at::Tensor(tagged_companion(like)));
    type.offset = 0;
    const auto sizes = like.sizes();
    const std::vector<int64_t> strides = as_it_is ? like.strides().vec()
                                         : format == at::MemoryFormat::ChannelsLast
                                             ? c10::get_channels_last_strides_2d(sizes)
                                             : dense_strides(sizes);
    type.strides.assign(strides.begin(), strides.end());
    return type;
  };
  std::vector<TensorType> outs(3);
  if ((*mask)[0]) outs[0] = type_of(*x, false);
  if ((*mask)[1]) outs[1] = type_of(*w, !library && weight.is_contiguous(format));
  if ((*mask)[2]) {
    if (!bias_sizes || bias_sizes->size() != 1) return false;
    outs[2] = type_of(*g, false);
    outs[2].sizes = *bias_sizes;
    outs[2].strides = {sym::Expr(1)};
  }
  ++recorder.counters().ops;
  ++recorder.counters().own_rules;
  const graph::Node& node = recorder.add_node(facts.op, std::move(args), std::move(outs));
  torch::jit::drop(stack, stack.size() - base);
  for (ValueId v : std::vector<ValueId>(node.outs.begin(), node.outs.end()))
    stack.emplace_back(v == kNoValue ? at::Tensor() : recorder.fresh(v));
  return true;
}

}  // namespace

Special special_of(std::string_view name) {
  static const std::unordered_map<std::string_view, Special> table = {
      {op::lift_fresh, lift_fresh},
      {op::lift, lift_fresh},
      {op::_to_copy, to_copy},
      {op::detach, detach},
      {op::detach_, detach_in_place},
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
      {op::convolution, convolution},
      {op::convolution_backward, convolution_backward},
      {op::index_Tensor, index_by_masks},
      {op::index_put, index_by_masks},
      {op::index_put_, index_by_masks},
      {op::masked_select, masked_select},
  };
  auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

}  // namespace flashover::trace

// Calls whose results' types torch's meta kernels and shape functions tell: run on companions without memory.
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <new>
#include <string_view>

#include "base/check.h"
#include "ops/names.h"
#include "torch/size_node.h"
#include "trace/map_tensors.h"
#include "trace/no_memory.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// Torch function modes see calls of Python shape functions otherwise.
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }
  NoTorchFunction(const NoTorchFunction&) = delete;

 private:
  at::impl::TorchFunctionDisabledState before_;
};

}  // namespace

Device Recorder::device_of_results(const OpFacts& facts, const std::vector<Arg>& args) const {
  // Where results live: the device argument, or that of the tensors.
  Device device;
  bool found = false;
  if (facts.device_arg >= 0)
    if (const Device* d = std::get_if<Device>(&args[facts.device_arg])) device = *d, found = true;
  for (const Operand& o : operands_) {
    const TensorType& type = graph_.type(o.value);
    if (!found || (facts.device_arg < 0 && device.type == DeviceType::kCPU && type.device.type != DeviceType::kCPU)) {
      device = type.device;
      found = true;
    }
  }
  if (device.type == DeviceType::kCPU) device.index = -1;
  return device;
}

at::Tensor Recorder::companion_of(const at::Tensor& t) {
  for (Operand& o : operands_) {
    if (!o.tensor.is_same(t)) continue;
    if (!o.companion.defined()) {
      // The same tensor twice must be the same companion.
      for (const Operand& other : operands_)
        if (o.impl && other.impl == o.impl && other.companion.defined()) o.companion = other.companion;
    }
    if (!o.companion.defined() && symbolic_companions_ && o.impl) o.companion = symbolic_companion(*o.impl);
    if (!o.companion.defined()) o.companion = meta_companion(o.impl ? *o.impl : *o.tensor.unsafeGetTensorImpl());
    return o.companion;
  }
  FLASHOVER_CHECK(false) << "operand lost";
  return at::Tensor();
}

Stack Recorder::call_meta(const OpFacts& facts, const Stack& stack, size_t base) {
  const auto& specs = facts.schema.args;
  Stack meta;
  meta.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (static_cast<int>(i) == facts.device_arg && (!value.isNone() || operands_.empty())) {
      meta.emplace_back(at::Device(at::kMeta));
    } else {
      meta.push_back(map_tensors(value, specs[i], [&](const at::Tensor& t) { return companion_of(t); }));
    }
  }
  {
    BelowEverything plain;
    NoTorchFunction no_modes;
    InternalScope internal;
    try {
      if (facts.cpp_meta && !symbolic_companions_) {
        facts.cpp_meta->callBoxed(facts.schema.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
      } else {
        facts.schema.handle.callBoxed(meta);
      }
    } catch (const c10::NotImplementedError& e) {
      throw Declined("no shape function for " + facts.schema.name + ": " + e.what_without_backtrace());
    } catch (const c10::Error& e) {
      if (facts.python_meta && !says_no_memory(e))
        throw Declined(facts.schema.name + ": " + e.what_without_backtrace());
      throw;  // what eager would say
    } catch (const std::exception& e) {
      if (says_no_memory(e)) throw std::bad_alloc();
      // A Python shape function raised: eager may raise as well, or the function asked for data.
      throw Declined(facts.schema.name + ": " + e.what());
    }
  }
  return meta;
}

// Python shape functions compute with symbols as with numbers. nullopt: this one, or what it calls, needs the numbers.
std::optional<Stack> Recorder::call_meta_on_symbols(const OpFacts& facts, const Stack& stack, size_t base) {
  const auto forget = [&] {
    symbolic_companions_ = false;
    for (Operand& o : operands_) o.companion = at::Tensor();
  };
  symbolic_companions_ = true;
  try {
    Stack out = call_meta(facts, stack, base);
    bool known = true;
    for (size_t i = 0; i < out.size(); ++i)
      for_each_tensor(out[i], [&](const at::Tensor& t) { known = known && (!t.defined() || has_known_geometry(t)); });
    symbolic_companions_ = false;
    if (known) return out;
  } catch (const std::bad_alloc&) {
    forget();
    throw;
  } catch (const std::exception&) {
    pybind11::gil_scoped_acquire gil;
    PyErr_Clear();
  }
  forget();
  return std::nullopt;
}

namespace {

// As aten::type_of, which knows numbers only.
TensorType type_with_symbols(const at::Tensor& t) {
  if (!t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return aten::type_of(t);
  TensorType out;
  out.dtype = aten::from_aten(t.scalar_type());
  out.device = aten::from_aten(t.device());
  for (const c10::SymInt& s : t.sym_sizes()) out.sizes.push_back(*aten::expr_of(s));
  for (const c10::SymInt& s : t.sym_strides()) out.strides.push_back(*aten::expr_of(s));
  out.offset = *aten::expr_of(t.sym_storage_offset());
  return out;
}

}  // namespace

// A Python shape function was asked that torch's own tracers use, where eager has another one in C++: at this call's
// sizes they are to say the same.
bool Recorder::agrees_now(const OpFacts& facts, const Stack& symbolic, const Stack& stack, size_t base) {
  const auto now = [&](const c10::IValue& v) { return sizes_->now(*aten::expr_of(v)); };
  Stack numbers;
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    const c10::IValue& v = stack[base + i];
    if (aten::is_size(v)) {
      numbers.emplace_back(now(v));
    } else if (v.isList() && facts.schema.args[i].kind == aten::ArgKind::kIntList) {
      std::vector<int64_t> list;
      for (const c10::IValue& e : v.toListRef()) list.push_back(now(e));
      numbers.emplace_back(std::move(list));
    } else {
      numbers.push_back(v);
    }
  }
  std::vector<at::Tensor> before;
  for (Operand& o : operands_) {
    before.push_back(o.companion);
    o.companion = meta_companion(o.impl ? *o.impl : *o.tensor.unsafeGetTensorImpl(), CompanionSizes::kNow);
  }
  const Stack plain = call_meta(facts, numbers, 0);
  for (size_t i = 0; i < operands_.size(); ++i) operands_[i].companion = before[i];
  const auto types = [](const Stack& results) {
    std::vector<TensorType> out;
    for (const c10::IValue& v : results)
      for_each_tensor(v,
                      [&](const at::Tensor& t) { out.push_back(t.defined() ? type_with_symbols(t) : TensorType{}); });
    return out;
  };
  const std::vector<TensorType> ours = types(symbolic), theirs = types(plain);
  const auto same = [&](const Sizes& a, const Sizes& b) {
    return std::ranges::equal(a, b, [&](sym::Expr x, sym::Expr y) { return sizes_->now(x) == sizes_->now(y); });
  };
  return std::ranges::equal(ours, theirs, [&](const TensorType& a, const TensorType& b) {
    return a.dtype == b.dtype && same(a.sizes, b.sizes) && same(a.strides, b.strides) &&
           sizes_->now(a.offset) == sizes_->now(b.offset);
  });
}

void Recorder::take_geometry(const OpFacts& facts) {
  // Geometry of written arguments may have changed (out= overloads resize theirs).
  for (Operand& o : operands_) {
    if (!o.companion.defined() || !o.impl) continue;
    const auto& now = *o.companion.unsafeGetTensorImpl();
    if (o.impl->sizes() == now.sizes() && o.impl->strides() == now.strides() &&
        o.impl->storage_offset() == now.storage_offset())
      continue;
    if (!facts.schema.any_written) throw Declined(facts.schema.name + " changed the shape of an argument");
    if (o.impl->input >= 0) throw Declined(facts.schema.name + " resizes a tensor that outlives the call");
    if (o.impl->numel() != 0) throw Declined(facts.schema.name + " resizes a tensor that has elements");
    o.impl->set_geometry(now.sizes(), now.strides(), now.storage_offset());
  }
}

void Recorder::add_result(const at::Tensor& t, Device device, std::vector<MetaResult>& results,
                          std::vector<TensorType>& outs) const {
  MetaResult r{t};
  if (!t.defined()) {
    results.push_back(std::move(r));
    outs.emplace_back();
    return;
  }
  for (const Operand& o : operands_)
    if (o.companion.defined() && o.companion.is_same(t)) r.self = &o;
  TensorType type = type_with_symbols(t);
  type.device = device;
  if (r.self) {
    type.device = graph_.type(r.self->value).device;
  } else {
    type.wrapped_number = false;
    r.storage = find_storage(t.storage().unsafeGetStorageImpl());
  }
  outs.push_back(std::move(type));
  results.push_back(std::move(r));
}

// What eager leaves out although the shape function says otherwise.
void Recorder::leave_out(const OpFacts& facts, const std::vector<Arg>& args, std::vector<MetaResult>& results,
                         std::vector<TensorType>& outs) const {
  if (facts.schema.name == op::_native_multi_head_attention && outs.size() == 2) {
    const bool* needed = std::get_if<bool>(&args[10]);  // need_weights; without it eager returns none
    if (!needed || !*needed) {
      outs[1] = TensorType{};
      results[1].meta = at::Tensor();
    }
  }
  if (facts.schema.name == op::mkldnn_rnn_layer && !outs.empty()) {
    // The workspace exists for a backward only; the shape function says an empty one, eager says none.
    const bool backward =
        c10::GradMode::is_enabled() &&
        std::any_of(operands_.begin(), operands_.end(), [](const Operand& o) { return o.tensor.requires_grad(); });
    if (!backward) {
      outs.back() = TensorType{};
      results.back().meta = at::Tensor();
    }
  }
}

std::vector<at::Tensor> Recorder::place_results(const OpFacts& facts, const std::vector<MetaResult>& results,
                                                const std::vector<ValueId>& values) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < results.size(); ++i) {
    const MetaResult& r = results[i];
    const ValueId value = values[i];
    if (!r.meta.defined()) {
      tensors.emplace_back();
    } else if (r.self) {
      FLASHOVER_CHECK(r.self->impl) << facts.schema.name << " returned a number";
      graph_.values[value].storage = r.self->impl->storage_id;
      tensors.push_back(rebind(*r.self, value));
    } else if (r.storage >= 0) {
      const auto base_impl = std::find_if(operands_.begin(), operands_.end(),
                                          [&](const Operand& o) { return o.impl && o.impl->storage_id == r.storage; });
      FLASHOVER_CHECK(base_impl != operands_.end()) << facts.schema.name << " aliases a tensor it was not given";
      at::Tensor view = view_of(*base_impl->impl, value);
      trace_impl(view)->set_bits(r.meta.is_conj(), r.meta.is_neg());
      tensors.push_back(std::move(view));
    } else if (r.meta.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      tensors.push_back(fresh(value));
    } else {
      c10::Storage storage = r.meta.storage();
      forbid_data_access(storage);
      const int32_t id = new_storage(storage);
      tensors.push_back(make_tensor(value, std::move(storage), id));
    }
  }
  return tensors;
}

void Recorder::finish_by_meta(OpFacts& facts, std::vector<Arg> args, Stack& stack, size_t base) {
  if (!facts.cpp_meta && !facts.python_meta) {
    // One that only writes (fused optimizers) leaves shapes as they are; an out= overload may resize.
    if (!facts.schema.returns.empty() || !facts.schema.any_written || !op::looks_in_place(facts.schema.name))
      throw Declined("no shape function for " + facts.schema.name);
    check_autograd(facts, {});
    add_node(facts.op, std::move(args), {});
    torch::jit::drop(stack, stack.size() - base);
    return;
  }
  if (facts.cpp_meta) {
    ++stats_.cpp_meta;
  } else {
    ++stats_.python_meta;
    stats_.python_meta_ops.push_back(facts.schema.name);
  }
  const Device device = device_of_results(facts, args);
  std::optional<Stack> symbolic;
  if (!sizes_->empty() && (facts.python_meta || facts.shadowed) && !facts.schema.any_written)
    symbolic = call_meta_on_symbols(facts, stack, base);
  if (symbolic && facts.shadowed && !agrees_now(facts, *symbolic, stack, base)) {
    symbolic.reset();
    for (Operand& o : operands_) o.companion = at::Tensor();
  }
  const bool reads = !symbolic && !sizes_->empty();
  if (reads && !(symbolic = call_shape_function_of_user(facts, stack, base))) {
    read_sizes(facts, stack, base);
    args = collect(facts, stack, base);
  }
  Stack meta;
  if (symbolic) {
    meta = std::move(*symbolic);
  } else {
    try {
      meta = call_meta(facts, stack, base);
      take_geometry(facts);
    } catch (const Declined&) {
      if (!reads) symbolic = call_shape_function_of_user(facts, stack, base);
      if (!symbolic) throw;
      meta = std::move(*symbolic);
    }
  }
  std::vector<MetaResult> results;
  std::vector<TensorType> outs;
  FLASHOVER_CHECK(meta.size() == facts.schema.returns.size())
      << facts.schema.name << " returned " << meta.size() << " values";
  for (size_t i = 0; i < meta.size(); ++i) {
    const aten::ArgSpec& spec = facts.schema.returns[i];
    if (spec.kind == aten::ArgKind::kTensor) {
      if (!meta[i].isTensor()) throw Declined(facts.schema.name + " returned something else than a tensor");
      add_result(meta[i].toTensor(), device, results, outs);
    } else if (spec.kind == aten::ArgKind::kTensorList) {
      for (const at::Tensor& t : meta[i].toTensorVector()) add_result(t, device, results, outs);
    }
  }
  leave_out(facts, args, results, outs);
  check_autograd(facts, outs);
  std::vector<at::Tensor> tensors;
  const bool query = facts.is_query && outs.empty() && !facts.schema.any_written;
  if (!query) {
    if (!outs.empty()) fill_factory_defaults(facts, args, outs[0]);
    // The node may move when the graph grows, its outs not.
    const std::vector<ValueId> values = add_node(facts.op, std::move(args), std::move(outs)).outs;
    tensors = place_results(facts, results, values);
    check_asked_sizes(facts);
  }
  torch::jit::drop(stack, stack.size() - base);
  size_t next = 0;
  for (size_t i = 0; i < meta.size(); ++i) {
    const aten::ArgSpec& spec = facts.schema.returns[i];
    if (spec.kind == aten::ArgKind::kTensor) {
      stack.emplace_back(tensors[next++]);
    } else if (spec.kind == aten::ArgKind::kTensorList) {
      c10::List<at::Tensor> list;
      const size_t length = meta[i].toListRef().size();
      for (size_t k = 0; k < length; ++k) list.push_back(tensors[next++]);
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(std::move(meta[i]));
    }
  }
}

}  // namespace flashover::trace

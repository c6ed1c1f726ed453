// Takes operator calls, asks for their result types, and appends nodes; inputs are exchanged and put back here.
#include "trace/recorder.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ScalarOps.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/logical_not.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "compat/names.h"
#include "eager/eval.h"
#include "ops/last_element.h"
#include "ops/names.h"
#include "sym/found.h"
#include "torch/autocast.h"
#include "torch/size_node.h"
#include "trace/aside.h"
#include "trace/assume.h"
#include "trace/bounds.h"
#include "trace/data_values.h"
#include "trace/elsewhere.h"
#include "trace/exchange.h"
#include "trace/map_tensors.h"
#include "trace/number.h"
#include "trace/overlap.h"

namespace flashover::trace {
namespace {

thread_local Recorder* active_recorder = nullptr;

c10::DispatchKeySet keys_above_backend() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | compat::keys_of_names() |
         c10::DispatchKeySet({c10::DispatchKey::Fake, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                              c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                              c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize,
                              c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                              c10::DispatchKey::TESTING_ONLY_GenericWrapper, kElsewhere,
                              c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::VmapMode});
}

const TensorType& type_of_value(const void* graph, ValueId id) {
  return static_cast<const graph::Graph*>(graph)->values[id].type;
}

// Of the special ones: those whose arguments may be symbols.
bool takes_sizes(std::string_view name) { return name == op::as_strided_ || fourier_of(name) != nullptr; }

bool has_pyobject(const at::Tensor& t) { return t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr; }

}  // namespace

WaitForOthers wait_for_others = nullptr;
Exchange& exchange() {
  thread_local Exchange e;
  return e;
}

Session* current() { return active_recorder; }
std::unique_ptr<Session> begin() { return std::make_unique<Recorder>(); }

thread_local int internal_depth = 0;
InternalScope::InternalScope() { ++internal_depth; }
InternalScope::~InternalScope() { --internal_depth; }
bool internal_call() { return internal_depth > 0; }

int8_t current_cuda_device() {
  if (!at::globalContext().hasCUDA()) return 0;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
}

BelowEverything::BelowEverything() : guard_(keys_above_backend()) {}

// ------------------------------------------------------------------------------------------------- life of a session

Recorder::Recorder(std::shared_ptr<Liveness> liveness)
    : liveness_(std::move(liveness)),
      autocast_cache_was_enabled_(autocast::is_cache_enabled()),
      saved_tensor_hooks_(at::SavedTensorDefaultHooks::get_tls_state()),
      profiler_(at::get_record_function_tls_()) {
  if (active_recorder) throw Declined("a trace is already running on this thread");
  // (Where modes come before what records, it would not find out.)
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) throw Declined("a TorchDispatchMode is active");
  liveness_->recorder = this;
  exchange() = {};
}

// All is noted before anything is changed: where this throws, the destructor puts it back.
Recorder::Recorder() : Recorder(std::make_shared<Liveness>()) {
  // The autocast weight cache would keep trace tensors beyond the trace, and hand out real casts inside it.
  autocast::clear_cache();
  autocast::set_cache_enabled(false);
  at::SavedTensorDefaultHooks::set_tls_state({});
  at::RecordFunctionTLS silent = profiler_;
  silent.tls_record_function_enabled_ = false;
  at::set_record_function_tls_(silent);
  active_recorder = this;
  sizes_->assume = [this](const sym::SizeGuard& fact, std::string words) { assume_of_data(fact, std::move(words)); };
  const auto real_inputs = [this] {
    std::unordered_map<ValueId, at::Tensor> out;
    for (const InputRecord& in : inputs_)
      out.emplace(graph_.inputs[static_cast<size_t>(in.number)].value, in.impl->real);
    for (size_t i = 0; i < constants_.size(); ++i)
      out.emplace(graph_.inputs[static_cast<size_t>(constant_inputs_[i])].value, constants_[i]);
    return out;
  };
  const auto values =
      std::make_shared<DataValues>(graph_, real_inputs, [this](sym::Expr size) { return sizes_->now(size); });
  sym::find_by(
      [this, values](sym::Expr e) { return in_backward_ || ended_ || declined_ ? std::nullopt : values->of(e); });
  sizes_->refuse = [this](const std::string& why) { throw_decline(why); };
  link_intercepts();
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, true);
  c10::impl::tls_set_dispatch_key_excluded(kElsewhere, true);
}

void Recorder::deactivate() {
  if (active_recorder == this) active_recorder = nullptr;
}

Recorder::~Recorder() {
  sizes_->line = nullptr;
  sizes_->assume = nullptr;
  sizes_->refuse = nullptr;
  sym::find_by({});
  select(nullptr);
  if (!ended_) swap_back();
}

void Recorder::decline(const std::string& reason) {
  if (!std::exchange(declined_, true)) reason_ = reason;
  pybind11::gil_scoped_acquire gil;
  if (!PyErr_Occurred()) PyErr_SetString(decline_class(), reason.c_str());
}

void Recorder::throw_decline(const std::string& reason) {
  decline(reason);
  python_error error;
  error.persist();
  throw error;
}

void decline_trace(const TraceImpl& tensor, const std::string& reason) {
  if (tensor.liveness && tensor.liveness->recorder) tensor.liveness->recorder->throw_decline(reason);
  throw std::runtime_error("flashover: " + reason);
}

// ------------------------------------------------------------------------------------------------------- bookkeeping

int32_t Recorder::new_storage(const c10::Storage& storage) {
  const auto id = static_cast<int32_t>(storages_.size());
  storages_.push_back(storage);
  by_storage_.emplace(storage.unsafeGetStorageImpl(), id);
  return id;
}

int32_t Recorder::find_storage(const c10::StorageImpl* storage) const {
  auto it = by_storage_.find(storage);
  return it == by_storage_.end() ? -1 : it->second;
}

int32_t Recorder::location_id() {
  if (!location) return -1;
  graph::Location where;
  {
    pybind11::gil_scoped_acquire gil;
    where = location();
  }
  // A node of the backward is of the line that made it.
  if (const auto node = torch::autograd::get_current_node(); node && where.text.empty()) {
    const auto made = forward_locations_.find(node->sequence_nr());
    return made == forward_locations_.end() ? -1 : made->second;
  }
  if (where.text.empty()) return -1;
  if (policy_ != nullptr && where.checkpoint >= 0) where.selection = selected_;
  auto [it, fresh] = location_ids_.emplace(graph::str(where), static_cast<int32_t>(graph_.facts.locations.size()));
  if (fresh) graph_.facts.locations.push_back(where);
  // Autograd numbers a node right before its operator gets here.
  if (at::sequence_number::peek() > 0) forward_locations_.try_emplace(at::sequence_number::peek() - 1, it->second);
  return it->second;
}

void Recorder::settle(TensorType& type) const {
  for (sym::Expr& e : type.sizes) e = sizes_->settled(e);
  for (sym::Expr& e : type.strides) e = sizes_->canonical(e);
  type.offset = sizes_->canonical(type.offset);
}

TensorType Recorder::type_of(const at::Tensor& t) const {
  const TraceImpl* impl = trace_impl(t);
  if (!impl || !impl->is_symbolic()) return aten::type_of(t);
  TensorType type = impl->symbolic_type();
  type.dtype = aten::from_aten(t.scalar_type());
  type.device = aten::from_aten(t.device());
  type.wrapped_number = impl->is_wrapped_number();
  return type;
}

// Numbers in the place of sizes, in the arguments of a call: for who computes with them in his own way.
void Recorder::read_sizes(const OpFacts& facts, Stack& stack, size_t base) const {
  const auto number = [](const c10::IValue& v) { return v.toSymInt().guard_int(__FILE__, __LINE__); };
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    c10::IValue& v = stack[base + i];
    if (aten::is_size(v)) {
      v = number(v);
    } else if (aten::float_of_sizes(v)) {
      v = v.toSymFloat().guard_float(__FILE__, __LINE__);
    } else if (v.isList() && facts.schema.args[i].kind == aten::ArgKind::kIntList) {
      std::vector<int64_t> list;
      for (const c10::IValue& e : v.toListRef()) list.push_back(e.isInt() ? e.toInt() : number(e));
      v = list;
    }
  }
}

// The sizes of this call for all operands and arguments. False: they are numbers as they are.
bool Recorder::specialize_operands(const OpFacts& facts, Stack& stack, size_t base) {
  if (sizes_->empty()) return false;
  bool any = false;
  for (const Operand& o : operands_) {
    TensorType& type = graph_.values[static_cast<size_t>(o.value)].type;
    for (Sizes* part : {&type.sizes, &type.strides})
      for (sym::Expr& e : *part) {
        if (e.is_const()) continue;
        any = true;
        e = sizes_->specialize(e);
      }
    type.offset = sizes_->canonical(type.offset);
  }
  read_sizes(facts, stack, base);
  return any;
}

// Results that ATen leaves undefined (gradients nobody asked for) have no value.
graph::Node& Recorder::add_node(const ops::OpRow* op, std::vector<Arg> args, std::vector<TensorType> outs) {
  graph::Node node{.op = op, .args = std::move(args), .location = location_id()};
  if (!sizes_->empty())
    for (TensorType& t : outs) settle(t);
  for (TensorType& t : outs)
    node.outs.push_back(t.dtype == DType::kUndefined ? kNoValue : graph_.add_value(std::move(t)));
  if (!led_to_.empty()) {
    bool reads = false;
    for (const Arg& a : node.args) graph::for_each_ref(a, [&](ValueId) { reads = true; });
    const auto maker = torch::autograd::get_current_node();
    const auto known = led_to_.find(maker.get());
    if (known != led_to_.end() && (!reads || op->name.find("_like.") != std::string::npos))
      constants_from_.emplace(graph_.nodes.size(), known->second);
  }
  return graph_.nodes.emplace_back(std::move(node));
}

// What torch's tensors hold beside the symbols. (What follows from data has no number: any that is a size.)
int64_t Recorder::number_shown(sym::Expr e) const {
  const int64_t now = sizes_->now(e);
  return !e.is_const() && sym::has_data_size(e) ? std::max<int64_t>(now, 2) : now;
}

// The numbers of this call, and where there are symbols these, too.
void Recorder::give_geometry(TraceImpl& impl, const TensorType& type) const {
  c10::SmallVector<int64_t, 8> sizes, strides;
  bool symbolic = !type.offset.is_const();
  const auto take = [&](const Sizes& from, c10::SmallVector<int64_t, 8>& to) {
    for (sym::Expr e : from) {
      to.push_back(number_shown(e));
      symbolic = symbolic || !e.is_const();
    }
  };
  take(type.sizes, sizes);
  take(type.strides, strides);
  impl.set_geometry(sizes, strides, number_shown(type.offset));
  if (symbolic) impl.set_symbolic(std::make_shared<SymbolicGeometry>(sizes_, type));
}

at::Tensor Recorder::make_tensor(ValueId value, c10::Storage storage, int32_t storage_id) {
  const TensorType& type = graph_.type(value);
  const at::ScalarType dtype = aten::to_aten(type.dtype);
  const at::Device device = aten::to_aten(type.device);
  auto impl = c10::make_intrusive<TraceImpl>(std::move(storage),
                                             c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, device)),
                                             c10::scalarTypeToTypeMeta(dtype), device);
  give_geometry(*impl, type);
  impl->value = value;
  impl->storage_id = storage_id;
  impl->liveness = liveness_;
  graph_.values[value].storage = storage_id;
  return at::Tensor(std::move(impl));
}

at::Tensor Recorder::fresh(ValueId value) {
  const TensorType& type = graph_.type(value);
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (sym::Expr e : type.sizes) sizes.push_back(number_shown(e));
  for (sym::Expr e : type.strides) strides.push_back(number_shown(e));
  c10::Storage storage = make_storage(static_cast<int64_t>(
      at::detail::computeStorageNbytes(sizes, strides, info(type.dtype).bytes, number_shown(type.offset))));
  const int32_t id = new_storage(storage);
  return make_tensor(value, std::move(storage), id);
}

// As ATen's view kernels: the view has the keys of its base (an inference view of a normal tensor is a normal tensor).
at::Tensor Recorder::view_of(const TraceImpl& base, ValueId value) {
  const TensorType& type = graph_.type(value);
  auto impl =
      c10::make_intrusive<TraceImpl>(TraceImpl::ViewTag(), base, c10::scalarTypeToTypeMeta(aten::to_aten(type.dtype)));
  give_geometry(*impl, type);
  impl->value = value;
  graph_.values[value].storage = base.storage_id;
  return at::Tensor(std::move(impl));
}

ValueId Recorder::add_number(const at::Tensor& t) {
  at::Scalar number;
  {
    BelowEverything plain;
    number = at::_local_scalar_dense(t);
  }
  return add_number(aten::type_of(t), aten::from_scalar(number));
}

ValueId Recorder::add_number(TensorType type, Arg number) {
  type.offset = 0;
  std::vector<Arg> args = {Sizes{}, std::move(number), type.dtype, type.device};
  std::vector<TensorType> outs = {std::move(type)};
  return graph_.add_node(ops::find(Prim::full), std::move(args), std::move(outs)).outs[0];
}

at::Tensor Recorder::add_constant(const at::Tensor& given) {
  if (given.dim() == 0 && given.is_cpu() && given.layout() == at::kStrided) return fresh(add_number(given));
  at::Tensor real = given;
  const auto number = static_cast<int32_t>(graph_.inputs.size());
  {
    BelowEverything plain;
    // An own copy: the program may write the memory it came from (from_numpy) after the trace.
    real = real.clone();
  }
  TensorType type = aten::type_of(real);
  const ValueId value =
      graph_.add_input(std::move(type), graph::InputKind::kConstant, "constant" + std::to_string(constants_.size()));
  constants_.push_back(std::move(real));
  constant_inputs_.push_back(number);
  return fresh(value);
}

// A real tensor in the arguments: a swapped input met through C++, a number that ATen wrapped, or a stranger.
Ref Recorder::lift(const at::Tensor& t, const char* op_name) {
  if (!t.defined()) return {};
  if (TraceImpl* impl = trace_impl(t)) {
    if (impl->liveness.get() != liveness_.get())
      throw Declined(std::string("a tensor of another trace reached ") + op_name);
    operands_.push_back({t, impl, impl->value, arg_, {}});
    return {impl->value};
  }
  const auto known = [&]() -> const at::Tensor* {
    auto it = by_real_impl_.find(t.unsafeGetTensorImpl());
    return it == by_real_impl_.end() ? nullptr : &it->second;
  };
  const auto as_operand = [&](const at::Tensor& trace) {
    TraceImpl* impl = trace_impl(trace);
    operands_.push_back({t, impl, impl->value, arg_, {}});
    return Ref{impl->value};
  };
  if (const at::Tensor* trace = known()) return as_operand(*trace);
  const bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (wrapped && (numbers_ > 0 || !sizes_->empty())) {
    if (const auto size = wrapped_size(t)) {
      const ValueId value = add_number(aten::type_of(t), *size);
      graph_.values[value].storage = new_storage(make_storage(info(graph_.type(value).dtype).bytes));
      operands_.push_back({t, nullptr, value, arg_, {}});
      return {value};
    }
    if (const ValueId value = symbol_value(t); value != kNoValue) {
      operands_.push_back({t, nullptr, value, arg_, {}});
      return {value};
    }
    // What the parser fills in for a symbol, without the symbol: a copy of it that lost it.
    const bool lost = t.is_floating_point()
                          ? std::isnan(*static_cast<const double*>(t.const_data_ptr()))
                          : t.scalar_type() == at::kLong && *static_cast<const int64_t*>(t.const_data_ptr()) == 7777777;
    if (lost) throw Declined(std::string("a number that changes was copied before ") + op_name);
  }
  if (wrapped || (t.dim() == 0 && t.is_cpu() && !has_pyobject(t) && t.layout() == at::kStrided)) {
    const ValueId value = add_number(t);
    graph_.values[value].storage = new_storage(make_storage(info(graph_.type(value).dtype).bytes));
    operands_.push_back({t, nullptr, value, arg_, {}});
    return {value};
  }
  if (unknown_tensor && has_pyobject(t)) {
    bool added = false;
    {
      pybind11::gil_scoped_acquire gil;
      PyObject* object = THPVariable_Wrap(t);
      added = unknown_tensor(object);
      Py_DECREF(object);
    }
    if (const at::Tensor* trace = added ? known() : nullptr) return as_operand(*trace);
  }
  throw Declined(std::string("unknown tensor: one that is neither an input nor made in the traced code reached ") +
                 op_name);
}

// Scalars that rules and operators take as they are known when the program runs.
bool Recorder::may_change(const OpFacts& facts, size_t arg) const {
  return facts.may_rule && !facts.special && facts.schema.args[arg].kind == aten::ArgKind::kScalar;
}

// A size in a number's place: a 0-d tensor of integers that promotes as Python's numbers do.
Ref Recorder::size_as_number(sym::Expr e) {
  TensorType type;
  type.dtype = DType::kI64;
  type.wrapped_number = true;
  const ValueId value = add_number(std::move(type), e);
  graph_.values[value].storage = new_storage(make_storage(info(DType::kI64).bytes));
  return {value};
}

// The same of a float that torch computed of sizes: the graph computes it.
Ref Recorder::float_as_number(const aten::FloatOfSizes& f) {
  using Kind = aten::FloatOfSizes::Kind;
  TensorType type;
  type.dtype = DType::kF64;
  type.wrapped_number = true;
  const auto leaf = [&](Arg number) {
    const ValueId value = add_number(type, std::move(number));
    graph_.values[value].storage = new_storage(make_storage(info(DType::kF64).bytes));
    return Ref{value};
  };
  if (f.kind == Kind::kConstant) return leaf(f.constant);
  if (f.kind == Kind::kSize) return leaf(sizes_->canonical(f.size));
  const Ref a = float_as_number(*f.a), b = float_as_number(*f.b);
  const bool scales = f.kind == Kind::kMul || f.kind == Kind::kDiv;
  std::vector<Arg> args = {a, b};
  if (!scales) args.emplace_back(sym::Expr(1));
  const ops::OpRow* row = ops::find(f.kind == Kind::kAdd   ? op::add_Tensor
                                    : f.kind == Kind::kSub ? op::sub_Tensor
                                    : f.kind == Kind::kMul ? op::mul_Tensor
                                                           : op::div_Tensor);
  const ValueId value = add_node(row, std::move(args), {type}).outs[0];
  graph_.values[value].storage = new_storage(make_storage(info(DType::kF64).bytes));
  return {value};
}

bool Recorder::any_sized_scalar(const OpFacts& facts, const Stack& stack, size_t base) const {
  if (sizes_->empty()) return false;
  for (size_t i = 0; i < facts.schema.args.size(); ++i)
    if (may_change(facts, i) && (aten::is_size(stack[base + i]) || aten::float_of_sizes(stack[base + i]))) return true;
  return false;
}

// Every dtype that such a number may be converted to holds it: eager raises or wraps where it does not.
bool Recorder::sizes_fit(const OpFacts& facts, const Stack& stack, size_t base,
                         const std::vector<TensorType>& outs) const {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  const auto must_hold = [&](DType d) {
    if (d == DType::kUndefined || d == DType::kBool || info(d).complex) return true;
    if (is_floating(d)) {
      if (d == DType::kF16) least = std::max<int64_t>(least, -65504), most = std::min<int64_t>(most, 65504);
      return d == DType::kF16 || d == DType::kBF16 || d == DType::kF32 || d == DType::kF64;
    }
    if (d == DType::kI64) return true;
    if (d != DType::kI32 && d != DType::kI16 && d != DType::kI8 && d != DType::kU8) return false;
    const int bits = info(d).bytes * 8 - (info(d).is_signed ? 1 : 0);
    most = std::min(most, (int64_t{1} << bits) - 1);
    least = std::max(least, info(d).is_signed ? -(int64_t{1} << bits) : 0);
    return true;
  };
  for (const TensorType& t : outs)
    if (!must_hold(t.dtype)) return false;
  for (const Operand& o : operands_)
    if (!must_hold(graph_.type(o.value).dtype)) return false;
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    if (!may_change(facts, i)) continue;
    if (aten::float_of_sizes(stack[base + i]) && !std::ranges::all_of(outs, [](const TensorType& t) {
          return t.dtype == DType::kUndefined || is_floating(t.dtype) || info(t.dtype).complex;
        }))
      return false;
    if (!aten::is_size(stack[base + i])) continue;
    const sym::Expr e = *aten::expr_of(stack[base + i]);
    if (least != std::numeric_limits<int64_t>::min() && !sizes_->holds(sym::Relation::kLessEqual, least, e))
      return false;
    if (most != std::numeric_limits<int64_t>::max() && !sizes_->holds(sym::Relation::kLessEqual, e, most)) return false;
  }
  return true;
}

std::vector<Arg> Recorder::collect(const OpFacts& facts, const Stack& stack, size_t base) {
  operands_.clear();
  const auto& specs = facts.schema.args;
  std::vector<Arg> args;
  args.reserve(specs.size());
  const char* name = facts.schema.name.c_str();
  for (size_t i = 0; i < specs.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    arg_ = static_cast<int>(i);
    switch (specs[i].kind) {
      case aten::ArgKind::kTensor: {
        if (!value.isTensor() || !value.toTensor().defined()) {
          args.emplace_back();
          break;
        }
        args.emplace_back(lift(value.toTensor(), name));
        break;
      }
      case aten::ArgKind::kTensorList: {
        if (value.isNone()) {
          args.emplace_back();
          break;
        }
        RefList refs;
        const auto list = value.toListRef();
        refs.reserve(list.size());
        for (const c10::IValue& element : list)
          refs.push_back(element.isTensor() ? lift(element.toTensor(), name) : Ref{});
        args.emplace_back(std::move(refs));
        break;
      }
      case aten::ArgKind::kScalar:
        if (const ValueId number = numbers_ > 0 ? symbol_value(value) : kNoValue; number != kNoValue) {
          args.emplace_back(Ref{number});
          break;
        }
        if (const auto formula = aten::float_of_sizes(value); formula && may_change(facts, i)) {
          args.emplace_back(float_as_number(*formula));
          break;
        }
        // Scalars that say how many elements there are.
        if (aten::is_size(value) && op::is_any_of(name, {op::arange, op::arange_start, op::arange_start_step})) {
          args.emplace_back(*aten::expr_of(value));
          break;
        }
        if (aten::is_size(value) && may_change(facts, i)) {
          const sym::Expr e = *aten::expr_of(value);
          if (e.is_const()) {
            args.emplace_back(e);
          } else {
            args.emplace_back(size_as_number(e));
          }
          break;
        }
        [[fallthrough]];
      default:
        args.push_back(aten::from_ivalue(value, specs[i], name));
        // "cuda" is the current device, whichever that is when the plan runs: the guards compare it.
        if (auto* d = std::get_if<Device>(&args.back()); d && d->type == DeviceType::kCUDA && d->index < 0)
          d->index = current_cuda_device();
    }
  }
  check_devices(facts);
  return args;
}

// Eager refuses operands on several devices (0-d CPU tensors are numbers); shape functions would not notice.
void Recorder::check_devices(const OpFacts& facts) const {
  const TraceImpl* first = nullptr;
  bool mixed = false;
  for (const Operand& o : operands_) {
    if (!o.impl || (o.impl->dim() == 0 && o.impl->device().is_cpu())) continue;
    mixed = mixed || (first && first->device() != o.impl->device());
    if (!first) first = o.impl;
  }
  if (!mixed) return;
  const bool may_mix = op::is_any_of(
      facts.schema.name, {op::copy_, op::_to_copy, op::index_Tensor, op::index_put, op::index_put_,
                          op::_index_put_impl_, op::_index_put_impl, op::_unsafe_index_Tensor, op::_unsafe_index_put});
  if (!may_mix) throw Declined("operands of " + facts.schema.name + " are on different devices");
}

// ------------------------------------------------------------------------------------------------------ a call

// For graph::Joint::followed.
void Recorder::note_gradients(const Stack& stack, size_t base) {
  const bool on = c10::GradMode::is_enabled();
  const auto note = [&](const at::Tensor& t) {
    if (t.requires_grad()) {
      followed_ &= on;
    } else if (const TraceImpl* impl = trace_impl(t); impl != nullptr && on) {
      const auto value = static_cast<size_t>(impl->value);
      if (value >= read_plainly_.size()) read_plainly_.resize(value + 1);
      read_plainly_[value] = true;
    }
  };
  for (size_t i = base; i < stack.size(); ++i) {
    if (stack[i].isTensor()) note(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const at::Tensor& t : stack[i].toTensorVector()) note(t);
  }
}

void Recorder::call(const c10::OperatorHandle& op, Stack* stack) {
  if (declined_) throw_decline(reason_);
  try {
    OpFacts& facts = facts_of(op);
    const size_t base = stack->size() - facts.schema.args.size();
    if (followed_ && !in_backward_) note_gradients(*stack, base);
    if (call_subclass(op, facts, *stack, base)) return;
    if (item_symbol && facts.schema.name == op::_local_scalar_dense && item_as_symbol(*stack)) return;
    if (policy_ != nullptr && !in_backward_) ask_policy(facts, *stack, base);
    if (numbers_ > 0 && facts.special) read_symbols(facts, *stack, base, true);
    if (!sizes_->empty() && facts.special && !takes_sizes(facts.schema.name)) read_sizes(facts, *stack, base);
    if (facts.special && facts.special(*this, facts, *stack, base)) return;
    call_general(facts, *stack, base);
    if (facts.uninitialized && fills_new_memory()) fill_new_memory(stack->back().toTensor());
  } catch (const Declined& e) {
    throw_decline(e.what());
  } catch (const UserError& e) {
    throw_decline(e.what());
  } catch (const InternalError& e) {
    throw_decline(std::string("internal error: ") + e.what());
  }
}

void Recorder::call_general(OpFacts& facts, Stack& stack, size_t base) {
  if (facts.composite || facts.per_tensor) {
    facts.schema.handle.callBoxedForDispatchKey(
        facts.per_tensor ? c10::DispatchKey::CompositeExplicitAutograd : c10::DispatchKey::CompositeImplicitAutograd,
        stack);
    return;
  }
  if (!in_backward_ && c10::impl::TorchDispatchModeTLS::any_modes_set())
    throw Declined("a TorchDispatchMode is active");
  const bool symbols = any_symbols(facts, stack, base), sized = any_sized_scalar(facts, stack, base);
  if (symbols) read_symbols(facts, stack, base, facts.reads_data || !facts.has_tensor_return);
  if (facts.reads_data && call_on_constants(facts, stack, base)) return;
  std::vector<Arg> args = collect(facts, stack, base);
  if (!facts.has_tensor_return && !facts.schema.any_written) {
    if (facts.op->effectful && facts.schema.returns.empty()) {
      ++stats_.ops;
      add_node(facts.op, std::move(args), {});
      torch::jit::drop(stack, facts.schema.args.size());
      return;
    }
    if (operands_.empty() && !facts.op->effectful) {  // nothing to record: torch's own bookkeeping
      c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKey::Fake);
      facts.schema.handle.callBoxed(stack);
      return;
    }
    if (!facts.is_query) throw Declined("side effect: " + facts.schema.name + " returns no tensor");
  }
  if (facts.schema.any_written) refuse_ordered_write(facts);
  ++stats_.ops;
  if (facts.only_writes) {  // there is no result whose type could be asked for
    check_autograd(facts, {});
    add_node(facts.op, std::move(args), {});
    torch::jit::drop(stack, facts.schema.args.size());
    return;
  }
  std::vector<TensorType> outs;
  bool ruled = infer_by_rule(facts, args, outs);
  std::vector<ValueId> in_range;
  if (symbols && !(ruled && numbers_fit(facts, args, outs) && fits_data(facts, args, outs, in_range))) {
    read_symbols(facts, stack, base, true);  // the value is needed
    args = collect(facts, stack, base);
    outs.clear();
    ruled = infer_by_rule(facts, args, outs);
  } else if (check_range(in_range)) {
    args = collect(facts, stack, base);  // (operators in between have operands of their own)
  }
  if (sized && !(ruled && sizes_fit(facts, stack, base, outs))) {  // numbers of this call
    read_sizes(facts, stack, base);
    args = collect(facts, stack, base);
    outs.clear();
    ruled = infer_by_rule(facts, args, outs);
  }
  if (!ruled && facts.may_rule && specialize_operands(facts, stack, base)) {  // rules may need numbers
    args = collect(facts, stack, base);
    outs.clear();
    ruled = infer_by_rule(facts, args, outs);
  }
  if (ruled) {
    ++stats_.own_rules;
    finish_by_rule(facts, std::move(args), std::move(outs), stack, base);
  } else {
    finish_by_meta(facts, std::move(args), stack, base);
  }
}

// The same elements in the same order, as far as sizes that are symbols tell.
bool same_place(const TraceImpl& a, const TraceImpl& b) {
  if (!a.is_symbolic() || !b.is_symbolic()) return false;
  const TensorType x = a.symbolic_type(), y = b.symbolic_type();
  return x.sizes == y.sizes && x.strides == y.strides && x.offset == y.offset;
}

// Two dense parts of one memory that are the same part or have nothing in common.
bool surely_apart_or_equal(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  if (a.numel() == 0 || b.numel() == 0) return true;
  if (!a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense()) return false;
  const auto begin = [](const c10::TensorImpl& t) { return t.storage_offset() * static_cast<int64_t>(t.itemsize()); };
  const auto end = [&](const c10::TensorImpl& t) { return begin(t) + t.numel() * static_cast<int64_t>(t.itemsize()); };
  if (end(a) <= begin(b) || end(b) <= begin(a)) return true;
  return begin(a) == begin(b) && end(a) == end(b) && a.strides() == b.strides();
}

// One of them ends before the other begins, at all sizes.
bool lie_apart(const TraceImpl& one, const TraceImpl& other) {
  if (!one.is_symbolic() || !other.is_symbolic() || one.itemsize() != other.itemsize()) return false;
  const TensorType a = one.symbolic_type(), b = other.symbolic_type();
  return sym::follows(sym::Relation::kLess, ops::last_element(a), b.offset) ||
         sym::follows(sym::Relation::kLess, ops::last_element(b), a.offset);
}

bool is_dense(const c10::TensorImpl& t) { return t.is_non_overlapping_and_dense(); }

// Element i of what is written comes from elements i of what is read, or from no element at all.
bool is_by_element(const OpFacts& facts) {
  const ops::OpRow* row = facts.op->functional ? facts.op->functional : facts.op;
  return facts.schema.name == op::copy_ || row->kind == ops::OpKind::kPointwise;
}

// Writing to memory that overlaps itself or another operand: ATen's own checks decide.
bool Recorder::overlaps(const OpFacts& facts) const {
  for (const Operand& o : operands_) {
    if (!o.impl) continue;
    if (o.arg != facts.written_arg) continue;
    const c10::IntArrayRef sizes = o.impl->sizes_now(), strides = o.impl->strides_now();
    for (size_t d = 0; d < sizes.size(); ++d)  // (a size that is a symbol has elements, and a stride of 0 is none)
      if (strides[d] == 0 && sizes[d] > 1) return true;
    for (const Operand& other : operands_)
      if (other.impl && other.impl != o.impl && other.impl->storage_id == o.impl->storage_id &&
          other.value != o.value && !same_place(*o.impl, *other.impl) && !lie_apart(*o.impl, *other.impl) &&
          !surely_apart_or_equal(*o.impl, *other.impl))
        return true;
  }
  return false;
}

// copy_ checks as the others do, but for its meta kernel.
void Recorder::check_copy_in_itself() const {
  const TraceImpl *to = operands_[0].impl, *from = operands_.size() > 1 ? operands_[1].impl : nullptr;
  if (!to || !from || to->storage_id != from->storage_id) return;
  if (to->is_symbolic() || from->is_symbolic()) throw Declined("copy_ within one memory, at sizes that change");
  TORCH_CHECK(!is_dense(*to) || surely_apart_or_equal(*to, *from) || !is_dense(*from),
              "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
              "memory location. Please clone() the tensor before performing the operation.");
}

// Where ATen cannot tell from the layout whether a write meets what is read, it lets it pass, and its loops read some
// elements after they were written. A graph reads everything before.
void Recorder::refuse_ordered_write(const OpFacts& facts) const {
  for (const Operand& o : operands_) {
    if (!o.impl || !o.impl->device().is_cpu() || !facts.schema.args[o.arg].written) continue;
    for (const Operand& other : operands_)
      if (other.impl && other.impl != o.impl && other.impl->storage_id == o.impl->storage_id &&
          other.value != o.value && !(is_by_element(facts) && same_place(*o.impl, *other.impl)) &&
          !lie_apart(*o.impl, *other.impl) && !(is_dense(*o.impl) && is_dense(*other.impl)) &&
          may_meet(*o.impl, *other.impl) && !(is_by_element(facts) && is_read_ahead(*o.impl, *other.impl)))
        throw Declined(facts.schema.name +
                       " writes memory that it reads by another view: eager's result depends on its order");
  }
}

// False: no rule, or it does not know this case.
bool Recorder::infer_by_rule(OpFacts& facts, const std::vector<Arg>& args, std::vector<TensorType>& outs) {
  if (!facts.may_rule) return false;
  const sym::AskScope ask(sizes_->empty() ? nullptr : sizes_.get());
  ops::InferContext context{args, type_of_value, &graph_, aten::from_aten(c10::get_default_dtype_as_scalartype())};
  if (facts.schema.any_written && overlaps(facts)) {
    if (facts.schema.name == op::copy_) check_copy_in_itself();
    return false;
  }
  if (apply_rule(facts, context, outs)) return true;
  check_fits(facts, context);
  return false;
}

// ATen refuses to write what the tensor's dtype does not hold, in place and with out=; not all of its meta kernels do.
void Recorder::check_fits(const OpFacts& facts, const ops::InferContext& context) {
  const ops::OpRow* twin = facts.op->functional;
  if (facts.written_arg < 0 || !twin || !twin->infer) return;
  const auto target = static_cast<size_t>(facts.written_arg);
  ops::InferContext given = context;
  if (facts.op->drops_mutated) {  // out= comes last
    if (target + 1 != context.args.size()) return;
    given.args = context.args.first(target);
  }
  std::vector<TensorType> outs;
  try {
    if (!context.has_tensor(target) || !ops::infer(twin->infer, given, outs) || outs.size() != 1) return;
  } catch (const UserError&) {
    return;
  } catch (const InternalError&) {  // as in apply_rule()
    return;
  }
  const TensorType& written = context.type(target);
  const c10::ScalarType from = aten::to_aten(outs[0].dtype), to = aten::to_aten(written.dtype);
  TORCH_CHECK(!same_sizes(outs[0].sizes, written.sizes) || c10::canCast(from, to), "result type ", from,
              " can't be cast to the desired output type ", to);
}

bool Recorder::apply_rule(const OpFacts& facts, const ops::InferContext& context, std::vector<TensorType>& outs) {
  const ops::InferRule rule = facts.in_place_rule ? facts.in_place_rule : facts.op->infer;
  if (!rule) return false;
  try {
    if (!ops::infer(rule, context, outs)) return false;
  } catch (const UserError&) {
    return false;  // ATen words the error
  } catch (const InternalError&) {
    return false;  // an argument accessor met what eager rejects, too
  }
  // What is written must fit into the argument as it is; otherwise ATen resizes it or words the error.
  for (size_t i = 0; i < facts.schema.returns.size(); ++i) {
    const aten::ArgSpec& r = facts.schema.returns[i];
    if (!r.written) continue;
    if (i >= outs.size() || r.alias < 0 || !context.has_tensor(static_cast<size_t>(r.alias))) return false;
    const TensorType& target = context.type(static_cast<size_t>(r.alias));
    if (!same_sizes(outs[i].sizes, target.sizes) ||
        !c10::canCast(aten::to_aten(outs[i].dtype), aten::to_aten(target.dtype)))
      return false;
    outs[i] = TensorType(target);
  }
  return true;
}

void Recorder::fill_factory_defaults(const OpFacts& facts, std::vector<Arg>& args, const TensorType& result) {
  // dtype=None and device=None mean thread state: what is recorded must not depend on it.
  if (facts.device_arg >= 0 && operands_.empty() && is_none(args[facts.device_arg]))
    args[facts.device_arg] = result.device;
  if (facts.dtype_arg >= 0 && operands_.empty() && is_none(args[facts.dtype_arg])) args[facts.dtype_arg] = result.dtype;
}

// The argument tensor that a return with alias annotation stands for: the one operand of that argument.
const Operand& Recorder::aliased(const OpFacts& facts, const std::vector<Arg>& args, int alias) const {
  const Ref* ref = std::get_if<Ref>(&args[alias]);
  FLASHOVER_CHECK(ref) << facts.schema.name << " returns an alias of a list";
  for (const Operand& o : operands_)
    if (o.value == ref->id) return o;
  FLASHOVER_CHECK(false) << facts.schema.name << " lost its operand";
  return operands_[0];
}

void Recorder::finish_by_rule(OpFacts& facts, std::vector<Arg> args, std::vector<TensorType> outs, Stack& stack,
                              size_t base) {
  const auto& returns = facts.schema.returns;
  if (!outs.empty()) fill_factory_defaults(facts, args, outs[0]);
  size_t tensors = 0, lists = 0;
  for (const auto& r : returns) {
    tensors += r.kind == aten::ArgKind::kTensor;
    lists += r.kind == aten::ArgKind::kTensorList;
  }
  FLASHOVER_CHECK(tensors + lists == returns.size() && lists <= 1 &&
                  (lists ? outs.size() >= tensors : outs.size() == tensors))
      << "the rule of " << facts.schema.name << " gave " << outs.size() << " results";
  const size_t list_length = outs.size() - tensors;
  // Which operands results alias must be looked up before add_node consumes the arguments.
  c10::SmallVector<const Operand*, 4> sources;
  for (const auto& r : returns) sources.push_back(r.alias >= 0 ? &aliased(facts, args, r.alias) : nullptr);
  // Its schema calls the result fresh, since ATen gives up the argument. What the program holds it goes on to read:
  // kron(out=) writes its tensor through the result.
  static const ops::OpRow* const unsafe_view = ops::find(op::_unsafe_view);
  if (facts.op == unsafe_view && operands_.size() == 1 && operands_[0].impl && has_pyobject(operands_[0].tensor))
    sources[0] = operands_.data();
  const std::vector<ValueId> values = add_node(facts.op, std::move(args), std::move(outs)).outs;
  note_rule(facts);
  size_t next = 0;
  const auto result = [&](const aten::ArgSpec& spec, const Operand* source) -> at::Tensor {
    const ValueId value = values[next++];
    if (!source) return value == kNoValue ? at::Tensor() : fresh(value);
    FLASHOVER_CHECK(source->impl) << facts.schema.name << " aliases a number";
    if (!spec.written) return view_of(*source->impl, value);
    return rebind(*source, value);
  };
  c10::SmallVector<c10::IValue, 4> results;
  for (size_t i = 0; i < returns.size(); ++i) {
    if (returns[i].kind == aten::ArgKind::kTensor) {
      results.emplace_back(result(returns[i], sources[i]));
      continue;
    }
    c10::List<at::Tensor> list;
    for (size_t k = 0; k < list_length; ++k) list.push_back(result(returns[i], sources[i]));
    results.emplace_back(std::move(list));
  }
  torch::jit::drop(stack, stack.size() - base);
  for (auto& r : results) stack.push_back(std::move(r));
}

// An in-place operator gave the tensor a new value in the same memory.
at::Tensor Recorder::rebind(const Operand& source, ValueId value) {
  source.impl->value = value;
  graph_.values[value].storage = source.impl->storage_id;
  return source.tensor_of_trace();
}

// An operator of the program's own without a derivative: what autograd makes of the calls inside it, only eager knows.
void Recorder::check_autograd(const OpFacts& facts, const std::vector<TensorType>& outs) const {
  if (!facts.autograd_inside || !c10::GradMode::is_enabled()) return;
  if (std::none_of(operands_.begin(), operands_.end(), [](const Operand& o) { return o.tensor.requires_grad(); }))
    return;
  if (facts.schema.any_written || std::any_of(outs.begin(), outs.end(), [](const TensorType& t) {
        return is_floating(t.dtype) || info(t.dtype).complex;
      }))
    throw Declined("training: " + facts.schema.name + " has no derivative of its own");
}

// ------------------------------------------------------------------------------------------------------ the fallback

namespace {

// Real tensors in the place of traces, in the arguments of a call on top of the stack. Returns the traces.
std::vector<at::Tensor> take_real_tensors(const OpFacts& facts, Stack* stack) {
  std::vector<at::Tensor> traces;
  const size_t base = stack->size() - facts.schema.args.size();
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    c10::IValue& value = (*stack)[base + i];
    bool any = false;
    for_each_tensor(value, [&](const at::Tensor& t) { any = any || trace_impl(t); });
    if (!any) continue;
    value = map_tensors(value, facts.schema.args[i], [&](const at::Tensor& t) {
      const TraceImpl* impl = trace_impl(t);
      if (!impl) return t;
      // Also when the trace has ended since that thread read its module's parameter.
      TORCH_CHECK(impl->real.defined(), "flashover: a tensor of a finished trace was used in ", facts.schema.name);
      traces.push_back(t);
      return impl->real;
    });
  }
  return traces;
}

// Fake reached where no trace runs: the tensors of another thread's method were exchanged in its midst, or a tensor
// outlived its trace.
void call_without_session(const c10::OperatorHandle& op, Stack* stack) {
  // A context manager entered in the trace and left after it puts the trace's dispatch state back.
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, false);
  c10::impl::tls_set_dispatch_key_excluded(kElsewhere, false);
  take_real_tensors(facts_of(op), stack);
  c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKey::Fake);
  op.callBoxed(stack);
}

// Another thread uses a module whose parameters are exchanged just now. Autograd, version counters and autocast see the
// real tensors; what is given back is what was given.
void call_elsewhere(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (active_recorder) {  // a context manager entered before the trace put the state back
    c10::impl::ExcludeDispatchKeyGuard here(kElsewhere);
    op.callBoxed(stack);
    return;
  }
  const OpFacts& facts = facts_of(op);
  const std::vector<at::Tensor> traces = take_real_tensors(facts, stack);
  op.callBoxed(stack);
  const size_t base = stack->size() - facts.schema.returns.size();
  for (size_t i = 0; i < facts.schema.returns.size(); ++i)
    (*stack)[base + i] = map_tensors((*stack)[base + i], facts.schema.returns[i], [&](const at::Tensor& t) {
      for (const at::Tensor& trace : traces)
        if (const TraceImpl* impl = trace_impl(trace);
            impl->real.is_same(t) && std::atomic_ref(impl->liveness->recorder).load() != nullptr)
          return trace;
      return t;
    });
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (Recorder* recorder = active_recorder) {
    recorder->call(op, stack);
  } else {
    call_without_session(op, stack);
  }
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_elsewhere>());
}

}  // namespace

// The keys that lead to the recorder are off, and those by which other threads get real tensors are on.
Aside::Aside() : resting_(std::exchange(active_recorder, nullptr)) {
  if (resting_ == nullptr) return;
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, false);
  c10::impl::tls_set_dispatch_key_excluded(kElsewhere, false);
}

Aside::~Aside() {
  if (resting_ == nullptr) return;
  active_recorder = resting_;
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, true);
  c10::impl::tls_set_dispatch_key_excluded(kElsewhere, true);
}

}  // namespace flashover::trace

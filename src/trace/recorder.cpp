// Takes operator calls, asks for their result types, and appends nodes; inputs are exchanged and put back here.
#include "trace/recorder.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
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

#include "base/check.h"
#include "ops/names.h"
#include "eager/eval.h"
#include "trace/assume.h"
#include "trace/bounds.h"
#include "trace/elsewhere.h"
#include "trace/exchange.h"
#include "trace/number.h"

namespace flashover::trace {
namespace {

thread_local Recorder* active_recorder = nullptr;

c10::DispatchKeySet keys_above_backend() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet({c10::DispatchKey::Fake, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                              c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                              c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize,
                              c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                              c10::DispatchKey::Named, c10::DispatchKey::TESTING_ONLY_GenericWrapper, kElsewhere,
                              c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::VmapMode});
}

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

const TensorType& type_of_value(const void* graph, ValueId id) {
  return static_cast<const graph::Graph*>(graph)->values[id].type;
}

template <typename F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor()) f(element.toTensor());
  }
}

// The tensor with another one in its place, in an argument or in a list of them.
template <typename F>
c10::IValue map_tensors(const c10::IValue& value, const aten::ArgSpec& spec, F&& f) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(f(value.toTensor())) : value;
  if (spec.kind != aten::ArgKind::kTensorList || !value.isList()) return value;
  if (spec.list_of_optional) {
    c10::List<std::optional<at::Tensor>> out;
    for (const c10::IValue& element : value.toListRef())
      out.push_back(element.isTensor() && element.toTensor().defined()
                        ? std::optional<at::Tensor>(f(element.toTensor()))
                        : std::nullopt);
    return out;
  }
  c10::List<at::Tensor> out;
  for (const c10::IValue& element : value.toListRef())
    out.push_back(element.toTensor().defined() ? f(element.toTensor()) : at::Tensor());
  return out;
}

// "aten._fused_sgd_.default": not an out= overload, which may resize.
bool looks_in_place(std::string_view name) {
  const std::string_view base = name.substr(0, name.rfind('.'));
  return base.ends_with('_') && !base.ends_with("__");
}

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
      autocast_cache_was_enabled_(at::autocast::is_autocast_cache_enabled()),
      saved_tensor_hooks_(at::SavedTensorDefaultHooks::get_tls_state()) {
  if (active_recorder) throw Declined("a trace is already running on this thread");
  liveness_->recorder = this;
  exchange() = {};
}

// All is noted before anything is changed: where this throws, the destructor puts it back.
Recorder::Recorder() : Recorder(std::make_shared<Liveness>()) {
  // The autocast weight cache would keep trace tensors beyond the trace, and hand out real casts inside it.
  at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(false);
  at::SavedTensorDefaultHooks::set_tls_state({});
  active_recorder = this;
  link_intercepts();
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, true);
  c10::impl::tls_set_dispatch_key_excluded(kElsewhere, true);
}

void Recorder::deactivate() {
  if (active_recorder == this) active_recorder = nullptr;
}

Recorder::~Recorder() {
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
  std::string where;
  {
    pybind11::gil_scoped_acquire gil;
    where = location();
  }
  // A node of the backward is of the line that made it.
  if (const auto node = torch::autograd::get_current_node(); node && where.empty()) {
    const auto made = forward_locations_.find(node->sequence_nr());
    return made == forward_locations_.end() ? -1 : made->second;
  }
  if (where.empty()) return -1;
  if (policy_ != nullptr) graph::select(where, selected_);
  auto [it, fresh] = location_ids_.emplace(where, static_cast<int32_t>(graph_.facts.locations.size()));
  if (fresh) graph_.facts.locations.push_back(where);
  // Autograd numbers a node right before its operator gets here.
  if (at::sequence_number::peek() > 0) forward_locations_.try_emplace(at::sequence_number::peek() - 1, it->second);
  return it->second;
}

// Results that ATen leaves undefined (gradients nobody asked for) have no value.
graph::Node& Recorder::add_node(const ops::Op* op, std::vector<Arg> args, std::vector<TensorType> outs) {
  graph::Node node{.op = op, .args = std::move(args), .location = location_id()};
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

at::Tensor Recorder::make_tensor(ValueId value, c10::Storage storage, int32_t storage_id) {
  const TensorType& type = graph_.type(value);
  const at::ScalarType dtype = aten::to_aten(type.dtype);
  const at::Device device = aten::to_aten(type.device);
  auto impl = c10::make_intrusive<TraceImpl>(std::move(storage),
                                             c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, device)),
                                             c10::scalarTypeToTypeMeta(dtype), device);
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (sym::Expr e : type.sizes) sizes.push_back(e.value());
  for (sym::Expr e : type.strides) strides.push_back(e.value());
  impl->set_sizes_and_strides(sizes, strides, type.offset.value());
  impl->value = value;
  impl->storage_id = storage_id;
  impl->liveness = liveness_;
  graph_.values[value].storage = storage_id;
  return at::Tensor(std::move(impl));
}

at::Tensor Recorder::fresh(ValueId value) {
  const TensorType& type = graph_.type(value);
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (sym::Expr e : type.sizes) sizes.push_back(e.value());
  for (sym::Expr e : type.strides) strides.push_back(e.value());
  c10::Storage storage = make_storage(static_cast<int64_t>(
      at::detail::computeStorageNbytes(sizes, strides, info(type.dtype).bytes, type.offset.value())));
  const int32_t id = new_storage(storage);
  return make_tensor(value, std::move(storage), id);
}

// As ATen's view kernels: the view has the keys of its base (an inference view of a normal tensor is a normal tensor).
at::Tensor Recorder::view_of(const TraceImpl& base, ValueId value) {
  const TensorType& type = graph_.type(value);
  auto impl =
      c10::make_intrusive<TraceImpl>(TraceImpl::ViewTag(), base, c10::scalarTypeToTypeMeta(aten::to_aten(type.dtype)));
  c10::SmallVector<int64_t, 8> sizes, strides;
  for (sym::Expr e : type.sizes) sizes.push_back(e.value());
  for (sym::Expr e : type.strides) strides.push_back(e.value());
  impl->set_sizes_and_strides(sizes, strides, type.offset.value());
  impl->value = value;
  graph_.values[value].storage = base.storage_id;
  return at::Tensor(std::move(impl));
}

ValueId Recorder::add_number(const at::Tensor& t) {
  TensorType type = aten::type_of(t);
  type.offset = 0;
  at::Scalar number;
  {
    BelowEverything plain;
    number = at::_local_scalar_dense(t);
  }
  static const ops::Op* full = ops::find(prim::full);
  std::vector<Arg> args = {Sizes{}, aten::from_scalar(number), type.dtype, type.device};
  std::vector<TensorType> outs = {std::move(type)};
  return graph_.add_node(full, std::move(args), std::move(outs)).outs[0];
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
  if (wrapped && numbers_ > 0) {
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
  constexpr std::string_view kMayMix[] = {"aten.copy_.",           "aten._to_copy.",    "aten.index.",
                                          "aten.index_put.",       "aten.index_put_.",  "aten._index_put_impl_.",
                                          "aten._index_put_impl.", "aten._unsafe_index"};
  const TraceImpl* first = nullptr;
  bool mixed = false;
  for (const Operand& o : operands_) {
    if (!o.impl || (o.impl->dim() == 0 && o.impl->device().is_cpu())) continue;
    mixed = mixed || (first && first->device() != o.impl->device());
    if (!first) first = o.impl;
  }
  if (!mixed) return;
  for (std::string_view name : kMayMix)
    if (facts.schema.name.starts_with(name)) return;
  throw Declined("operands of " + facts.schema.name + " are on different devices");
}

// ------------------------------------------------------------------------------------------------------ a call

void Recorder::call(const c10::OperatorHandle& op, Stack* stack) {
  if (declined_) throw_decline(reason_);
  try {
    OpFacts& facts = facts_of(op);
    const size_t base = stack->size() - facts.schema.args.size();
    if (item_symbol && facts.schema.name == op::_local_scalar_dense && item_as_symbol(*stack)) return;
    if (policy_ != nullptr && !in_backward_) ask_policy(facts, *stack, base);
    if (numbers_ > 0 && facts.special) read_symbols(facts, *stack, base, true);
    if (facts.special && facts.special(*this, facts, *stack, base)) return;
    call_general(facts, *stack, base);
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
  const bool symbols = any_symbols(facts, stack, base);
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
  ++stats_.ops;
  std::vector<TensorType> outs;
  bool ruled = infer_by_rule(facts, args, outs);
  if (symbols && !(ruled && numbers_fit(facts, outs))) {  // the value is needed
    read_symbols(facts, stack, base, true);
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

// Two dense parts of one memory that are the same part or have nothing in common.
bool surely_apart_or_equal(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  if (a.numel() == 0 || b.numel() == 0) return true;
  if (!a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense()) return false;
  const auto begin = [](const c10::TensorImpl& t) { return t.storage_offset() * static_cast<int64_t>(t.itemsize()); };
  const auto end = [&](const c10::TensorImpl& t) { return begin(t) + t.numel() * static_cast<int64_t>(t.itemsize()); };
  if (end(a) <= begin(b) || end(b) <= begin(a)) return true;
  return begin(a) == begin(b) && end(a) == end(b) && a.strides() == b.strides();
}

// Writing to memory that overlaps itself or another operand: ATen's own checks decide.
bool Recorder::overlaps(const OpFacts& facts) const {
  for (const Operand& o : operands_) {
    if (!o.impl) continue;
    if (o.arg != facts.written_arg) continue;
    for (int64_t d = 0; d < o.impl->dim(); ++d)
      if (o.impl->stride(d) == 0 && o.impl->size(d) > 1) return true;
    for (const Operand& other : operands_)
      if (other.impl && other.impl != o.impl && other.impl->storage_id == o.impl->storage_id &&
          other.value != o.value && !surely_apart_or_equal(*o.impl, *other.impl))
        return true;
  }
  return false;
}

// False: no rule, or it does not know this case.
bool Recorder::infer_by_rule(OpFacts& facts, const std::vector<Arg>& args, std::vector<TensorType>& outs) {
  if (!facts.may_rule) return false;
  ops::InferContext context{args, type_of_value, &graph_, aten::from_aten(c10::get_default_dtype_as_scalartype())};
  const ops::InferRule rule = facts.in_place_rule ? facts.in_place_rule : facts.op->infer;
  if (!rule || (facts.schema.any_written && overlaps(facts))) return false;
  try {
    if (!rule(context, outs)) return false;
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
  const std::vector<ValueId> values = add_node(facts.op, std::move(args), std::move(outs)).outs;
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

void Recorder::finish_by_meta(OpFacts& facts, std::vector<Arg> args, Stack& stack, size_t base) {
  const auto& specs = facts.schema.args;
  if (!facts.cpp_meta && !facts.python_meta) {
    // One that only writes (fused optimizers) leaves shapes as they are.
    if (!facts.schema.returns.empty() || !facts.schema.any_written || !looks_in_place(facts.schema.name))
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
  const auto companion_of = [&](const at::Tensor& t) {
    for (Operand& o : operands_) {
      if (!o.tensor.is_same(t)) continue;
      if (!o.companion.defined()) {
        // The same tensor twice must be the same companion.
        for (const Operand& other : operands_)
          if (o.impl && other.impl == o.impl && other.companion.defined()) o.companion = other.companion;
      }
      if (!o.companion.defined()) o.companion = meta_companion(o.impl ? *o.impl : *o.tensor.unsafeGetTensorImpl());
      return o.companion;
    }
    FLASHOVER_CHECK(false) << "operand lost";
    return at::Tensor();
  };
  Stack meta;
  meta.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (static_cast<int>(i) == facts.device_arg && (!value.isNone() || operands_.empty())) {
      meta.emplace_back(at::Device(at::kMeta));
    } else {
      meta.push_back(map_tensors(value, specs[i], companion_of));
    }
  }
  {
    BelowEverything plain;
    NoTorchFunction no_modes;
    InternalScope internal;
    try {
      if (facts.cpp_meta) {
        facts.cpp_meta->callBoxed(facts.schema.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
      } else {
        facts.schema.handle.callBoxed(meta);
      }
    } catch (const c10::NotImplementedError& e) {
      throw Declined("no shape function for " + facts.schema.name + ": " + e.what_without_backtrace());
    } catch (const c10::Error& e) {
      if (facts.python_meta) throw Declined(facts.schema.name + ": " + e.what_without_backtrace());
      throw;  // what eager would say
    } catch (const std::exception& e) {
      // A Python shape function raised: eager may raise as well, or the function asked for data.
      throw Declined(facts.schema.name + ": " + e.what());
    }
  }

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

  // One entry a tensor result, lists flattened.
  struct Result {
    at::Tensor meta;
    const Operand* self = nullptr;  // the result is this argument
    int32_t storage = -1;           // memory it shares with earlier tensors
    bool written = false;
  };
  std::vector<Result> results;
  std::vector<TensorType> outs;
  const auto add_result = [&](const at::Tensor& t, const aten::ArgSpec& spec) {
    Result r{t};
    r.written = spec.written;
    if (!t.defined()) {
      results.push_back(std::move(r));
      outs.emplace_back();
      return;
    }
    for (const Operand& o : operands_)
      if (o.companion.defined() && o.companion.is_same(t)) r.self = &o;
    TensorType type = aten::type_of(t);
    type.device = device;
    if (r.self) {
      type.device = graph_.type(r.self->value).device;
    } else {
      type.wrapped_number = false;
      r.storage = find_storage(t.storage().unsafeGetStorageImpl());
    }
    outs.push_back(std::move(type));
    results.push_back(std::move(r));
  };
  FLASHOVER_CHECK(meta.size() == facts.schema.returns.size())
      << facts.schema.name << " returned " << meta.size() << " values";
  for (size_t i = 0; i < meta.size(); ++i) {
    const aten::ArgSpec& spec = facts.schema.returns[i];
    if (spec.kind == aten::ArgKind::kTensor) {
      if (!meta[i].isTensor()) throw Declined(facts.schema.name + " returned something else than a tensor");
      add_result(meta[i].toTensor(), spec);
    } else if (spec.kind == aten::ArgKind::kTensorList) {
      for (const at::Tensor& t : meta[i].toTensorVector()) add_result(t, spec);
    }
  }
  if (facts.schema.name == op::_native_multi_head_attention && outs.size() == 2) {
    const bool* wanted = std::get_if<bool>(&args[10]);  // need_weights; without it eager returns none
    if (!wanted || !*wanted) {
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
  check_autograd(facts, outs);
  std::vector<at::Tensor> tensors;
  const bool query = facts.is_query && outs.empty() && !facts.schema.any_written;
  if (!query) {
    if (!outs.empty()) fill_factory_defaults(facts, args, outs[0]);
    // The node may move when the graph grows, its outs not.
    const std::vector<ValueId> values = add_node(facts.op, std::move(args), std::move(outs)).outs;
    for (size_t i = 0; i < results.size(); ++i) {
      Result& r = results[i];
      const ValueId value = values[i];
      if (!r.meta.defined()) {
        tensors.emplace_back();
      } else if (r.self) {
        FLASHOVER_CHECK(r.self->impl) << facts.schema.name << " returned a number";
        graph_.values[value].storage = r.self->impl->storage_id;
        tensors.push_back(rebind(*r.self, value));
      } else if (r.storage >= 0) {
        const auto base_impl = std::find_if(operands_.begin(), operands_.end(), [&](const Operand& o) {
          return o.impl && o.impl->storage_id == r.storage;
        });
        FLASHOVER_CHECK(base_impl != operands_.end()) << facts.schema.name << " aliases a tensor it was not given";
        at::Tensor view = view_of(*base_impl->impl, value);
        trace_impl(view)->set_bits(r.meta.is_conj(), r.meta.is_neg());
        tensors.push_back(std::move(view));
      } else {
        c10::Storage storage = r.meta.storage();
        forbid_data_access(storage);
        const int32_t id = new_storage(storage);
        tensors.push_back(make_tensor(value, std::move(storage), id));
      }
    }
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

// ------------------------------------------------------------------------------------- data-dependent calls on
// constants

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
      for (size_t i = 0; i < n.args.size() && i < 32; ++i)
        if (n.op->mutates >> i & 1) graph::for_each_ref(n.args[i], mark);
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
      for (size_t i = 0; i < n.args.size() && i < 32; ++i)
        if (n.op->mutates >> i & 1) graph::for_each_ref(n.args[i], [&](ValueId v) { makes = makes || is_needed(v); });
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

std::optional<at::Tensor> Recorder::constant_value(const at::Tensor& t) {
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
    bool wanted = false;
    const auto check_wanted = [&](ValueId v) {
      const int32_t s = v == kNoValue ? -1 : graph_.values[v].storage;
      wanted = wanted || (s >= 0 && needed[s]);
    };
    for (ValueId v : n.outs) check_wanted(v);
    for (size_t i = 0; i < n.args.size() && i < 32; ++i)
      if (n.op->mutates >> i & 1) graph::for_each_ref(n.args[i], check_wanted);
    if (!wanted) continue;
    const auto check = [&](ValueId v) {
      const int32_t s = graph_.values[v].storage;
      clean = clean && s >= 0 && !tainted[s];
    };
    for (const Arg& a : n.args) graph::for_each_ref(a, check);
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      check(v);
      clean = clean && graph_.type(v).numel().value() <= kMaxElements;
    }
    if (!clean) return std::nullopt;
    slice.nodes.push_back(n);
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
  if (!t.device().is_cpu() || t.is_complex()) return false;
  const int truth = std::exchange(assumption().truth, -1);
  at::_assert_async(truth == 1 ? t : t.logical_not());
  assumption().made = true;
  stack.pop_back();
  stack.emplace_back(t.is_floating_point()          ? at::Scalar(static_cast<double>(truth))
                     : t.scalar_type() == at::kBool ? at::Scalar(truth == 1)
                                                    : at::Scalar(static_cast<int64_t>(truth)));
  return true;
}

}  // namespace

int64_t randomness() {
  auto* recorder = static_cast<Recorder*>(current());
  if (recorder == nullptr) return 0;
  const auto& nodes = recorder->graph().nodes;
  return std::count_if(nodes.begin(), nodes.end(), [](const graph::Node& n) { return n.op->nondeterministic; });
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
  for (size_t i = 0; i < specs.size(); ++i)
    real.push_back(map_tensors(stack[base + i], specs[i], [&](const at::Tensor& t) {
      any = true;
      if (!t.device().is_cpu()) device = t.device();
      auto value = trace_impl(t) ? constant_value(t) : std::nullopt;
      unknown = unknown || !value;
      all_on_cpu = all_on_cpu && value && value->device().is_cpu();
      return value.value_or(t);
    }));
  if (unknown || facts.schema.any_written) {
    if (facts.may_ask_meta) return false;
    if (facts.schema.name == op::_local_scalar_dense && truth_is_known(stack)) return true;
    if (assumption().truth >= 0 && facts.schema.name == op::_local_scalar_dense && assume(stack)) return true;
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
}  // namespace flashover::trace

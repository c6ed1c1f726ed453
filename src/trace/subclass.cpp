// Operators on tensors of a class with __torch_dispatch__: the class's Python code runs in the trace, as the dispatcher
// would call it, and what it does with plain tensors is recorded.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/check.h"
#include "torch/versions.h"
#include "trace/exchange.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

bool has_python_key(const at::Tensor& t) { return t.defined() && t.key_set().has(c10::DispatchKey::Python); }

template <typename F>
void for_each_argument(const OpFacts& facts, const Stack& stack, size_t base, F&& f) {
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (value.isTensor()) {
      f(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef())
        if (element.isTensor()) f(element.toTensor());
    }
  }
}

// What has run by the time the dispatcher comes to __torch_dispatch__.
c10::DispatchKeySet keys_above_dispatch() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

}  // namespace

void Recorder::add_made_subclass(PyObject* made) {
  if (THPVariable_Check(made)) made_subclasses_.insert(THPVariable_Unpack(made).unsafeGetTensorImpl());
}

namespace {

// The mode that a backward runs under so that formulas look at no values (backward.cpp) is none for classes to see.
class AsInForward {
 public:
  AsInForward() : mode_(c10::impl::TorchDispatchModeTLS::get_mode(kSlot)) {
    if (mode_) c10::impl::TorchDispatchModeTLS::unset_mode(kSlot);
  }
  ~AsInForward() {
    if (!mode_) return;
    c10::impl::TorchDispatchModeTLS::set_mode(*mode_, kSlot);
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Python, false);
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::PythonTLSSnapshot, false);
  }
  AsInForward(const AsInForward&) = delete;

 private:
  static constexpr auto kSlot = c10::impl::TorchDispatchModeKey::PROXY;
  std::optional<std::shared_ptr<c10::impl::PyObject_TorchDispatchMode>> mode_;
};

// The same tensor without what autograd knows of it, as far as C++ code sees it: its Python object is to be that one's.
c10::intrusive_ptr<c10::TensorImpl> stand_in(const at::Tensor& real, const c10::VariableVersion& version) {
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  auto made = real.unsafeGetTensorImpl()->shallow_copy_and_detach(version, true);
  if (real.is_nested()) made->set_python_custom_layout(true);  // (not copied)
  made->set_allow_tensor_metadata_change(real.unsafeGetTensorImpl()->allow_tensor_metadata_change());
  return made;
}

// Which questions about sizes the class answers. Copies of a tensor lose it, as they have no Python object to ask.
struct SizesPolicy : c10::TensorImpl {
  static bool is(const c10::TensorImpl& t, c10::TensorImpl::SizesStridesPolicy policy) {
    return (t.*&SizesPolicy::matches_python_custom)(policy);
  }
};
void keep_answers_about_sizes(const c10::TensorImpl& real, c10::TensorImpl& made) {
  using Policy = c10::TensorImpl::SizesStridesPolicy;
  for (const Policy p : {Policy::CustomSizes, Policy::CustomStrides})
    if (SizesPolicy::is(real, p)) return made.set_python_custom_sizes_strides(p);
}

}  // namespace

void Recorder::add_wrapper(PyObject* object) {
  const at::Tensor real = THPVariable_Unpack(object);
  for (const WrapperRecord& w : wrappers_)
    if (w.object == object) return;
  if (wait_for_others && !wait_for_others(&object, 1, exchange().patience)) {
    exchange().interfered = true;
    throw Declined("another thread is in the midst of a method of an input");
  }
  InternalScope internal;
  c10::VariableVersion version(c10::VariableVersion::DISABLED);
  if (!real.is_inference())
    version = versions_.try_emplace(aten::counter_of(real.unsafeGetTensorImpl()), c10::VariableVersion(real._version()))
                  .first->second;
  WrapperRecord w{object, nullptr, real, at::Tensor(stand_in(real, version)), 0, {}};
  w.version = real.is_inference() ? 0 : version.current_version();
  if (real.requires_grad() && real.is_leaf()) w.trace.set_requires_grad(true);
  if (wrappers_.size() == wrappers_.capacity()) wrappers_.reserve(2 * wrappers_.size() + 8);
  w.holder = THPVariable_Wrap(w.trace);
  if (!w.holder) throw Declined("no Python object for a trace tensor");
  w.trace.unsafeGetTensorImpl()->set_python_dispatch(true);  // (an object of torch.Tensor has turned it off)
  swap_tensors(object, w.holder);
  keep_answers_about_sizes(*real.unsafeGetTensorImpl(), *w.trace.unsafeGetTensorImpl());
  Py_INCREF(object);
  wrappers_.push_back(std::move(w));
  // Autograd asks for sizes, which the class may answer: of the object as it is now.
  if (real.requires_grad() && !real.is_leaf()) wrappers_.back().history = attach_outer_gradient(wrappers_.back().trace);
}

void Recorder::check_wrappers_unchanged() const {
  for (const WrapperRecord& w : wrappers_) {
    if (w.trace.requires_grad() != w.real.requires_grad()) throw Declined("requires_grad of a tensor subclass changed");
    if (w.trace.requires_grad() && w.trace.grad_fn() != w.history)
      throw Declined("training: a tensor subclass is written in place under autograd");
    if (w.trace.is_leaf() && w.trace.grad().defined()) throw Declined("the gradient of a tensor subclass is assigned");
  }
}

void Recorder::count_wrapper_versions() {
  std::unordered_set<const void*> seen;
  for (const WrapperRecord& w : wrappers_) {
    if (w.trace.is_inference() || !seen.insert(aten::counter_of(w.trace.unsafeGetTensorImpl())).second) continue;
    const uint32_t now = w.trace._version();
    if (now != w.version) written_wrappers_.emplace_back(w.object, now - w.version);
  }
}

void Recorder::swap_wrappers_back() {
  for (auto it = wrappers_.rbegin(); it != wrappers_.rend(); ++it) swap_tensors(it->object, it->holder);
  for (WrapperRecord& w : wrappers_) {
    Py_DECREF(w.holder);
    Py_DECREF(w.object);
  }
  wrappers_.clear();
  for (PyObject* o : kept_) Py_DECREF(o);
  kept_.clear();
}

// A write of a wrapper that nothing stands for would move its version in the trace, and again in each call.
void Recorder::check_written(const OpFacts& facts, const Stack& stack, size_t base) const {
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    if (!facts.schema.args[i].written || !stack[base + i].isTensor()) continue;
    const at::Tensor& t = stack[base + i].toTensor();
    const auto stands_for = [&](const WrapperRecord& w) { return w.trace.is_same(t); };
    if (has_python_key(t) && !t.is_nested() && !made_subclasses_.contains(t.unsafeGetTensorImpl()) &&
        std::ranges::none_of(wrappers_, stands_for))
      throw Declined("a tensor subclass is written: " + facts.schema.name);
  }
}

namespace {

// torch makes the Python object of an operator when it is first asked for, which is no part of the program.
void look_up(const c10::OperatorName& name) {
  const InternalScope internal;
  const pybind11::gil_scoped_acquire gil;
  const size_t colons = name.name.find("::");
  const std::string overload = name.overload_name.empty() ? "default" : name.overload_name;
  PyObject* o = PyImport_ImportModule("torch");
  for (const std::string& part :
       {std::string("ops"), name.name.substr(0, colons), name.name.substr(colons + 2), overload}) {
    PyObject* next = o != nullptr ? PyObject_GetAttrString(o, part.c_str()) : nullptr;
    Py_XDECREF(o);
    o = next;
  }
  Py_XDECREF(o);
  PyErr_Clear();
}

}  // namespace

bool Recorder::call_subclass(const c10::OperatorHandle& op, const OpFacts& facts, Stack& stack, size_t base) {
  bool any = false, only = true;
  for_each_argument(facts, stack, base, [&](const at::Tensor& t) {
    any = any || has_python_key(t);
    only = only && has_python_key(t);
  });
  if (!any) return false;
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python)) {  // torch's bookkeeping on the wrappers
    if (!only) throw Declined("an operator on a tensor subclass without its __torch_dispatch__");
    c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKey::Fake);
    op.callBoxed(stack);
    return true;
  }
  check_written(facts, stack, base);
  look_up(op.operator_name());
  made_subclasses_.insert(nullptr);  // backward.cpp asks whether any class took a call
  c10::impl::ExcludeDispatchKeyGuard above(keys_above_dispatch());
  const AsInForward no_mode;
  const auto call = [&] { (*getPyInterpreter())->dispatch(op, &stack); };
  wrapper_classes.as_program ? wrapper_classes.as_program(call) : call();
  return true;
}

}  // namespace flashover::trace

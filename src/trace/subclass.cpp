// Operators on tensors of a class with __torch_dispatch__: the class's Python code runs in the trace, as the dispatcher
// would call it, and what it does with plain tensors is recorded.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/check.h"
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

bool Recorder::call_subclass(const c10::OperatorHandle& op, const OpFacts& facts, Stack& stack, size_t base) {
  bool any = false, only = true, trains = false;
  for_each_argument(facts, stack, base, [&](const at::Tensor& t) {
    any = any || has_python_key(t);
    only = only && has_python_key(t);
    trains = trains || (t.defined() && t.requires_grad());
  });
  if (!any) return false;
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python)) {  // torch's bookkeeping on the wrappers
    if (!only) throw Declined("an operator on a tensor subclass without its __torch_dispatch__");
    c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKey::Fake);
    op.callBoxed(stack);
    return true;
  }
  if (in_backward_ || (trains && c10::GradMode::is_enabled()))
    throw Declined("training: an operator on a tensor subclass");
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    if (!facts.schema.args[i].written || !stack[base + i].isTensor()) continue;
    const at::Tensor& t = stack[base + i].toTensor();
    if (has_python_key(t) && !made_subclasses_.contains(t.unsafeGetTensorImpl()))
      throw Declined("a tensor subclass is written: " + facts.schema.name);  // its version would count in each call
  }
  c10::impl::ExcludeDispatchKeyGuard above(keys_above_dispatch());
  (*getPyInterpreter())->dispatch(op, &stack);
  return true;
}

}  // namespace flashover::trace

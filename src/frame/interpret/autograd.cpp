// Calls that mean something to autograd only: torch.utils.checkpoint.checkpoint, hooks on tensors, on nodes and for
// saved tensors, retain_grad.
#include <cstring>
#include <string_view>

#include "frame/interpret/instructions.h"
#include "frame/own_calls.h"
#include "trace/assume.h"

namespace flashover::frame {
namespace {

bool says(PyObject* key, const char* text) { return PyUnicode_CompareWithASCIIString(key, text) == 0; }

bool flag(PyObject* tensor, const char* name) {
  Ref answer = Ref::steal(PyObject_GetAttrString(tensor, name));
  PyErr_Clear();
  return answer.get() == Py_True;
}

bool answers(PyObject* tensor, const char* question) {
  Ref answer = Ref::steal(PyObject_CallMethod(tensor, question, nullptr));
  PyErr_Clear();
  return answer.get() == Py_True;
}

bool records_for_autograd() {
  PyObject* ask = of_module("torch._C", "is_grad_enabled");
  Ref enabled = Ref::steal(ask != nullptr ? PyObject_CallNoArgs(ask) : nullptr);
  PyErr_Clear();
  return enabled.get() == Py_True;
}

// One of autograd's nodes that C++ knows by a class of its own, or a context of torch.autograd.Function.
bool is_node(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  PyObject* base = of_module("torch._C", "_FunctionBase");
  if (base != nullptr && PyType_IsSubtype(t, reinterpret_cast<PyTypeObject*>(base))) return true;
  PyObject* functions = of_module("torch._C", "_functions");
  const char* dot = std::strrchr(t->tp_name, '.');
  return functions != nullptr && PyModule_Check(functions) &&
         PyDict_GetItemString(PyModule_GetDict(functions), dot != nullptr ? dot + 1 : t->tp_name) ==
             reinterpret_cast<PyObject*>(t);
}

// The reentrant way makes each tensor among its results one that requires grad, and follows no others.
bool is_reentrant_result(PyObject* result, PyObject* const* args, size_t nargs) {
  const auto good = [&](PyObject* o) {
    if (!is_tensor(o)) return o == Py_None;
    for (size_t i = 0; i < nargs; ++i)
      if (args[i] == o) return false;
    return flag(o, "requires_grad") || !(answers(o, "is_floating_point") || answers(o, "is_complex"));
  };
  if (!PyTuple_CheckExact(result)) return is_tensor(result) && good(result);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i)
    if (!good(PyTuple_GET_ITEM(result, i))) return false;
  return true;
}

// What is to be kept and what computed again, of partial(create_selective_checkpoint_contexts, ...): a function, or a
// list of the operators whose results are kept. Nothing that results depend on. Null without an error: something else.
Ref policy_of(PyObject* context_fn) {
  if (Py_TYPE(context_fn) != known_types().partial) return {};
  Ref made_by = Ref::steal(PyObject_GetAttrString(context_fn, "func")),
      args = Ref::steal(PyObject_GetAttrString(context_fn, "args")),
      keywords = Ref::steal(PyObject_GetAttrString(context_fn, "keywords"));
  PyErr_Clear();
  if (!made_by || made_by.get() != of_module("torch.utils.checkpoint", "create_selective_checkpoint_contexts"))
    return {};
  if (args && PyTuple_Check(args.get()) && PyTuple_GET_SIZE(args.get()) > 0)
    return Ref::borrow(PyTuple_GET_ITEM(args.get(), 0));
  if (PyObject* named = keywords && PyDict_Check(keywords.get())
                            ? PyDict_GetItemString(keywords.get(), "policy_fn_or_list")
                            : nullptr)
    return Ref::borrow(named);
  return {};
}

}  // namespace

bool is_checkpoint(PyObject* f) {
  // torch's wrapper around it: one code for all functions that are wrapped so.
  const auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f));
  if (!says(code->co_name, "inner")) return false;
  return f == of_module("torch.utils.checkpoint", "checkpoint");
}

// The function is called once, here; that it runs again in the backward is the partitioner's to arrange. Null without
// an error: called in a way that this does not serve. Where the second run would be seen (it writes what was there
// before) the capture ends before the call, here or when the backward is added.
PyObject* Interpreter::call_checkpoint(PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (nargs == 0 || session == nullptr) return nullptr;
  std::vector<PyObject*> given(args, args + nargs);
  std::vector<PyObject*> names;
  PyObject* reentrant = Py_None;
  bool preserves = true;
  Ref policy;
  for (size_t i = 0; i < keyword_count(kwnames); ++i) {
    PyObject *key = PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i)), *value = args[nargs + i];
    if (says(key, "use_reentrant")) {
      reentrant = value;
    } else if (says(key, "preserve_rng_state")) {
      if (value != Py_True && value != Py_False) return nullptr;
      preserves = value == Py_True;
    } else if (says(key, "context_fn")) {
      if (value == of_module("torch.utils.checkpoint", "noop_context_fn")) continue;
      policy = policy_of(value);
      // In a checkpoint in another one there may be two of them.
      if (!policy || checkpoint_depth_ > 0) return nullptr;
      if (PyList_Check(policy.get()) && recorder.is_old(policy.get())) recorder.contents(policy.get());
    } else if (says(key, "debug")) {
      if (value != Py_False) return nullptr;
    } else if (says(key, "determinism_check")) {
      if (!PyUnicode_Check(value) || !(says(value, "default") || says(value, "none"))) return nullptr;
    } else if (!says(key, "early_stop")) {
      names.push_back(key);
      given.push_back(value);
    }
  }
  if ((reentrant != Py_True && reentrant != Py_False) ||
      of_module("torch.utils.checkpoint", "_checkpoint_debug_enabled") != Py_None)
    return nullptr;
  const bool reenters = reentrant == Py_True, records = records_for_autograd();
  if (reenters) {
    bool any = !records;
    for (size_t i = 1; i < nargs; ++i) any = any || (is_tensor(args[i]) && flag(args[i], "requires_grad"));
    if (!any || !names.empty()) return nullptr;  // warns and cuts the gradients, or raises
  }
  Ref kept = names.empty() ? Ref() : Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
  for (size_t i = 0; i < names.size(); ++i)
    PyTuple_SET_ITEM(kept.get(), static_cast<Py_ssize_t>(i), Py_NewRef(names[i]));
  // Room for a first argument before those of the function.
  PyObject* const* rest = given.data() + 1;
  if (!records) return call(given[0], rest, nargs - 1, kept.get());
  note_retry();
  const size_t writes = journal.entries().size();
  const auto drawn = trace::randomness();
  Ref result;
  {
    if (checkpoint_depth_++ == 0) ++checkpoints_;  // the outermost counts
    struct Leave {
      int& depth;
      trace::Session* session;
      ~Leave() {
        --depth;
        if (session != nullptr) session->select(nullptr);
      }
    } const leave{checkpoint_depth_, policy ? session : nullptr};
    if (policy) session->select(policy.get());
    result = Ref::steal(call(given[0], rest, nargs - 1, kept.get()));
    if (!result) return nullptr;
  }
  if (journal.entries().size() != writes) throw Declined("a checkpoint writes Python objects, and would do so twice");
  if (!preserves && trace::randomness() != drawn)
    throw Declined("a checkpoint that draws other random numbers when it runs again");
  if (reenters && !is_reentrant_result(result.get(), args + 1, nargs - 1))
    throw Declined("a reentrant checkpoint with a result that does not require grad");
  return result.release();
}

// A hook on a tensor of the trace runs when the trace's backward does, and is part of it. One on a tensor from before
// the call is registered after the graph has run. Null without an error: neither.
PyObject* Interpreter::call_register_hook(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  static PyObject* const names[] = {PyUnicode_InternFromString("register_hook"),
                                    PyUnicode_InternFromString("register_post_accumulate_grad_hook")};
  if (session == nullptr || nargs != 2 || kwnames != nullptr || !is_tensor(args[0]) ||
      !session->is_trace_tensor(args[0]))
    return nullptr;
  PyObject* given_name = reinterpret_cast<PyFunctionObject*>(f)->func_name;
  const bool accumulated = says(given_name, "register_post_accumulate_grad_hook");
  if (!accumulated && !says(given_name, "register_hook")) return nullptr;
  const bool leaf = flag(args[0], "is_leaf"), old = recorder.is_old(args[0]);
  if (!flag(args[0], "requires_grad") || (old ? accumulated && !leaf : accumulated || leaf)) return nullptr;
  PyObject* tensor = of_module("torch", "Tensor");
  PyObject* known = tensor != nullptr ? PyDict_GetItemWithError(reinterpret_cast<PyTypeObject*>(tensor)->tp_dict,
                                                                names[accumulated ? 1 : 0])
                                      : nullptr;
  if (f != known || !PyCallable_Check(args[1])) return nullptr;
  if (old) return hook_on_input(f, args[0], args[1]);
  note_retry();
  Ref hook = called_by_autograd(args[1]);
  PyObject* given[] = {args[0], hook.get()};
  ++uninterpreted;
  PyObject* handle = PyObject_Vectorcall(f, given, 2, nullptr);
  --uninterpreted;
  return handle;
}

// The program gets a handle of hooks that stand for the tensor's. Its number is known when it is registered for real:
// until then it is an object that nobody can compute with or hand out.
PyObject* Interpreter::hook_on_input(PyObject* method, PyObject* tensor, PyObject* hook) {
  const OwnCalls own(&uninterpreted);
  PyObject* type = of_module("torch.utils.hooks", "RemovableHandle");
  Ref ordered = Ref::steal(PyImport_ImportModule("collections"));
  Ref hooks = Ref::steal(ordered ? PyObject_CallMethod(ordered.get(), "OrderedDict", nullptr) : nullptr);
  Ref key = Ref::steal(PyCapsule_New(this, nullptr, nullptr)), none = Ref::steal(PyTuple_New(0));
  Ref weak = Ref::steal(hooks ? PyWeakref_NewRef(hooks.get(), nullptr) : nullptr);
  Ref handle = Ref::steal(
      type != nullptr ? PyBaseObject_Type.tp_new(reinterpret_cast<PyTypeObject*>(type), none.get(), nullptr) : nullptr);
  if (!handle || !weak || !key || PyDict_SetItem(hooks.get(), key.get(), hook) != 0 ||
      PyObject_SetAttrString(handle.get(), "hooks_dict_ref", weak.get()) != 0 ||
      PyObject_SetAttrString(handle.get(), "id", key.get()) != 0 ||
      PyObject_SetAttrString(handle.get(), "extra_dict_ref", none.get()) != 0)
    return nullptr;
  Ref version = Ref::steal(PyObject_GetAttrString(tensor, "_version"));
  if (!version) return nullptr;
  input_hooks.push_back({Ref::borrow(tensor), Ref::borrow(method), Ref::borrow(hook), handle, hooks, version});
  return handle.release();
}

bool InputHook::tensor_is_unwritten() const {
  Ref now = Ref::steal(PyObject_GetAttrString(tensor.get(), "_version"));
  const int same = now ? PyObject_RichCompareBool(now.get(), version.get(), Py_EQ) : 0;
  PyErr_Clear();
  return same == 1;
}

// A callable that autograd will call, as one whose frame comes to the interpreter.
Ref Interpreter::called_by_autograd(PyObject* hook) {
  return PyFunction_Check(hook) ? Ref::borrow(hook) : as_python_function(hook);
}

// Methods of autograd's nodes (y.grad_fn), which module hooks use, and Tensor.retain_grad. Null without an error: none
// of these, or not of this trace.
PyObject* Interpreter::call_of_autograd(PyObject* f, PyMethodDef* method, PyObject* self, PyObject* const* args,
                                        size_t nargs, PyObject* const* all, size_t all_nargs, PyObject* kwnames) {
  if (session == nullptr || kwnames != nullptr || recorder.is_old(self)) return nullptr;
  const std::string_view name = method->ml_name;
  if (name == "retain_grad" && nargs == 0 && is_tensor(self) && session->is_trace_tensor(self) &&
      flag(self, "requires_grad") && !flag(self, "is_leaf")) {
    note_retry();  // a result that retains its gradient is not served (Session::add_backward); nobody sees others'
    return PyObject_Vectorcall(f, all, all_nargs, nullptr);
  }
  const bool hooks = name == "register_hook" || name == "register_prehook";
  if ((!hooks && name != "name") || nargs != (hooks ? 1 : 0) || is_tensor(self) || !is_node(self)) return nullptr;
  if (!hooks) return PyObject_Vectorcall(f, all, all_nargs, nullptr);
  // Where the trace ends its gradients are taken before any hook.
  if (std::strstr(Py_TYPE(self)->tp_name, "AccumulateGrad") != nullptr || !PyCallable_Check(args[0])) return nullptr;
  note_retry();
  Ref hook = called_by_autograd(args[0]);
  PyObject* given[] = {self, hook.get()};
  const bool bound = PyCFunction_Check(f);
  ++uninterpreted;
  PyObject* handle = PyObject_Vectorcall(f, bound ? given + 1 : given, bound ? 1 : 2, nullptr);
  --uninterpreted;
  return handle;
}

// Packs run as the operators in between do, unpacks when the trace's backward does. A break in between cannot be
// resumed under hooks of the trace: it is put before them instead.
PyObject* Interpreter::push_saved_hooks(PyObject* f, PyObject* const* args, size_t nargs) {
  if (session == nullptr) throw Declined("saved-tensor hooks");
  note_retry();
  context.torch.saved_hooks.push_back(path_here());
  Ref pack = called_by_autograd(args[0]), unpack = called_by_autograd(args[1]);
  PyObject* given[] = {pack.get(), unpack.get()};
  return PyObject_Vectorcall(f, given, nargs, nullptr);
}

}  // namespace flashover::frame

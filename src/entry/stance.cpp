// One atomic of our own beside torch's stance, which is read without a call of Python where it did not change.
#include "entry/stance.h"

#include <Python.h>

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "guards/objects.h"

namespace flashover::entry {
namespace {
const std::array<const char*, 6> kStances = {"default",           "force_eager",        "eager_on_recompile",
                                             "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile"};
std::atomic<Stance>& stance() {
  static std::atomic<Stance> s{Stance::kDefault};
  return s;
}

// What torch.compiler.set_stance says: a global of a module of torch's, read again when the dict of that module (or,
// before it is loaded, that of all modules) has changed. GIL held.
struct Said {
  Stance stance = Stance::kDefault;
  PyObject* backend = nullptr;  // owned
};
const Said& torchs_stance() {
  static PyObject* globals = nullptr;  // the module's, owned
  static PyObject* const all = PyImport_GetModuleDict();
  static uint64_t tag = 0;
  static Said said;
  const uint64_t now = guards::dict_tag(globals ? globals : all);
  if (now == tag) [[likely]]
    return said;
  if (!globals) {
    tag = now;
    static PyObject* const name = PyUnicode_InternFromString("torch._dynamo.eval_frame");
    PyObject* module = guards::dict_get(all, name);
    if (!module || !PyModule_Check(module)) return said;
    globals = Py_NewRef(PyModule_GetDict(module));
  }
  static PyObject *const name = PyUnicode_InternFromString("_stance"), *const part =
                                                                           PyUnicode_InternFromString("stance");
  PyObject* object = guards::dict_get(globals, name);
  PyObject* text = object ? PyObject_GetAttr(object, part) : nullptr;
  const char* utf8 = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  PyObject* forced = object ? PyObject_GetAttrString(object, "backend") : nullptr;
  PyErr_Clear();
  if (object == nullptr) return said;  // the module is being loaded
  said.stance = Stance::kDefault;
  for (size_t i = 0; utf8 && i < kStances.size(); i++)
    if (std::strcmp(utf8, kStances[i]) == 0) said.stance = static_cast<Stance>(i);
  Py_XDECREF(text);
  if (forced == Py_None) Py_CLEAR(forced);
  PyObject* const before = std::exchange(said.backend, forced);
  tag = guards::dict_tag(globals);
  Py_XDECREF(before);
  return said;
}

// Whether torch.fx traces: a global of torch.fx._symbolic_trace, which torch imports; from torch 2.15 on an attribute of
// a threading.local in that module. Read again when the dict that it stands in has changed.
struct FxFlag {
  uint64_t thread = 0;       // whose state it was read in
  PyObject* dict = nullptr;  // the module's, or the thread's own, which lives as long as the thread's state
  uint64_t tag = 0;
  bool said = false;
};

PyObject* fx_globals() {
  static PyObject* const name = PyUnicode_InternFromString("torch.fx._symbolic_trace");
  static PyObject* globals = nullptr;  // owned
  if (globals) return globals;
  PyObject* module = guards::dict_get(PyImport_GetModuleDict(), name);
  if (module && PyModule_Check(module)) globals = Py_NewRef(PyModule_GetDict(module));
  return globals;
}

void read_fx_flag(FxFlag& flag, uint64_t thread) {
  static PyObject *const of_all = PyUnicode_InternFromString("_is_fx_tracing_flag"),
                         *const of_thread = PyUnicode_InternFromString("flag"),
                         *const local = PyUnicode_InternFromString("_is_fx_tracing_tls");
  flag = {};
  PyObject* const globals = fx_globals();
  if (!globals) return;
  PyObject *dict = globals, *name = of_all;
  if (PyObject* own = guards::dict_get(globals, local)) {
    dict = PyObject_GetAttrString(own, "__dict__");
    name = of_thread;
    Py_XDECREF(dict);  // the thread's state holds it
    PyErr_Clear();
    if (!dict || !PyDict_Check(dict)) return;
  }
  flag = {thread, dict, guards::dict_tag(dict), false};
  flag.said = guards::dict_get(dict, name) == Py_True;
}

PyObject*& own_backend() {  // owned
  static PyObject* backend = nullptr;
  return backend;
}
}  // namespace

bool fx_is_tracing() {
  thread_local FxFlag flag;
  const uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
  if (!flag.dict || flag.thread != thread || flag.tag != guards::dict_tag(flag.dict)) [[unlikely]]
    read_fx_flag(flag, thread);
  return flag.said;
}

Stance current_stance() {
  const Stance own = stance().load(std::memory_order_relaxed), torchs = torchs_stance().stance;
  return own == Stance::kDefault || torchs == Stance::kForceEager ? torchs : own;
}
const char* name_of(Stance s) { return kStances[static_cast<size_t>(s)]; }
const char* stance_name() { return name_of(stance().load(std::memory_order_relaxed)); }

PyObject* forced_backend() {
  if (current_stance() != Stance::kDefault) return nullptr;
  return own_backend() ? own_backend() : torchs_stance().backend;
}
PyObject* own_forced_backend() { return own_backend() ? own_backend() : Py_None; }
void force_backend(PyObject* backend) {
  PyObject* const before = std::exchange(own_backend(), backend == Py_None ? nullptr : Py_NewRef(backend));
  Py_XDECREF(before);
}

// While torch._dynamo.run calls a function, False stands where torch keeps its compiler.
bool may_compile_again() {
  const Stance stance = current_stance();
  return stance != Stance::kFailOnRecompile && stance != Stance::kEagerOnRecompile && !torch_only_runs();
}

bool torch_only_runs() {
  static PyObject *const all = PyImport_GetModuleDict(), *const module_name =
                                                             PyUnicode_InternFromString("torch._dynamo.eval_frame");
  if (!guards::dict_get(all, module_name)) return false;
  static PyObject* ask = nullptr;
  if (!ask) {
    PyObject* module = PyImport_ImportModule("torch._C._dynamo.eval_frame");
    ask = module ? PyObject_GetAttrString(module, "get_eval_frame_callback") : nullptr;
    Py_XDECREF(module);
  }
  PyObject* callback = ask ? PyObject_CallNoArgs(ask) : nullptr;
  PyErr_Clear();
  Py_XDECREF(callback);
  return callback == Py_False;
}
void set_stance(const std::string& name) {
  std::string all;
  for (size_t i = 0; i < kStances.size(); i++) {
    if (name == kStances[i]) {
      stance() = static_cast<Stance>(i);
      return;
    }
    all += (i ? ", " : "") + std::string(kStances[i]);
  }
  throw UserError("no stance '" + name + "'; there are " + all);
}

}  // namespace flashover::entry

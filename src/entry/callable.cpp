// The Python type CompiledCallable: making one, its garbage collection, and what explain() and benchmarks ask of it.
#include "entry/callable.h"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/boundary.h"
#include "base/options.h"
#include "entry/describe.h"
#include "entry/generator.h"
#include "frame/operands.h"
#include "run/run.h"

namespace flashover::entry {
namespace {

const char* text_of(PyObject* o) {
  const char* s = o ? PyUnicode_AsUTF8(o) : nullptr;
  return s ? s : "";
}

PyObject* callable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function",     "self",      "through_call", "name",    "backend",
                                "custom",       "fullgraph", "keep_text",    "options", "dynamic",
                                "guard_filter", "watcher",   nullptr};
  PyObject *function = Py_None, *self = Py_None, *custom = Py_None, *options = nullptr, *dynamic = Py_None,
           *guard_filter = Py_None, *watcher = Py_None;
  const char *name = "", *backend = "flashover";
  int through_call = 0, fullgraph = 0, keep_text = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$pssOppO!OOO:CompiledCallable", const_cast<char**>(names),
                                   &function, &self, &through_call, &name, &backend, &custom, &fullgraph, &keep_text,
                                   &PyDict_Type, &options, &dynamic, &guard_filter, &watcher))
    return nullptr;
  if (through_call && self == Py_None) return PyErr_SetString(PyExc_TypeError, "through_call needs self"), nullptr;
  if (!through_call && !PyFunction_Check(function))
    return PyErr_Format(PyExc_TypeError, "a Python function is needed, not a %s", Py_TYPE(function)->tp_name), nullptr;
  auto state = std::make_unique<CallableState>();
  state->settings.name = name;
  state->settings.backend = backend;
  state->settings.fullgraph = fullgraph;
  state->settings.keep_text = keep_text;
  if (dynamic != Py_None) state->settings.dynamic = dynamic == Py_True;
  PyObject *key, *value;
  for (Py_ssize_t pos = 0; options && PyDict_Next(options, &pos, &key, &value);)
    state->settings.options.values[text_of(key)] = text_of(value);
  if (PyErr_Occurred()) return nullptr;
  state->settings.keep_text |= bool_option(state->settings.options.values, "keep_text");
  state->limit = static_cast<size_t>(int_option(state->settings.options.values, "recompile_limit"));
  auto* c = PyObject_GC_New(Callable, type);
  if (!c) return nullptr;
  c->vectorcall = at_boundary<call>;
  c->function = through_call ? nullptr : Py_NewRef(function);
  c->self = self == Py_None ? nullptr : Py_NewRef(self);
  c->dict = c->weakrefs = nullptr;
  c->through_call = through_call;
  if (custom != Py_None) state->settings.custom = Py_NewRef(custom);
  if (guard_filter != Py_None) state->settings.guard_filter = Py_NewRef(guard_filter);
  if (watcher != Py_None) state->settings.watcher = Py_NewRef(watcher);
  c->state = state.release();
  c->state->root = c->self && frame::is_module(c->self) ? c->self : nullptr;
  PyObject_GC_Track(c);
  return reinterpret_cast<PyObject*>(c);
}

int callable_traverse(PyObject* o, visitproc visit, void* arg) noexcept {
  auto* c = reinterpret_cast<Callable*>(o);
  Py_VISIT(c->state->forced);
  Py_VISIT(c->function);
  Py_VISIT(c->self);
  Py_VISIT(c->dict);
  Py_VISIT(c->state->settings.custom);
  Py_VISIT(c->state->settings.guard_filter);
  Py_VISIT(c->state->settings.watcher);
  auto visit_entries = [&](const std::vector<EntryPtr>& entries) {
    for (const EntryPtr& e : entries) {
      if (e.use_count() > 1) continue;  // running: its references are not only ours
      for (const frame::ReconstructionStep& s : e->capture.reconstruction) Py_VISIT(s.object);
    }
    return 0;
  };
  if (int stopped = visit_entries(c->state->entries)) return stopped;
  for (const auto& [key, site] : c->state->continuations)
    if (int stopped = site.use_count() > 1 ? 0 : visit_entries(site->entries)) return stopped;
  return 0;
}

int callable_clear(PyObject* o) noexcept {
  auto* c = reinterpret_cast<Callable*>(o);
  std::vector<EntryPtr> entries = std::move(c->state->entries);
  c->state->entries.clear();
  auto continuations = std::move(c->state->continuations);
  c->state->continuations.clear();
  entries.clear();
  continuations.clear();
  auto barren = std::move(c->state->barren);
  c->state->barren.clear();
  for (const auto& [code, count] : barren) Py_DECREF(code);
  Py_CLEAR(c->state->forced);
  if (PyCodeObject* code = std::exchange(c->state->signature, {}).code) Py_DECREF(code);
  Py_CLEAR(c->function);
  c->state->root = nullptr;
  Py_CLEAR(c->self);
  Py_CLEAR(c->dict);
  Py_CLEAR(c->state->settings.custom);
  Py_CLEAR(c->state->settings.guard_filter);
  Py_CLEAR(c->state->settings.watcher);
  return 0;
}

void callable_dealloc(PyObject* o) noexcept {
  auto* c = reinterpret_cast<Callable*>(o);
  PyObject_GC_UnTrack(o);
  if (c->weakrefs) PyObject_ClearWeakRefs(o);
  callable_clear(o);
  delete c->state;
  Py_TYPE(o)->tp_free(o);
}

PyObject* callable_repr(PyObject* o) {
  const CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  size_t breaks = 0, after = 0;
  const auto count = [&](const std::vector<EntryPtr>& entries) {
    for (const EntryPtr& e : entries)
      breaks += e->kind == Entry::Kind::kCompiled && !e->capture.frames.empty() && !e->capture.yields;
  };
  count(s.entries);
  for (const auto& [key, site] : s.continuations) count(site->entries), after += site->entries.size();
  const auto many = [](int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); };
  std::string text = "<flashover compiled " + s.settings.name + ": ";
  if (s.calls == 0) {
    text += "not called yet";
  } else {
    text += many(s.calls, "call") + ", " + many(static_cast<int64_t>(s.entries.size()), "version");
    if (breaks) text += ", " + many(static_cast<int64_t>(breaks), "graph break");
    if (after) text += ", " + many(static_cast<int64_t>(after), "part") + " after breaks";
    if (s.eager.calls()) text += ", " + many(s.eager.calls(), "call") + " ran eager";
    text += "; .explain(), .stats(), .versions, .source()";
  }
  text += ">";
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* entries(PyObject* o, PyObject*) {
  PyObject* out = PyList_New(0);
  const CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  std::vector<EntryPtr> all = s.entries;
  for (const auto& [key, site] : s.continuations) all.insert(all.end(), site->entries.begin(), site->entries.end());
  for (const EntryPtr& e : all) {
    PyObject* d = describe(*e);
    if (!d || PyList_Append(out, d) != 0) {
      Py_XDECREF(d);
      Py_DECREF(out);
      return nullptr;
    }
    Py_DECREF(d);
  }
  return out;
}

PyObject* reset(PyObject* o, PyObject*) {
  std::vector<EntryPtr> old;
  CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  old.swap(s.entries);
  decltype(s.continuations) rest;
  rest.swap(s.continuations);
  s.per_call_by_site.clear();
  s.per_call = {};
  decltype(s.barren) barren;
  barren.swap(s.barren);
  for (const auto& [code, count] : barren) Py_DECREF(code);
  s.over_limit.reset();
  Py_CLEAR(s.forced);
  s.eager.forget_said();
  s.made = 0;
  Py_RETURN_NONE;
}

PyObject* set_measuring(PyObject* o, PyObject* on) {
  const int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  const CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  const auto each = [&](const std::vector<EntryPtr>& entries) {
    for (const EntryPtr& e : entries)
      if (e->runner)
        for (const auto& [side, executable] : e->runner->executables) executable->measure(truth != 0);
  };
  each(s.entries);
  for (const auto& [key, site] : s.continuations) each(site->entries);
  Py_RETURN_NONE;
}

PyObject* tallies(PyObject* o, PyObject*) {
  CallableState& s = *reinterpret_cast<Callable*>(o)->state;
  return Py_BuildValue("{s:L,s:L,s:L,s:N,s:L,s:d,s:z}", "calls", static_cast<long long>(s.calls), "eager_calls",
                       static_cast<long long>(s.eager.calls()), "eager_frames",
                       static_cast<long long>(s.eager.frames()), "eager", s.eager.to_python(), "recompiles",
                       static_cast<long long>(s.recompiles), "recompile_seconds", s.recompile_seconds, "skipped",
                       s.skipped);
}

// For benchmarks: nanoseconds that the guards of the entry used last take for a call with these arguments: (when some
// dict of the process changed since the last call, when none did). None if the call does not match it. The least of
// many; or, if `before` is to be called before each check (to walk over memory, to run a model), the middle of some.
PyObject* time_guards(PyObject* o, PyObject* before, PyObject* args, PyObject* kwargs) {
  auto* c = reinterpret_cast<Callable*>(o);
  CallableState& s = *c->state;
  if (s.entries.empty() || !s.entries.front()->guards || !refresh(c)) Py_RETURN_NONE;
  const EntryPtr e = s.entries.front();
  const GivenArguments given(args, kwargs);
  Bound bound;
  if (!bound.bind(s.signature, reinterpret_cast<PyFunctionObject*>(c->function), c->self, given.objects.data(),
                  PyTuple_GET_SIZE(args), given.names)) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  std::vector<PyObject*> objects(e->required);
  std::array<std::vector<double>, 2> times;
  for (int i = 0; i < (before ? 40 : 4000); i++) {
    if (before) {
      PyObject* done = PyObject_CallNoArgs(before);
      if (!done) return nullptr;
      Py_DECREF(done);
    }
    const auto start = std::chrono::steady_clock::now();
    const bool yes = e->guards->check(bound.slots(), objects.data(), i % 2 == 1);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (!yes) Py_RETURN_NONE;
    times[i % 2].push_back(took.count());
  }
  for (std::vector<double>& t : times) std::sort(t.begin(), t.end());
  const size_t which = before ? times[0].size() / 2 : 0;
  return Py_BuildValue("dd", times[0][which], times[1][which]);
}
PyObject* time_warm_guards(PyObject* o, PyObject* args, PyObject* kwargs) {
  return time_guards(o, nullptr, args, kwargs);
}
PyObject* time_guards_after(PyObject* o, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) == 0) return PyErr_SetString(PyExc_TypeError, "what is called before?"), nullptr;
  PyObject* rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
  PyObject* times = rest ? time_guards(o, PyTuple_GET_ITEM(args, 0), rest, kwargs) : nullptr;
  Py_XDECREF(rest);
  return times;
}

PyMethodDef kCallableMethods[] = {
    {"time_guards", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<time_warm_guards>)),
     METH_VARARGS | METH_KEYWORDS, "For benchmarks: nanoseconds that the guards of the last entry take."},
    {"time_guards_after", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<time_guards_after>)),
     METH_VARARGS | METH_KEYWORDS, "The same; the first argument is called before each check."},
    {"entries", at_boundary<entries>, METH_NOARGS, "What was compiled, most recently used first, as dicts."},
    {"lower", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<lower>)),
     METH_VARARGS | METH_KEYWORDS, "Compiles for a call with these arguments and runs nothing: what was compiled."},
    {"program", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<program>)),
     METH_VARARGS | METH_KEYWORDS, "Captures a call with these arguments and runs nothing: its graph, as data."},
    {"measure", at_boundary<set_measuring>, METH_O,
     "Whether calls of what is compiled also take the time of each step."},
    {"reset", at_boundary<reset>, METH_NOARGS, "Forgets everything compiled."},
    {"tallies", at_boundary<tallies>, METH_NOARGS, "Calls, eager calls, recompiles, why the last call was skipped."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef kCallableMembers[] = {
    {"__wrapped_function__", T_OBJECT, offsetof(Callable, function), READONLY, "the Python function that is compiled"},
    {"__bound_self__", T_OBJECT, offsetof(Callable, self), READONLY, "its first argument"},
    {"__through_call__", T_BOOL, offsetof(Callable, through_call), READONLY,
     "the function is the __call__ of the first argument's class"},
    {nullptr, 0, 0, 0, nullptr},
};

PyObject* bound_to(PyObject* o, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(o, instance) : Py_NewRef(o);
}

}  // namespace

void be_callable(PyTypeObject& type, const CallableSlots& slots) {
  static PyGetSetDef dict_of_instance[] = {
      {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_name = slots.name;
  type.tp_basicsize = slots.size;
  type.tp_new = slots.tp_new;
  type.tp_dealloc = slots.tp_dealloc;
  type.tp_traverse = slots.tp_traverse;
  type.tp_clear = slots.tp_clear;
  type.tp_repr = slots.tp_repr;
  type.tp_members = slots.members;
  type.tp_vectorcall_offset = slots.vectorcall;
  type.tp_call = PyVectorcall_Call;
  type.tp_descr_get = at_boundary<bound_to>;
  type.tp_getset = dict_of_instance;
  type.tp_dictoffset = slots.dict;
  type.tp_weaklistoffset = slots.weakrefs;
  type.tp_getattro = PyObject_GenericGetAttr;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_free = PyObject_GC_Del;
}

PyObject* with_backend(Callable* c, PyObject* backend) {
  CallableState& s = *c->state;
  if (!s.forced) s.forced = PyDict_New();
  if (PyObject* forced = s.forced ? PyDict_GetItemWithError(s.forced, backend) : nullptr) return forced;
  if (PyErr_Occurred()) return nullptr;
  PyObject* module = PyImport_ImportModule("flashover.backends");
  PyObject* pair = module ? PyObject_CallMethod(module, "resolve", "O", backend) : nullptr;
  Py_XDECREF(module);
  PyObject* options = PyDict_New();
  for (const auto& [name, text] : s.settings.options.values) {
    PyObject* value = PyUnicode_FromString(text.c_str());
    if (value) PyDict_SetItemString(options, name.c_str(), value);
    Py_XDECREF(value);
  }
  const auto object = [](PyObject* o) { return o ? o : Py_None; };
  const auto flag = [](bool b) { return b ? Py_True : Py_False; };
  PyObject* kwargs =
      pair ? Py_BuildValue("{s:O,s:O,s:O,s:s,s:O,s:O,s:O,s:O,s:N,s:O,s:O}", "function",
                           c->through_call ? Py_None : object(c->function), "self", object(c->self), "through_call",
                           flag(c->through_call), "name", s.settings.name.c_str(), "backend", PyTuple_GET_ITEM(pair, 0),
                           "custom", PyTuple_GET_ITEM(pair, 1), "fullgraph", flag(s.settings.fullgraph), "keep_text",
                           flag(s.settings.keep_text), "options", options, "dynamic",
                           s.settings.dynamic ? flag(*s.settings.dynamic) : Py_None, "guard_filter",
                           object(s.settings.guard_filter))
           : nullptr;
  PyObject* none = PyTuple_New(0);
  PyObject* other = kwargs && none ? callable_new(Py_TYPE(c), none, kwargs) : nullptr;
  if (other) reinterpret_cast<Callable*>(other)->state->settings.forced = true;
  const bool kept = other && PyDict_SetItem(s.forced, backend, other) == 0;
  if (!pair) Py_XDECREF(options);
  Py_XDECREF(pair);
  Py_XDECREF(kwargs);
  Py_XDECREF(none);
  Py_XDECREF(other);  // the dict has it
  return kept ? other : nullptr;
}

bool add_callable_type(PyObject* module) {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  be_callable(type, {.name = "flashover._C.CompiledCallable",
                     .size = sizeof(Callable),
                     .vectorcall = offsetof(Callable, vectorcall),
                     .dict = offsetof(Callable, dict),
                     .weakrefs = offsetof(Callable, weakrefs),
                     .tp_new = at_boundary<callable_new>,
                     .tp_dealloc = callable_dealloc,
                     .tp_traverse = callable_traverse,
                     .tp_clear = callable_clear,
                     .tp_repr = at_boundary<callable_repr>,
                     .members = kCallableMembers});
  type.tp_methods = kCallableMethods;
  if (PyType_Ready(&type) < 0 || !add_generator_type()) return false;
  return PyModule_AddObjectRef(module, "CompiledCallable", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace flashover::entry

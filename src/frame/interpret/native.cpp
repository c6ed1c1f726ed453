#include "frame/interpret/native.h"

#include <opcode.h>

#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "frame/fetched_error.h"
#include "frame/interpret/locks.h"
#include "frame/interpret/opcode_parts.h"
#include "frame/interpret/plain_data.h"
#include "trace/outside.h"

namespace flashover::frame {
namespace {

constexpr uint8_t kReads = Native::kReads, kReadsSelf = Native::kReadsSelf, kWrites = Native::kWrites,
                  kShares = Native::kShares, kCalls = Native::kCalls, kTensors = Native::kTensors;

// --- Builtins that the interpreter does itself, because they look inside old objects. ---

PyObject* do_getattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs < 2 || c.nargs > 3 || !PyUnicode_Check(c.args[1])) return c.run();
  Ref name = Ref::borrow(c.args[1]);
  if (c.nargs == 2) return c.in.get_attr(c.args[0], name.get());
  PyObject* out = nullptr;
  int r = c.in.find_attr(c.args[0], name.get(), &out);
  if (r == 1) return out;
  if (r < 0) {
    if (c.in.aborted() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
  }
  return Py_NewRef(c.args[2]);
}

PyObject* do_hasattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs != 2 || !PyUnicode_Check(c.args[1])) return c.run();
  PyObject* out = nullptr;
  int r = c.in.find_attr(c.args[0], c.args[1], &out);
  Py_XDECREF(out);
  if (r < 0) {
    if (c.in.aborted() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
  }
  return PyBool_FromLong(r == 1);
}

PyObject* do_setattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs != 3 || !PyUnicode_Check(c.args[1])) return c.run();
  return c.in.set_attr(c.args[0], c.args[1], c.args[2]) < 0 ? nullptr : Py_NewRef(Py_None);
}
PyObject* do_delattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs != 2 || !PyUnicode_Check(c.args[1])) return c.run();
  return c.in.set_attr(c.args[0], c.args[1], nullptr) < 0 ? nullptr : Py_NewRef(Py_None);
}

// torch.FloatTensor and its like ask for a tensor's dispatch keys, of which a trace tensor has others: they are
// answered from what they stand for. -1: nothing of that kind is in `classes`.
int is_tensor_of_kind(PyObject* o, PyObject* classes, int depth = 0) {
  if (PyTuple_Check(classes) && depth < 20) {
    int found = -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) {
      const int one = is_tensor_of_kind(o, PyTuple_GET_ITEM(classes, i), depth + 1);
      if (one == 1) return 1;
      found = std::max(found, one);
    }
    return found;
  }
  if (std::strcmp(Py_TYPE(classes)->tp_name, "torch.tensortype") != 0) return -1;
  for (const char* name : {"dtype", "layout", "is_cuda"}) {
    Ref wanted = Ref::steal(PyObject_GetAttrString(classes, name)), is = Ref::steal(PyObject_GetAttrString(o, name));
    if (!wanted || !is) throw Declined("a kind of tensor that cannot be asked for");
    if (wanted.get() != is.get()) return 0;
  }
  Ref cuda = Ref::steal(PyObject_GetAttrString(o, "is_cuda")), cpu = Ref::steal(PyObject_GetAttrString(o, "is_cpu"));
  return cuda.get() == Py_True || cpu.get() == Py_True;
}

PyObject* do_isinstance(const NativeCall& c) {
  if (c.nargs == 2) {
    if (PyTuple_Check(c.args[1])) c.in.consume(c.args[1]);
    c.in.look_special(c.args[1], "__instancecheck__");
    c.in.look_special(c.args[1], "__subclasscheck__");
    if (c.kwnames == nullptr && is_tensor(c.args[0]) && c.in.session != nullptr &&
        c.in.session->is_trace_tensor(c.args[0]) && is_tensor_of_kind(c.args[0], c.args[1]) == 1)
      return Py_NewRef(Py_True);
  }
  return c.run();
}

PyObject* do_len(const NativeCall& c) {
  if (c.nargs == 1 && c.kwnames == nullptr) {
    PyObject* o = c.args[0];
    c.in.look_special(o, "__len__");
    if (PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o))
      c.in.recorder.length(o);
    else if (!is_tensor(o))
      c.in.recorder.contents(o);
  }
  return c.run();
}

PyObject* do_callable(const NativeCall& c) {
  if (c.nargs == 1) c.in.look_special(c.args[0], "__call__");
  return c.run();
}
PyObject* do_id(const NativeCall& c) {
  if (c.nargs == 1) c.in.recorder.identity(c.args[0]);
  return c.run();
}
PyObject* do_hash(const NativeCall& c) {
  if (c.nargs == 1) c.in.recorder.hash(c.args[0]);
  return c.run();
}

// Reads some state of the process or the thread that may be another one on the next call.
PyObject* do_state(const NativeCall& c) {
  Ref result = Ref::steal(c.run());
  if (!result) return nullptr;
  const size_t count = c.all_nargs + (c.kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(c.kwnames)));
  bool plain = is_atom(result.get()) || PyTuple_CheckExact(result.get());
  for (size_t i = 0; i < count; ++i) plain = plain && (is_atom(c.all[i]) || is_pinned_kind(c.all[i]));
  if (!plain) throw Declined("call of " + callable_name(c.f));
  if (c.in.switched) {  // what the program set itself is no state of before
    if (c.in.recorder.knows_call(c.f, c.all, count)) return result.release();
    throw Declined("call of " + callable_name(c.f) + " after a switch was set");
  }
  c.in.recorder.call_gives(c.f, c.all, count, c.kwnames, result.get());
  return result.release();
}

PyObject* do_switch(const NativeCall& c) {
  c.in.switched = true;
  return c.run();
}

// Levels of forward-mode differentiation are closed again when the capture ends.
PyObject* do_enter_dual_level(const NativeCall& c) {
  Ref level = Ref::steal(c.run());
  if (level) c.in.dual_levels.push_back(Ref::borrow(level.get()));
  return level.release();
}
PyObject* do_exit_dual_level(const NativeCall& c) {
  if (c.in.dual_levels.empty()) throw Declined("a dual level from before the call is left");
  Ref done = Ref::steal(c.run());
  if (done) c.in.dual_levels.pop_back();
  return done.release();
}

PyObject* do_make_inference_mode(const NativeCall& c) {
  Ref made = Ref::steal(c.run());
  if (made) c.in.inference_modes.push_back({Ref::borrow(made.get()), c.nargs == 0 || c.args[0] == Py_True});
  return made.release();
}
PyObject* do_inference_mode(const NativeCall& c, bool enters) {
  auto& modes = c.in.inference_modes;
  const auto at = std::find_if(modes.begin(), modes.end(), [&](const auto& m) {
    return c.nargs > 0 && m.guard.get() == c.args[0];  // (pybind11's methods are functions)
  });
  if (at == modes.end() || at->entered == enters) throw Declined("an inference mode from before the call is left");
  Ref done = Ref::steal(c.run());
  Interpreter::InferenceMode mode = std::move(*at);
  modes.erase(at);
  mode.entered = enters;
  if (enters) modes.push_back(std::move(mode));
  return done.release();
}
PyObject* do_enter_inference_mode(const NativeCall& c) { return do_inference_mode(c, true); }
PyObject* do_leave_inference_mode(const NativeCall& c) { return do_inference_mode(c, false); }

// The trace turns the cache of autocast off; the program sees what it would see.
PyObject* do_autocast_cache(const NativeCall& c) {
  return c.in.autocast_cache ? Py_NewRef(c.in.autocast_cache.get()) : c.run();
}
PyObject* do_set_autocast_cache(const NativeCall& c) {
  if (!c.in.autocast_cache || c.nargs != 1 || !PyBool_Check(c.args[0])) return c.run();
  c.in.autocast_cache = Ref::borrow(c.args[0]);
  Py_RETURN_NONE;
}

PyObject* do_subclass_check(const NativeCall& c) {  // _abc._abc_subclasscheck(abstract, class)
  Ref result = Ref::steal(c.run());
  if (result && c.nargs == 2 && PyBool_Check(result.get()) && PyType_Check(c.args[0]) && PyType_Check(c.args[1]))
    c.in.recorder.subclass(c.args[1], c.args[0], result.get() == Py_True);
  return result.release();
}
PyObject* do_instance_check(const NativeCall& c) {  // _abc._abc_instancecheck(abstract, instance)
  Ref result = Ref::steal(c.run());
  if (result && c.nargs == 2 && PyBool_Check(result.get()) && PyType_Check(c.args[0]))
    c.in.recorder.subclass(reinterpret_cast<PyObject*>(Py_TYPE(c.args[1])), c.args[0], result.get() == Py_True);
  return result.release();
}

PyObject* do_iter(const NativeCall& c) {
  if (c.nargs == 1 && c.kwnames == nullptr) return c.in.iterator(c.args[0]);
  return c.run();
}

// Counters that torch numbers its own things with: nobody asks for the numbers.
bool is_counter_of_torch(const NativeCall& c) {
  static PyObject* const counter = [] {
    Ref m = Ref::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch.autograd.function"));
    PyObject* found = m ? PyObject_GetAttrString(m.get(), "AUTOGRAD_FUNCTION_COUNTER") : nullptr;
    PyErr_Clear();
    return found;
  }();
  return counter != nullptr && c.nargs == 1 && c.args[0] == counter;
}

PyObject* do_next(const NativeCall& c) {
  if (is_counter_of_torch(c)) return c.run();
  if (c.kwnames != nullptr || c.nargs < 1 || c.nargs > 2 || !PyIter_Check(c.args[0])) return c.run();
  PyObject* v = c.in.next(c.args[0], true);
  if (v != nullptr) return v;
  if (PyErr_Occurred()) {
    if (c.nargs == 1 || c.in.aborted() || !PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
    PyErr_Clear();
  }
  if (c.nargs == 2) return Py_NewRef(c.args[1]);
  PyErr_SetNone(PyExc_StopIteration);
  return nullptr;
}

PyObject* do_vars(const NativeCall& c) {
  if (c.nargs != 1) throw Declined("call of vars() without an argument");
  Ref name = Ref::steal(PyUnicode_InternFromString("__dict__"));
  return c.in.get_attr(c.args[0], name.get());
}

PyObject* do_build_class(const NativeCall& c) {
  const MakesClass makes(c.in);
  Ref made = Ref::steal(c.run());
  if (made && PyType_Check(made.get())) c.in.recorder.fresh_type(made.get());
  return made.release();
}

// What the filters of module warnings make of a warning: "error", "ignore" ... New reference, null with an error set.
PyObject* action_on(PyObject* message, PyObject* category, PyObject* module, int line) {
  static PyObject* const ask = function_of_ours(
      "def ask(text, category, module, line):\n"
      "    import warnings\n"
      "    for action, words, of, where, at in warnings.filters:\n"
      "        if (words is None or words.match(text)) and issubclass(category, of) \\\n"
      "                and (where is None or where.match(module)) and at in (0, line):\n"
      "            return action\n"
      "    return warnings.defaultaction\n",
      "ask");
  Ref text = Ref::steal(PyObject_Str(message));
  return ask != nullptr && text ? PyObject_CallFunction(ask, "OOOi", text.get(), category, module, line) : nullptr;
}

// warnings.warn(): said again by each call of what is compiled, under the filters of then. Under filters that the
// program itself set a moment ago there is but one outcome.
PyObject* do_warn(const NativeCall& c) {
  if (c.in.session == nullptr) return c.run();
  PyObject* given[4] = {nullptr, Py_None, nullptr, Py_None};  // message, category, stacklevel, source
  const char* const names[] = {"message", "category", "stacklevel", "source"};
  const auto decline = [&c]() { throw Declined("call of " + callable_name(c.f)); };
  if (c.nargs > 4) decline();
  for (size_t i = 0; i < c.nargs; ++i) given[i] = c.args[i];
  for (Py_ssize_t i = 0; c.kwnames != nullptr && i < PyTuple_GET_SIZE(c.kwnames); ++i) {
    size_t at = 0;
    while (at < 4 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(c.kwnames, i), names[at]) != 0) ++at;
    if (at == 4) decline();
    given[at] = c.args[c.nargs + static_cast<size_t>(i)];
  }
  PyObject* message = given[0];
  const bool instance =
      message != nullptr && PyObject_TypeCheck(message, reinterpret_cast<PyTypeObject*>(PyExc_Warning));
  if (message == nullptr || given[3] != Py_None || (!instance && !PyUnicode_CheckExact(message))) decline();
  PyObject* category = instance              ? reinterpret_cast<PyObject*>(Py_TYPE(message))
                       : given[1] == Py_None ? PyExc_UserWarning
                                             : given[1];
  if (!PyType_Check(category) ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(category), reinterpret_cast<PyTypeObject*>(PyExc_Warning)))
    return c.run();  // raises
  int level = given[2] == nullptr ? 1 : static_cast<int>(PyLong_AsLong(given[2]));
  if (level == -1 && PyErr_Occurred()) return nullptr;
  level = std::max(level, 1);
  // The frame that is said to be at fault: one of the program's that is interpreted, or one outside.
  Ref frame = Ref::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  bool inside = true;
  while (frame && level > 1) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.get());
    inside = inside && !c.in.is_root(f->f_frame);
    if (!inside) break;
    frame = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
    --level;
  }
  Interpreter::Warning w;
  w.message = Ref::borrow(message);
  w.category = Ref::borrow(category);
  w.line_or_level = level - (inside ? 0 : 1);
  Ref module = Ref::steal(PyUnicode_FromString("<string>"));
  int line = 0;
  if (inside && frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.get());
    Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    w.globals = Ref::borrow(f->f_frame->f_globals);
    w.file = Ref::borrow(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
    w.line_or_level = line = PyFrame_GetLineNumber(f);
    for (const Ref& own : c.in.own_globals)
      if (own.get() == w.globals.get()) decline();
    PyObject* name = PyDict_GetItemString(w.globals.get(), "__name__");
    if (name != nullptr && PyUnicode_Check(name)) module = Ref::borrow(name);
  }
  w.module = module;
  ++c.in.uninterpreted;
  Ref action = Ref::steal(action_on(message, category, module.get(), line));
  --c.in.uninterpreted;
  if (!action || !PyUnicode_Check(action.get())) {
    PyErr_Clear();
    decline();
  }
  const auto is = [&action](const char* name) { return PyUnicode_CompareWithASCIIString(action.get(), name) == 0; };
  if (c.in.filters_of_before()) {
    if (is("error")) throw Declined("a warning that is an error");
    // Said when the graph has run: not where the program may look at it before, nor under other filters than these.
    const auto of_filters = [&c](const Journal::Entry& e) { return e.target.get() == c.in.warning_filters.get(); };
    if ((c.in.is_rest() && !c.in.prints_warnings()) ||
        std::any_of(c.in.journal.entries().begin(), c.in.journal.entries().end(), of_filters))
      decline();
    c.in.warnings.push_back(std::move(w));
    Py_RETURN_NONE;
  }
  if (is("ignore")) Py_RETURN_NONE;
  if (!is("error") && !c.in.records_warnings()) throw Declined("a warning under filters that the call set");
  return c.run();
}

// What was said before may be said again under the filters that the program set.
PyObject* do_filters_mutated(const NativeCall& c) {
  c.in.filters_mutated = true;
  return c.run();
}

// sys._getframe(), of a frame that is interpreted.
PyObject* do_getframe(const NativeCall& c) {
  Ref frame = Ref::steal(c.run());
  if (frame && !c.in.evaluates(reinterpret_cast<PyFrameObject*>(frame.get())->f_frame))
    throw Declined("call of " + callable_name(c.f));
  return frame.release();
}

// exec() and eval(): the code comes to the interpreter as a frame of its own.
PyObject* do_exec(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs < 1 || c.nargs > 3) throw Declined("call of " + callable_name(c.f));
  PyObject* const source = c.args[0];
  if (!PyUnicode_CheckExact(source) && !PyBytes_CheckExact(source) && !PyCode_Check(source))
    throw Declined("call of " + callable_name(c.f));
  for (size_t i = 1; i < c.nargs; ++i)
    if (c.args[i] != Py_None && !PyDict_CheckExact(c.args[i])) throw Declined("call of " + callable_name(c.f));
  if (PyObject* globals = c.nargs > 1 && c.args[1] != Py_None ? c.args[1] : nullptr) {
    static PyObject* const name = PyUnicode_InternFromString("__builtins__");
    if (!c.in.recorder.is_old(globals))
      c.in.own_globals.push_back(Ref::borrow(globals));
    else if (c.in.recorder.dict_get(globals, name) == nullptr)
      c.in.journal.dict_item(globals, name);
  }
  return c.run();
}
// A function may be given globals of the trace's own, too.
PyObject* do_make_function(const NativeCall& c) {
  Ref made = Ref::steal(c.run());
  if (!made) return nullptr;
  PyObject* globals = PyFunction_GET_GLOBALS(made.get());
  if (!c.in.recorder.is_old(globals)) c.in.own_globals.push_back(Ref::borrow(globals));
  return made.release();
}

PyObject* do_compile(const NativeCall& c) {
  if (c.nargs < 1 || (!PyUnicode_CheckExact(c.args[0]) && !PyBytes_CheckExact(c.args[0])))
    throw Declined("call of " + callable_name(c.f));
  return c.run();
}

// _abc._abc_init(class), at the end of ABCMeta.__new__: asks the bases what is abstract.
PyObject* do_abc_init(const NativeCall& c) {
  if (c.nargs != 1 || !c.in.recorder.is_fresh_type(c.args[0])) throw Declined("call of " + callable_name(c.f));
  static PyObject* const name = PyUnicode_InternFromString("__abstractmethods__");
  PyObject* bases = reinterpret_cast<PyTypeObject*>(c.args[0])->tp_bases;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i)
    c.in.recorder.type_lookup(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i)), name);
  return c.run();
}
PyObject* do_abc_register(const NativeCall& c) {
  if (c.nargs != 2 || !c.in.recorder.is_fresh_type(c.args[0])) throw Declined("call of " + callable_name(c.f));
  return c.run();
}

// Generators of Python's random numbers that the call made, and seeded.
PyObject* do_own_random(const NativeCall& c) {
  // (Whose method it is that was met as a function of a module, random.random, is not known.)
  if (c.in.recorder.is_old(c.self) || (PyCFunction_Check(c.f) && c.in.recorder.is_old(c.f)))
    throw Declined("call of " + callable_name(c.f));
  return c.run();
}
PyObject* do_seed(const NativeCall& c) {
  if (c.nargs != 1 || c.args[0] == Py_None) throw Declined("call of " + callable_name(c.f));
  return do_own_random(c);
}

// torch.Tensor._make_subclass(Parameter, data, requires_grad): a leaf of the trace. Nobody outside gets to see it
// (recipe.cpp), so the flag is all there is to it.
PyObject* do_make_parameter(const NativeCall& c) {
  if (c.nargs < 2 || c.args[0] != reinterpret_cast<PyObject*>(known_types().parameter) || c.in.session == nullptr ||
      !c.in.session->is_trace_tensor(c.args[1]))
    throw Declined("call of " + callable_name(c.f));
  c.in.note_retry();
  return c.run();
}

PyObject* do_bool(const NativeCall& c) {
  if (c.nargs != 1 || c.kwnames != nullptr) return c.run();
  int t = c.in.truth(c.args[0]);
  return t < 0 ? nullptr : PyBool_FromLong(t);
}

// --- dict ---

PyObject* do_dict_get(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs < 1 || c.nargs > 2) return c.run();
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v != nullptr) return Py_NewRef(v);
  if (PyErr_Occurred()) return nullptr;
  return Py_NewRef(c.nargs == 2 ? c.args[1] : Py_None);
}
PyObject* do_dict_contains(const NativeCall& c) {
  if (c.nargs != 1) return c.run();
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v == nullptr && PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(v != nullptr);
}
PyObject* do_dict_getitem(const NativeCall& c) {
  if (c.nargs != 1 || c.kwnames != nullptr) return c.run();
  // dict's own, whatever a subclass makes of []; c.run() raises or asks __missing__.
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v != nullptr) return Py_NewRef(v);
  if (PyErr_Occurred()) return nullptr;
  if (c.in.recorder.is_old(c.self) && PyObject_TypeCheck(c.self, known_types().defaultdict)) {
    c.in.recorder.default_factory(c.self);
    c.in.journal.whole(c.self);
  }
  return c.run();
}
PyObject* write_one(const NativeCall& c, bool removes) {
  if (c.nargs < 1 || !c.in.recorder.is_old(c.self)) return c.run();
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v == nullptr && PyErr_Occurred()) return nullptr;
  Ref keep = Ref::borrow(v);
  if (v != nullptr) c.in.recorder.numbers.read(v);  // what comes out is the dict's own object
  c.in.journal.dict_item(c.self, c.args[0], removes);
  return c.run();
}
PyObject* do_dict_pop(const NativeCall& c) { return write_one(c, true); }
PyObject* do_dict_setdefault(const NativeCall& c) { return write_one(c, false); }

PyObject* do_list_append(const NativeCall& c) {
  if (c.in.recorder.is_old(c.self) && c.nargs == 1 && c.kwnames == nullptr) c.in.journal.append(c.self, c.args[0]);
  return c.run();
}

PyObject* do_generator(const NativeCall& c) {
  if (c.in.recorder.is_old(c.self)) throw Declined("a generator from before the call is used");
  return c.run();
}

// heapq's and bisect's functions write the list that is their first argument.
PyObject* do_write_list(const NativeCall& c) {
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);
  if (c.nargs > 0 && c.in.recorder.is_old(c.args[0])) c.in.journal.whole(c.args[0]);
  return c.run();
}

PyObject* do_object_reduce(const NativeCall& c) {
  if (c.self != nullptr && c.in.recorder.is_old(c.self)) {
    if (is_tensor(c.self)) throw Declined("a tensor is copied through pickling");
    if (c.in.recorder.instance_dict(c.self) != kNoSource) c.in.recorder.contents(*_PyObject_GetDictPtr(c.self));
    c.in.consume(c.self);
  }
  return c.run();
}

// operator's functions do what the operators do.
PyObject* do_operator_setitem(const NativeCall& c) {
  if (c.nargs != 3 || c.kwnames != nullptr) return c.run();
  return c.in.set_subscript(c.args[0], c.args[1], c.args[2]) < 0 ? nullptr : Py_NewRef(Py_None);
}
PyObject* do_operator_delitem(const NativeCall& c) {
  if (c.nargs != 2 || c.kwnames != nullptr) return c.run();
  return c.in.set_subscript(c.args[0], c.args[1], nullptr) < 0 ? nullptr : Py_NewRef(Py_None);
}
PyObject* do_operator_getitem(const NativeCall& c) {
  return c.nargs == 2 && c.kwnames == nullptr ? c.in.subscript(c.args[0], c.args[1]) : c.run();
}
PyObject* do_operator_contains(const NativeCall& c) {
  if (c.nargs != 2 || c.kwnames != nullptr) return c.run();
  const int r = c.in.contains(c.args[0], c.args[1]);
  return r < 0 ? nullptr : PyBool_FromLong(r);
}
PyObject* do_operator_is(const NativeCall& c) {
  if (c.nargs == 2) c.in.recorder.same_or_distinct(c.args[0], c.args[1]);
  return c.run();
}
PyObject* do_operator_call(const NativeCall& c) {
  return c.nargs > 0 ? c.in.call(c.args[0], c.args + 1, c.nargs - 1, c.kwnames) : c.run();
}
template <int kOp>  // NB_INPLACE_...
PyObject* do_operator_inplace(const NativeCall& c) {
  return c.nargs == 2 && c.kwnames == nullptr ? c.in.binary(c.args[0], c.args[1], kOp) : c.run();
}

// _count_elements(mapping, iterable), which collections.Counter counts with.
PyObject* do_count_elements(const NativeCall& c) {
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);
  if (c.nargs > 0 && c.in.recorder.is_old(c.args[0])) c.in.journal.whole(c.args[0]);
  return c.run();
}

PyObject* do_exception_write(const NativeCall& c) {
  if (c.self != nullptr && c.in.recorder.is_old(c.self)) throw Declined("an exception from before the call is written");
  return c.run();
}

// torch.profiler.record_function: names a stretch of the program; what is compiled has no such stretches. Entering
// answers with one record that has ended: after a graph break torch itself may be asked to end it again, which does
// nothing.
PyObject* do_record_function(const NativeCall& c) {
  if (c.nargs == 0 || !PyUnicode_Check(c.args[0])) return Py_NewRef(Py_None);  // _record_function_exit
  static PyObject* const ended = [] {
    Ref torch = Ref::steal(PyImport_ImportModule("torch"));
    Ref ops = torch ? Ref::steal(PyObject_GetAttrString(torch.get(), "ops")) : Ref();
    Ref profiler = ops ? Ref::steal(PyObject_GetAttrString(ops.get(), "profiler")) : Ref();
    Ref record =
        profiler ? Ref::steal(PyObject_CallMethod(profiler.get(), "_record_function_enter_new", "s", "")) : Ref();
    Ref exit = record ? Ref::steal(PyObject_GetAttrString(profiler.get(), "_record_function_exit")) : Ref();
    Ref done = exit ? Ref::steal(PyObject_CallMethod(exit.get(), "_RecordFunction", "O", record.get())) : Ref();
    return done ? record.release() : nullptr;
  }();
  if (ended == nullptr) {
    PyErr_Clear();
    throw Declined("record_function");
  }
  c.in.recorder.constant(ended);
  return Py_NewRef(ended);
}

PyObject* do_import(const NativeCall& c) {
  ++c.in.uninterpreted;
  Ref m = Ref::steal(c.run());
  --c.in.uninterpreted;
  if (!m) return nullptr;
  // Absolute imports answer with what sys.modules has under the name, or under its first part.
  const bool absolute = c.nargs < 5 || (PyLong_Check(c.args[4]) && PyLong_AsLong(c.args[4]) == 0);
  const bool whole = c.nargs > 3 && PyObject_IsTrue(c.args[3]) == 1;
  Ref name = c.nargs > 0 && PyUnicode_Check(c.args[0]) ? Ref::borrow(c.args[0]) : Ref();
  if (name && !whole) {
    const Py_ssize_t dot = PyUnicode_FindChar(name.get(), '.', 0, PyUnicode_GET_LENGTH(name.get()), 1);
    if (dot > 0) name = Ref::steal(PyUnicode_Substring(name.get(), 0, dot));
  }
  PyErr_Clear();
  if (absolute && name && PyModule_Check(m.get()) &&
      PyDict_GetItemWithError(PyImport_GetModuleDict(), name.get()) == m.get())
    c.in.recorder.reach(SourceKind::kModule, kNoSource, -1, name.get(), m.get());
  if (!c.in.recorder.is_old(m.get())) c.in.recorder.constant(m.get());
  return m.release();
}

// torch.autograd.Function.apply: its forward is Python code; its backward is called when the trace's backward runs.
// Numbers reach both as the objects they are.
PyObject* do_autograd_apply(const NativeCall& c) {
  // Its class is asked in C++ for what runs.
  static PyObject* const names[] = {PyUnicode_InternFromString("forward"), PyUnicode_InternFromString("setup_context"),
                                    PyUnicode_InternFromString("backward"), PyUnicode_InternFromString("vjp"),
                                    PyUnicode_InternFromString("jvp")};
  if (c.self != nullptr && PyType_Check(c.self))
    for (PyObject* name : names) c.in.recorder.type_lookup(reinterpret_cast<PyTypeObject*>(c.self), name);
  for (size_t i = 0; i < c.nargs; ++i) c.in.look_through(c.args[i]);
  c.in.note_retry();
  return c.run();
}

// with torch.autograd.graph.saved_tensors_hooks(pack, unpack): part of the trace, as tensor hooks are.
PyObject* do_push_saved_hooks(const NativeCall& c) {
  if (c.nargs != 2 || c.kwnames != nullptr) return c.run();
  return c.in.push_saved_hooks(c.f, c.args, c.nargs);
}
PyObject* do_pop_saved_hooks(const NativeCall& c) {
  if (c.in.saved_hooks.empty()) throw Declined("saved-tensor hooks from before the call are popped");
  c.in.saved_hooks.pop_back();
  return c.run();
}

// torch.autograd.grad runs the engine over trace tensors; .backward() would leave its gradients in .grad.
PyObject* do_run_backward(const NativeCall& c) {
  bool accumulates = true, creates = c.nargs > 3 && c.args[3] != Py_False;
  PyObject* inputs = c.nargs > 4 ? c.args[4] : nullptr;
  for (Py_ssize_t i = 0; c.kwnames != nullptr && i < PyTuple_GET_SIZE(c.kwnames); ++i) {
    PyObject *key = PyTuple_GET_ITEM(c.kwnames, i), *value = c.args[c.nargs + static_cast<size_t>(i)];
    if (PyUnicode_CompareWithASCIIString(key, "accumulate_grad") == 0) accumulates = value != Py_False;
    if (PyUnicode_CompareWithASCIIString(key, "create_graph") == 0) creates = value != Py_False;
    if (PyUnicode_CompareWithASCIIString(key, "inputs") == 0) inputs = value;
  }
  // What leads here is differentiated twice: a graph that ended before this call could not be.
  if (creates) c.in.differentiates_twice = true;
  if (accumulates) throw Declined("call of backward(): gradients are accumulated");
  if (c.nargs > 0 && inputs != nullptr && trace::leads_outside(c.args[0], inputs))
    throw Declined("a gradient through what was computed before the call");
  c.in.note_retry();  // a result may lead to what this frees
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);
  PyObject* gradients = c.run();
  if (gradients != nullptr) c.in.differentiates_twice = false;
  return gradients;
}

struct Row {
  const char* owner;  // module, or module:Type for methods
  const char* names;  // blanks between
  uint8_t flags;
  PyObject* (*handler)(const NativeCall&) = nullptr;
};

const Row kFunctions[] = {
    {"builtins", "getattr", 0, do_getattr},
    {"builtins", "hasattr", 0, do_hasattr},
    {"builtins", "setattr", 0, do_setattr},
    {"builtins", "delattr", 0, do_delattr},
    {"builtins", "isinstance issubclass", 0, do_isinstance},
    {"builtins", "len", 0, do_len},
    {"builtins", "iter", 0, do_iter},
    {"builtins", "next", kShares, do_next},
    {"builtins", "vars", 0, do_vars},
    {"builtins", "__build_class__", kShares, do_build_class},
    {"builtins", "exec eval", kShares, do_exec},
    {"builtins", "compile", kShares, do_compile},
    {"builtins", "__import__", kShares, do_import},
    {"builtins", "callable", kShares, do_callable},
    {"builtins", "id", kShares, do_id},
    {"builtins", "hash", kShares, do_hash},
    {"builtins", "dir", kShares, do_dir},
    {"builtins", "abs all any ascii bin chr divmod format hex max min oct ord pow repr round sorted sum",
     kReads | kShares | kCalls},
    {"builtins", "globals locals", kShares},
    {"math", "*", kReads},
    {"cmath", "*", kReads},
    {"_operator", "setitem", 0, do_operator_setitem},
    {"_operator", "delitem", 0, do_operator_delitem},
    {"_operator", "getitem", kShares, do_operator_getitem},
    {"_operator", "contains", 0, do_operator_contains},
    {"_operator", "is_ is_not", 0, do_operator_is},
    {"_operator", "call", kShares, do_operator_call},
    {"_operator", "iadd iconcat", kShares, do_operator_inplace<NB_INPLACE_ADD>},
    {"_operator", "iand", kShares, do_operator_inplace<NB_INPLACE_AND>},
    {"_operator", "ifloordiv", kShares, do_operator_inplace<NB_INPLACE_FLOOR_DIVIDE>},
    {"_operator", "ilshift", kShares, do_operator_inplace<NB_INPLACE_LSHIFT>},
    {"_operator", "imatmul", kShares, do_operator_inplace<NB_INPLACE_MATRIX_MULTIPLY>},
    {"_operator", "imul", kShares, do_operator_inplace<NB_INPLACE_MULTIPLY>},
    {"_operator", "imod", kShares, do_operator_inplace<NB_INPLACE_REMAINDER>},
    {"_operator", "ior", kShares, do_operator_inplace<NB_INPLACE_OR>},
    {"_operator", "ipow", kShares, do_operator_inplace<NB_INPLACE_POWER>},
    {"_operator", "irshift", kShares, do_operator_inplace<NB_INPLACE_RSHIFT>},
    {"_operator", "isub", kShares, do_operator_inplace<NB_INPLACE_SUBTRACT>},
    {"_operator", "itruediv", kShares, do_operator_inplace<NB_INPLACE_TRUE_DIVIDE>},
    {"_operator", "ixor", kShares, do_operator_inplace<NB_INPLACE_XOR>},
    {"_operator", "*", kReads | kShares},
    {"_functools", "reduce", kReads | kShares | kCalls},
    {"_functools", "cmp_to_key", kReads},
    {"_bisect", "bisect bisect_left bisect_right", kReads},
    {"_bisect", "insort insort_left insort_right", kShares, do_write_list},
    {"_heapq", "*", kShares, do_write_list},
    {"_collections", "_count_elements", 0, do_count_elements},
    {"itertools", "tee", kReads},
    {"_abc", "_abc_instancecheck", kShares, do_instance_check},
    {"_abc", "_abc_subclasscheck", kShares, do_subclass_check},
    {"_abc", "get_cache_token", kShares, do_state},
    {"_abc", "_abc_init", 0, do_abc_init},
    {"_abc", "_abc_register", kShares, do_abc_register},
    {"_contextvars", "copy_context", 0},
    {"sys", "intern is_finalizing exc_info getfilesystemencoding exception", kShares},
    {"sys", "getrecursionlimit", kShares, do_state},
    {"sys", "_getframe", kShares, do_getframe},
    {"sys", "_getframemodulename", kShares},
    {"_thread", "RLock allocate_lock", kShares, do_make_lock},
    {"_thread", "get_ident", kShares, do_state},
    {"posix", "fspath", kShares},
    {"posix", "getpid", kShares, do_state},
    {"_warnings", "warn", kShares, do_warn},
    {"_warnings", "_filters_mutated", kShares, do_filters_mutated},
    {"_struct", "calcsize pack unpack", kReads},
    {"_json", "encode_basestring encode_basestring_ascii scanstring", kReads},
    {"_typing", "_idfunc", kShares},
    {"_pickle", "dumps", 0, do_pickle},
    {"zlib", "crc32 adler32 compress", 0, do_plain},
    {"binascii", "hexlify unhexlify b2a_hex a2b_hex b2a_base64 a2b_base64 crc32 crc_hqx", 0, do_plain},
    {"torch._C",
     "_get_tracing_state _has_torch_function _has_torch_function_unary _has_torch_function_variadic "
     "is_grad_enabled _set_grad_enabled is_inference_mode_enabled is_autocast_enabled "
     "set_autocast_enabled get_autocast_dtype set_autocast_dtype autocast_increment_nesting "
     "autocast_decrement_nesting clear_autocast_cache is_autocast_cpu_enabled set_autocast_cpu_enabled "
     "get_autocast_cpu_dtype set_autocast_cpu_dtype get_autocast_gpu_dtype is_autocast_available "
     "_is_any_autocast_enabled get_default_dtype _get_default_device _get_default_dtype "
     "_log_api_usage_once _jit_debug_module_iterators _is_torch_function_enabled "
     "_is_torch_function_all_disabled _len_torch_function_stack _len_torch_dispatch_stack "
     "_get_cudnn_enabled _get_mkldnn_enabled _get_flash_sdp_enabled _get_mem_efficient_sdp_enabled "
     "_get_math_sdp_enabled _get_cudnn_sdp_enabled _get_overrideable_sdp_enabled _get_deterministic_algorithms "
     "_get_cudnn_benchmark "
     "_get_cudnn_deterministic _get_deterministic_algorithms_warn_only _is_tracing "
     "_are_functorch_transforms_active _functorch_is_active _get_cpu_capability _cuda_isInBadFork "
     "_cuda_getDeviceCount _cuda_isCurrentStreamCapturing _get_accelerator _accelerator_getAccelerator "
     "_accelerator_getDeviceIndex "
     "_is_autocast_available _is_torch_function_mode_enabled _can_use_cudnn_attention "
     "_can_use_flash_attention _can_use_mem_efficient_attention _get_mkldnn_deterministic _has_storage "
     "_meta_in_tls_dispatch_include _jit_is_script_object _mps_is_available _cuda_getDevice _cuda_getArchFlags "
     "_get_torch_function_state _set_torch_function_state _push_on_torch_function_stack _pop_torch_function_stack "
     "_get_function_stack_at "
     "_vmapmode_decrement_nesting _demangle _is_key_in_tls _infer_size "
     "_conv_determine_backend_memory_format _get_obj_in_tls _debug_has_internal_overlap "
     "_is_flash_attention_available _has_mkldnn _dispatch_tls_is_dispatch_key_excluded "
     "_dispatch_tls_is_dispatch_key_included _dispatch_keys _vmapmode_increment_nesting",
     kShares},
    // State that GlobalState does not hold.
    {"torch._C",
     "is_autocast_xla_enabled is_anomaly_enabled _get_nnpack_enabled _is_multithreading_enabled "
     "_is_view_replay_enabled _is_xnnpack_enabled _jit_get_profiling_mode _get_graph_executor_optimize "
     "_get_float32_matmul_precision _get_qengine _get_blas_preferred_backend "
     "_get_linalg_preferred_backend _get_cublas_allow_tf32 _get_onednn_allow_tf32 _get_cudnn_allow_tf32 "
     "_get_fp32_precision_getter _is_fwd_grad_enabled _get_sdp_priority_order get_num_threads "
     "_cuda_get_cudnn_benchmark_limit _get_privateuse1_backend_name _get_cublas_allow_fp16_reduced_precision_reduction "
     "_get_warnAlways",
     kShares, do_state},
    {"torch._C",
     "_set_cudnn_enabled _set_cudnn_benchmark _set_cudnn_deterministic _set_cudnn_allow_tf32 "
     "_cuda_set_cudnn_benchmark_limit _set_fp32_precision_setter _set_fwd_grad_enabled _set_default_dtype "
     "_set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math _set_sdp_use_cudnn _set_sdp_use_overrideable",
     kShares, do_switch},
    {"torch._C", "is_autocast_cache_enabled", kShares, do_autocast_cache},
    {"torch._C", "set_autocast_cache_enabled", kShares, do_set_autocast_cache},
    {"torch._C._functorch",
     "is_functorch_wrapped_tensor is_batchedtensor is_gradtrackingtensor peek_interpreter_stack "
     "maybe_current_level maybe_get_level current_level get_dynamic_layer_stack_depth maybe_get_bdim "
     "is_dead_tensor_wrapper _add_batch_dim _remove_batch_dim _vmap_increment_nesting "
     "_vmap_decrement_nesting _unwrap_batched _is_vmap_fallback_enabled unwrap_if_dead get_unwrapped "
     "is_functionaltensor is_legacy_batchedtensor _grad_decrement_nesting _wrap_for_grad "
     "_unwrap_for_grad _jvp_increment_nesting _jvp_decrement_nesting get_inplace_requires_grad_allowed "
     "set_inplace_requires_grad_allowed get_single_level_autograd_function_allowed "
     "set_single_level_autograd_function_allowed",
     kShares},
    {"torch._C._autograd", "_saved_tensors_hooks_get_disabled_error_message _saved_tensors_hooks_is_enabled", kShares},
    {"torch._C._autograd", "_saved_tensors_hooks_disable _saved_tensors_hooks_enable", kShares},
    {"torch._C._autograd", "_push_saved_tensors_default_hooks", kShares, do_push_saved_hooks},
    {"torch._C._autograd", "_pop_saved_tensors_default_hooks", kShares, do_pop_saved_hooks},
    {"torch._C._dynamo.autograd_compiler", "set_autograd_compiler", kShares},  // off, and back, around torch.func.grad
    {"torch._C._nn", "_parse_to", kTensors | kShares},
    {"torch._C._functorch", "_grad_increment_nesting", kShares},
    {"torch._C", "_enter_dual_level", 0, do_enter_dual_level},
    {"torch._C", "_exit_dual_level", 0, do_exit_dual_level},
    {"torch._C", "parse_schema", 0},
    {"torch._C", "_group_tensors_by_device_and_dtype", kTensors | kShares},
    {"flashover._C", "randomness", 0},
};

const Row kMethods[] = {
    {"builtins:dict", "get", kShares, do_dict_get},
    {"builtins:dict", "__contains__", 0, do_dict_contains},
    {"builtins:dict", "__getitem__", kShares, do_dict_getitem},
    {"builtins:dict", "pop", kShares, do_dict_pop},
    {"builtins:dict", "setdefault", kShares, do_dict_setdefault},
    {"builtins:dict", "keys values items copy __reversed__ __sizeof__", kReadsSelf},
    {"builtins:dict", "update", kWrites | kReads},
    {"builtins:dict", "clear popitem", kWrites | kShares},
    {"builtins:dict", "fromkeys", kReads},
    {"collections:OrderedDict", "keys values items copy __reversed__", kReadsSelf},
    {"collections:OrderedDict", "pop popitem move_to_end clear setdefault update", kWrites | kReads | kShares},
    {"builtins:list", "append", 0, do_list_append},
    {"builtins:list", "insert", kWrites},
    {"builtins:list", "extend remove", kWrites | kReads},
    {"builtins:list", "pop clear reverse", kWrites | kShares},
    {"builtins:list", "sort", kWrites | kReadsSelf | kCalls},
    {"builtins:list", "index count copy __reversed__", kReadsSelf | kReads},
    {"builtins:list", "__getitem__", kReadsSelf | kShares},
    {"builtins:tuple", "index count __getnewargs__", kReadsSelf | kReads},
    {"builtins:set", "add discard remove", kWrites | kReads},
    {"builtins:set", "pop clear", kWrites | kShares},
    {"builtins:set", "update intersection_update difference_update symmetric_difference_update", kWrites | kReads},
    {"builtins:set",
     "copy union intersection difference symmetric_difference isdisjoint issubset issuperset __contains__",
     kReadsSelf | kReads},
    {"itertools:chain", "from_iterable", kReads},
    {"builtins:frozenset",
     "copy union intersection difference symmetric_difference isdisjoint issubset issuperset __contains__",
     kReadsSelf | kReads | kShares},
    {"builtins:str", "*", kReads | kShares},
    {"builtins:bytes", "*", kReads | kShares},
    {"builtins:int", "*", kReads | kShares},
    {"builtins:float", "*", kReads | kShares},
    {"builtins:complex", "*", kReads | kShares},
    {"builtins:range", "*", kReads},
    {"builtins:slice", "*", kReads},
    {"builtins:object", "__reduce_ex__ __reduce__ __getstate__", kShares, do_object_reduce},
    {"builtins:object", "__format__ __sizeof__ __init_subclass__ __subclasshook__ __dir__", kReads | kShares},
    {"builtins:type", "mro __prepare__ __instancecheck__ __subclasscheck__", kShares},
    {"builtins:property", "getter setter deleter", kReads},
    {"builtins:mappingproxy", "get keys values items copy", kReadsSelf | kShares},
    {"builtins:BaseException", "with_traceback add_note __setstate__", kShares, do_exception_write},
    {"types:GeneratorType", "send throw close", kShares, do_generator},
    {"types:MappingProxyType", "get keys values items copy", kReadsSelf | kShares},
    {"builtins:dict_keys", "isdisjoint", kReads},
    {"builtins:dict_items", "isdisjoint", kReads},
    {"re:Pattern", "*", kReads},
    {"re:Match", "*", kReads | kShares},
    {"_thread:RLock", "acquire __enter__", kShares, do_lock},
    {"_thread:RLock", "release __exit__", kShares, do_unlock},
    {"_thread:LockType", "acquire __enter__", kShares, do_lock},
    {"_thread:LockType", "release __exit__", kShares, do_unlock},
    {"collections:deque", "append appendleft insert pop popleft clear", kWrites | kShares},
    {"collections:deque", "extend extendleft remove reverse rotate", kWrites | kReads | kShares},
    {"collections:deque", "copy count index", kReadsSelf | kReads},
    {"collections:defaultdict", "copy __missing__ __copy__", kReadsSelf | kShares},
    {"_contextvars:ContextVar", "get", kShares, do_context_get},
    {"_contextvars:ContextVar", "set", kShares, do_context_set},
    {"_contextvars:ContextVar", "reset", kShares, do_context_reset},
    {"_random:Random", "random getrandbits getstate setstate", 0, do_own_random},
    {"_random:Random", "seed", 0, do_seed},
    {"torch._C:TensorBase", "_make_subclass", kShares, do_make_parameter},
    {"torch._C:_ImperativeEngine", "run_backward", kShares, do_run_backward},
    {"torch:Size", "*", kReads | kShares},
    {"torch:finfo", "*", 0},
    {"torch:Generator", "initial_seed", 0, do_state},
    {"torch:device", "__enter__ __exit__", kShares},
    {"torch:DisableTorchFunctionSubclass", "*", kShares},
    {"torch:DisableTorchFunction", "*", kShares},
    {"torch._C:DisableTorchFunctionSubclass", "*", kShares},
    {"torch._C:_InferenceMode", "__enter__", kShares, do_enter_inference_mode},
    {"torch._C:_InferenceMode", "__exit__", kShares, do_leave_inference_mode},
    {"torch._C:_AutoDispatchBelowAutograd", "*", kShares},
    {"torch._C:_DisableAutocast", "*", kShares},
    {"torch._C:_DisableFuncTorch", "*", kShares},
    {"torch._C:_CudaDeviceProperties", "*", kShares},
};

const Row kTypes[] = {
    {"builtins", "bool", 0, do_bool},
    {"builtins",
     "bytes complex dict enumerate float frozenset int list property range reversed set slice str tuple zip type "
     "bytearray memoryview",
     kReads | kShares},
    {"builtins", "map filter", kReads | kCalls, nullptr},
    {"builtins", "object super staticmethod classmethod", kShares},
    {"types", "FunctionType", kShares, do_make_function},
    {"types", "MethodType MappingProxyType SimpleNamespace GenericAlias CellType ModuleType UnionType", kShares},
    {"collections", "OrderedDict deque defaultdict", kReads},
    {"functools", "partial _lru_cache_wrapper", kShares},
    {"operator", "itemgetter attrgetter methodcaller", kReads},
    {"itertools",
     "chain islice repeat product permutations combinations combinations_with_replacement accumulate count cycle "
     "zip_longest starmap takewhile dropwhile groupby compress filterfalse pairwise",
     kReads | kCalls},
    {"weakref", "ref", kShares},
    {"_json", "make_scanner make_encoder", kReads | kShares},
    {"_collections", "_tuplegetter", 0},
    {"_random", "Random", kReads},
    {"_thread", "_local", 0},
    {"_thread", "RLock", 0, do_make_lock},
    {"torch", "Size device dtype finfo iinfo Generator", kReads | kShares},
    {"torch._C",
     "DisableTorchFunctionSubclass DisableTorchFunction _AutoDispatchBelowAutograd "
     "_DisableAutocast _DisableFuncTorch _ForceDispatchKeyGuard _IncludeDispatchKeyGuard _ExcludeDispatchKeyGuard",
     kShares},
    {"torch._C", "_InferenceMode", kShares, do_make_inference_mode},
};

// Tensor methods whose result leaves the world of tensors in a way the dispatcher does not see, or that write to what
// it does not record.
const char* const kForbiddenTensorMethods[] = {
    "numpy",          "tolist",          "data_ptr",
    "storage",        "untyped_storage", "_typed_storage",
    "share_memory_",  "backward",        "register_hook",
    "set_",           "__array__",       "__array_wrap__",
    "_make_subclass", "as_subclass",     "_make_wrapper_subclass",
    "_use_count",     "_version",        "__reduce_ex__",
    "__setstate__",   "record_stream",   "map_",
    "map2_",          "apply_",          "_backward_hooks",
    "retain_grad",    "requires_grad_",  "__dlpack__",
    "pin_memory",     "module_load",     "_clear_non_serializable_cached_data",
    "storage_type",   "_set_names",      "swap_tensors",
    "_fix_weakref",   "resize_",         "resize_as_",
    "rename_",        "is_shared",       "new",
    "new_",           "storage_offset",  "is_set_to",
    "_is_view",       "is_pinned",
};
// torch functions that are not operators on tensors.
const char* const kForbiddenTensorFunctions[] = {"from_file",
                                                 "from_numpy",
                                                 "frombuffer",
                                                 "_sync",
                                                 "_from_functional_tensor",
                                                 "_to_functional_tensor",
                                                 "_enable_functionalization",
                                                 "_disable_functionalization",
                                                 "set_flush_denormal"};

class Table {
 public:
  static Table& get() {
    static Table* table = new Table;  // lives as long as the interpreter: it holds borrowed objects of modules
    table->extend_with_torch();
    return *table;
  }
  std::unordered_map<PyObject*, Native> functions;
  std::unordered_map<PyMethodDef*, Native> methods;
  std::unordered_map<PyTypeObject*, Native> types;
  std::unordered_set<PyObject*> tensor_owners;  // what torch functions are bound to
  PyTypeObject* autograd_function = nullptr;
  std::unordered_set<std::string_view> forbidden_methods, forbidden_functions;

 private:
  Table() {
    for (const char* name : kForbiddenTensorMethods) forbidden_methods.insert(name);
    for (const char* name : kForbiddenTensorFunctions) forbidden_functions.insert(name);
    fill(false);
  }

  void extend_with_torch() {
    if (with_torch_) return;
    PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (torch == nullptr || known_types().module == nullptr) return;
    with_torch_ = true;
    fill(true);
    if (Ref c = Ref::steal(PyObject_GetAttrString(torch, "_C")); c)
      autograd_function = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(c.get(), "_FunctionBase"));
    PyErr_Clear();
    for (const char* path : {"_VariableFunctions", "_nn", "_fft", "_linalg", "_special", "_nested", "_sparse"}) {
      Ref c = Ref::steal(PyObject_GetAttrString(torch, "_C"));
      Ref owner = c ? Ref::steal(PyObject_GetAttrString(c.get(), path)) : Ref();
      PyErr_Clear();
      if (!owner) continue;
      tensor_owners.insert(owner.get());
      if (std::strcmp(path, "_VariableFunctions") == 0)
        tensor_owners.insert(reinterpret_cast<PyObject*>(Py_TYPE(owner.get())));
      owner.release();
    }
  }

  static std::vector<std::string> split(const char* names) {
    std::vector<std::string> out;
    for (std::string_view rest = names; !rest.empty();) {
      size_t end = std::min(rest.find(' '), rest.size());
      if (end > 0) out.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return out;
  }

  static Ref module(const char* name) {
    Ref m = Ref::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), name));
    if (!m && std::strncmp(name, "torch", 5) != 0) m = Ref::steal(PyImport_ImportModule(name));
    PyErr_Clear();
    return m;
  }

  void fill(bool torch) {
    auto mine = [torch](const Row& row) { return (std::strncmp(row.owner, "torch", 5) == 0) == torch; };
    for (const Row& row : kFunctions) {
      Ref m = mine(row) ? module(row.owner) : Ref();
      if (!m) continue;
      const Native native{row.flags, row.handler};
      if (std::strcmp(row.names, "*") == 0) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(PyModule_GetDict(m.get()), &at, &key, &value))
          if (PyCFunction_Check(value)) functions.emplace(Py_NewRef(value), native);
        continue;
      }
      for (const std::string& name : split(row.names)) {
        PyObject* f = PyObject_GetAttrString(m.get(), name.c_str());
        PyErr_Clear();
        if (f != nullptr) functions.emplace(f, native);
      }
    }
    for (const Row& row : kMethods) {
      if (!mine(row)) continue;
      std::string owner = row.owner;
      size_t colon = owner.find(':');
      Ref m = module(owner.substr(0, colon).c_str());
      if (!m) continue;
      Ref t = Ref::steal(PyObject_GetAttrString(m.get(), owner.substr(colon + 1).c_str()));
      PyErr_Clear();
      if (!t) {  // not exported under its name: the type of a live object would do, but none is needed
        if (owner == "builtins:mappingproxy") t = Ref::borrow(reinterpret_cast<PyObject*>(&PyDictProxy_Type));
        if (owner == "builtins:dict_keys") t = Ref::borrow(reinterpret_cast<PyObject*>(&PyDictKeys_Type));
        if (owner == "builtins:dict_items") t = Ref::borrow(reinterpret_cast<PyObject*>(&PyDictItems_Type));
        if (!t) continue;
      }
      if (!PyType_Check(t.get())) continue;
      auto* type = reinterpret_cast<PyTypeObject*>(t.get());
      Py_INCREF(type);
      const Native native{row.flags, row.handler};
      const bool all = std::strcmp(row.names, "*") == 0;
      const auto names = split(row.names);
      PyObject *key, *value;
      Py_ssize_t at = 0;
      while (PyDict_Next(type_dict(type), &at, &key, &value)) {
        PyMethodDef* def = nullptr;
        if (Py_TYPE(value) == &PyMethodDescr_Type || Py_TYPE(value) == &PyClassMethodDescr_Type)
          def = reinterpret_cast<PyMethodDescrObject*>(value)->d_method;
        if (Py_TYPE(value) == &PyStaticMethod_Type) {  // str.maketrans
          PyObject* inner = reinterpret_cast<ClassMethodLayout*>(value)->callable;
          if (PyCFunction_Check(inner)) def = reinterpret_cast<PyCFunctionObject*>(inner)->m_ml;
        }
        if (PyInstanceMethod_Check(value) && PyCFunction_Check(PyInstanceMethod_GET_FUNCTION(value))) {
          const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;  // made by pybind11
          if (all || (name != nullptr && std::find(names.begin(), names.end(), name) != names.end()))
            functions.emplace(Py_NewRef(PyInstanceMethod_GET_FUNCTION(value)), native);
          continue;
        }
        if (all && Py_TYPE(value) == &PyProperty_Type) {  // pybind11's members
          Ref get = Ref::steal(PyObject_GetAttrString(value, "fget"));
          PyErr_Clear();
          if (get && PyInstanceMethod_Check(get.get())) get = Ref::borrow(PyInstanceMethod_GET_FUNCTION(get.get()));
          if (get && PyCFunction_Check(get.get())) functions.emplace(get.release(), native);
          continue;
        }
        if (def == nullptr) continue;
        bool listed = all;
        for (const auto& name : names) listed = listed || name == def->ml_name;
        if (listed) methods.emplace(def, native);
      }
    }
    for (const Row& row : kTypes) {
      Ref m = mine(row) ? module(row.owner) : Ref();
      if (!m) continue;
      for (const std::string& name : split(row.names)) {
        PyObject* t = PyObject_GetAttrString(m.get(), name.c_str());
        PyErr_Clear();
        if (t != nullptr && PyType_Check(t))
          types.emplace(reinterpret_cast<PyTypeObject*>(t), Native{row.flags, row.handler});
      }
    }
    if (!torch) types.emplace(reinterpret_cast<PyTypeObject*>(PyExc_BaseException), Native{kShares, nullptr});
  }

  bool with_torch_ = false;
};

PyObject* do_new(const NativeCall& c) {  // T.__new__(cls, ...) of a builtin type
  auto* t = reinterpret_cast<PyTypeObject*>(c.self);
  const Native* n = nullptr;
  for (PyTypeObject* b = t; b != nullptr && n == nullptr; b = b->tp_base) {
    if (PyExceptionClass_Check(reinterpret_cast<PyObject*>(b))) return c.run();
    n = native_type(b);
    if (!is_python_class(b)) break;
  }
  const KnownTypes& k = known_types();
  if (n == nullptr && !(k.tensor != nullptr && PyType_IsSubtype(t, k.tensor)))
    throw Declined("call of " + std::string(t->tp_name) + ".__new__");
  if (t != &PyBaseObject_Type)
    for (size_t i = 1; i < c.nargs; ++i) c.in.consume(c.args[i]);
  const MakesClass makes(c.in);
  Ref made = Ref::steal(c.run());
  if (made && PyType_Check(made.get())) c.in.recorder.fresh_type(made.get());
  return made.release();
}

}  // namespace

const Native* native_function(PyObject* f) {
  Table& table = Table::get();
  auto it = table.functions.find(f);
  if (it != table.functions.end()) return &it->second;
  auto* c = reinterpret_cast<PyCFunctionObject*>(f);
  PyObject* self = c->m_self;  // also of static methods, for which PyCFunction_GET_SELF answers null
  if (self == nullptr) return nullptr;
  if (table.tensor_owners.count(self)) {
    static const Native tensors{kTensors | kShares, nullptr};
    return table.forbidden_functions.count(c->m_ml->ml_name) ? nullptr : &tensors;
  }
  auto method = table.methods.find(c->m_ml);
  if (method != table.methods.end()) return &method->second;
  const bool bound_by_pybind =
      PyCapsule_CheckExact(self) || std::strstr(Py_TYPE(self)->tp_name, "pybind11_detail_function_record");
  if (bound_by_pybind && c->m_module != nullptr && PyUnicode_Check(c->m_module)) {
    // torch.ops.<library>.<operator>: goes through the dispatcher.
    const char* module = PyUnicode_AsUTF8(c->m_module);
    static const Native tensors{kTensors | kShares, nullptr}, record{0, do_record_function};
    if (module != nullptr && std::strcmp(module, "torch._ops.profiler") == 0) return &record;
    if (module != nullptr && std::strncmp(module, "torch._ops.", 11) == 0) return &tensors;
    // Made when CUDA is first used, perhaps after the table.
    static const Native properties{kShares, nullptr};
    if (module != nullptr && std::strncmp(module, "torch.", 6) == 0 &&
        std::strcmp(c->m_ml->ml_name, "_get_device_properties") == 0)
      return &properties;
  }
  if (PyType_Check(self) && std::strcmp(c->m_ml->ml_name, "apply") == 0 && table.autograd_function != nullptr &&
      PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(self), table.autograd_function)) {
    static const Native apply{kTensors | kShares | Native::kHandsOn, do_autograd_apply};
    return &apply;
  }
  if (PyType_Check(self) && std::strcmp(c->m_ml->ml_name, "__new__") == 0) {
    static const Native make{kShares, do_new};
    return &make;
  }
  if (PyType_Check(self) && std::strcmp(c->m_ml->ml_name, "__class_getitem__") == 0) {
    static const Native alias{kShares, nullptr};
    return &alias;
  }
  return nullptr;
}

const Native* native_method(PyMethodDef* method) {
  auto& methods = Table::get().methods;
  auto it = methods.find(method);
  return it == methods.end() ? nullptr : &it->second;
}

const Native* native_type(PyTypeObject* type) {
  auto& types = Table::get().types;
  auto it = types.find(type);
  if (it != types.end()) return &it->second;
  if (PyExceptionClass_Check(reinterpret_cast<PyObject*>(type))) {
    static const Native exception{kShares, nullptr};
    return &exception;
  }
  for (const char* number : {"numpy.float32", "numpy.float64", "numpy.int32", "numpy.int64", "numpy.bool"}) {
    static const Native scalar{kReads | kShares, nullptr};
    if (std::strcmp(type->tp_name, number) == 0) return &scalar;
  }
  // torch.return_types: immutable records of an operator's results.
  if (PyType_IsSubtype(type, &PyTuple_Type) && std::strncmp(type->tp_name, "torch.return_types.", 19) == 0) {
    static const Native record{kReads, nullptr};
    return &record;
  }
  return nullptr;
}

bool is_tensor_method_allowed(const char* name) { return Table::get().forbidden_methods.count(name) == 0; }

const char* name_of_c(PyObject* f) {
  return PyCFunction_Check(f)                ? reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name
         : Py_TYPE(f) == &PyMethodDescr_Type ? reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name
                                             : "";
}

std::string callable_name(PyObject* f) {
  FetchedError error;
  Ref name = Ref::steal(_PyObject_FunctionStr(f));
  std::string text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : Py_TYPE(f)->tp_name;
  if (!PyCallable_Check(f) || !(PyCFunction_Check(f) || PyType_Check(f) || Py_TYPE(f) == &PyMethodDescr_Type))
    text = std::string("a ") + Py_TYPE(f)->tp_name + " object";
  error.restore();
  if (text.size() > 2 && text.substr(text.size() - 2) == "()") text.resize(text.size() - 2);
  return text;
}

}  // namespace flashover::frame

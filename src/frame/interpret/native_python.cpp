// Builtins that reach the interpreter itself: warnings, code that is made or run, imports, random numbers.
#include <cstring>
#include <string_view>

#include "frame/fetched_error.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/native_handlers.h"

namespace flashover::frame {

namespace {

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

}  // namespace

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
  Warning w;
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
    for (const Ref& own : c.in.context.own_globals)
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
  if (c.in.context.warnings.filters_of_before()) {
    if (is("error")) throw Declined("a warning that is an error");
    // Said when the graph has run: not where the program may look at it before, nor under other filters than these.
    const auto of_filters = [&c](const Journal::Entry& e) {
      return e.target.get() == c.in.context.warnings.filters_before.get();
    };
    if ((c.in.is_continuation() && !c.in.context.warnings.printed()) ||
        std::any_of(c.in.journal.entries().begin(), c.in.journal.entries().end(), of_filters))
      decline();
    c.in.context.warnings.said.push_back(std::move(w));
    Py_RETURN_NONE;
  }
  if (is("ignore")) Py_RETURN_NONE;
  if (!is("error") && !c.in.context.warnings.recorded()) throw Declined("a warning under filters that the call set");
  return c.run();
}

// What was said before may be said again under the filters that the program set.
PyObject* do_filters_mutated(const NativeCall& c) {
  c.in.context.warnings.filters_mutated = true;
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
      c.in.context.own_globals.push_back(Ref::borrow(globals));
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
  if (!c.in.recorder.is_old(globals)) c.in.context.own_globals.push_back(Ref::borrow(globals));
  return made.release();
}

PyObject* do_compile(const NativeCall& c) {
  if (c.nargs < 1 || (!PyUnicode_CheckExact(c.args[0]) && !PyBytes_CheckExact(c.args[0])))
    throw Declined("call of " + callable_name(c.f));
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

namespace {
// Whether a field in braces goes on to an attribute or an item of its argument.
bool leads_into_arguments(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  int depth = 0;
  for (; utf8 != nullptr && *utf8 != '\0'; ++utf8) {
    if (*utf8 == '{') ++depth;
    if (*utf8 == '}') --depth;
    if (depth > 0 && (*utf8 == '.' || *utf8 == '[')) return true;
  }
  PyErr_Clear();
  return false;
}
}  // namespace

// What C code would read of the arguments by itself is read by Python code of the standard library's instead, where it
// is seen.
PyObject* do_format(const NativeCall& c) {
  const bool mapping = std::strcmp(name_of_c(c.f), "format_map") == 0;
  if (c.self == nullptr || !PyUnicode_Check(c.self) || !leads_into_arguments(c.self) || (mapping && c.nargs != 1)) {
    for (size_t i = 0; i < c.nargs + keyword_count(c.kwnames); ++i) c.in.look_through(c.args[i]);
    return c.run();
  }
  Ref module = Ref::steal(PyImport_ImportModule("string"));
  Ref type = Ref::steal(module ? PyObject_GetAttrString(module.get(), "Formatter") : nullptr);
  Ref function = Ref::steal(type ? PyObject_GetAttrString(type.get(), "vformat") : nullptr);
  Ref formatter = Ref::steal(function ? PyObject_CallNoArgs(type.get()) : nullptr);
  Ref given = Ref::steal(PyTuple_New(mapping ? 0 : static_cast<Py_ssize_t>(c.nargs)));
  Ref named = mapping ? Ref::borrow(c.args[0]) : Ref::steal(PyDict_New());
  if (!formatter || !given || !named) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.get()); ++i) PyTuple_SET_ITEM(given.get(), i, Py_NewRef(c.args[i]));
  for (size_t i = 0; i < keyword_count(c.kwnames); ++i)
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(c.kwnames, static_cast<Py_ssize_t>(i)), c.args[c.nargs + i]) < 0)
      return nullptr;
  if (!c.in.recorder.is_old(function.get())) c.in.recorder.constant(function.get());
  PyObject* all[] = {nullptr, formatter.get(), c.self, given.get(), named.get()};
  return c.in.call(function.get(), all + 1, 4, nullptr);
}

}  // namespace flashover::frame

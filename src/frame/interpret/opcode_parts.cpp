#include "frame/interpret/opcode_parts.h"

#include <cstring>
#include <string_view>
#include <unordered_set>

namespace flashover::frame {

PyObject* decline_exception() {
  static PyObject* const type = PyErr_NewException("flashover.Decline", PyExc_BaseException, nullptr);
  return type;
}

PyObject* abandon_frame(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  // (On 3.12 the frame is not linked here; the caller's frame is current.)
  if (!PyErr_Occurred()) {
    // A finalizer that runs while the capture is torn down has no caller to report to.
    const bool finalizer = PyUnicode_CompareWithASCIIString(frame->f_code->co_name, "__del__") == 0;
    Interpreter::current()->abort("");
    if (finalizer) {
      PyErr_Clear();
#if PY_VERSION_HEX >= 0x030C0000
      finish_frame(tstate, frame);
#endif
      return Py_NewRef(Py_None);
    }
  }
#if PY_VERSION_HEX >= 0x030C0000
  finish_frame(tstate, frame);
#endif
  return nullptr;
}

namespace {

// torch.compile's count of its own calls: what notes it on each module that is made, and what forgets the module when
// it dies. It changes without end, and is nobody's business here.
bool is_torch_compiles_tag(PyCodeObject* code) {
  static PyObject* const tag = PyUnicode_InternFromString("tag");
  // Names like <lambda> are not interned: told by what they say.
  const bool forgets =
      PyUnicode_CompareWithASCIIString(code->co_qualname, "ExactWeakKeyDictionary.__setitem__.<locals>.<lambda>") == 0;
  if (code->co_name != tag && !forgets) return false;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  return file != nullptr && std::strstr(file, forgets ? "/torch/_dynamo/utils.py" : "/torch/_dynamo/mutation_guard.py");
}

// Not a file of the program's that has the same name.
bool is_of_standard_library(const char* file) {
  static const std::string folder = [] {
    Ref os = Ref::steal(PyImport_ImportModule("os"));
    Ref path = Ref::steal(os ? PyObject_GetAttrString(os.get(), "__file__") : nullptr);
    const char* text = path && PyUnicode_Check(path.get()) ? PyUnicode_AsUTF8(path.get()) : nullptr;
    PyErr_Clear();
    const std::string whole = text != nullptr ? text : "";
    return whole.substr(0, whole.rfind('/') + 1);
  }();
  if (std::strncmp(file, "<frozen ", 8) == 0) return true;
  return !folder.empty() && std::strncmp(file, folder.c_str(), folder.size()) == 0 &&
         std::strstr(file, "/site-packages/") == nullptr;
}

bool is_library_code(PyCodeObject* code) {
  static const char* const kStandardLibrary[] = {"<frozen importlib", "/importlib/",  "/inspect.py",   "/re/_",
                                                 "/re/__init__.py",   "/typing.py",   "/linecache.py", "/ast.py",
                                                 "/tokenize.py",      "/traceback.py"};
  // Fills a cache in the class, which copy and pickle read.
  if (PyUnicode_CompareWithASCIIString(code->co_name, "_slotnames") == 0 && PyUnicode_Check(code->co_filename)) {
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file != nullptr && std::strstr(file, "/copyreg.py") != nullptr) return true;
    PyErr_Clear();
  }
  // Python kernels of registered operators (called by the dispatcher, not by the program) and the registration of
  // operators.
  static const char* const kTorch[] = {"/torch/_library/", "/torch/library.py", "/torch/_functorch/predispatch.py"};
  static std::unordered_map<PyObject*, bool> known;  // by file name object; kept alive
  auto [it, added] = known.try_emplace(code->co_filename, false);
  if (!added) return it->second;
  Py_INCREF(code->co_filename);
  const char* text = PyUnicode_AsUTF8(code->co_filename);
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  auto matches = [text](const char* part) { return std::strstr(text, part) != nullptr; };
  const bool standard = is_of_standard_library(text);
  for (const char* part : kStandardLibrary) it->second = it->second || (standard && matches(part));
  for (const char* part : kTorch) it->second = it->second || matches(part);
  return it->second;
}

}  // namespace

Library library_code(PyCodeObject* code) {
  if (is_torch_compiles_tag(code)) return Library::kUnseen;
  return is_library_code(code) ? Library::kGuarded : Library::kNo;
}

bool talks_to_the_outside(PyCodeObject* code) {
  for (const char* name : {"print_tb", "print_exception", "print_exc", "print_last", "print_stack", "print_list",
                           "extract_stack", "format_stack", "walk_stack", "stack", "getouterframes", "reveal_type"})
    if (PyUnicode_CompareWithASCIIString(code->co_name, name) == 0) return true;
  return false;
}

void unbound_local(PyCodeObject* code, int index) {
  PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, index);
  const bool free = index >= code->co_nlocalsplus - code->co_nfreevars;
  PyErr_Format(free ? PyExc_NameError : PyExc_UnboundLocalError,
               free ? "cannot access free variable '%U' where it is not associated with a value in enclosing scope"
                    : "cannot access local variable '%U' where it is not associated with a value",
               name);
}

void name_error(PyObject* name) {
  PyErr_Format(PyExc_NameError, "name '%.200U' is not defined", name);
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  PyErr_NormalizeException(&type, &value, &tb);
  if (PyObject_SetAttrString(value, "name", name) < 0) PyErr_Clear();
  PyErr_Restore(type, value, tb);
}

void not_iterable_after_star(PyObject* o) {
  if (PyErr_ExceptionMatches(PyExc_TypeError) && Py_TYPE(o)->tp_iter == nullptr && !PySequence_Check(o))
    PyErr_Format(PyExc_TypeError, "Value after * must be an iterable, not %.200s", Py_TYPE(o)->tp_name);
}

void bad_keyword_dict(PyObject* f, PyObject* kwargs) {
  Ref name = Ref::steal(_PyObject_FunctionStr(f));
  if (!name) return;
  if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Format(PyExc_TypeError, "%U argument after ** must be a mapping, not %.200s", name.get(),
                 Py_TYPE(kwargs)->tp_name);
  } else if (PyErr_ExceptionMatches(PyExc_KeyError)) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyErr_NormalizeException(&type, &value, &tb);
    Ref args = Ref::steal(PyObject_GetAttrString(value, "args"));
    if (args && PyTuple_Check(args.get()) && PyTuple_GET_SIZE(args.get()) == 1) {
      PyErr_Format(PyExc_TypeError, "%U got multiple values for keyword argument '%S'", name.get(),
                   PyTuple_GET_ITEM(args.get(), 0));
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(tb);
    } else {
      PyErr_Restore(type, value, tb);
    }
  }
}

bool is_iterable_argument(PyObject* f, PyObject* args) {
  if (Py_TYPE(args)->tp_iter != nullptr || PySequence_Check(args)) return true;
  Ref name = Ref::steal(_PyObject_FunctionStr(f));
  if (name)
    PyErr_Format(PyExc_TypeError, "%U argument after * must be an iterable, not %.200s", name.get(),
                 Py_TYPE(args)->tp_name);
  return false;
}

Ref local_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name) {
  PyObject* ns = frame->f_locals;
  if (ns == nullptr) {
    PyErr_Format(PyExc_SystemError, "no locals when loading %R", name);
    return {};
  }
  if (PyDict_CheckExact(ns))
    return Ref::borrow(in.plain ? PyDict_GetItemWithError(ns, name) : in.recorder.dict_get(ns, name));
  Ref v = Ref::steal(PyObject_GetItem(ns, name));
  if (!v && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
  return v;
}

int load_method(Interpreter& in, PyObject* o, PyObject* name, PyObject** out) {
  if (in.plain) return _PyObject_GetMethod(o, name, out);
  if (is_made_array(o) || in.is_traced_array(o)) {
    *out = in.get_attr(o, name);
    return 0;
  }
  PyTypeObject* t = Py_TYPE(o);
  if (t->tp_getattro == PyObject_GenericGetAttr) {
    PyObject* found = in.recorder.type_lookup(t, name);
    if (found != nullptr && (Py_TYPE(found)->tp_flags & Py_TPFLAGS_METHOD_DESCRIPTOR)) {
      // A method, unless the instance hides it.
      bool hidden = false;
      if (has_instance_dict(t)) {
        Ref keep = Ref::borrow(found);
        if (in.recorder.is_old(o)) {
          SourceId dict = in.recorder.instance_dict(o);
          if (dict != kNoSource) hidden = in.recorder.dict_get(*_PyObject_GetDictPtr(o), name) != nullptr;
        } else {
          PyObject** slot = _PyObject_GetDictPtr(o);
          hidden = slot != nullptr && *slot != nullptr && PyDict_GetItemWithError(*slot, name) != nullptr;
        }
      }
      if (!hidden) {
        *out = Py_NewRef(found);
        return 1;
      }
    }
  }
  *out = in.get_attr(o, name);
  return 0;
}

PyObject* format_value(Interpreter& in, PyObject* v, int conversion, PyObject* spec) {
  if (!in.plain && in.recorder.numbers.any()) {
    if (PyObject* known = in.recorder.numbers.format(v, conversion, spec)) return known;
    in.recorder.numbers.read_deep(v);
    if (spec != nullptr) in.recorder.numbers.read(spec);
  }
  if (PyUnicode_CheckExact(v) && conversion != 2 && spec == nullptr && conversion != 3) return Py_NewRef(v);
  in.consume(v);
  Ref value = Ref::borrow(v);
  switch (conversion) {
    case 1:
      in.look_special(v, "__str__");
      value = Ref::steal(PyObject_Str(v));
      break;
    case 2:
      in.look_special(v, "__repr__");
      value = Ref::steal(PyObject_Repr(v));
      break;
    case 3:
      value = Ref::steal(PyObject_ASCII(v));
      break;
    default:
      in.look_special(v, "__format__");
      break;
  }
  if (!value) return nullptr;
  if (PyUnicode_CheckExact(value.get()) && spec == nullptr) return value.release();
  return PyObject_Format(value.get(), spec);
}

bool unpack(Interpreter& in, PyObject* seq, int before, int after, PyObject*** sp) {
  PyObject** const bottom = *sp;
  PyObject** top = bottom + before + (after >= 0 ? 1 + after : 0);
  if (after < 0 && (PyTuple_CheckExact(seq) || PyList_CheckExact(seq)) && PySequence_Fast_GET_SIZE(seq) == before) {
    PyObject** items = PySequence_Fast_ITEMS(seq);
    const SourceId id = in.plain ? kNoSource : in.recorder.source_of(seq);
    if (id != kNoSource && in.recorder.changing != nullptr && !in.recorder.detached(seq) &&
        in.recorder.appended(seq) < 0) {
      in.recorder.length(seq);
      for (int i = before; i-- > 0;)
        *(*sp)++ = Py_NewRef(in.recorder.read(SourceKind::kSequenceItem, id, i, nullptr, items[i]));
      return true;
    }
    in.look_through(seq);
    for (int i = before; i-- > 0;) *(*sp)++ = Py_NewRef(items[i]);
    return true;
  }
  Ref it = Ref::steal(in.iterator(seq));
  if (!it) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) && Py_TYPE(seq)->tp_iter == nullptr && !PySequence_Check(seq))
      PyErr_Format(PyExc_TypeError, "cannot unpack non-iterable %.200s object", Py_TYPE(seq)->tp_name);
    return false;
  }
  // Fill downwards from `top`; on failure release what was filled.
  PyObject** at = top;
  auto fail = [&] {
    for (; at < top; ++at) Py_DECREF(*at);
    return false;
  };
  for (int i = 0; i < before; ++i) {
    PyObject* v;
    try {
      v = in.next(it.get());
    } catch (...) {
      fail();
      throw;
    }
    if (v == nullptr) {
      if (!PyErr_Occurred()) {
        if (after == -1)
          PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %d, got %d)", before, i);
        else
          PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %d)", before + after,
                       i);
      }
      return fail();
    }
    *--at = v;
  }
  if (after < 0) {
    Ref more = Ref::steal(in.next(it.get()));
    if (more) {
      PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", before);
      return fail();
    }
    if (PyErr_Occurred()) return fail();
  } else {
    Ref rest = Ref::steal(PySequence_List(it.get()));
    if (!rest) return fail();
    Py_ssize_t n = PyList_GET_SIZE(rest.get());
    if (n < after) {
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %zd)", before + after,
                   before + n);
      return fail();
    }
    PyObject* list = rest.get();
    *--at = rest.release();
    for (int j = after; j > 0; --j) *--at = Py_NewRef(PyList_GET_ITEM(list, n - j));
    if (after > 0 && PyList_SetSlice(list, n - after, n, nullptr) < 0) return fail();
  }
  *sp = top;
  return true;
}

bool split_group(Interpreter& in, PyObject* group, PyObject* type, Ref& match, Ref& rest) {
  if (PyTuple_Check(type)) in.consume(type);
  const int is = exception_matches(in, group, type);
  if (is < 0) return false;
  PyObject* const group_type = PyExc_BaseExceptionGroup;
  auto is_group_class = [group_type](PyObject* t) {
    return PyType_Check(t) &&
           PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(t), reinterpret_cast<PyTypeObject*>(group_type));
  };
  bool bad = is_group_class(type);
  for (Py_ssize_t i = 0; PyTuple_Check(type) && i < PyTuple_GET_SIZE(type); ++i)
    bad = bad || is_group_class(PyTuple_GET_ITEM(type, i));
  if (bad) {
    PyErr_SetString(PyExc_TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.");
    return false;
  }
  const bool grouped = PyObject_TypeCheck(group, reinterpret_cast<PyTypeObject*>(group_type));
  if (is == 1) {
    rest = Ref::borrow(Py_None);
    if (grouped) {
      match = Ref::borrow(group);
      return true;
    }
    Ref one = Ref::steal(PyTuple_Pack(1, group));  // a naked exception is caught as a group of one
    match = Ref::steal(one ? PyObject_CallFunction(group_type, "sO", "", one.get()) : nullptr);
    return static_cast<bool>(match);
  }
  if (!grouped) {
    match = Ref::borrow(Py_None);
    rest = Ref::borrow(group);
    return true;
  }
  Ref pair = Ref::steal(PyObject_CallMethod(group, "split", "O", type));
  if (!pair) return false;
  if (!PyTuple_CheckExact(pair.get())) {
    PyErr_Format(PyExc_TypeError, "%.200s.split must return a tuple, not %.200s", Py_TYPE(group)->tp_name,
                 Py_TYPE(pair.get())->tp_name);
    return false;
  }
  if (PyTuple_GET_SIZE(pair.get()) < 2) {
    PyErr_Format(PyExc_TypeError, "%.200s.split must return a 2-tuple, got tuple of size %zd", Py_TYPE(group)->tp_name,
                 PyTuple_GET_SIZE(pair.get()));
    return false;
  }
  match = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 0));
  rest = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 1));
  return true;
}

namespace {

// Of `group` (or of groups in it): the exceptions that are no groups, by address.
void add_leaves(PyObject* exception, std::unordered_set<PyObject*>& leaves) {
  if (!PyObject_TypeCheck(exception, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup))) {
    leaves.insert(exception);
    return;
  }
  PyObject* all = reinterpret_cast<PyBaseExceptionGroupObject*>(exception)->excs;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); ++i) add_leaves(PyTuple_GET_ITEM(all, i), leaves);
}

// The part of `group` with these exceptions, in groups as they are there; None if there are none.
Ref part_of_group(PyObject* group, const std::unordered_set<PyObject*>& leaves) {
  Ref parts = Ref::steal(PyList_New(0));
  PyObject* all = reinterpret_cast<PyBaseExceptionGroupObject*>(group)->excs;
  for (Py_ssize_t i = 0; parts && i < PyTuple_GET_SIZE(all); ++i) {
    PyObject* e = PyTuple_GET_ITEM(all, i);
    const bool grouped = PyObject_TypeCheck(e, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup));
    Ref part = grouped ? part_of_group(e, leaves) : Ref::borrow(leaves.count(e) != 0 ? e : Py_None);
    if (!part || (part.get() != Py_None && PyList_Append(parts.get(), part.get()) < 0)) return {};
  }
  if (!parts || PyList_GET_SIZE(parts.get()) == 0) return parts ? Ref::borrow(Py_None) : Ref();
  Ref made = Ref::steal(PyObject_CallMethod(group, "derive", "O", parts.get()));
  if (!made) return {};
  if (!PyObject_TypeCheck(made.get(), reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup))) {
    PyErr_SetString(PyExc_TypeError, "derive must return an instance of BaseExceptionGroup");
    return {};
  }
  Ref tb = Ref::steal(PyException_GetTraceback(group));
  if (tb && PyException_SetTraceback(made.get(), tb.get()) < 0) return {};
  PyException_SetContext(made.get(), PyException_GetContext(group));
  PyException_SetCause(made.get(), PyException_GetCause(group));
  if (PyObject* notes = reinterpret_cast<PyBaseExceptionObject*>(group)->notes;
      notes != nullptr && PySequence_Check(notes)) {
    Ref copy = Ref::steal(PySequence_List(notes));
    if (!copy || PyObject_SetAttrString(made.get(), "__notes__", copy.get()) < 0) return {};
  }
  return made;
}

}  // namespace

PyObject* what_to_reraise(PyObject* original, PyObject* raised) {
  const Py_ssize_t n = PyList_GET_SIZE(raised);
  if (!PyObject_TypeCheck(original, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup)))
    return Py_NewRef(n > 0 ? PyList_GET_ITEM(raised, 0) : Py_None);  // it was caught as a group of one, by one clause
  // What no clause took, or raised again as it was, goes on in one group; what clauses raised stands beside that.
  std::unordered_set<PyObject*> again;
  Ref others = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; others && i < n; ++i) {
    PyObject* e = PyList_GET_ITEM(raised, i);
    if (e == Py_None) continue;
    auto *a = reinterpret_cast<PyBaseExceptionObject*>(e), *b = reinterpret_cast<PyBaseExceptionObject*>(original);
    if (a->traceback == b->traceback && a->cause == b->cause && a->context == b->context && a->notes == b->notes)
      add_leaves(e, again);
    else if (PyList_Append(others.get(), e) < 0)
      return nullptr;
  }
  if (!others) return nullptr;
  Ref rest = again.empty() ? Ref::borrow(Py_None) : part_of_group(original, again);
  if (!rest || PyList_GET_SIZE(others.get()) == 0) return rest.release();
  if (rest.get() != Py_None && PyList_Append(others.get(), rest.get()) < 0) return nullptr;
  if (PyList_GET_SIZE(others.get()) == 1) return Py_NewRef(PyList_GET_ITEM(others.get(), 0));
  return PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO", "", others.get());
}

int exception_matches(Interpreter& in, PyObject* value, PyObject* type) {
  auto is_exception_class = [](PyObject* t) { return PyExceptionClass_Check(t); };
  bool ok = true;
  if (PyTuple_Check(type)) {
    in.consume(type);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i) ok = ok && is_exception_class(PyTuple_GET_ITEM(type, i));
  } else {
    ok = is_exception_class(type);
  }
  if (!ok) {
    PyErr_SetString(PyExc_TypeError, "catching classes that do not inherit from BaseException is not allowed");
    return -1;
  }
  return PyErr_GivenExceptionMatches(value, type);
}

bool raise(Interpreter& in, PyObject* exception, PyObject* cause) {
  if (exception == nullptr) {
    PyObject* handled = PyErr_GetHandledException();
    if (handled == nullptr || handled == Py_None) {
      Py_XDECREF(handled);
      PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
      return false;
    }
    if (!in.plain && in.recorder.is_old(handled) && in.is_inlined()) {
      Py_DECREF(handled);
      throw Declined("an exception from before the call is raised again");
    }
    PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(handled)), handled, PyException_GetTraceback(handled));
    return true;
  }
  PyObject* no_args[1] = {nullptr};
  Ref value;
  if (PyExceptionClass_Check(exception)) {
    value = Ref::steal(in.call(exception, no_args + 1, 0, nullptr));
    if (!value) return false;
    if (!PyExceptionInstance_Check(value.get())) {
      PyErr_Format(PyExc_TypeError, "calling %R should have returned an instance of BaseException, not %R", exception,
                   Py_TYPE(value.get()));
      return false;
    }
  } else if (PyExceptionInstance_Check(exception)) {
    // Its traceback would grow, and nothing takes that back.
    if (!in.plain && in.recorder.is_old(exception)) throw Declined("an exception from before the call is raised again");
    value = Ref::borrow(exception);
  } else {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    return false;
  }
  if (cause != nullptr) {
    Ref fixed;
    if (PyExceptionClass_Check(cause)) {
      fixed = Ref::steal(in.call(cause, no_args + 1, 0, nullptr));
      if (!fixed) return false;
    } else if (PyExceptionInstance_Check(cause)) {
      fixed = Ref::borrow(cause);
    } else if (cause != Py_None) {
      PyErr_SetString(PyExc_TypeError, "exception causes must derive from BaseException");
      return false;
    }
    PyException_SetCause(value.get(), fixed.release());
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return false;
}

Ref special_method(PyObject* o, const char* name, const char* protocol) {
  Ref key = Ref::steal(PyUnicode_InternFromString(name));
  Ref method = Ref::borrow(_PyType_Lookup(Py_TYPE(o), key.get()));
  if (method) {
    descrgetfunc get = Py_TYPE(method.get())->tp_descr_get;
    return get == nullptr ? method : Ref::steal(get(method.get(), o, reinterpret_cast<PyObject*>(Py_TYPE(o))));
  }
  if (!PyErr_Occurred()) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the %s protocol%s", Py_TYPE(o)->tp_name, protocol,
                 std::string_view(name) == "__exit__" ? " (missed __exit__ method)" : "");
  }
  return {};
}

namespace {
// Modules are reached through sys.modules; one that is not there under its own name is known by address.
void know_module(Interpreter& in, PyObject* m) {
  if (in.plain || !PyModule_Check(m) || in.recorder.is_old(m)) return;
  Ref name = Ref::steal(PyModule_GetNameObject(m));
  if (!name) {
    PyErr_Clear();
  } else if (PyDict_GetItemWithError(PyImport_GetModuleDict(), name.get()) == m) {
    in.recorder.reach(SourceKind::kModule, kNoSource, -1, name.get(), m);
    return;
  }
  in.recorder.constant(m);
}
}  // namespace

PyObject* import_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name, PyObject* fromlist,
                      PyObject* level) {
  int depth = _PyLong_AsInt(level);
  if (depth == -1 && PyErr_Occurred()) return nullptr;
  // Importing is a lasting effect of its own: module bodies run as they are, and stay imported.
  ++in.uninterpreted;
  PyObject* m = PyImport_ImportModuleLevelObject(
      name, frame->f_globals, frame->f_locals == nullptr ? Py_None : frame->f_locals, fromlist, depth);
  --in.uninterpreted;
  if (m != nullptr) know_module(in, m);
  return m;
}

PyObject* import_from(Interpreter& in, PyObject* module, PyObject* name) {
  PyObject* v = nullptr;
  ++in.uninterpreted;  // a lazy module imports in its __getattr__
  int found = _PyObject_LookupAttr(module, name, &v);
  --in.uninterpreted;
  if (found < 0) return nullptr;
  if (v == nullptr) {
    Ref package = Ref::steal(PyObject_GetAttrString(module, "__name__"));
    PyErr_Clear();
    if (package && PyUnicode_Check(package.get())) {
      Ref full = Ref::steal(PyUnicode_FromFormat("%U.%U", package.get(), name));
      v = Py_XNewRef(PyDict_GetItemWithError(PyImport_GetModuleDict(), full.get()));
    }
    if (v == nullptr) {
      PyErr_Format(PyExc_ImportError, "cannot import name %R from %R", name, package ? package.get() : Py_None);
      return nullptr;
    }
    know_module(in, v);
    return v;
  }
  Ref value = Ref::steal(v);
  if (PyModule_Check(v)) {
    know_module(in, v);
  } else if (PyModule_Check(module) && in.recorder.is_old(module) &&
             PyDict_GetItemWithError(PyModule_GetDict(module), name) == v) {
    in.recorder.instance_dict(module);
    if (PyObject* seen = in.recorder.dict_get(PyModule_GetDict(module), name)) value = Ref::borrow(seen);
  } else if (!in.plain && !is_atom(v) && !in.recorder.is_old(v)) {
    in.recorder.constant(v);
  }
  return value.release();
}

PyObject* match_keys(Interpreter& in, PyObject* subject, PyObject* keys) {
  Ref name = Ref::steal(PyUnicode_InternFromString("get"));
  Ref get = Ref::steal(in.get_attr(subject, name.get()));
  if (!get) return nullptr;
  Ref missing = Ref::steal(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type)));
  Ref values = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(keys)));
  if (!missing || !values) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
    PyObject* args[3] = {nullptr, PyTuple_GET_ITEM(keys, i), missing.get()};
    PyObject* v = in.call(get.get(), args + 1, 2, nullptr);
    if (v == nullptr) return nullptr;
    if (v == missing.get()) {
      Py_DECREF(v);
      return Py_NewRef(Py_None);
    }
    PyTuple_SET_ITEM(values.get(), i, v);
  }
  return values.release();
}

PyObject* match_class(Interpreter& in, PyObject* subject, PyObject* type, int positional, PyObject* keywords) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "called match pattern must be a class");
    return nullptr;
  }
  int is = PyObject_IsInstance(subject, type);
  if (is <= 0) return nullptr;
  Ref values = Ref::steal(PyList_New(0));
  if (!values) return nullptr;
  auto take = [&](PyObject* name) {
    PyObject* v = nullptr;
    if (in.find_attr(subject, name, &v) <= 0) return false;
    PyList_Append(values.get(), v);
    Py_DECREF(v);
    return true;
  };
  if (positional > 0) {
    Ref key = Ref::steal(PyUnicode_InternFromString("__match_args__"));
    PyObject* found = nullptr;
    if (in.find_attr(type, key.get(), &found) < 0) return nullptr;
    Ref names = Ref::steal(found);
    if (names) in.consume(names.get());
    const bool self = !names && (reinterpret_cast<PyTypeObject*>(type)->tp_flags & _Py_TPFLAGS_MATCH_SELF);
    if (names && !PyTuple_CheckExact(names.get())) {
      PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)",
                   reinterpret_cast<PyTypeObject*>(type)->tp_name, Py_TYPE(names.get())->tp_name);
      return nullptr;
    }
    Py_ssize_t allowed = self ? 1 : names ? PyTuple_GET_SIZE(names.get()) : 0;
    if (allowed < positional) {
      PyErr_Format(PyExc_TypeError, "%s() accepts %d positional sub-pattern%s (%d given)",
                   reinterpret_cast<PyTypeObject*>(type)->tp_name, static_cast<int>(allowed), allowed == 1 ? "" : "s",
                   positional);
      return nullptr;
    }
    if (self) {
      PyList_Append(values.get(), subject);
    } else {
      for (int i = 0; i < positional; ++i)
        if (!take(PyTuple_GET_ITEM(names.get(), i))) return nullptr;
    }
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i)
    if (!take(PyTuple_GET_ITEM(keywords, i))) return nullptr;
  return PyList_AsTuple(values.get());
}

#if PY_VERSION_HEX >= 0x030C0000
PyObject* intrinsic(int which, PyObject* v) {
  switch (which) {
    case 3: {  // STOPITERATION_ERROR: a StopIteration that leaves a generator becomes a RuntimeError
      if (!PyErr_GivenExceptionMatches(v, PyExc_StopIteration)) return Py_NewRef(v);
      Ref error = Ref::steal(PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration"));
      if (!error) return nullptr;
      PyException_SetCause(error.get(), Py_NewRef(v));
      PyException_SetContext(error.get(), Py_NewRef(v));
      return error.release();
    }
    case 5:  // UNARY_POSITIVE
      return PyNumber_Positive(v);
    case 6:  // LIST_TO_TUPLE
      return PyList_AsTuple(v);
    default:
      throw Declined("an intrinsic that the interpreter does not know: " + std::to_string(which));
  }
}

namespace {

// Somebody keeps the frame object (a traceback, sys._getframe): it takes the frame's contents over.
void hand_over(PyFrameObject* object, _PyInterpreterFrame* frame) {
  const auto size = static_cast<size_t>(reinterpret_cast<char*>(&frame->localsplus[frame->stacktop]) -
                                        reinterpret_cast<char*>(frame));
  Py_INCREF(frame->f_code);
  std::memcpy(static_cast<void*>(object->_f_frame_data), frame, size);
  auto* own = reinterpret_cast<_PyInterpreterFrame*>(object->_f_frame_data);
  object->f_frame = own;
  own->owner = FRAME_OWNED_BY_FRAME_OBJECT;
  own->previous = nullptr;
  if (_PyFrame_IsIncomplete(own)) own->prev_instr = _PyCode_CODE(own->f_code) + own->f_code->_co_firsttraceable - 1;
  PyFrameObject* back = PyEval_GetFrame();  // the frame itself is unlinked already
  object->f_back = reinterpret_cast<PyFrameObject*>(Py_XNewRef(reinterpret_cast<PyObject*>(back)));
  auto* o = reinterpret_cast<PyObject*>(object);
  if (!PyObject_GC_IsTracked(o)) PyObject_GC_Track(o);
}

void pop_from_data_stack(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  auto** base = reinterpret_cast<PyObject**>(frame);
  _PyStackChunk* chunk = tstate->datastack_chunk;
  if (base != &chunk->data[0]) {
    tstate->datastack_top = base;
    return;
  }
  _PyStackChunk* previous = chunk->previous;
  tstate->datastack_top = &previous->data[previous->top];
  tstate->datastack_chunk = previous;
  tstate->datastack_limit = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(previous) + previous->size);
  PyObjectArenaAllocator arenas;
  PyObject_GetArenaAllocator(&arenas);
  arenas.free(arenas.ctx, chunk, chunk->size);
}

}  // namespace

// CPython 3.12's evaluator clears the frame it ran; its own functions for that are not exported.
void finish_frame(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  const bool generator = frame->owner == FRAME_OWNED_BY_GENERATOR;
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  if (generator) {
    auto* g = _PyFrame_GetGenerator(frame);
    g->gi_frame_state = FRAME_CLEARED;
    tstate->exc_info = g->gi_exc_state.previous_item;
    g->gi_exc_state.previous_item = nullptr;
  }
  PyFrameObject* object = std::exchange(frame->frame_obj, nullptr);
  const bool kept = object != nullptr && Py_REFCNT(object) > 1;
  if (kept) hand_over(object, frame);
  Py_XDECREF(reinterpret_cast<PyObject*>(object));
  if (!kept) {
    for (int i = 0; i < frame->stacktop; ++i) Py_XDECREF(frame->localsplus[i]);
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
  }
  if (generator) {
    frame->previous = nullptr;  // the generator object keeps the code
  } else {
    Py_DECREF(frame->f_code);
    pop_from_data_stack(tstate, frame);
  }
  PyErr_Restore(type, value, tb);
}
#endif

}  // namespace flashover::frame

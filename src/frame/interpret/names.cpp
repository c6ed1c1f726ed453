// Instructions that read and write names, cells, globals and attributes; imports.
#include <cstring>
#include <string_view>

#include "compat/evaluator.h"
#include "frame/interpret/instructions.h"
#include "frame/resume.h"

namespace flashover::frame {

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

PyObject* load_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name) {
  Ref value = local_name(in, frame, name);
  if (!value && PyErr_Occurred()) return nullptr;
  return value ? value.release() : in.global(frame, name);
}

PyObject* load_from_dict_or_globals(Interpreter& in, _PyInterpreterFrame* frame, PyObject* dict, PyObject* name) {
  PyObject* value = PyObject_GetItem(dict, name);
  if (value != nullptr || !PyErr_ExceptionMatches(PyExc_KeyError)) return value;
  PyErr_Clear();
  return in.global(frame, name);
}

int store_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name, PyObject* value) {
  if (frame->f_locals == nullptr) throw Declined("module code");
  return in.set_subscript(frame->f_locals, name, value);
}

int delete_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name) {
  const int status = store_name(in, frame, name, nullptr);
  if (status < 0) name_error(name);
  return status;
}

int store_global(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name, PyObject* value) {
  if (!in.plain) in.journal.dict_item(frame->f_globals, name);
  return PyDict_SetItem(frame->f_globals, name, value);
}

int delete_global(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name) {
  if (in.recorder.dict_get(frame->f_globals, name) == nullptr) {
    name_error(name);
    return -1;
  }
  if (!in.plain) in.journal.dict_item(frame->f_globals, name, true);
  return PyDict_DelItem(frame->f_globals, name);
}

int setup_annotations(Interpreter& in, _PyInterpreterFrame* frame) {
  Ref key = Ref::steal(PyUnicode_InternFromString("__annotations__"));
  Ref there = local_name(in, frame, key.get());
  if (there) return 0;
  if (PyErr_Occurred()) return -1;
  Ref made = Ref::steal(PyDict_New());
  return made ? in.set_subscript(frame->f_locals, key.get(), made.get()) : -1;
}

void copy_free_variables(_PyInterpreterFrame* frame, int count) {
  PyObject* closure = reinterpret_cast<PyFunctionObject*>(function_of(frame))->func_closure;
  const int offset = code_of(frame)->co_nlocalsplus - count;
  for (int i = 0; i < count; ++i)
    compat::set_slot(frame->localsplus[offset + i], Py_NewRef(PyTuple_GET_ITEM(closure, i)));
}

PyObject* load_cell(Interpreter& in, PyCodeObject* code, PyObject* cell, int index) {
  if (PyCell_GET(cell) == nullptr) {
    unbound_local(code, index);
    return nullptr;
  }
  Ref value = Ref::borrow(PyCell_GET(cell));
  if (in.recorder.is_old(cell) && !in.recorder.detached(cell))
    value =
        Ref::borrow(in.recorder.read(SourceKind::kCellContents, in.recorder.source_of(cell), -1, nullptr, value.get()));
  return value.release();
}

PyObject* load_class_cell(Interpreter& in, _PyInterpreterFrame* frame, const Ref& names, int index) {
  PyObject* name = PyTuple_GET_ITEM(code_of(frame)->co_localsplusnames, index);
  Ref value = names ? Ref::steal(PyObject_GetItem(names.get(), name)) : local_name(in, frame, name);
  if (names && !value && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
  if (!value && PyErr_Occurred()) return nullptr;
  if (value) return value.release();
  PyObject* cell = compat::local_of(frame, index);
  value = Ref::borrow(PyCell_GET(cell));
  if (!value) {
    unbound_local(code_of(frame), index);
    return nullptr;
  }
  if (in.recorder.is_old(cell)) in.recorder.contents(cell);
  return value.release();
}

void store_cell(Interpreter& in, PyObject* cell, PyObject* value) {
  if (in.recorder.is_old(cell)) in.journal.cell(cell);
  PyCell_Set(cell, value);
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

PyObject* load_super_attr(Interpreter& in, PyObject* super, PyObject* type, PyObject* self, PyObject* name,
                          bool two_arguments) {
  PyObject* args[3] = {nullptr, type, self};
  // The real super() does with both arguments what it would find by itself with none.
  const bool real = super == reinterpret_cast<PyObject*>(&PySuper_Type);
  Ref object = Ref::steal(in.call(super, args + 1, real || two_arguments ? 2 : 0, nullptr));
  return object ? in.get_attr(object.get(), name) : nullptr;
}

PyObject* common_constant(int which) {
  PyObject* constant = compat::common_constant(which);
  if (constant == nullptr)
    throw Declined("a common constant that the interpreter does not know: " + std::to_string(which));
  return Py_NewRef(constant);
}

PyObject* load_build_class(Interpreter& in, _PyInterpreterFrame* frame) {
  Ref name = Ref::steal(PyUnicode_InternFromString("__build_class__"));
  PyObject* build = in.recorder.dict_get(frame->f_builtins, name.get());
  if (build == nullptr) PyErr_SetString(PyExc_NameError, "__build_class__ not found");
  return Py_XNewRef(build);
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
  int depth = compat::as_int(level);
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
  int found = compat::lookup_attribute(module, name, &v);
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

}  // namespace flashover::frame

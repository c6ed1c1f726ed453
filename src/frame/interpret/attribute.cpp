// Attribute access on every kind of object, with what it saw reported to the recorder. Results are CPython's own:
// descriptors are bound by their own __get__ (Python code among them comes back through the hook), only the look-ups
// are done here.
#include <cstring>

#include "frame/bytecode/code_file.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/interpret/torch_calls.h"

namespace flashover::frame {
namespace {

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

bool is_data_descriptor(PyTypeObject* t) { return t->tp_descr_get != nullptr && t->tp_descr_set != nullptr; }

void attribute_error(PyObject* o, PyObject* name) {
  if (PyType_Check(o)) {
    PyErr_Format(PyExc_AttributeError, "type object '%.50s' has no attribute '%U'",
                 reinterpret_cast<PyTypeObject*>(o)->tp_name, name);
  } else if (PyModule_Check(o)) {
    Ref module = Ref::steal(PyModule_GetNameObject(o));
    PyErr_Clear();
    if (module)
      PyErr_Format(PyExc_AttributeError, "module '%U' has no attribute '%U'", module.get(), name);
    else
      PyErr_Format(PyExc_AttributeError, "module has no attribute '%U'", name);
  } else {
    PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(o)->tp_name, name);
  }
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  PyErr_NormalizeException(&type, &value, &tb);
  if (PyObject_SetAttrString(value, "name", name) < 0 || PyObject_SetAttrString(value, "obj", o) < 0) PyErr_Clear();
  PyErr_Restore(type, value, tb);
}

// As CPython does to an AttributeError of the program's own that leaves a look-up.
void say_whose_attribute(PyObject* o, PyObject* name) {
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  PyErr_NormalizeException(&type, &value, &tb);
  if (PyErr_GivenExceptionMatches(value, PyExc_AttributeError)) {
    auto* error = reinterpret_cast<PyAttributeErrorObject*>(value);
    if (error->name == nullptr && error->obj == nullptr) {
      error->name = Py_NewRef(name);
      error->obj = Py_NewRef(o);
    }
  }
  PyErr_Restore(type, value, tb);
}

// Tensor attributes that hand out what a trace cannot follow.
bool is_forbidden_tensor_attribute(PyObject* name) {
  static const char* const kNames[] = {"_cdata",  "_version",        "__cuda_array_interface__",
                                       "_base",   "_backward_hooks", "_post_accumulate_grad_hooks",
                                       "name",    "output_nr",       "retains_grad",
                                       "_grad_fn"};
  for (const char* n : kNames)
    if (PyUnicode_CompareWithASCIIString(name, n) == 0) return true;
  return false;
}

Ref is_leaf_of(PyObject* tensor) {
  Ref leaf = tensor_attribute(tensor, "is_leaf");
  if (!leaf) throw Declined("a tensor that cannot be asked for is_leaf");
  return leaf;
}

PyObject* compiling_flag() {
  static PyObject* const name = interned("_is_compiling_flag");
  return name;
}

// Under torch.compiler.is_compiling() torch's optimizers keep step counts in tensors, where eager computes bias
// corrections in Python's doubles: they are to compute what they do in eager. (Grouping by device and dtype is no
// arithmetic, and a tensor as alpha would be read.)
bool asks_as_eager(const ActiveFrame* caller) {
  if (caller == nullptr) return false;
  const PyCodeObject* code = code_of(caller->frame);
  if (file_of(code).find("/torch/optim/") == std::string_view::npos) return false;
  for (const char* name :
       {"_group_tensors_by_device_and_dtype", "_cuda_graph_capture_health_check", "_multi_tensor_sgd"})
    if (PyUnicode_CompareWithASCIIString(code->co_name, name) == 0) return false;
  return true;
}

}  // namespace

PyObject* Interpreter::get_attr(PyObject* o, PyObject* name) {
  if (plain) return PyObject_GetAttr(o, name);
  PyObject* found = nullptr;
  int r = find_attr(o, name, &found);
  if (r == 0) attribute_error(o, name);
  if (r < 0 && !ending_.aborted && PyErr_ExceptionMatches(PyExc_AttributeError)) say_whose_attribute(o, name);
  return r == 1 ? found : nullptr;
}

namespace {

// torch.ops.library.operator.overload: what is looked for is kept as an attribute.
bool looks_for_operators(PyTypeObject* t) {
  if (t->tp_name[0] != '_' && t->tp_name[0] != 'O') return false;
  for (const char* name : {"_Ops", "_OpNamespace", "OpOverloadPacket"})
    if (std::strcmp(t->tp_name, name) == 0) return true;
  return false;
}

bool is_of_a_schema(PyTypeObject* t) {
  const std::string_view name = t->tp_name;
  return name == "torch._C.FunctionSchema" || name == "torch._C.Argument" || name == "torch._C._AliasInfo";
}

// What an operator's schema says. It never changes, but another call may meet another schema. Its arguments are new
// objects each time that it is asked for them: where one is from before the call, what it says is guarded.
int lookup_of_schema(Interpreter& in, PyObject* o, PyObject* name, PyObject** out) {
  const int found = compat::lookup_attribute(o, name, out);
  if (found != 1 || !in.recorder.is_old(o)) return found;
  if (is_atom(*out))
    in.recorder.reach(SourceKind::kSlot, in.recorder.source_of(o), -1, name, *out);
  else
    in.recorder.fact(FactKind::kIdentity, in.recorder.source_of(o), o);
  return found;
}

// That is torch's own doing and stays: the program finds the attribute there, as every later call will.
void keep_operator(Interpreter& in, PyObject* o, PyObject* name) {
  PyObject** dict = _PyObject_GetDictPtr(o);
  if (!in.recorder.is_old(o) || dict == nullptr || *dict == nullptr || PyDict_GetItemWithError(*dict, name) != nullptr)
    return;
  ++in.uninterpreted;
  Ref found = Ref::steal(PyObject_GetAttr(o, name));
  --in.uninterpreted;
  PyErr_Clear();
}

}  // namespace

int Interpreter::find_attr(PyObject* o, PyObject* name, PyObject** out) {
  if (plain) return compat::lookup_attribute(o, name, out);
  *out = nullptr;
  o = array_of(o);
  if (is_made_array(o)) return array_attribute(o, name, out);
  PyTypeObject* t = Py_TYPE(o);
  if (is_of_a_schema(t)) return lookup_of_schema(*this, o, name, out);
  static PyObject* const getattribute_name = interned("__getattribute__");
  static PyObject* const getattr_name = interned("__getattr__");
  if (t->tp_getattro == PyObject_GenericGetAttr) {
    if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) {  // has neither of its own, and must not get one
      recorder.type_lookup(t, getattribute_name);
      recorder.type_lookup(t, getattr_name);
    }
    return lookup_generic(o, name, out);
  }
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return lookup_by_slot(o, t->tp_getattro, name, out);
  if (looks_for_operators(t)) keep_operator(*this, o, name);
  // A Python class in between: its __getattribute__ and __getattr__ decide.
  PyObject* getattribute = recorder.type_lookup(t, getattribute_name);
  PyObject* getattr = recorder.type_lookup(t, getattr_name);
  int r;
  if (getattribute != nullptr && Py_TYPE(getattribute) == &PyWrapperDescr_Type) {
    r = lookup_by_slot(
        o, reinterpret_cast<getattrofunc>(reinterpret_cast<PyWrapperDescrObject*>(getattribute)->d_wrapped), name, out);
  } else if (getattribute != nullptr && PyFunction_Check(getattribute)) {
    PyObject* args[3] = {nullptr, o, name};
    *out = call(getattribute, args + 1, 2, nullptr);
    r = *out != nullptr ? 1 : -1;
    if (r < 0 && !ending_.aborted && PyErr_ExceptionMatches(PyExc_AttributeError)) {
      if (getattr == nullptr) return -1;  // the program's own error and message
      PyErr_Clear();
      r = 0;
    }
  } else {
    throw Declined(std::string("attribute of an object with its own C __getattribute__: ") + t->tp_name);
  }
  if (r != 0 || getattr == nullptr) return r;
  if (getattr == known_types().module_getattr) return lookup_nn_module(o, name, out);
  PyObject* args[3] = {nullptr, o, name};
  if (PyFunction_Check(getattr)) {
    *out = call(getattr, args + 1, 2, nullptr);
  } else {
    Ref bound = Ref::steal(bind(getattr, o, t));
    if (!bound) return -1;
    args[1] = name;
    *out = call(bound.get(), args + 1, 1, nullptr);
  }
  if (*out != nullptr) return 1;
  return -1;
}

int Interpreter::lookup_by_slot(PyObject* o, getattrofunc slot, PyObject* name, PyObject** out) {
  if (slot == PyObject_GenericGetAttr) return lookup_generic(o, name, out);
  if (slot == PyType_Type.tp_getattro) return lookup_type(reinterpret_cast<PyTypeObject*>(o), name, out);
  if (slot == PyModule_Type.tp_getattro) return lookup_module(o, name, out);
  if (slot == PySuper_Type.tp_getattro) return lookup_super(o, name, out);
  if (slot == PyMethod_Type.tp_getattro) {
    consume(o);
    if (recorder.is_old(o)) recorder.contents(o);
    PyObject* f = PyMethod_GET_FUNCTION(o);
    // A bound method answers for its function except for its own few attributes.
    PyObject* own = _PyType_Lookup(&PyMethod_Type, name);
    if (own == nullptr) return find_attr(f, name, out);
  }
  const char* kind = Py_TYPE(o)->tp_name;
  if (PyType_Check(o) && std::strcmp(kind, "pybind11_type") == 0) {  // type's own, but its methods are not bound
    Ref own = Ref::borrow(recorder.type_lookup(reinterpret_cast<PyTypeObject*>(o), name));
    if (!own || !PyInstanceMethod_Check(own.get())) return lookup_type(reinterpret_cast<PyTypeObject*>(o), name, out);
    *out = own.release();
    return 1;
  }
  static const char* const kPlain[] = {"types.GenericAlias", "method",       "types.UnionType",
                                       "typing.Union",       "classmethod",  "staticmethod",
                                       "typing.Generic",     "mappingproxy", "builtin_function_or_method"};
  for (const char* plain : kPlain) {
    if (std::strcmp(kind, plain) == 0) {
      int found = compat::lookup_attribute(o, name, out);
      if (found != 1 || is_atom(*out) || recorder.is_old(*out) || Py_REFCNT(*out) == 1) return found;
      // What a method that the call bound or a class method that it made leads to may be the call's own.
      const bool is_code = PyFunction_Check(*out) || PyType_Check(*out);
      if (recorder.is_old(o) || (is_code && !recorder.is_fresh(*out))) recorder.constant(*out);
      return found;
    }
  }
  throw Declined(std::string("attribute of an object with its own C __getattribute__: ") + kind);
}

PyObject* Interpreter::bind(PyObject* d, PyObject* o, PyTypeObject* type) {
  descrgetfunc get = Py_TYPE(d)->tp_descr_get;
  if (get == nullptr) return Py_NewRef(d);
  if (Py_TYPE(d)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    static PyObject* const name = interned("__get__");
    recorder.type_lookup(Py_TYPE(d), name);
  }
  Ref keep = Ref::borrow(d);
  if (get == PyProperty_Type.tp_descr_get && o != nullptr) {  // a getter written in C would look at the object unseen
    static PyObject* const fget = interned("fget");
    Ref getter = Ref::steal(PyObject_GetAttr(d, fget));
    if (getter && getter.get() != Py_None && !PyFunction_Check(getter.get())) {
      PyObject* args[2] = {nullptr, o};
      return call(getter.get(), args + 1, 1, nullptr);
    }
  }
  return get(d, o, reinterpret_cast<PyObject*>(type));
}

// `value` came out of a C getter of `o`.
PyObject* Interpreter::from_slot(PyObject* o, PyObject* name, PyObject* descriptor, PyObject* value) {
  if (value == nullptr && recorder.is_old(o) && Py_TYPE(descriptor) == &PyMemberDescr_Type)
    throw Declined("an empty slot of an object from before the call is read");
  if (value != nullptr && Py_TYPE(o) == &PyFrame_Type && PyFrame_Check(value) &&
      !evaluates(reinterpret_cast<PyFrameObject*>(value)->f_frame)) {
    Py_DECREF(value);
    throw Declined("a frame of those who called is looked at");
  }
  value = is_tensor(o) ? recorder.numbers.of_sizes(value) : value;
  if (value == nullptr || !recorder.is_old(o)) return value;
  Ref v = Ref::steal(value);
  recorder.not_opaque(o);
  SourceId id = recorder.source_of(o);
  if (is_tensor(o)) {
    static PyObject *const is_leaf = interned("is_leaf"), *const grad_fn = interned("grad_fn");
    static PyObject* const grad = interned("grad");
    if (name == grad && is_wrapper_type(Py_TYPE(o)) && tensor_attribute(o, "requires_grad").get() == Py_True)
      throw Declined("the gradient of a tensor subclass is read");  // (what stands for it meanwhile has none)
    if (name == grad && value == Py_None && !recorder.is_written(o, name))
      recorder.reach(SourceKind::kTensorAttr, id, -1, name, value);
    if (name == is_leaf || name == grad_fn) {  // of a tensor that requires no gradient there is but one answer
      Ref tracked = tensor_attribute(o, "requires_grad");
      if (tracked.get() != Py_False) recorder.reach(SourceKind::kTensorAttr, id, -1, is_leaf, is_leaf_of(o).get());
    }
    if (is_atom(value) || recorder.is_old(value)) return v.release();  // implied by kTensor
    if (is_tensor(value) && !(session != nullptr && session->is_trace_tensor(value)))
      recorder.reach(SourceKind::kTensorAttr, id, -1, name, value);
    return v.release();
  }
  if (Py_TYPE(descriptor) == &PyMemberDescr_Type || is_atom(value) || Py_REFCNT(value) > 1) {
    if (Py_TYPE(value) == &PyDict_Type && PyUnicode_CompareWithASCIIString(name, "__dict__") == 0) {
      recorder.instance_dict(o);
    } else if (Py_TYPE(value) == &PyDictProxy_Type && PyType_Check(o)) {
      recorder.instance_dict(o);
    } else if (!recorder.is_old(value)) {
      recorder.reach(SourceKind::kSlot, id, -1, name, value);
    } else if (recorder.source(recorder.source_of(value)).parent != id) {
      recorder.reach(SourceKind::kSlot, id, -1, name, value);
    }
  } else if (Py_TYPE(value) == &PyDictProxy_Type && PyType_Check(o)) {
    recorder.instance_dict(o);
  } else if (!is_pinned_kind(o)) {  // made for this read, of what no guard sees
    throw Declined(std::string("attribute that C code makes of an object from before the call: ") +
                   Py_TYPE(o)->tp_name + "." + PyUnicode_AsUTF8(name));
  }
  return v.release();
}

// Does code in C do what a special method of t says? A class on the heap may be C's, too: ctypes' are, from 3.12 on.
bool Interpreter::is_slot_in_c(PyTypeObject* t, PyObject* name) {
  PyObject* method = recorder.type_lookup(t, name);
  return method != nullptr && Py_TYPE(method) == &PyWrapperDescr_Type;
}

// Of data descriptors that are neither members nor getsets: what one of C reads, and writes (caches do), is not seen.
void Interpreter::require_known_descriptor(PyObject* o, PyObject* descriptor) {
  PyTypeObject* kind = Py_TYPE(descriptor);
  static PyObject* const get = interned("__get__");
  if (!recorder.is_old(o) || PyObject_TypeCheck(descriptor, &PyProperty_Type) || !is_slot_in_c(kind, get)) return;
  static PyObject* const of_named_tuples = of_module("_collections", "_tuplegetter");
  if (PyTuple_Check(o) && reinterpret_cast<PyObject*>(kind) == of_named_tuples) return;
  throw Declined(std::string("attribute of an object from before the call through a ") + kind->tp_name);
}

// A getter of a tensor's: x.T, x.real.
PyObject* Interpreter::read_of_tensor(PyObject* descriptor, PyObject* o, PyObject* name) {
  if (torch_calls == nullptr) return bind(descriptor, o, Py_TYPE(o));
  static PyObject* const getter = PyDict_GetItemString(PyEval_GetBuiltins(), "getattr");
  PyObject* const args[] = {o, name};
  return torch_calls->around(getter, args, 2, nullptr, [&] { return bind(descriptor, o, Py_TYPE(o)); });
}

int Interpreter::lookup_generic(PyObject* o, PyObject* name, PyObject** out) {
  PyTypeObject* t = Py_TYPE(o);
  if (type_dict(t) == nullptr && PyType_Ready(t) < 0) return -1;
  Ref d = Ref::borrow(recorder.type_lookup(t, name));
  if (d) recorder.specials(Py_TYPE(d.get()));  // a class may learn to be a descriptor
  if (d && is_data_descriptor(Py_TYPE(d.get()))) {
    if (is_tensor(o) && is_forbidden_tensor_attribute(name))
      throw Declined(std::string("attribute of a tensor: ") + PyUnicode_AsUTF8(name));
    if (PyTuple_Check(o) && recorder.is_old(o)) recorder.contents(o);  // a named tuple's field is an item of it
    const bool is_slot = Py_TYPE(d.get()) == &PyGetSetDescr_Type || Py_TYPE(d.get()) == &PyMemberDescr_Type;
    if (!is_slot) require_known_descriptor(o, d.get());
    *out = is_tensor(o) ? read_of_tensor(d.get(), o, name) : bind(d.get(), o, t);
    if (is_slot) *out = from_slot(o, name, d.get(), *out);
    return *out != nullptr ? 1 : -1;
  }
  if (has_instance_dict(t)) {
    PyObject* found = nullptr;
    if (recorder.is_old(o)) {
      SourceId dict = recorder.instance_dict(o);
      if (dict != kNoSource) found = recorder.dict_get(*_PyObject_GetDictPtr(o), name);
    } else {
      PyObject** slot = _PyObject_GetDictPtr(o);
      if (slot != nullptr && *slot != nullptr) found = recorder.dict_get(*slot, name);
    }
    if (found != nullptr) {
      *out = Py_NewRef(found);
      return 1;
    }
    if (PyErr_Occurred()) return -1;
  }
  if (!d) return 0;
  *out = bind(d.get(), o, t);
  return *out != nullptr ? 1 : -1;
}

int Interpreter::lookup_type(PyTypeObject* t, PyObject* name, PyObject** out) {
  PyTypeObject* meta = Py_TYPE(t);
  Ref m = Ref::borrow(recorder.type_lookup(meta, name));
  auto* self = reinterpret_cast<PyObject*>(t);
  if (m && is_data_descriptor(Py_TYPE(m.get()))) {
    if ((t->tp_flags & Py_TPFLAGS_HEAPTYPE) && !recorder.is_fresh_type(self)) recorder.constant(self);
    *out = bind(m.get(), self, meta);
    if (Py_TYPE(m.get()) == &PyGetSetDescr_Type || Py_TYPE(m.get()) == &PyMemberDescr_Type)
      *out = from_slot(self, name, m.get(), *out);
    return *out != nullptr ? 1 : -1;
  }
  Ref own = Ref::borrow(recorder.type_lookup(t, name));
  if (own) {
    *out = bind(own.get(), nullptr, t);
    if (*out != nullptr && *out != own.get() && Py_TYPE(own.get()) == &PyGetSetDescr_Type && !is_atom(*out) &&
        !recorder.is_old(*out) && Py_REFCNT(*out) > 1)
      recorder.constant(*out);
    return *out != nullptr ? 1 : -1;
  }
  if (!m) return 0;
  *out = bind(m.get(), self, meta);
  return *out != nullptr ? 1 : -1;
}

// A module of sys.modules that came out of code nobody watched is there before and after the call all the same.
void Interpreter::know_module(PyObject* m) {
  if (recorder.is_old(m)) return;
  Ref name = Ref::steal(PyModule_GetNameObject(m));
  PyErr_Clear();
  if (name && PyDict_GetItemWithError(PyImport_GetModuleDict(), name.get()) == m)
    recorder.reach(SourceKind::kModule, kNoSource, -1, name.get(), m);
  PyErr_Clear();
}

int Interpreter::lookup_module(PyObject* m, PyObject* name, PyObject** out) {
  know_module(m);
  Ref d = Ref::borrow(recorder.type_lookup(Py_TYPE(m), name));
  if (d && is_data_descriptor(Py_TYPE(d.get()))) {
    *out = bind(d.get(), m, Py_TYPE(m));
    if (*out == PyModule_GetDict(m) && recorder.is_old(m)) recorder.instance_dict(m);
    return *out != nullptr ? 1 : -1;
  }
  if (recorder.is_old(m)) recorder.instance_dict(m);
  PyObject* dict = PyModule_GetDict(m);
  PyObject* found = recorder.dict_get(dict, name);
  if (found != nullptr) {
    *out = Py_NewRef(found);
    return 1;
  }
  if (PyErr_Occurred()) return -1;
  if (d) {
    *out = bind(d.get(), m, Py_TYPE(m));
    return *out != nullptr ? 1 : -1;
  }
  static PyObject* const getattr_name = interned("__getattr__");
  PyObject* getattr = recorder.dict_get(dict, getattr_name);
  if (getattr == nullptr) return PyErr_Occurred() ? -1 : 0;
  PyObject* args[2] = {nullptr, name};
  *out = call(getattr, args + 1, 1, nullptr);
  return *out != nullptr ? 1 : -1;
}

int Interpreter::lookup_super(PyObject* s, PyObject* name, PyObject** out) {
  auto* su = reinterpret_cast<SuperLayout*>(s);
  if (su->obj_type == nullptr || su->obj_type->tp_mro == nullptr ||  // (that is a class whose mro() is running)
      PyUnicode_CompareWithASCIIString(name, "__class__") == 0)
    return compat::lookup_attribute(s, name, out);
  if (recorder.is_old(s) && !recorder.is_old(su->obj)) throw Declined("a super object from before the call");
  PyTypeObject* start = su->obj_type;
  PyObject* mro = start->tp_mro;
  Py_ssize_t i = 0, n = PyTuple_GET_SIZE(mro);
  while (i < n && PyTuple_GET_ITEM(mro, i) != reinterpret_cast<PyObject*>(su->type)) ++i;
  Ref found;
  if (i + 1 < n) found = Ref::borrow(recorder.type_lookup(start, name, i + 1));
  if (!found) {
    if (PyErr_Occurred()) return -1;
    return compat::lookup_attribute(s, name, out);
  }
  *out = bind(found.get(), su->obj == reinterpret_cast<PyObject*>(start) ? nullptr : su->obj, start);
  if (*out != nullptr && su->obj != nullptr &&
      (Py_TYPE(found.get()) == &PyGetSetDescr_Type || Py_TYPE(found.get()) == &PyMemberDescr_Type))
    *out = from_slot(su->obj, name, found.get(), *out);
  return *out != nullptr ? 1 : -1;
}

// torch.nn.Module.__getattr__: parameters, buffers, children, in that order.
int Interpreter::lookup_nn_module(PyObject* o, PyObject* name, PyObject** out) {
  static PyObject* const tables[] = {interned("_parameters"), interned("_buffers"), interned("_modules")};
  recorder.function(known_types().module_getattr);
  const bool old = recorder.is_old(o);
  if (old) recorder.instance_dict(o);
  PyObject** slot = _PyObject_GetDictPtr(o);
  if (slot != nullptr && *slot != nullptr) {
    for (PyObject* key : tables) {
      PyObject* table = recorder.dict_get(*slot, key);
      if (table == nullptr) {
        if (PyErr_Occurred()) return -1;
        continue;
      }
      if (!PyDict_Check(table)) throw Declined("an nn.Module whose tables are not dicts");
      PyObject* v = recorder.dict_get(table, name);
      if (v != nullptr) {
        *out = Py_NewRef(v);
        return 1;
      }
      if (PyErr_Occurred()) return -1;
    }
  }
  attribute_error(o, name);
  return -1;
}

int Interpreter::set_attr(PyObject* o, PyObject* name, PyObject* value) {
  if (plain) return PyObject_SetAttr(o, name, value);
  if (is_array(o) || is_made_array(o)) throw Declined("an attribute of an array of numpy is set");
  if (torch_calls != nullptr && is_tensor(o)) torch_calls->spoil();  // .grad, .requires_grad, .data
  PyTypeObject* t = Py_TYPE(o);
  look_special(o, value != nullptr ? "__setattr__" : "__delattr__");
  if (t->tp_setattro == PyObject_GenericSetAttr) return set_generic(o, name, value);
  if ((t->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyType_Check(o) && !PyModule_Check(o)) {
    // One of __setattr__ and __delattr__ may be object's own behind the slot of the other.
    static PyObject *const set = interned("__setattr__"), *const del = interned("__delattr__");
    PyObject* method = recorder.type_lookup(t, value != nullptr ? set : del);
    if (method != nullptr && Py_TYPE(method) == &PyWrapperDescr_Type) {
      if (reinterpret_cast<PyWrapperDescrObject*>(method)->d_wrapped ==
          reinterpret_cast<void*>(PyObject_GenericSetAttr))
        return set_generic(o, name, value);
      if (recorder.is_old(o))  // C code keeps it where no journal sees it
        throw Declined(std::string("an attribute of an object with its own C __setattr__ is written: ") + t->tp_name);
    }
  }
  if (PyType_Check(o)) {
    if (!recorder.is_fresh_type(o)) {
      auto* type = reinterpret_cast<PyTypeObject*>(o);
      const bool plain = t->tp_setattro == PyType_Type.tp_setattro && (type->tp_flags & Py_TPFLAGS_HEAPTYPE);
      PyObject* on_meta = recorder.type_lookup(t, name);
      // Special methods change what the interpreter does with instances; what a metaclass makes of the write is its
      // own.
      const bool special =
          PyUnicode_GET_LENGTH(name) > 1 && PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_';
      if (!plain || special || (on_meta != nullptr && is_data_descriptor(Py_TYPE(on_meta))))
        throw Declined("a special attribute of a class is written");
      journal.class_attribute(type, name);
      return PyType_Type.tp_setattro(o, name, value);
    }
  } else if (PyModule_Check(o) && t->tp_setattro == PyModule_Type.tp_setattro) {
    know_module(o);
    return set_generic(o, name, value);
  } else if (recorder.is_old(o) && !(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    throw Declined(std::string("an attribute of an old object is written: ") + t->tp_name);
  }
  // A Python __setattr__ comes back through the hook and ends in object.__setattr__ (call.cpp).
  return PyObject_SetAttr(o, name, value);
}

// A setter in Python comes back through the hook; one in C is called as any function in C is.
int Interpreter::set_property(PyObject* o, PyObject* name, PyObject* property, PyObject* value) {
  static PyObject *const fset = interned("fset"), *const fdel = interned("fdel");
  Ref setter = Ref::steal(PyObject_GetAttr(property, value != nullptr ? fset : fdel));
  if (!setter) return -1;
  if (setter.get() == Py_None || PyFunction_Check(setter.get())) return PyObject_GenericSetAttr(o, name, value);
  PyObject* args[3] = {nullptr, o, value};
  const Ref done = Ref::steal(call(setter.get(), args + 1, value != nullptr ? 2 : 1, nullptr));
  return done ? 0 : -1;
}

int Interpreter::set_generic(PyObject* o, PyObject* name, PyObject* value) {
  PyTypeObject* t = Py_TYPE(o);
  Ref d = Ref::borrow(recorder.type_lookup(t, name));
  if (is_tensor(o) && is_forbidden_tensor_attribute(name))
    throw Declined(std::string("attribute '") + PyUnicode_AsUTF8(name) + "' of a tensor is written");
  const auto set_in = [&](PyObject* dict) {  // one from before the call
    if (value == nullptr) recorder.dict_get(dict, name);
    journal.dict_item(dict, name, value == nullptr);
    return PyObject_GenericSetAttr(o, name, value);
  };
  if (!recorder.is_old(o)) {
    PyObject** dict = has_instance_dict(t) ? _PyObject_GetDictPtr(o) : nullptr;
    const bool in_dict = !d || Py_TYPE(d.get())->tp_descr_set == nullptr;
    const bool is_shared = in_dict && dict != nullptr && *dict != nullptr && recorder.is_old(*dict);
    return is_shared ? set_in(*dict) : PyObject_GenericSetAttr(o, name, value);  // self.__dict__ = shared
  }
  if (d && Py_TYPE(d.get())->tp_descr_set != nullptr) {
    static PyObject *const set = interned("__set__"), *const del = interned("__delete__");
    if (!is_slot_in_c(Py_TYPE(d.get()), value != nullptr ? set : del)) return PyObject_GenericSetAttr(o, name, value);
    if (Py_TYPE(d.get())->tp_descr_set == PyProperty_Type.tp_descr_set) return set_property(o, name, d.get(), value);
    if (Py_TYPE(d.get()) == &PyMemberDescr_Type) {
      PyObject* before = nullptr;
      if (compat::lookup_attribute(o, name, &before) < 0) return -1;
      Ref old = Ref::steal(before == nullptr ? nullptr : from_slot(o, name, d.get(), before));
      if (PyObject_GenericSetAttr(o, name, value) < 0) return -1;  // (it is read-only, or of another type)
      journal.slot(o, name, old.get());
      return 0;
    }
    static PyObject* const grad = interned("grad");
    if (name == grad && session != nullptr && session->is_input(o)) {
      const bool known = value == nullptr || value == Py_None || session->is_trace_tensor(value);
      if (!known || !session->write_grad(o)) throw Declined("a gradient is assigned that is not of the trace");
      journal.tensor_attribute(o, name);
      return PyObject_GenericSetAttr(o, name, value);
    }
    static PyObject* const data = interned("data");
    if (name == data && session != nullptr && value != nullptr && session->write_data(o, value)) {
      journal.tensor_attribute(o, name);
      return PyObject_GenericSetAttr(o, name, value);
    }
    throw Declined(std::string("attribute '") + PyUnicode_AsUTF8(name) + "' of an old " + t->tp_name + " is written");
  }
  PyObject* dict = nullptr;
  if (PyModule_Check(o)) {
    recorder.instance_dict(o);
    dict = PyModule_GetDict(o);
  } else if (has_instance_dict(t) && recorder.instance_dict(o) != kNoSource) {
    dict = *_PyObject_GetDictPtr(o);
  }
  if (dict == nullptr) return PyObject_GenericSetAttr(o, name, value);  // raises
  return set_in(dict);
}

void Interpreter::look_special(PyObject* o, const char* name) {
  if (plain) return;
  PyTypeObject* t = Py_TYPE(o);
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;
  Ref key = Ref::steal(interned(name));
  recorder.type_lookup(t, key.get());
}

PyObject* Interpreter::global(_PyInterpreterFrame* frame, PyObject* name) {
  if (plain) {
    PyObject* v = nullptr;
    for (PyObject* scope : {frame->f_globals, frame->f_builtins}) {
      v = PyObject_GetItem(scope, name);
      if (v != nullptr || !PyErr_ExceptionMatches(PyExc_KeyError)) return v;
      PyErr_Clear();
    }
    name_error(name);
    return nullptr;
  }
  if (!PyDict_CheckExact(frame->f_globals) || !PyDict_CheckExact(frame->f_builtins))
    throw Declined("globals that are not a plain dict");
  if (name == compiling_flag() && top_ != nullptr && asks_as_eager(top_->caller)) return Py_NewRef(Py_False);
  PyObject* v = recorder.dict_get(frame->f_globals, name);
  if (v == nullptr && !PyErr_Occurred()) v = recorder.dict_get(frame->f_builtins, name);
  if (v == nullptr && !PyErr_Occurred()) name_error(name);
  return Py_XNewRef(v);
}

}  // namespace flashover::frame

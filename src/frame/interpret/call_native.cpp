// Calls that run in C: what a callee reads of its arguments is observed before, what it writes is journalled, and what
// it gives back has to be of known origin.
#include <algorithm>
#include <cstring>

#include "frame/fetched_error.h"
#include "frame/interpret/calls.h"
#include "frame/interpret/made_tensor.h"
#include "frame/interpret/native.h"

namespace flashover::frame {
namespace {

// Objects that take part in a C-made call must be as well known as those called directly.
void check_callable_argument(PyObject* f) {
  PyTypeObject* t = Py_TYPE(f);
  const KnownTypes& k = known_types();
  if (PyCFunction_Check(f)) {
    const Native* n = native_function(f);
    PyObject* self = PyCFunction_GET_SELF(f);
    const bool method = self != nullptr && !PyModule_Check(self);
    if (n != nullptr && method && !Interpreter::current()->recorder.is_old(self)) return;
    if (n == nullptr || n->handler != nullptr || (n->flags & (Native::kWrites | Native::kCalls)))
      throw Declined("call of " + callable_name(f) + " from native code");
  } else if (t == &PyMethodDescr_Type) {
    auto* d = reinterpret_cast<PyMethodDescrObject*>(f);
    const Native* n = native_method(d->d_method);
    const bool tensor = k.tensor != nullptr && PyType_IsSubtype(PyDescr_TYPE(d), k.tensor);
    if (!(tensor && is_tensor_method_allowed(d->d_method->ml_name)) &&
        (n == nullptr || n->handler != nullptr || (n->flags & (Native::kWrites | Native::kCalls))))
      throw Declined("call of " + callable_name(f) + " from native code");
  } else if (PyType_Check(f)) {
    auto* type = reinterpret_cast<PyTypeObject*>(f);
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && native_type(type) == nullptr)
      throw Declined("call of " + callable_name(f) + " from native code");
  } else if (PyMethod_Check(f)) {
    check_callable_argument(PyMethod_GET_FUNCTION(f));
  } else if (t != &PyFunction_Type) {  // also what types written in C make of a call
    throw Declined("call of " + callable_name(f) + " from native code");
  }
}

bool may_be_called_natively(PyObject* f) {
  try {
    check_callable_argument(f);
    return true;
  } catch (const Declined&) {
    return false;
  }
}

// Methods of builtin containers that look at nothing in the container but items that were looked at when they came in.
bool only_adds(PyObject* f) {
  if (Py_TYPE(f) != &PyMethodDescr_Type) return false;
  PyTypeObject* owner = PyDescr_TYPE(f);
  if (owner != &PySet_Type && owner != &PyList_Type && owner != known_types().deque) return false;
  const char* name = reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name;
  for (const char* known : {"add", "discard", "update", "extend", "extendleft"})
    if (std::strcmp(name, known) == 0) return true;
  return false;
}

// Which argument a C callable with kCalls calls: all others are data to it, also if they can be called.
size_t position_of_called(PyObject* f) {
  const char* name = PyType_Check(f)        ? reinterpret_cast<PyTypeObject*>(f)->tp_name
                     : PyCFunction_Check(f) ? reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name
                                            : "";
  for (const char* first : {"map", "filter", "reduce", "itertools.starmap", "itertools.takewhile",
                            "itertools.dropwhile", "itertools.filterfalse"})
    if (std::strcmp(name, first) == 0) return 0;
  for (const char* second : {"itertools.accumulate", "itertools.groupby"})
    if (std::strcmp(name, second) == 0) return 1;
  return SIZE_MAX;
}

bool is_name_of_called(PyObject* keyword) {
  return PyUnicode_CompareWithASCIIString(keyword, "key") == 0 ||
         PyUnicode_CompareWithASCIIString(keyword, "func") == 0;
}

// clear() of a container that is empty: says so, and writes nothing.
bool clears_nothing(PyObject* f, PyObject* self) {
  if (std::strcmp(name_of_c(f), "clear") != 0) return false;
  return (PyDict_CheckExact(self) && PyDict_GET_SIZE(self) == 0) ||
         (PyList_CheckExact(self) && PyList_GET_SIZE(self) == 0) ||
         (PySet_CheckExact(self) && PySet_GET_SIZE(self) == 0);
}

}  // namespace

PyObject* NativeCall::run() const { return PyObject_Vectorcall(f, all, all_nargs, kwnames); }

// t.tolist() where the values are known while tracing: the trace says so, or declines, at each .item().
// numbers: those that are not become sizes that follow from data, if they may.
PyObject* constant_list(PyObject* tensor, Numbers* numbers) {
  Ref dim = Ref::steal(PyObject_GetAttrString(tensor, "ndim"));
  if (!dim) return nullptr;
  if (PyLong_AsLong(dim.get()) == 0) {
    PyObject* size = numbers != nullptr ? numbers->of_data(tensor) : nullptr;
    return size != nullptr ? size : PyObject_CallMethod(tensor, "item", nullptr);
  }
  if (PyObject* list = numbers != nullptr ? numbers->list_of_data(tensor) : nullptr) return list;
  if (PyErr_Occurred()) return nullptr;
  const Py_ssize_t n = PyObject_Size(tensor);
  constexpr Py_ssize_t kMost = 64;
  if (n < 0) return nullptr;
  if (n > kMost) throw Declined("call of TensorBase.tolist");
  Ref list = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; list && i < n; ++i) {
    Ref part = Ref::steal(PyObject_CallMethod(tensor, "select", "nn", Py_ssize_t{0}, i));
    Ref value = Ref::steal(part ? constant_list(part.get(), numbers) : nullptr);
    if (!value || PyList_Append(list.get(), value.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* Interpreter::call_native(PyObject* f, PyObject* self, const Native& n, PyObject* const* args, size_t nargs,
                                   PyObject* kwnames) {
  const size_t count = nargs + keyword_count(kwnames);
  if ((n.flags & Native::kTensors) && count > 0 && is_array(args[0]) && PyCFunction_Check(f)) {
    const char* name = reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
    if (std::strcmp(name, "as_tensor") == 0 || std::strcmp(name, "asarray") == 0) unknown_call(f);  // share its memory
  }
  if ((n.flags & Native::kTensors) && count > 0 && PyCapsule_CheckExact(args[0])) unknown_call(f);  // gives it once
  if (n.flags & (Native::kReads | Native::kTensors)) {
    for (size_t i = count > 0 && args[0] == self && only_adds(f) && !recorder.is_old(self) ? 1 : 0; i < count; ++i)
      look_through(args[i]);
    if (!(n.flags & Native::kTensors) && nargs > 0) {  // len, iter, str ...: their special methods
      PyObject* o = args[0];
      if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        for (const char* name : {"__len__", "__iter__", "__str__", "__repr__", "__getitem__", "__eq__", "__hash__"})
          look_special(o, name);
      }
    }
  }
  std::vector<PyObject*> replaced;
  std::vector<Ref> made;
  if (n.flags & Native::kCalls) {
    const size_t called = position_of_called(f);
    for (size_t i = 0; i < count; ++i) {
      if (i < nargs ? i != called : !is_name_of_called(PyTuple_GET_ITEM(kwnames, i - nargs))) continue;
      if (!PyCallable_Check(args[i]) || may_be_called_natively(args[i])) continue;
      if (replaced.empty()) {
        replaced.resize(count + 1);
        std::copy(args, args + count, replaced.begin() + 1);
      }
      made.push_back(as_python_function(args[i]));
      replaced[i + 1] = made.back().get();
    }
    if (!replaced.empty()) args = replaced.data() + 1;
  }
  if (self != nullptr && recorder.is_old(self) && !is_tensor(self)) {
    if ((n.flags & Native::kWrites) && clears_nothing(f, self)) {
      recorder.length(self);
    } else if (n.flags & Native::kWrites) {
      journal.whole(self);
    } else if (n.flags & Native::kReadsSelf) {
      recorder.contents(self);
    }
  }
  const char* name = name_of_c(f);
  // A pattern says nothing of itself but by what its methods do.
  if (self != nullptr && recorder.is_old(self) && std::strncmp(Py_TYPE(self)->tp_name, "re.", 3) == 0)
    recorder.fact(FactKind::kIdentity, recorder.source_of(self), self);
  if (self != nullptr && Py_TYPE(self) == &PyDictProxy_Type && (n.flags & Native::kReadsSelf)) {
    PyObject* mapping = recorder.proxied(self);
    const bool one = PyDict_CheckExact(mapping) && nargs > 0 && kwnames == nullptr && std::strcmp(name, "get") == 0 &&
                     PyCFunction_Check(f);
    if (one && recorder.dict_get(mapping, args[0]) == nullptr && PyErr_Occurred()) return nullptr;
    if (!one) recorder.contents(self);
  }
  if (n.flags & Native::kTensors) {
    if (PyObject* sizes = constant_batch_sizes(name, args, nargs)) {
      made.push_back(Ref::steal(sizes));
      replaced.assign(1, nullptr);
      replaced.insert(replaced.end(), args, args + count);
      replaced[2] = sizes;
      args = replaced.data() + 1;
    }
  }
  const bool outer = std::exchange(items_as_symbols, (n.flags & Native::kTensors) && std::strcmp(name, "item") != 0);
  Ref result = Ref::steal(call_plain(f, args, nargs, kwnames));
  items_as_symbols = outer;
  stop_if_declined();
  if (!result) return nullptr;
  if (!(n.flags & Native::kShares) && Py_REFCNT(result.get()) > 1 && !is_atom(result.get()) &&
      !recorder.is_old(result.get()) && !is_tensor(result.get())) {
    for (size_t i = 0; i < count; ++i)
      if (args[i] == result.get()) return result.release();
    if (PyTuple_CheckExact(result.get()) && PyTuple_GET_SIZE(result.get()) == 0) return result.release();
    if (!is_pinned_kind(result.get())) throw Declined("an object of unknown origin out of " + callable_name(f));
    recorder.constant(result.get());
  }
  return result.release();
}

PyObject* Interpreter::call_wrapper(PyObject* f, PyWrapperDescrObject* descr, PyObject* self, PyObject* const* args,
                                    size_t nargs, PyObject* kwnames) {
  const char* name = descr->d_base->name;
  auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  const size_t count = nargs + keyword_count(kwnames);
  auto plain = [&] {
    if (Py_TYPE(f) == &PyWrapperDescr_Type) return call_plain(f, args - 1, nargs + 1, kwnames);
    return call_plain(f, args, nargs, kwnames);
  };
  if (kwnames == nullptr && PyObject_TypeCheck(self, PyDescr_TYPE(descr))) {
    if (is("__getattribute__") && nargs == 1) {
      PyObject* out = nullptr;
      int r = lookup_by_slot(self, reinterpret_cast<getattrofunc>(descr->d_wrapped), args[0], &out);
      if (r == 0)
        PyErr_Format(PyExc_AttributeError, "'%.50s' object has no attribute '%U'", Py_TYPE(self)->tp_name, args[0]);
      return r == 1 ? out : nullptr;
    }
    if (((is("__setattr__") && nargs == 2) || (is("__delattr__") && nargs == 1)) &&
        (descr->d_wrapped == reinterpret_cast<void*>(PyObject_GenericSetAttr) || PyModule_Check(self))) {
      return set_generic(self, args[0], nargs == 2 ? args[1] : nullptr) < 0 ? nullptr : Py_NewRef(Py_None);
    }
    if (is("__next__") && recorder.is_old(self) && steps_in_c(Py_TYPE(self)))
      throw Declined("an iterator from before the call is advanced");
    const auto reads = {"__init__", "__int__", "__invert__", "__index__", "__iter__"};
    if (is_array(self) && (is("__setitem__") || is("__delitem__") || is("__init__") ||
                           (std::strncmp(name, "__i", 3) == 0 && std::none_of(reads.begin(), reads.end(), is))))
      throw Declined("an array of numpy is written");
    if (recorder.is_old(self)) {
      if (PyDict_Check(self) || PyList_Check(self) || PySet_Check(self) || is_deque(self)) {
        if (is("__setitem__") || is("__delitem__")) {
          if (PyDict_Check(self) && is("__setitem__"))
            journal.dict_item(self, args[0]);
          else
            journal.whole(self);
        } else if (is("__getitem__") && nargs == 1 && PyDict_Check(self)) {
          PyObject* v = recorder.dict_get(self, args[0]);
          if (v != nullptr) return Py_NewRef(v);
          if (PyErr_Occurred()) return nullptr;
        } else if (is("__contains__") && nargs == 1 && PyDict_Check(self)) {
          PyObject* v = recorder.dict_get(self, args[0]);
          if (v == nullptr && PyErr_Occurred()) return nullptr;
          return Py_NewRef(v != nullptr ? Py_True : Py_False);
        } else if (is("__len__")) {
          recorder.length(self);
        } else if (is("__init__") || std::strncmp(name, "__i", 3) == 0) {
          if (is("__iter__"))
            recorder.contents(self);
          else
            journal.whole(self);
        } else {
          recorder.contents(self);
        }
      } else if (PyType_Check(self) && (is("__setattr__") || is("__delattr__")) && !recorder.is_fresh_type(self)) {
        throw Declined("a special attribute of a class is written");
      } else if (is("__setitem__") && nargs == 2 && kwnames == nullptr && is_tensor(self) &&
                 descr->d_wrapped == reinterpret_cast<void*>(Py_TYPE(self)->tp_as_mapping->mp_ass_subscript)) {
        return set_subscript(self, args[0], args[1]) < 0 ? nullptr : Py_NewRef(Py_None);
      } else if (is("__setitem__") || is("__delitem__")) {
        throw Declined(std::string("an item of an old object is written: ") + Py_TYPE(self)->tp_name);
      } else if (is("__init__") && !(PyType_Check(self) || PyModule_Check(self))) {
        if (!is_tensor(self) && descr->d_wrapped != reinterpret_cast<void*>(PyBaseObject_Type.tp_init))
          throw Declined("__init__ of an old object runs again");
      } else {
        recorder.contents(self);
      }
    }
  }
  if (kwnames != nullptr && recorder.is_old(self) && is("__init__") &&
      (PyDict_Check(self) || PyList_Check(self) || PySet_Check(self) || is_deque(self)))
    journal.whole(self);
  if (is("__call__")) {
    if (PyType_Check(self)) {
      if (descr->d_wrapped == reinterpret_cast<void*>(PyType_Type.tp_call)) {
        auto* type = reinterpret_cast<PyTypeObject*>(self);
        if (type == &PyType_Type) return plain();
        look_special(reinterpret_cast<PyObject*>(type), "__call__");
        recorder.type_lookup(type, Ref::steal(PyUnicode_InternFromString("__new__")).get());
        recorder.type_lookup(type, Ref::steal(PyUnicode_InternFromString("__init__")).get());
        return plain();
      }
    }
    // super().__call__() of a class that has one of its own.
    const auto base = reinterpret_cast<ternaryfunc>(descr->d_wrapped);
    if (base == Py_TYPE(self)->tp_call) return call(self, args, nargs, kwnames);
    if (known_types().partial != nullptr && base == known_types().partial->tp_call)
      return CallHandlers::partial(*this, {self, args, nargs, kwnames, false});
    if (base != _PyWeakref_RefType.tp_call || count != 0) throw Declined("call of " + callable_name(f));
    return take_weak_target(*this, self, plain());
  }
  const bool stores = stores_items(descr) && nargs == 2 && Py_TYPE(args[0]) != &PySlice_Type;
  for (size_t i = 0; i < (stores ? 1 : count); ++i) consume(args[i]);
  Ref result = Ref::steal(plain());
  stop_if_declined();
  return result.release();
}

void Interpreter::stop_if_declined() {
  if (session != nullptr && session->declined()) throw Declined(session->decline_reason());
  if (plain || PyErr_Occurred() == nullptr) return;
  // Two errors are not the program's, which might handle them: a kernel looked for the memory of a trace tensor
  // (trace/tensor.cpp), and C code refused the class that stands for an array of numpy.
  const bool runtime = PyErr_ExceptionMatches(PyExc_RuntimeError);
  if (!runtime && PyErr_Occurred() != PyExc_TypeError) return;
  static constexpr const char* kDataAccess = "flashover: the data of a tensor was asked for";
  FetchedError error;
  Ref text = Ref::steal(error.value != nullptr ? PyObject_Str(error.value) : nullptr);
  const char* words = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (words != nullptr && runtime && std::strncmp(words, kDataAccess, std::strlen(kDataAccess)) == 0)
    throw Declined("data-dependent: a kernel reads the data of a traced tensor");
  if (words != nullptr && names_made_array(words)) throw Declined("C code is given an array of numpy");
  PyErr_Clear();
  error.restore();
}

PyObject* Interpreter::call_type(PyTypeObject* t, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  auto* type = reinterpret_cast<PyObject*>(t);
  const size_t count = nargs + keyword_count(kwnames);
  if (t == &PyType_Type && nargs == 1 && kwnames == nullptr && is_made_array(args[0]))
    return type_of_array(args[0]).release();
  if (t == &PyType_Type && nargs == 1 && kwnames == nullptr)
    return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(args[0])));
  PyTypeObject* meta = Py_TYPE(t);
  static PyObject *const call_name = PyUnicode_InternFromString("__call__"),
                         *const new_name = PyUnicode_InternFromString("__new__"),
                         *const init_name = PyUnicode_InternFromString("__init__");
  if (meta->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    PyObject* method = recorder.type_lookup(meta, call_name);
    if (method != nullptr && PyFunction_Check(method)) {
      auto all = with_first(type, args, count);
      return call_plain(method, all.data() + 1, nargs + 1, kwnames);
    }
  }
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    PyObject* init = recorder.type_lookup(t, init_name);
    PyObject* make = recorder.type_lookup(t, new_name);
    // A class made in C has a constructor of its own, also if it looks like one of Python's (pybind11's, io's).
    PyTypeObject* base = t;
    while (base != nullptr && native_type(base) == nullptr && is_python_class(base)) base = base->tp_base;
    const Native* n = base != nullptr ? native_type(base) : nullptr;
    const KnownTypes& k = known_types();
    const bool tensor = k.tensor != nullptr && PyType_IsSubtype(t, k.tensor);
    if (n == nullptr && !tensor) unknown_call(type);
    if (tensor && session != nullptr) {
      PyObject* made = call_tensor_type(*this, type, args, nargs, kwnames);
      if (made != nullptr || PyErr_Occurred() != nullptr) return made;
    }
    // Python's code is followed, and these make an empty container, whatever they are given.
    const bool makes_empty = init != nullptr && PyFunction_Check(init) && base != nullptr &&
                             t->tp_new == base->tp_new &&
                             (base == &PyDict_Type || base == &PyODict_Type || base == &PyList_Type);
    if (init == nullptr || !PyFunction_Check(init) || make == nullptr ||
        (!PyFunction_Check(make) && Py_TYPE(make) != &PyStaticMethod_Type))
      for (size_t i = 0; i < count; ++i)
        if (base != &PyBaseObject_Type && !makes_empty) consume(args[i]);
    if (base == t && n != nullptr && n->handler != nullptr)
      return n->handler({*this, type, nullptr, args, nargs, kwnames, args, nargs});
    const MakesClass makes(*this, PyType_IsSubtype(t, &PyType_Type));
    Ref result = Ref::steal(call_plain(type, args, nargs, kwnames));
    stop_if_declined();
    if (result && PyType_Check(result.get()) && PyType_IsSubtype(t, &PyType_Type)) recorder.fresh_type(result.get());
    return result.release();
  }
  const Native* n = native_type(t);
  if (n == nullptr) unknown_call(type);
  NativeCall c{*this, type, nullptr, args, nargs, kwnames, args, nargs};
  if (n->handler != nullptr) return n->handler(c);
  const MakesClass makes(*this, t == &PyType_Type);
  PyObject* result = call_native(type, nullptr, *n, args, nargs, kwnames);
  if (t == &PyType_Type && result != nullptr && nargs == 3) recorder.fresh_type(result);
  return result;
}

}  // namespace flashover::frame

// Instructions that make strings, containers and functions, add to them and take them apart.
#include "compat/opcodes.h"
#include "frame/interpret/instructions.h"
#include "trace/contiguous_call.h"

namespace flashover::frame {

bool is_same(Interpreter& in, Ref& a, Ref& b) {
  for (Ref* o : {&a, &b})
    if (is_made_array(o->get()))
      if (PyObject* origin = origin_of_array(o->get())) *o = Ref::borrow(origin);
  in.recorder.same_or_distinct(a.get(), b.get());
  if (in.recorder.numbers.any() && in.recorder.numbers.is(a.get()) != in.recorder.numbers.is(b.get()) &&
      Py_TYPE(a.get()) == Py_TYPE(b.get()))
    throw Declined("the identity of a number that changes");
  if (a.get() != b.get() && in.session != nullptr && in.session->is_trace_tensor(a.get()) &&
      in.session->is_trace_tensor(b.get()))
    trace::tensors_are_compared();
  return a.get() == b.get();
}

PyObject* length_of(PyObject* o) {
  const Py_ssize_t n = PyObject_Size(o);
  return n < 0 ? nullptr : PyLong_FromSsize_t(n);
}

PyObject* build_set(Interpreter& in, PyObject** items, int count) {
  Ref set = Ref::steal(PySet_New(nullptr));
  if (!set) return nullptr;
  for (int i = 0; i < count; ++i) in.recorder.numbers.read_deep(items[i]);
  bool ok = true;
  for (int i = 0; i < count; ++i) {
    if (!in.plain) in.recorder.hash(items[i]);
    ok = ok && PySet_Add(set.get(), items[i]) == 0;
  }
  return ok ? set.release() : nullptr;
}

PyObject* build_map(Interpreter& in, PyObject** items, int count) {
  Ref dict = Ref::steal(PyDict_New());
  if (!dict) return nullptr;
  for (int i = 0; i < count; ++i) in.recorder.numbers.read_deep(items[2 * i]);
  bool ok = true;
  for (int i = 0; i < count; ++i) {
    if (!in.plain) in.recorder.hash(items[2 * i]);
    ok = ok && PyDict_SetItem(dict.get(), items[2 * i], items[2 * i + 1]) == 0;
  }
  return ok ? dict.release() : nullptr;
}

PyObject* build_const_key_map(PyObject* keys, PyObject** values, int count) {
  Ref dict = Ref::steal(PyDict_New());
  bool ok = static_cast<bool>(dict);
  for (int i = 0; i < count; ++i) ok = ok && PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(keys, i), values[i]) == 0;
  return ok ? dict.release() : nullptr;
}

PyObject* build_string(Interpreter& in, PyObject** items, int count) {
  Ref empty = Ref::steal(PyUnicode_New(0, 0));
  PyObject* text = !in.plain && in.recorder.numbers.any() ? in.recorder.numbers.join(items, count) : nullptr;
  return text != nullptr ? text : _PyUnicode_JoinArray(empty.get(), items, count);
}

int list_append(Interpreter& in, PyObject* list, PyObject* item) {
  if (in.recorder.is_old(list)) in.journal.append(list, item);  // a comprehension, after a break
  return PyList_Append(list, item);
}

int list_extend(Interpreter& in, PyObject* list, PyObject* items) {
  in.look_through(items);
  const Py_ssize_t length = PyList_GET_SIZE(list);
  const bool old = in.recorder.is_old(list);
  if (old) in.journal.append(list, nullptr);
  Ref none = Ref::steal(_PyList_Extend(reinterpret_cast<PyListObject*>(list), items));
  for (Py_ssize_t i = length; old && i < PyList_GET_SIZE(list); ++i) in.journal.append(list, PyList_GET_ITEM(list, i));
  if (!none) not_iterable_after_star(items);
  return none ? 0 : -1;
}

int set_add(Interpreter& in, PyObject* set, PyObject* item) {
  if (in.recorder.is_old(set)) in.journal.whole(set);
  in.recorder.numbers.read_deep(item);
  if (!in.plain) in.recorder.hash(item);
  return PySet_Add(set, item);
}

int set_update(Interpreter& in, PyObject* set, PyObject* items) {
  in.consume(items);
  if (in.recorder.is_old(set)) in.journal.whole(set);
  return _PySet_Update(set, items);
}

int map_add(Interpreter& in, PyObject* dict, PyObject* key, PyObject* value) {
  if (!in.plain) in.recorder.hash(key);
  if (in.recorder.is_old(dict)) in.journal.dict_item(dict, key);
  in.recorder.numbers.read_deep(key);
  return PyDict_SetItem(dict, key, value);
}

int dict_update(Interpreter& in, PyObject* dict, PyObject* items) {
  in.look_through(items);
  if (in.recorder.is_old(dict)) in.journal.whole(dict);
  if (PyDict_Update(dict, items) == 0) return 0;
  if (PyErr_ExceptionMatches(PyExc_AttributeError))
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping", Py_TYPE(items)->tp_name);
  return -1;
}

int dict_merge(Interpreter& in, PyObject* dict, PyObject* items, PyObject* function) {
  in.look_through(items);
  if (in.recorder.is_old(dict)) in.journal.whole(dict);
  if (_PyDict_MergeEx(dict, items, 2) == 0) return 0;
  bad_keyword_dict(function, items);
  return -1;
}

void set_function_attribute(PyObject* f, int which, PyObject* value) {
  auto* function = reinterpret_cast<PyFunctionObject*>(f);
  if (which & 16) *compat::annotate_slot(function) = value;
  if (which & 8) function->func_closure = value;
  if (which & 4) function->func_annotations = value;
  if (which & 2) function->func_kwdefaults = value;
  if (which & 1) function->func_defaults = value;
}

PyObject* make_function(Interpreter& in, _PyInterpreterFrame* frame, int flags, PyObject*** sp) {
  Ref code = Ref::steal(*--*sp);
  PyObject* f = PyFunction_New(code.get(), frame->f_globals);
  if (f == nullptr) return nullptr;
  for (const int which : {8, 4, 2, 1})
    if (!compat::kFunctionsGetAttributesLater && (flags & which)) set_function_attribute(f, which, *--*sp);
  if (!in.plain) in.recorder.fresh_function(f);
  return f;
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

namespace {

// The numbers that are read where one of `v` is not known to be such.
PyObject* known_format(Interpreter& in, PyObject* v, int conversion, PyObject* spec) {
  if (in.plain || !in.recorder.numbers.any()) return nullptr;
  if (PyObject* known = in.recorder.numbers.format(v, conversion, spec)) return known;
  if (conversion != 3 && spec == nullptr && !in.recorder.is_old(v))
    if (PyObject* known = in.recorder.numbers.format_items(v)) return known;
  in.recorder.numbers.read_deep(v);
  if (spec != nullptr) in.recorder.numbers.read(spec);
  return nullptr;
}

PyObject* converted(Interpreter& in, PyObject* v, int conversion) {
  in.consume(v);
  switch (conversion) {
    case 1:
      in.look_special(v, "__str__");
      return PyObject_Str(v);
    case 2:
      in.look_special(v, "__repr__");
      return PyObject_Repr(v);
    default:
      return PyObject_ASCII(v);
  }
}

}  // namespace

PyObject* convert_value(Interpreter& in, PyObject* v, int conversion) {
  if (PyObject* known = known_format(in, v, conversion, nullptr)) return known;
  if (PyUnicode_CheckExact(v) && conversion == 1) return Py_NewRef(v);
  return converted(in, v, conversion);
}

PyObject* format_value(Interpreter& in, PyObject* v, int conversion, PyObject* spec) {
  if (PyObject* known = known_format(in, v, conversion, spec)) return known;
  if (PyUnicode_CheckExact(v) && conversion <= 1 && spec == nullptr) return Py_NewRef(v);
  Ref value = conversion != 0 ? Ref::steal(converted(in, v, conversion)) : Ref::borrow(v);
  if (conversion == 0) {
    in.consume(v);
    in.look_special(v, "__format__");
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
    if (id != kNoSource && in.recorder.varying_numbers != nullptr && !in.recorder.detached(seq) &&
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
      if (compat::kUnpackingCounts && (PyTuple_CheckExact(seq) || PyList_CheckExact(seq) || PyDict_CheckExact(seq)))
        PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d, got %zd)", before, PyObject_Size(seq));
      else
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

}  // namespace flashover::frame

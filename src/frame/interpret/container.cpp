// Subscripts, iteration, truth, comparison and arithmetic. The operations are CPython's; done here is what an old
// operand shows of itself (recorder) and what is done to it (journal).
#include <cstring>

#include "frame/fetched_error.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/interpret/torch_calls.h"
#include "frame/numbers.h"

namespace flashover::frame {
namespace {

bool is_plain(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyLong_Type || t == &PyUnicode_Type || t == &PyFloat_Type || o == Py_None || t == &PyBool_Type;
}

bool is_tuple_or_size(PyObject* o) { return PyTuple_CheckExact(o) || Py_TYPE(o) == known_types().size; }

// Subscript goes to the C implementation of dict / list / tuple, perhaps inherited by a Python class.
template <typename Slot>
bool inherits(Slot PyMappingMethods::*member, PyTypeObject* t, PyTypeObject* base) {
  return t == base || (t->tp_as_mapping != nullptr && t->tp_as_mapping->*member == base->tp_as_mapping->*member);
}

// What is read of a proxy is the dict, which the recorder knows.
PyObject* behind_proxy(SourceTracker& recorder, PyObject* o) {
  if (Py_TYPE(o) != &PyDictProxy_Type) return o;
  PyObject* mapping = recorder.proxied(o);
  return PyDict_CheckExact(mapping) ? mapping : o;
}

struct BinaryOp {
  binaryfunc f;
  const char* special;
};
PyObject* inplace_power(PyObject* a, PyObject* b) { return PyNumber_InPlacePower(a, b, Py_None); }
const BinaryOp kBinaryOps[] = {
    // in the order of NB_ADD ...
    {PyNumber_Add, "add"},
    {PyNumber_And, "and"},
    {PyNumber_FloorDivide, "floordiv"},
    {PyNumber_Lshift, "lshift"},
    {PyNumber_MatrixMultiply, "matmul"},
    {PyNumber_Multiply, "mul"},
    {PyNumber_Remainder, "mod"},
    {PyNumber_Or, "or"},
    {power, "pow"},
    {PyNumber_Rshift, "rshift"},
    {PyNumber_Subtract, "sub"},
    {PyNumber_TrueDivide, "truediv"},
    {PyNumber_Xor, "xor"},
    {PyNumber_InPlaceAdd, "add"},
    {PyNumber_InPlaceAnd, "and"},
    {PyNumber_InPlaceFloorDivide, "floordiv"},
    {PyNumber_InPlaceLshift, "lshift"},
    {PyNumber_InPlaceMatrixMultiply, "matmul"},
    {PyNumber_InPlaceMultiply, "mul"},
    {PyNumber_InPlaceRemainder, "mod"},
    {PyNumber_InPlaceOr, "or"},
    {inplace_power, "pow"},
    {PyNumber_InPlaceRshift, "rshift"},
    {PyNumber_InPlaceSubtract, "sub"},
    {PyNumber_InPlaceTrueDivide, "truediv"},
    {PyNumber_InPlaceXor, "xor"},
};
constexpr int kFirstInPlace = 13;
constexpr int kMultiply = 5;  // BINARY_OP's argument for a * b

}  // namespace

void Interpreter::consume(PyObject* o) {
  if (plain) return;
  if (recorder.numbers.any()) recorder.numbers.read_deep(o);
  look_through(o);
}

void Interpreter::look_through(PyObject* o) {
  if (plain || is_plain(o)) return;
  // Reading it would advance it.
  if (recorder.is_old(o) && PyIter_Check(o)) throw Declined("an iterator from before the call is used");
  recorder.contents_deep(o);
}

namespace {

// Ints in it that change become sizes; false where it has other kinds of items or an int that must be a number.
bool is_subscript_of_sizes(Numbers& numbers, PyObject* key) {
  if (!numbers.holds(key)) return false;
  const auto fits = [](PyObject* o) {
    return PyLong_CheckExact(o) || PySlice_Check(o) || o == Py_None || o == Py_Ellipsis || is_tensor(o);
  };
  if (!PyTuple_CheckExact(key) && !fits(key)) return false;
  for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); ++i)
    if (!fits(PyTuple_GET_ITEM(key, i))) return false;
  numbers.as_sizes(key);
  return numbers.all_sizes(key);
}

// x[:t]: a slice asks tensors in it for their numbers, which are sizes here where they follow from data. A key without such
// tensors is null.
class SliceNumbers {
 public:
  SliceNumbers(Numbers& numbers, const trace::Session& session) : numbers_(numbers), session_(session) {}

  Ref of(PyObject* key) const {
    if (PySlice_Check(key)) return of_slice(key);
    if (!PyTuple_CheckExact(key)) return {};
    Ref out;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      Ref item = PySlice_Check(PyTuple_GET_ITEM(key, i)) ? of_slice(PyTuple_GET_ITEM(key, i)) : Ref();
      if (!item) continue;
      if (!out) {
        out = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(key)));
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(key); ++j)
          PyTuple_SET_ITEM(out.get(), j, Py_NewRef(PyTuple_GET_ITEM(key, j)));
      }
      Py_DECREF(PyTuple_GET_ITEM(out.get(), i));
      PyTuple_SET_ITEM(out.get(), i, item.release());
    }
    return out;
  }

 private:
  Ref of_slice(PyObject* slice) const {
    auto* s = reinterpret_cast<PySliceObject*>(slice);
    const Ref start = number(s->start), stop = number(s->stop), step = number(s->step);
    if (!start && !stop && !step) return {};
    const auto part = [](const Ref& made, PyObject* given) { return made ? made.get() : given; };
    return Ref::steal(PySlice_New(part(start, s->start), part(stop, s->stop), part(step, s->step)));
  }
  Ref number(PyObject* part) const {
    if (!is_tensor(part) || !session_.is_trace_tensor(part)) return {};
    Ref known = Ref::steal(numbers_.item(part));
    if (known && PyLong_CheckExact(known.get())) return known;
    return Ref::steal(numbers_.of_data(part));
  }

  Numbers& numbers_;
  const trace::Session& session_;
};

// A method in Python gets the key as it is.
bool is_subscript_by_method(PyTypeObject* t) {
  static PyObject* const name = PyUnicode_InternFromString("__getitem__");
  PyObject* method = t->tp_flags & Py_TPFLAGS_HEAPTYPE ? _PyType_Lookup(t, name) : nullptr;
  return method != nullptr && PyFunction_Check(method);
}

}  // namespace

Ref Interpreter::key_with_numbers(PyObject* o, PyObject* key) {
  if (session == nullptr || recorder.varying_numbers == nullptr || !is_tensor(o)) return {};
  return SliceNumbers(recorder.numbers, *session).of(key);
}

PyObject* Interpreter::subscript(PyObject* o, PyObject* key) {
  if (plain) return PyObject_GetItem(o, key);
  if (torch_calls == nullptr || !is_tensor(o)) return subscript_by_kind(o, key);
  return torch_calls->around_operator("getitem", o, key, nullptr, [&] { return subscript_by_kind(o, key); });
}

PyObject* Interpreter::subscript_by_kind(PyObject* o, PyObject* key) {
  o = array_of(o);
  if (is_made_array(o)) return array_operation([&] { return PyObject_GetItem(o, key); }, {key});
  if (is_tensor(o) && (is_traced_array(key) || is_made_array(key)))
    throw Declined("a tensor is indexed by an array of numpy");
  o = behind_proxy(recorder, o);
  PyTypeObject* t = Py_TYPE(o);
  const Ref with_numbers = key_with_numbers(o, key);
  if (with_numbers) key = with_numbers.get();
  if (recorder.numbers.any()) {
    if (is_tensor(o) && recorder.numbers.holds(key) && recorder.numbers.all_sizes(key)) {
      recorder.specials(t);
      return subscript_by_sizes(o, key);
    }
    if (is_tensor(o) && recorder.numbers.holds(key))
      if (PyObject* part = subscript_by_number(o, key)) return part;
    if (is_tensor(o) && is_subscript_of_sizes(recorder.numbers, key)) {
      recorder.specials(t);
      return subscript_by_sizes(o, key);
    }
    if (is_tensor(o) || !is_subscript_by_method(t)) recorder.numbers.read_deep(key);
    recorder.numbers.read(o);
  }
  if (is_tensor(o)) {
    recorder.specials(t);
    consume(key);
    return PyObject_GetItem(o, key);
  }
  recorder.not_opaque(o);
  if (!recorder.is_old(o)) {
    look_special(o, "__getitem__");
    if (PyType_Check(o)) look_special(o, "__class_getitem__");
    if (!is_plain(key) && !is_subscript_by_method(t)) consume(key);
    return PyObject_GetItem(o, key);
  }
  SourceId id = recorder.source_of(o);
  // dict and list have a method beside their slot: a subclass has a slot of its own that calls it.
  static PyObject* const getitem_name = PyUnicode_InternFromString("__getitem__");
  PyObject* const method = (t->tp_flags & Py_TPFLAGS_HEAPTYPE) ? recorder.type_lookup(t, getitem_name) : nullptr;
  const auto has_own_of = [&](PyTypeObject* base) {
    if (inherits(&PyMappingMethods::mp_subscript, t, base)) return true;
    return method != nullptr && Py_TYPE(method) == &PyMethodDescr_Type && PyDescr_TYPE(method) == base;
  };
  if (PyDict_Check(o) && has_own_of(&PyDict_Type)) {
    PyObject* v = recorder.dict_get(o, key);
    if (v != nullptr) return Py_NewRef(v);
    if (PyErr_Occurred()) return nullptr;
    if (PyObject_TypeCheck(o, known_types().defaultdict)) {
      recorder.default_factory(o);
      journal.whole(o);
    }
    return PyObject_GetItem(o, key);
  }
  if ((PyList_Check(o) && has_own_of(&PyList_Type)) ||
      (PyTuple_Check(o) && inherits(&PyMappingMethods::mp_subscript, t, &PyTuple_Type))) {
    if (recorder.appended(o) >= 0) recorder.contents(o);
    if (PyLong_CheckExact(key) && !recorder.detached(o)) {
      Ref v = Ref::steal(PyObject_GetItem(o, key));
      Py_ssize_t i = PyLong_AsSsize_t(key);
      if (!v || i < 0) {
        FetchedError error;
        recorder.length(o);
        error.restore();
      }
      if (!v) return nullptr;
      return Py_NewRef(
          recorder.read(SourceKind::kSequenceItem, id, i < 0 ? i + PySequence_Fast_GET_SIZE(o) : i, nullptr, v.get()));
    }
    recorder.contents(o);
    consume(key);
    return PyObject_GetItem(o, key);
  }
  look_special(o, "__getitem__");
  if (is_deque(o) || !is_python_class(t))
    recorder.contents(o);
  else if (method == nullptr || !PyFunction_Check(method))
    consume(o);
  return PyObject_GetItem(o, key);
}

int Interpreter::set_subscript(PyObject* o, PyObject* key, PyObject* value) {
  if (plain) return value != nullptr ? PyObject_SetItem(o, key, value) : PyObject_DelItem(o, key);
  if (torch_calls == nullptr || value == nullptr || !is_tensor(o)) return set_subscript_by_kind(o, key, value);
  const Ref done = Ref::steal(torch_calls->around_operator("setitem", o, key, value, [&]() -> PyObject* {
    return set_subscript_by_kind(o, key, value) < 0 ? nullptr : Py_NewRef(Py_None);
  }));
  return done ? 0 : -1;
}

int Interpreter::set_subscript_by_kind(PyObject* o, PyObject* key, PyObject* value) {
  if (is_array(o) && session != nullptr && recorder.is_old(o)) o = lift_array(o);
  if (is_made_array(o) && value != nullptr) {
    const Ref done = Ref::steal(array_operation(
        [&] { return PyObject_SetItem(o, key, value) < 0 ? nullptr : Py_NewRef(Py_None); }, {key, value}));
    return done ? 0 : -1;
  }
  recorder.not_opaque(o);
  if (is_array(o)) throw Declined("an array of numpy is written");  // one made here may share another one's memory
  const Ref with_numbers = value != nullptr ? key_with_numbers(o, key) : Ref();
  if (with_numbers) key = with_numbers.get();
  Ref number;
  if (recorder.numbers.any()) {
    const auto use_number = [&] {  // in a tensor; of anything else the value is read
      if (session != nullptr && session->is_trace_tensor(o) && recorder.numbers.is(value) &&
          (PyFloat_CheckExact(value) || PyLong_CheckExact(value)))
        value = (number = number_for(o, value)).get();
      else
        recorder.numbers.read_deep(value);
      return value != nullptr;
    };
    if (value != nullptr && is_tensor(o) && recorder.numbers.holds(key) && recorder.numbers.all_sizes(key)) {
      if (!use_number()) return -1;
      look_special(o, "__setitem__");
      return set_subscript_by_sizes(o, key, value);
    }
    if (value != nullptr && is_tensor(o) && recorder.numbers.holds(key) && set_subscript_by_number(o, key, value))
      return 0;
    if (value != nullptr && is_tensor(o) && is_subscript_of_sizes(recorder.numbers, key)) {
      if (!use_number()) return -1;
      look_special(o, "__setitem__");
      return set_subscript_by_sizes(o, key, value);
    }
    recorder.numbers.read_deep(key);
    if (value != nullptr && is_tensor(o) && !use_number()) return -1;
  }
  PyTypeObject* t = Py_TYPE(o);
  if (PyDict_Check(o)) recorder.key(key);
  if (value != nullptr && PySlice_Check(key) && !is_tensor(o)) consume(value);  // its items are what is stored
  if (recorder.is_old(o) && !is_tensor(o)) {
    // A class with one of __setitem__ and __delitem__ has the other through the same slot.
    static PyObject *const set = PyUnicode_InternFromString("__setitem__"), *const del = PyUnicode_InternFromString(
                                                                                "__delitem__");
    const auto is_in_c = [&] { return is_slot_in_c(t, value != nullptr ? set : del); };
    const auto goes_to = [&](PyTypeObject* base) {
      return inherits(&PyMappingMethods::mp_ass_subscript, t, base) || (is_in_c() && base != &PyODict_Type);
    };
    if (PyDict_Check(o) && goes_to(&PyDict_Type)) {
      if (value == nullptr) {
        if (recorder.dict_get(o, key) == nullptr && PyErr_Occurred()) return -1;
      }
      journal.dict_item(o, key, value == nullptr);
    } else if (PyODict_CheckExact(o)) {
      if (value == nullptr && recorder.dict_get(o, key) == nullptr && PyErr_Occurred()) return -1;
      journal.dict_item(o, key, value == nullptr);
    } else if (PyList_Check(o) && goes_to(&PyList_Type)) {
      journal.whole(o);
      if (value != nullptr && !recorder.numbers.is(value)) consume(value);
    } else if (is_deque(o) && goes_to(known_types().deque)) {
      journal.whole(o);
    } else if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_in_c()) {
      // Code in C writes it, and nobody could take that back: mmap and ctypes, whose classes are on the heap, too.
      throw Declined(std::string("an item of an old object is written: ") + t->tp_name);
    }
  }
  look_special(o, value != nullptr ? "__setitem__" : "__delitem__");
  if (is_tensor(o)) consume(key);
  return value != nullptr ? PyObject_SetItem(o, key, value) : PyObject_DelItem(o, key);
}

PyObject* Interpreter::iterator(PyObject* o) {
  if (plain) return PyObject_GetIter(o);
  o = array_of(o);
  if (is_made_array(o)) return array_operation([&] { return PyObject_GetIter(o); }, {});
  if (recorder.numbers.any()) recorder.numbers.read(o);
  recorder.not_opaque(o);
  PyTypeObject* t = Py_TYPE(o);
  look_special(o, "__iter__");
  if (Py_TYPE(o) == &PyDictProxy_Type) recorder.contents(o);
  if (recorder.is_old(o) && !is_tensor(o)) {
    const bool own_python_iter =
        (t->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
        recorder.type_lookup(t, Ref::steal(PyUnicode_InternFromString("__iter__")).get()) != nullptr &&
        PyFunction_Check(recorder.type_lookup(t, Ref::steal(PyUnicode_InternFromString("__iter__")).get()));
    if (!own_python_iter) {
      if (PyIter_Check(o) || PyGen_Check(o)) throw Declined("an iterator from before the call is used");
      recorder.contents(o);
    }
  }
  return PyObject_GetIter(o);
}

PyObject* Interpreter::next(PyObject* it, bool keep_stop) {
  PyTypeObject* t = Py_TYPE(it);
  if (t->tp_iternext == nullptr) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not an iterator", t->tp_name);
    return nullptr;
  }
  if (plain) {
    // As CPython's.
  } else {
    look_special(it, "__next__");
    // Also generators: one that is entered and left by a decline is dead.
    if (recorder.is_old(it) && steps_in_c(t)) throw Declined("an iterator from before the call is advanced");
  }
  tail_ = PyGen_CheckExact(it) != 0;
  PyObject* v = t->tp_iternext(it);
  tail_ = false;
  if (v == nullptr && PyErr_Occurred() && !ending_.aborted && !keep_stop && PyErr_ExceptionMatches(PyExc_StopIteration))
    PyErr_Clear();
  return v;
}

// Objects of types that define neither are true whatever they keep.
static bool has_truth_or_length(PyTypeObject* t) {
  return (t->tp_as_number != nullptr && t->tp_as_number->nb_bool != nullptr) ||
         (t->tp_as_sequence != nullptr && t->tp_as_sequence->sq_length != nullptr) ||
         (t->tp_as_mapping != nullptr && t->tp_as_mapping->mp_length != nullptr);
}

int Interpreter::truth(PyObject* o) {
  if (plain) return PyObject_IsTrue(o);
  if (o == Py_True) return 1;
  if (o == Py_False || o == Py_None) return 0;
  if (is_made_array(o) || is_traced_array(o)) throw Declined("the truth of an array of numpy");
  recorder.not_opaque(o);
  if (has_truth_or_length(Py_TYPE(o))) recorder.check_secrets(o);
  if (recorder.numbers.is(o)) {
    if (const int known = recorder.numbers.truth(o); known >= 0) return known;
    recorder.numbers.read(o);
  }
  PyTypeObject* t = Py_TYPE(o);
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    look_special(o, "__bool__");
    look_special(o, "__len__");
  }
  if (recorder.is_old(o) &&
      (PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || is_deque(o)))
    recorder.length(o);
  return PyObject_IsTrue(o);
}

int Interpreter::contains(PyObject* c, PyObject* item) {
  if (plain) return PySequence_Contains(c, item);
  c = behind_proxy(recorder, c);
  if (is_made_array(c) || is_traced_array(c) || is_made_array(item) || is_traced_array(item))
    throw Declined("an array of numpy is looked for or looked into");
  recorder.not_opaque(c);
  if (recorder.numbers.any()) {
    if (!PyDict_CheckExact(c)) recorder.numbers.read_deep(c);  // (a dict's keys are no numbers that change)
    recorder.numbers.read_deep(item);
  }
  PyTypeObject* t = Py_TYPE(c);
  if (t == &PyUnicode_Type) return PySequence_Contains(c, item);
  look_special(c, "__contains__");
  if (recorder.is_old(c)) {
    if (PyDict_Check(c) && t->tp_as_sequence->sq_contains == PyDict_Type.tp_as_sequence->sq_contains) {
      PyObject* v = recorder.dict_get(c, item);
      return v != nullptr ? 1 : PyErr_Occurred() ? -1 : 0;
    }
    recorder.contents(c);
  }
  if (!is_plain(item)) consume(item);
  if (PyAnySet_Check(c)) recorder.key(item);
  if (Py_TYPE(c) == &PyTuple_Type || Py_TYPE(c) == &PyList_Type) {
    consume(c);
    if (!is_plain(item))  // elements are compared by identity first
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(c); ++i)
        recorder.same_or_distinct(item, PySequence_Fast_GET_ITEM(c, i));
  }
  return PySequence_Contains(c, item);
}

// One of them is a tensor, the other a number that changes.
template <typename F>
PyObject* Interpreter::with_tensor(PyObject* a, PyObject* b, F f) {
  Ref x = Ref::steal(recorder.numbers.symbols(a)), y = Ref::steal(recorder.numbers.symbols(b));
  Ref result = Ref::steal(f(x.get(), y.get()));
  if (session->declined()) throw Declined(session->decline_reason());
  return result.release();
}

PyObject* Interpreter::compare(PyObject* a, PyObject* b, int op) {
  if (plain) return PyObject_RichCompare(a, b, op);
  if (torch_calls == nullptr || !(is_tensor(a) || is_tensor(b))) return compare_by_kind(a, b, op);
  static const char* const kNames[] = {"lt", "le", "eq", "ne", "gt", "ge"};
  return torch_calls->around_operator(kNames[op], a, b, nullptr, [&] { return compare_by_kind(a, b, op); });
}

PyObject* Interpreter::compare_by_kind(PyObject* a, PyObject* b, int op) {
  a = array_of(a), b = array_of(b);
  if (is_made_array(a) || is_made_array(b))
    return array_operation([&] { return PyObject_RichCompare(a, b, op); }, {a, b});
  if (recorder.numbers.any() && (recorder.numbers.is(a) || recorder.numbers.is(b))) {
    static constexpr int kSwapped[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
    const auto compare_as = [](int how) {
      return [how](PyObject* x, PyObject* y) { return PyObject_RichCompare(x, y, how); };
    };
    if (is_tensor(a)) return with_tensor(a, b, compare_as(op));
    if (is_tensor(b)) return with_tensor(b, a, compare_as(kSwapped[op]));
    if (const int known = recorder.numbers.compare(a, b, op); known >= 0) return PyBool_FromLong(known);
    recorder.numbers.read(a);
    recorder.numbers.read(b);
  }
  const bool sequences = (is_tuple_or_size(a) && is_tuple_or_size(b)) || (PyList_CheckExact(a) && PyList_CheckExact(b));
  if ((op == Py_EQ || op == Py_NE) && recorder.numbers.any() && sequences &&
      (recorder.numbers.holds(a) || recorder.numbers.holds(b)) && recorder.numbers.all_sizes(a) &&
      recorder.numbers.all_sizes(b)) {
    for (PyObject* o : {a, b})
      if (recorder.is_old(o)) recorder.contents(o);
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(a);
    bool equal = n == PySequence_Fast_GET_SIZE(b);
    for (Py_ssize_t i = 0; equal && i < n; ++i) {
      const Ref x = Ref::borrow(PySequence_Fast_GET_ITEM(a, i)), y = Ref::borrow(PySequence_Fast_GET_ITEM(b, i));
      if (x.get() == y.get()) continue;  // equal, whatever its __eq__ says
      const Ref same = Ref::steal(compare(x.get(), y.get(), Py_EQ));
      const int truth_of_it = same ? truth(same.get()) : -1;
      if (truth_of_it < 0) return nullptr;
      equal = truth_of_it == 1;
    }
    return PyBool_FromLong(equal == (op == Py_EQ));
  }
  static const char* const kSpecial[] = {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"};
  if (!(is_plain(a) && is_plain(b))) {
    for (PyObject* o : {a, b}) {
      if (is_plain(o)) continue;
      if (is_tensor(o)) {
        recorder.specials(Py_TYPE(o));
        continue;
      }
      consume(o);
      look_special(o, kSpecial[op]);
    }
    if (op == Py_EQ || op == Py_NE) recorder.same_or_distinct(a, b);  // the default __eq__ is identity
  }
  return PyObject_RichCompare(a, b, op);
}

PyObject* Interpreter::binary(PyObject* a, PyObject* b, int op) {
  const BinaryOp& row = kBinaryOps[op];
  if (plain) return row.f(a, b);
  if (torch_calls == nullptr || !(is_tensor(a) || is_tensor(b))) return binary_by_kind(a, b, op);
  const std::string special = row.special;
  const bool keyword = op < kFirstInPlace && (special == "and" || special == "or");
  const std::string name = (op >= kFirstInPlace ? "i" : "") + special + (keyword ? "_" : "");
  return torch_calls->around_operator(name.c_str(), a, b, nullptr, [&] { return binary_by_kind(a, b, op); });
}

PyObject* Interpreter::binary_by_kind(PyObject* a, PyObject* b, int op) {
  const BinaryOp& row = kBinaryOps[op];
  a = op >= kFirstInPlace && is_array(a) && session != nullptr && recorder.is_old(a) ? lift_array(a) : array_of(a);
  b = array_of(b);
  if (is_made_array(a) || is_made_array(b)) return array_operation([&] { return row.f(a, b); }, {a, b});
  if (recorder.numbers.any() && (recorder.numbers.is(a) || recorder.numbers.is(b))) {
    if (is_tensor(a)) return with_tensor(a, b, row.f);
    if (is_tensor(b)) {
      // As Python does when float and int do not know tensors: the tensor's reflected method.
      Ref name = Ref::steal(PyUnicode_FromFormat("__r%s__", row.special));
      Ref method = name ? Ref::steal(get_attr(b, name.get())) : Ref();
      PyObject* args[2] = {nullptr, a};
      return method ? call(method.get(), args + 1, 1, nullptr) : nullptr;
    }
    if (PyObject* known = recorder.numbers.binary(a, b, op)) return known;
    recorder.numbers.read(a);
    recorder.numbers.read(b);
  }
  if (!(is_plain(a) && is_plain(b))) {
    // Lists and tuples are put together, and what is in them only moves.
    const bool repeats =
        op % kFirstInPlace == kMultiply && (PyList_CheckExact(a) || is_tuple_or_size(a)) && PyLong_CheckExact(b);
    const bool joins = repeats || (op % kFirstInPlace == 0 && ((PyList_CheckExact(a) && PyList_CheckExact(b)) ||
                                                               (is_tuple_or_size(a) && is_tuple_or_size(b))));
    for (PyObject* o : {a, b}) {
      if (is_plain(o)) continue;
      if (is_tensor(o)) {
        recorder.specials(Py_TYPE(o));
        continue;
      }
      if (joins)
        look_through(o);
      else
        consume(o);
      if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        std::string name = row.special;
        look_special(o, ("__" + name + "__").c_str());
        look_special(o, ("__r" + name + "__").c_str());
        if (op >= kFirstInPlace) look_special(o, ("__i" + name + "__").c_str());
      }
    }
    if (op >= kFirstInPlace && is_array(a)) throw Declined("an array of numpy is written");
    if (op >= kFirstInPlace && recorder.is_old(a) && !is_tensor(a) &&
        (PyList_Check(a) || PySet_Check(a) || PyDict_Check(a) || is_deque(a)))
      journal.whole(a);
  }
  return row.f(a, b);
}

PyObject* Interpreter::unary(PyObject* o, unaryfunc f) {
  if (plain) return f(o);
  if (torch_calls == nullptr || !is_tensor(o)) return unary_by_kind(o, f);
  const char* name = f == PyNumber_Negative ? "neg" : f == PyNumber_Invert ? "invert" : "pos";
  return torch_calls->around_operator(name, o, nullptr, nullptr, [&] { return unary_by_kind(o, f); });
}

PyObject* Interpreter::unary_by_kind(PyObject* o, unaryfunc f) {
  o = array_of(o);
  if (is_made_array(o)) return array_operation([&] { return f(o); }, {});
  recorder.not_opaque(o);
  if (recorder.numbers.is(o)) {
    if (PyObject* known = recorder.numbers.unary(o, f)) return known;
    recorder.numbers.read(o);
  }
  if (!is_plain(o)) {
    if (!is_python_class(Py_TYPE(o))) recorder.contents(o);
    recorder.specials(Py_TYPE(o));
  }
  return f(o);
}

}  // namespace flashover::frame

// C callables that are given numbers which change from call to call: arithmetic goes into the graph, containers only
// move them about, operators of torch get symbols; whatever may look at the value gets the value, and the call is
// guarded on it.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "frame/interpret/calls.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/made_tensor.h"
#include "frame/interpret/native.h"

namespace flashover::frame {

// tensor.item(), float(tensor): the tensor, else null.
PyObject* asked_for_item(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (kwnames != nullptr) return nullptr;
  const auto is_item = [](const char* name) { return std::strcmp(name, "item") == 0; };
  if (PyCFunction_Check(f) && nargs == 0) {
    PyObject* self = PyCFunction_GET_SELF(f);
    return self != nullptr && is_tensor(self) && is_item(reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name)
               ? self
               : nullptr;
  }
  if (nargs != 1 || !is_tensor(args[0])) return nullptr;
  if (f == reinterpret_cast<PyObject*>(&PyFloat_Type) || f == reinterpret_cast<PyObject*>(&PyLong_Type)) return args[0];
  return Py_TYPE(f) == &PyMethodDescr_Type && is_item(reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name)
             ? args[0]
             : nullptr;
}

namespace {

bool is_tensor_method(PyObject* f) {
  const KnownTypes& k = known_types();
  return (Py_TYPE(f) == &PyMethodDescr_Type && k.tensor != nullptr &&
          PyType_IsSubtype(PyDescr_TYPE(reinterpret_cast<PyDescrObject*>(f)), k.tensor)) ||
         (PyCFunction_Check(f) && PyCFunction_GET_SELF(f) != nullptr && is_tensor(PyCFunction_GET_SELF(f)));
}

// torch.arange(a, b) of whole numbers of which the first changes: as many, counted from there. Null without an error:
// something else.
PyObject* range_of_numbers(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const Native* n = PyCFunction_Check(f) ? native_function(f) : nullptr;
  if (n == nullptr || !(n->flags & Native::kTensors) || nargs != 2 || !in.recorder.numbers.is(args[0]) ||
      !PyLong_CheckExact(args[0]) || !PyLong_CheckExact(args[1]) || in.recorder.numbers.any_of_data() ||
      std::strcmp(reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name, "arange") != 0 ||
      (in.recorder.numbers.all_sizes(args[0]) && in.recorder.numbers.all_sizes(args[1])))
    return nullptr;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  Ref whole = Ref::steal(PyObject_GetAttrString(torch, "int64"));
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* value = args[2 + i];
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "device") == 0) continue;
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "dtype") != 0) return nullptr;
    if (value != Py_None && value != whole.get()) return nullptr;
  }
  if (in.recorder.numbers.ints_are_sizes && !in.recorder.numbers.constant_difference(args[1], args[0])) return nullptr;
  Ref length = Ref::steal(in.recorder.numbers.binary(args[1], args[0], 10));
  const int64_t count = length ? PyLong_AsLongLong(length.get()) : -1;
  if (count < 0) return nullptr;
  Ref same = Ref::steal(PyLong_FromLongLong(count));
  in.recorder.numbers.compare(length.get(), same.get(), Py_EQ);
  std::vector<PyObject*> all{nullptr, same.get()};
  all.insert(all.end(), args + 2, args + 2 + keyword_count(kwnames));
  Ref range = Ref::steal(in.call(f, all.data() + 1, 1, kwnames));
  return range ? in.binary(range.get(), args[0], 0) : nullptr;
}

// tensor.select(dim, i) and tensor.narrow(dim, i, n), where i changes, as subscripts. Null without an error: something
// else.
PyObject* narrow_by_number(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const char* name = name_of_c(f);
  const bool select = std::strcmp(name, "select") == 0;
  if ((!select && std::strcmp(name, "narrow") != 0) || kwnames != nullptr || in.recorder.numbers.any_of_data())
    return nullptr;
  std::vector<PyObject*> all;
  if (PyCFunction_Check(f) && PyCFunction_GET_SELF(f) != nullptr && is_tensor(PyCFunction_GET_SELF(f)))
    all.push_back(PyCFunction_GET_SELF(f));
  all.insert(all.end(), args, args + nargs);
  if (all.size() != (select ? 3 : 4) || !is_tensor(all[0]) || !PyLong_CheckExact(all[1]) ||
      !PyLong_CheckExact(all[2]) || in.recorder.numbers.is(all[1]) || !in.recorder.numbers.is(all[2]))
    return nullptr;
  Ref ndim = Ref::steal(PyObject_GetAttrString(all[0], "ndim"));
  const int64_t rank = ndim ? PyLong_AsLongLong(ndim.get()) : 0;
  int64_t dim = PyLong_AsLongLong(all[1]);
  PyErr_Clear();
  dim += dim < 0 ? rank : 0;
  if (dim < 0 || dim >= rank) return nullptr;
  Ref key = Ref::steal(PyTuple_New(dim + 1)), whole = Ref::steal(PySlice_New(nullptr, nullptr, nullptr));
  for (int64_t i = 0; i < dim; ++i) PyTuple_SET_ITEM(key.get(), i, Py_NewRef(whole.get()));
  Ref last = Ref::borrow(all[2]);
  if (!select) {
    if (!PyLong_CheckExact(all[3]) || in.recorder.numbers.is(all[3])) return nullptr;
    Ref size = Ref::steal(PyObject_CallMethod(all[0], "size", "L", dim));
    // What a slice would cut off, narrow refuses.
    const int64_t start = PyLong_AsLongLong(all[2]), length = PyLong_AsLongLong(all[3]);
    const bool fits = size && PyLong_CheckExact(size.get()) && start >= 0 && length > 0 &&
                      start + length <= PyLong_AsLongLong(size.get());
    PyErr_Clear();
    Ref end = fits ? Ref::steal(in.recorder.numbers.binary(all[2], all[3], 0)) : Ref();
    if (!end) return nullptr;
    last = Ref::steal(PySlice_New(all[2], end.get(), nullptr));
  }
  PyTuple_SET_ITEM(key.get(), dim, last.release());
  return in.subscript_by_number(all[0], key.get());
}

// What python/flashover/_sized.py has for functions of torch, by their names in C. Borrowed; null: nothing.
PyObject* by_name_in_c(PyObject* f) {
  static PyObject* const table = [] {
    const Ref module = Ref::steal(PyImport_ImportModule("flashover._sized"));
    PyObject* found = module ? PyObject_GetAttrString(module.get(), "BY_NAME") : nullptr;
    if (found == nullptr) PyErr_Clear();
    return found;
  }();
  const Ref name = Ref::steal(PyUnicode_FromString(name_of_c(f)));
  return table != nullptr && name ? PyDict_GetItem(table, name.get()) : nullptr;
}

// Functions whose numbers torch wants as such, written with others that take sizes. Null without an error: something
// else.
PyObject* by_other_functions(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const bool method = is_tensor_method(f);
  const Native* n = PyCFunction_Check(f) && !method ? native_function(f) : nullptr;
  if (!method && (n == nullptr || !(n->flags & Native::kTensors))) return nullptr;
  PyObject* other = by_name_in_c(f);
  if (other == nullptr) return nullptr;
  std::vector<PyObject*> all{nullptr};
  if (PyCFunction_Check(f) && method) all.push_back(PyCFunction_GET_SELF(f));
  const size_t count = nargs + keyword_count(kwnames);
  all.insert(all.end(), args, args + count);
  for (PyObject* o : all)
    if (o != nullptr) in.recorder.numbers.as_sizes(o);
  Ref result = Ref::steal(in.call(other, all.data() + 1, all.size() - 1 - keyword_count(kwnames), kwnames));
  return result.get() == Py_NotImplemented ? nullptr : result.release();
}

// Diagonals at an offset that changes, which torch wants as a number. Null without an error: something else.
PyObject* diagonal_by_number(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  struct Known {
    const char *name, *by, *offset;
    size_t most;  // of the operands, the tensor among them
  };
  static constexpr Known kKnown[] = {{"diagonal", "diagonal_at", "offset", 4},
                                     {"diag", "diag_at", "diagonal", 2},
                                     {"diag_embed", "diag_embed_at", "offset", 2}};
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                   [&](const Known& k) { return std::strcmp(name_of_c(f), k.name) == 0; });
  if (known == std::end(kKnown) || in.recorder.numbers.any_of_data()) return nullptr;
  std::vector<PyObject*> all{nullptr};
  if (PyCFunction_Check(f) && PyCFunction_GET_SELF(f) != nullptr && is_tensor(PyCFunction_GET_SELF(f)))
    all.push_back(PyCFunction_GET_SELF(f));
  all.insert(all.end(), args, args + nargs);
  const size_t operands = all.size() - 1, named = keyword_count(kwnames);
  if (operands == 0 || !is_tensor(all[1]) || operands + named > known->most) return nullptr;
  PyObject* offset = operands > 1 ? all[2] : nullptr;
  for (size_t i = 0; i < named; ++i)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i)), known->offset) == 0)
      offset = args[nargs + i];
  if (offset == nullptr || !PyLong_CheckExact(offset) || !in.recorder.numbers.is(offset)) return nullptr;
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(offset, &overflow);
  if (overflow != 0) return nullptr;
  all.insert(all.end(), args + nargs, args + nargs + named);
  Ref module = Ref::steal(PyImport_ImportModule("flashover._substitutes"));
  Ref other = Ref::steal(module ? PyObject_GetAttrString(module.get(), known->by) : nullptr);
  return other ? in.call(other.get(), all.data() + 1, operands, kwnames) : nullptr;
}

bool is_append(PyObject* f) {
  const char* name = name_of_c(f);
  return std::strcmp(name, "append") == 0;
}

// C callables that only move objects about.
bool only_moves(PyObject* f) {
  if (PyType_Check(f)) {
    PyObject* const kTypes[] = {
        reinterpret_cast<PyObject*>(&PyList_Type),     reinterpret_cast<PyObject*>(&PyTuple_Type),
        reinterpret_cast<PyObject*>(&PyDict_Type),     reinterpret_cast<PyObject*>(&PyZip_Type),
        reinterpret_cast<PyObject*>(&PyEnum_Type),     reinterpret_cast<PyObject*>(&PyMap_Type),
        reinterpret_cast<PyObject*>(&PyType_Type),     reinterpret_cast<PyObject*>(&PySuper_Type),
        reinterpret_cast<PyObject*>(&PyReversed_Type), reinterpret_cast<PyObject*>(&PySlice_Type)};
    if (std::find(std::begin(kTypes), std::end(kTypes), f) != std::end(kTypes)) return true;
    if (f == reinterpret_cast<PyObject*>(known_types().size)) return true;
    // Classes of Python code (but not subclasses of float and the like).
    auto* base = reinterpret_cast<PyTypeObject*>(f);
    if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
    while (base->tp_flags & Py_TPFLAGS_HEAPTYPE) base = base->tp_base;
    if (base == &PyODict_Type) return reinterpret_cast<PyTypeObject*>(f)->tp_init != base->tp_init;
    return base == &PyBaseObject_Type || base == &PyDict_Type || base == &PyList_Type || base == &PyTuple_Type;
  }
  if (Py_TYPE(f) == &PyWrapperDescr_Type || Py_TYPE(f) == &_PyMethodWrapper_Type) {
    const auto* descr = Py_TYPE(f) == &PyWrapperDescr_Type ? reinterpret_cast<PyWrapperDescrObject*>(f)
                                                           : reinterpret_cast<MethodWrapperLayout*>(f)->descr;
    for (const char* known : {"__setattr__", "__getattribute__", "__iter__", "__next__", "__len__"})
      if (std::strcmp(descr->d_base->name, known) == 0) return true;
    return false;
  }
  const char* name = name_of_c(f);
  for (const char* known : {"append",
                            "extend",
                            "isinstance",
                            "issubclass",
                            "len",
                            "iter",
                            "next",
                            "getattr",
                            "hasattr",
                            "setattr",
                            "items",
                            "keys",
                            "values",
                            "copy",
                            "id",
                            "callable",
                            "__instancecheck__",
                            "__subclasscheck__",
                            "_abc_instancecheck",
                            "_abc_subclasscheck",
                            "__enter__",
                            "__exit__",
                            "_has_torch_function",
                            "_has_torch_function_unary",
                            "_has_torch_function_variadic",
                            "is_scripting"})
    if (std::strcmp(name, known) == 0) return true;
  return false;
}

// Functions of torch whose ints are numbers to compute with, and not sizes or places.
bool takes_numbers(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames = {"add",
                                                              "sub",
                                                              "subtract",
                                                              "mul",
                                                              "multiply",
                                                              "div",
                                                              "divide",
                                                              "true_divide",
                                                              "floor_divide",
                                                              "remainder",
                                                              "fmod",
                                                              "pow",
                                                              "float_power",
                                                              "rsub",
                                                              "eq",
                                                              "ne",
                                                              "lt",
                                                              "le",
                                                              "gt",
                                                              "ge",
                                                              "less",
                                                              "less_equal",
                                                              "greater",
                                                              "equal",
                                                              "not_equal",
                                                              "clamp",
                                                              "clamp_min",
                                                              "clamp_max",
                                                              "clip",
                                                              "fill",
                                                              "masked_fill",
                                                              "where",
                                                              "lerp",
                                                              "addcmul",
                                                              "addcdiv",
                                                              "addmm",
                                                              "addbmm",
                                                              "baddbmm",
                                                              "addmv",
                                                              "addr",
                                                              "xlogy",
                                                              "ldexp",
                                                              "bitwise_and",
                                                              "bitwise_or",
                                                              "bitwise_xor",
                                                              "bitwise_left_shift",
                                                              "bitwise_right_shift",
                                                              "full_like",
                                                              "threshold",
                                                              "hardtanh",
                                                              "leaky_relu",
                                                              "elu",
                                                              "celu",
                                                              "softplus",
                                                              "hardshrink",
                                                              "softshrink",
                                                              "nan_to_num",
                                                              "index_fill",
                                                              "masked_scatter",
                                                              "isclose",
                                                              "allclose",
                                                              "greater_equal",
                                                              "__add__",
                                                              "__radd__",
                                                              "__iadd__",
                                                              "__sub__",
                                                              "__rsub__",
                                                              "__isub__",
                                                              "__mul__",
                                                              "__rmul__",
                                                              "__imul__",
                                                              "__truediv__",
                                                              "__rtruediv__",
                                                              "__itruediv__",
                                                              "__floordiv__",
                                                              "__rfloordiv__",
                                                              "__mod__",
                                                              "__rmod__",
                                                              "__pow__",
                                                              "__rpow__",
                                                              "__eq__",
                                                              "__ne__",
                                                              "__lt__",
                                                              "__le__",
                                                              "__gt__",
                                                              "__ge__",
                                                              "__and__",
                                                              "__or__",
                                                              "__xor__",
                                                              "__lshift__",
                                                              "__rshift__"};
  if (name.size() > 1 && name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);  // in place
  return kNames.contains(name);
}

// max, min, sum: what they compare or add is worked out before, one after the other.
bool is_fold(PyObject* f) {
  if (!PyCFunction_Check(f) || PyCFunction_GET_SELF(f) == nullptr || !PyModule_Check(PyCFunction_GET_SELF(f)))
    return false;
  const char* module = PyModule_GetName(PyCFunction_GET_SELF(f));
  if (module == nullptr) PyErr_Clear();
  const std::string_view name = name_of_c(f);
  return module != nullptr && std::strcmp(module, "builtins") == 0 && (name == "max" || name == "min" || name == "sum");
}

// What an iterator yields, as a list. C would get what the function of a map() returns: it is written as a generator.
// Null: an error.
Ref gathered(Interpreter& in, PyObject* iterator) {
  static PyObject* const each =
      function_of_ours("def each(f, items):\n    for item in items:\n        yield f(item)\n", "each");
  Ref state =
      Ref::steal(Py_TYPE(iterator) == &PyMap_Type ? PyObject_CallMethod(iterator, "__reduce__", nullptr) : nullptr);
  PyErr_Clear();
  Ref generator;
  if (PyObject* parts = state ? PyTuple_GET_ITEM(state.get(), 1) : nullptr;
      parts != nullptr && PyTuple_GET_SIZE(state.get()) == 2 && PyTuple_GET_SIZE(parts) == 2) {
    ++in.uninterpreted;
    PyObject* both[] = {behind_python_function(PyTuple_GET_ITEM(parts, 0)), PyTuple_GET_ITEM(parts, 1)};
    generator = Ref::steal(PyObject_Vectorcall(each, both, 2, nullptr));
    --in.uninterpreted;
    iterator = generator.get();
  }
  return Ref::steal(in.call(reinterpret_cast<PyObject*>(&PyList_Type), &iterator, 1, nullptr));
}

// max(x.shape[0] for x in xs) and its kin, of sizes that are symbols: C would look at each number that an iterator
// yields. So they are gathered to a list, which those take that know numbers. False: it is something else.
bool fold_of_iterator(Interpreter& in, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames,
                      PyObject** result) {
  if (nargs < 1 || nargs + keyword_count(kwnames) > 2 || !is_fold(f)) return false;
  const bool sums = std::strcmp(name_of_c(f), "sum") == 0, more = nargs + keyword_count(kwnames) == 2;
  const bool named = kwnames != nullptr && PyTuple_GET_SIZE(kwnames) == 1;
  if (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), sums ? "start" : "default") != 0)
    return false;
  if (more && !named && !sums) return false;  // max(a, b)
  const bool is_list = PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]);
  if (!PyGen_CheckExact(args[0]) && Py_TYPE(args[0]) != &PyMap_Type && !(is_list && more)) return false;
  if (more && sums && !PyLong_CheckExact(args[1])) return false;  // (lists and the like are not added as numbers are)
  Ref items = gathered(in, args[0]);
  if (!items || (more && sums && PyList_Insert(items.get(), 0, args[1]) < 0)) {
    *result = nullptr;
    return true;
  }
  PyObject* one[] = {items.get()};
  *result = more && !sums && PyList_GET_SIZE(items.get()) == 0 ? Py_NewRef(args[1]) : in.call(f, one, 1, nullptr);
  return true;
}

}  // namespace

bool Interpreter::call_with_numbers(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames,
                                    PyObject** result) {
  Numbers& numbers = recorder.numbers;
  if (session == nullptr || recorder.varying_numbers == nullptr) return false;
  // What else can be called ends in one of these, or in Python code.
  if (!PyCFunction_Check(f) && !PyType_Check(f) && Py_TYPE(f) != &PyMethodDescr_Type &&
      Py_TYPE(f) != &PyWrapperDescr_Type && Py_TYPE(f) != &_PyMethodWrapper_Type &&
      std::strcmp(Py_TYPE(f)->tp_name, "numpy.ufunc") != 0 && Py_TYPE(f) != known_types().lru_cache &&
      Py_TYPE(f) != known_types().script_function && std::strncmp(Py_TYPE(f)->tp_name, "operator.", 9) != 0)
    return false;
  if (PyObject* tensor = asked_for_item(f, args, nargs, kwnames);
      tensor != nullptr && session->is_trace_tensor(tensor)) {
    Ref number = Ref::steal(numbers.item(tensor));
    if (!number) number = Ref::steal(numbers.of_data(tensor));
    if (number) {
      const bool is_float = PyFloat_CheckExact(number.get());
      if (!PyType_Check(f) || (f == reinterpret_cast<PyObject*>(&PyFloat_Type)) == is_float)
        return (*result = number.release()) != nullptr;
      PyObject* one[1] = {number.get()};
      if (numbers.is(number.get())) return (*result = numbers.call(f, one, 1)) != nullptr;
      return (*result = PyObject_CallOneArg(f, number.get())) != nullptr;
    }
  }
  if (fold_of_iterator(*this, f, args, nargs, kwnames, result)) return true;
  if (!numbers.any()) return false;
  const size_t count = nargs + keyword_count(kwnames);
  bool any = numbers.holds(f);
  for (size_t i = 0; i < count; ++i) any = any || numbers.holds(args[i]);
  if (!any) return false;
  if (kwnames == nullptr && (*result = numbers.call(f, args, nargs)) != nullptr) return true;
  if (nargs == 1 && (*result = tensor_of_number(*this, f, args, kwnames)) != nullptr) return true;
  if ((*result = range_of_numbers(*this, f, args, nargs, kwnames)) != nullptr) return true;
  if ((*result = by_other_functions(*this, f, args, nargs, kwnames)) != nullptr) return true;
  if (PyErr_Occurred()) return true;
  if ((*result = narrow_by_number(*this, f, args, nargs, kwnames)) != nullptr) return true;
  if ((*result = diagonal_by_number(*this, f, args, nargs, kwnames)) != nullptr) return true;
  if (PyErr_Occurred()) return true;
  const Native* n = PyCFunction_Check(f) ? native_function(f) : nullptr;
  const bool method = is_tensor_method(f);
  if ((n != nullptr && (n->flags & Native::kTensors) && n->handler == nullptr) || method) {
    const std::string_view name = name_of_c(f);
    const bool fills = name == "full" || name == "new_full";  // sizes are in a tuple, the number is alone
    for (size_t i = 0; i < count && !takes_numbers(name); ++i)
      if (!fills || !PyLong_CheckExact(args[i])) numbers.as_sizes(args[i]);
    std::vector<Ref> held;
    std::vector<PyObject*> given(count + 1);
    for (size_t i = 0; i < count; ++i) {
      held.push_back(Ref::steal(numbers.symbols(args[i])));
      given[i + 1] = held.back().get();
    }
    *result = call(f, given.data() + 1, nargs, kwnames);
    return true;
  }
  // Whoever is given a string may look at its letters, and a dict made of pairs looks at its keys.
  for (size_t i = 0; i < count; ++i)
    if (PyUnicode_CheckExact(args[i]) && !is_append(f)) numbers.read(args[i]);
  // Functions in C that an iterator calls look at them; Python's are interpreted.
  if ((f == reinterpret_cast<PyObject*>(&PyMap_Type) || f == reinterpret_cast<PyObject*>(&PyFilter_Type)) &&
      nargs > 0 && !PyFunction_Check(args[0]))
    for (size_t i = 0; i < count; ++i) numbers.read_deep(args[i]);
  if (f == reinterpret_cast<PyObject*>(&PyDict_Type))
    for (size_t i = 0; i < nargs; ++i)
      if (!PyDict_CheckExact(args[i])) numbers.read_deep(args[i]);
  if (f == reinterpret_cast<PyObject*>(&PyEnum_Type))  // it counts on from the second
    for (size_t i = 1; i < count; ++i) numbers.read_deep(args[i]);
  if (only_moves(f) || (n != nullptr && (n->flags & Native::kHandsOn))) return false;
  if (Py_TYPE(f) == &PyMethodDescr_Type && PyDescr_TYPE(f) == &PyDict_Type &&
      std::strcmp(reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name, "get") == 0) {
    for (size_t i = 1; i < count; ++i) numbers.read_deep(args[i]);  // the key is looked at; the values only move
    return false;
  }
  const bool bound = Py_TYPE(f) == &_PyMethodWrapper_Type;
  const PyWrapperDescrObject* slot = bound ? reinterpret_cast<MethodWrapperLayout*>(f)->descr
                                     : Py_TYPE(f) == &PyWrapperDescr_Type ? reinterpret_cast<PyWrapperDescrObject*>(f)
                                                                          : nullptr;
  if (slot != nullptr && stores_items(slot)) {
    if (const size_t key = bound ? 0 : 1; key < count) numbers.read_deep(args[key]);
    return false;
  }
  numbers.read_deep(f);
  for (size_t i = 0; i < count; ++i) numbers.read_deep(args[i]);
  return false;
}

}  // namespace flashover::frame

// Numbers that follow from data: what tensors hold is known once the graph ran. What Python computes of them runs then,
// with CPython's own arithmetic; tensors that are computed with them are computed of 0-d tensors.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "compat/opcodes.h"
#include "frame/interpret/instructions.h"
#include "frame/numbers.h"
#include "frame/observe.h"
#include "trace/trace.h"

namespace flashover::frame {
namespace {

// What stands for a float that nobody knows: nothing raises for it, and it is not whole.
constexpr double kSomeFloat = 1.5;
constexpr long long kExactInFloats = 1LL << 53;

bool is_nonzero(PyObject* o) { return o != nullptr && PyObject_IsTrue(o) == 1; }

}  // namespace

// Whether it is computed of what no call knows before it runs.
bool Numbers::follows_data(const NumberStep& s) const {
  if (s.kind == NumberStep::Kind::kSource || s.kind == NumberStep::Kind::kItem || s.kind == NumberStep::Kind::kSize)
    return false;
  const auto does = [&](int32_t i) {
    return i >= 0 && program.steps[static_cast<size_t>(i)].kind == NumberStep::Kind::kOfData;
  };
  return does(s.a) || does(s.b);
}

const Numbers::InTensor* Numbers::in_tensor(int32_t step) const {
  const auto known = in_tensors_.find(step);
  return known == in_tensors_.end() ? nullptr : &known->second;
}

const NumberStep* Numbers::computed_of_data(int32_t step) const {
  const auto known = computed_.find(step);
  return known == computed_.end() ? nullptr : &known->second;
}

Ref Numbers::size_in_tensor(int32_t step) {
  const auto size = sizes_.find(step);
  Ref tensor = Ref::steal(size == sizes_.end() ? nullptr : session_->tensor_of_size(size->second));
  if (tensor) sizes_handed_out_.try_emplace(tensor.get(), tensor, size->second);
  return tensor;
}

std::optional<sym::Expr> Numbers::size_handed_out(PyObject* tensor) const {
  const auto known = sizes_handed_out_.find(tensor);
  return known == sizes_handed_out_.end() ? std::nullopt : std::optional(known->second.second);
}

PyObject* Numbers::of_data(PyObject* tensor) {
  const std::optional<sym::Expr> size = session_->size_of_data(tensor);
  if (size && size->is_const()) return PyLong_FromLongLong(size->value());
  Ref copy = Ref::steal(session_->copy_of_data(tensor));
  if (session_->declined()) throw Declined(session_->decline_reason());
  PyObject* known = size ? of_size(*size) : nullptr;
  if (known == nullptr && (!copy || size)) return nullptr;
  if (known == nullptr) {
    Ref type = Ref::steal(PyObject_CallMethod(copy.get(), "is_floating_point", nullptr)),
        dims = Ref::steal(PyObject_GetAttrString(copy.get(), "ndim"));
    if (type.get() != Py_True) return nullptr;                    // a truth, of which there are two objects
    if (!dims || PyLong_AsLong(dims.get()) != 0) return nullptr;  // not of one element: int, float and item() raise
    NumberStep s;
    s.kind = NumberStep::Kind::kOfData;
    known = add(std::move(s), PyFloat_FromDouble(kSomeFloat));
  }
  if (copy) in_tensors_.try_emplace(step_of(known), InTensor{std::move(copy), -1});
  return Py_NewRef(known);
}

// copy[at], of all its elements in a row; select_from: the same element as a tensor, or null.
PyObject* Numbers::element_of_data(PyObject* copy, int64_t at, PyObject* select_from) {
  PyObject* known = nullptr;
  if (const std::optional<sym::Expr> size = select_from ? session_->size_of_data(select_from) : std::nullopt) {
    if (size->is_const()) return PyLong_FromLongLong(size->value());
    known = of_size(*size);
  }
  if (known == nullptr) {
    NumberStep s;
    s.kind = NumberStep::Kind::kOfData;
    known = add(std::move(s), select_from == nullptr ? PyFloat_FromDouble(kSomeFloat) : PyLong_FromLong(3));
  }
  in_tensors_.try_emplace(step_of(known), InTensor{Ref::borrow(copy), at});
  return Py_NewRef(known);
}

// Null without an error: not of such a tensor, or of too many numbers.
PyObject* Numbers::list_of_data(PyObject* tensor) {
  constexpr int64_t kMost = 4096, kMostSizes = 64;
  Ref copy = Ref::steal(session_->copy_of_data(tensor));
  if (!copy) return nullptr;
  Ref floats = Ref::steal(PyObject_CallMethod(copy.get(), "is_floating_point", nullptr)),
      shape = Ref::steal(PyObject_GetAttrString(tensor, "shape")),
      flat = Ref::steal(PyObject_CallMethod(tensor, "reshape", "i", -1)),
      dtype = Ref::steal(PyObject_GetAttrString(tensor, "dtype"));
  if (!floats || !shape || !flat || !dtype || dtype.get() == of_module("torch", "bool")) return nullptr;
  const int64_t count = PyObject_Size(flat.get());
  const bool whole = floats.get() != Py_True;
  if (count > (whole ? kMostSizes : kMost)) return nullptr;
  int64_t at = 0;
  const std::function<Ref(Py_ssize_t)> part = [&](Py_ssize_t dim) -> Ref {
    if (dim == PyTuple_GET_SIZE(shape.get())) {
      Ref element =
          Ref::steal(whole ? PyObject_CallMethod(flat.get(), "select", "iL", 0, static_cast<long long>(at)) : nullptr);
      if (whole && !element) return {};
      const int64_t its = count == 1 ? -1 : at;
      ++at;
      return Ref::steal(element_of_data(copy.get(), its, element.get()));
    }
    Ref list = Ref::steal(PyList_New(0));
    const int64_t n = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.get(), dim));
    for (int64_t i = 0; list && i < n; ++i) {
      const Ref item = part(dim + 1);
      if (!item || PyList_Append(list.get(), item.get()) < 0) return {};
    }
    return list;
  };
  return part(0).release();
}

// The larger or the smaller of two numbers: "max", "min", or nothing.
static std::string_view which_of_two(const NumberStep& s) {
  if (s.kind != NumberStep::Kind::kCall || s.b < 0 || !PyCFunction_Check(s.object.get())) return {};
  const std::string_view name = reinterpret_cast<PyCFunctionObject*>(s.object.get())->m_ml->ml_name;
  return name == "max" || name == "min" ? name : std::string_view();
}

// Whatever the data are: a constant, or what is not below a positive one or not above a negative one.
bool Numbers::is_never_zero(int32_t step) const {
  const auto constant = [&](int32_t i) {
    const NumberStep& s = program.steps[static_cast<size_t>(i)];
    return s.kind == NumberStep::Kind::kConstant ? s.object.get() : nullptr;
  };
  if (PyObject* o = constant(step)) return is_nonzero(o);
  const NumberStep* s = computed_of_data(step);
  const std::string_view name = s != nullptr ? which_of_two(*s) : std::string_view();
  if (name.empty()) return false;
  return std::ranges::any_of(std::array{s->a, s->b}, [&](int32_t i) {
    PyObject* o = constant(i);
    if (o == nullptr || !PyFloat_CheckExact(o)) return false;
    return name == "max" ? PyFloat_AS_DOUBLE(o) > 0 : PyFloat_AS_DOUBLE(o) < 0;
  });
}

// Whether CPython raises for some data, or gives a number of another type. (Whole numbers of 64 bits in one operation
// never leave the range of floats.)
bool Numbers::may_raise(const NumberStep& s) const {
  using Kind = NumberStep::Kind;
  const auto value = [&](int32_t i) { return objects_[static_cast<size_t>(i)].get(); };
  const auto is_float = [&](int32_t i) { return PyFloat_CheckExact(value(i)) != 0; };
  const auto is_short = [&](int32_t i) { return is_float(i) || computed_of_data(i) == nullptr; };
  switch (s.kind) {
    case Kind::kBinary: {
      if (PyUnicode_CheckExact(value(s.a))) return false;  // strings one behind the other
      const bool fits = is_short(s.a) && is_short(s.b);
      const bool same = is_float(s.a) == is_float(s.b);
      const bool divides = is_never_zero(s.b);
      switch (s.op % NB_INPLACE_ADD) {
        case NB_ADD:
        case NB_SUBTRACT:
        case NB_MULTIPLY:
          return !same && !fits;
        case NB_TRUE_DIVIDE:
          return !divides || !fits;
        case NB_FLOOR_DIVIDE:
        case NB_REMAINDER:
          return !divides || !same;
        case NB_AND:
        case NB_OR:
        case NB_XOR:
          return false;
        default:
          return true;
      }
    }
    case Kind::kUnary:
    case Kind::kRound:
      return false;
    case Kind::kFormat: {
      const char* spec = s.object ? PyUnicode_AsUTF8(s.object.get()) : "";
      if (spec == nullptr) PyErr_Clear();
      return spec == nullptr || std::strchr(spec, 'c') != nullptr || !is_short(s.a);
    }
    case Kind::kCall: {
      if (s.object.get() == reinterpret_cast<PyObject*>(&PyUnicode_Type)) return !is_short(s.a);
      if (s.object.get() == reinterpret_cast<PyObject*>(&PyFloat_Type)) return !is_short(s.a);
      if (s.object.get() == reinterpret_cast<PyObject*>(&PyLong_Type)) return is_float(s.a);
      if (!which_of_two(s).empty()) return !is_float(s.a) || !is_float(s.b);
      const std::string_view name =
          PyCFunction_Check(s.object.get()) ? reinterpret_cast<PyCFunctionObject*>(s.object.get())->m_ml->ml_name : "";
      return name != "abs" && name != "repr" && name != "fabs";
    }
    default:
      return true;
  }
}

// A 0-d tensor; null: no tensor holds the number.
Ref Numbers::held_by_tensor(int32_t step) const {
  const InTensor* in = in_tensor(step);
  if (in == nullptr || in->at < 0) return in != nullptr ? in->tensor : Ref();
  const Ref flat = Ref::steal(PyObject_CallMethod(in->tensor.get(), "reshape", "i", -1));
  return Ref::steal(flat ? PyObject_CallMethod(flat.get(), "select", "iL", 0, static_cast<long long>(in->at))
                         : nullptr);
}

// math.sqrt and its like by the tensor's method of that name; null: there is none that gives a float.
static Ref called_on_tensor(PyObject* function, PyObject* tensor) {
  constexpr std::string_view kMethods[] = {"abs", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh"};
  const std::string_view name =
      PyCFunction_Check(function) ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_name : "";
  const std::string_view method = name == "fabs" ? "abs" : name;
  if (std::ranges::find(kMethods, method) == std::end(kMethods)) return {};
  return Ref::steal(PyObject_CallMethod(tensor, std::string(method).c_str(), nullptr));
}

// As Python's max and min: the first where they are equal or one is NaN. Of each a tensor or a float.
static Ref chosen_of_two(std::string_view name, const Ref& a, const Ref& b) {
  const Ref second = Ref::steal(PyObject_RichCompare(b.get(), a.get(), name == "max" ? Py_GT : Py_LT));
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  return Ref::steal(second ? PyObject_CallMethod(torch, "where", "OOO", second.get(), b.get(), a.get()) : nullptr);
}

// The words are CPython's for a float that is divided by zero.
void Numbers::assert_divisor(int32_t step, const Ref& divisor) {
  if (!asserted_.insert(step).second) return;
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  const Ref zero = Ref::steal(PyFloat_FromDouble(0));
  const Ref holds = Ref::steal(PyObject_RichCompare(divisor.get(), zero.get(), Py_NE));
  // (Elsewhere it is waited for, as the program waits: an assertion that fails on the GPU ends the process's context.)
  const Ref here = Ref::steal(holds ? PyObject_CallMethod(holds.get(), "cpu", nullptr) : nullptr);
  const Ref done = Ref::steal(
      here ? PyObject_CallMethod(torch, "_assert_async", "Os", here.get(), "float division by zero") : nullptr);
  if (!done) must_be_computed_.push_back(step);
}

// As Python computes floats: what one of two whole numbers or a constant is has to be exact in them.
Ref Numbers::tensor_of_data(int32_t step) {
  const auto as_float = [](const Ref& t) {
    return Ref::steal(t ? PyObject_CallMethod(t.get(), "double", nullptr) : nullptr);
  };
  if (in_tensor(step) != nullptr)
    return PyFloat_CheckExact(objects_[static_cast<size_t>(step)].get()) ? as_float(held_by_tensor(step)) : Ref();
  if (sizes_.contains(step)) return as_float(size_in_tensor(step));
  const NumberStep* computed = computed_of_data(step);
  if (computed == nullptr || !PyFloat_CheckExact(objects_[static_cast<size_t>(step)].get())) return {};
  const NumberStep s = *computed;
  const auto operand = [&](int32_t i) -> Ref {
    const NumberStep& its = program.steps[static_cast<size_t>(i)];
    if (its.kind == NumberStep::Kind::kOfData || sizes_.contains(i)) return tensor_of_data(i);
    if (its.kind != NumberStep::Kind::kConstant) {  // the call knows it before it runs
      PyObject* known = objects_[static_cast<size_t>(i)].get();
      return PyFloat_CheckExact(known) ? Ref::steal(symbols(known)) : Ref();
    }
    PyObject* o = its.object.get();
    if (PyFloat_CheckExact(o)) return Ref::borrow(o);
    int overflow = 0;
    const long long n = PyLong_CheckExact(o) ? PyLong_AsLongLongAndOverflow(o, &overflow) : kExactInFloats;
    return Ref::steal(overflow == 0 && std::abs(n) < kExactInFloats ? PyFloat_FromDouble(static_cast<double>(n))
                                                                    : nullptr);
  };
  const std::string_view of_two = which_of_two(s);
  Ref a = operand(s.a), b = s.kind == NumberStep::Kind::kBinary || !of_two.empty() ? operand(s.b) : Ref();
  if (!a) return {};
  if (!of_two.empty()) return b && !may_raise(s) ? chosen_of_two(of_two, a, b) : Ref();
  if (s.kind == NumberStep::Kind::kCall && s.object.get() == reinterpret_cast<PyObject*>(&PyFloat_Type)) return a;
  if (s.kind == NumberStep::Kind::kUnary && s.op <= 1) return s.op == 0 ? Ref::steal(PyNumber_Negative(a.get())) : a;
  if (s.kind == NumberStep::Kind::kCall && in_graph) return called_on_tensor(s.object.get(), a.get());
  if (!b) return {};
  // (Nothing but the graph computes numbers of a whole program: eager's error is infinity or NaN there.)
  if (!in_graph && may_raise_of_data(step)) {
    const bool divides = s.kind == NumberStep::Kind::kBinary && s.op % NB_INPLACE_ADD == NB_TRUE_DIVIDE;
    if (asserts_divisors && divides && is_tensor(b.get()) && !is_never_zero(s.b))
      assert_divisor(step, b);
    else
      must_be_computed_.push_back(step);
  }
  switch (s.op % NB_INPLACE_ADD) {
    case NB_ADD:
      return Ref::steal(PyNumber_Add(a.get(), b.get()));
    case NB_SUBTRACT:
      return Ref::steal(PyNumber_Subtract(a.get(), b.get()));
    case NB_MULTIPLY:
      return Ref::steal(PyNumber_Multiply(a.get(), b.get()));
    case NB_TRUE_DIVIDE:
      return Ref::steal(PyNumber_TrueDivide(a.get(), b.get()));
    case NB_POWER:  // (the last digit may be another than CPython's)
      return in_graph ? Ref::steal(PyNumber_Power(a.get(), b.get(), Py_None)) : Ref();
    default:
      return {};
  }
}

// What stands for it in a call of torch. New reference.
PyObject* Numbers::symbol_of_data(PyObject* o) {
  const int32_t step = step_of(o);
  Ref symbol = symbols_[static_cast<size_t>(step)];
  if (symbol) return symbol.release();
  Ref tensor = held_by_tensor(step);
  if (!tensor) tensor = tensor_of_data(step);
  ValueId value = kNoValue;
  if (tensor) symbol = Ref::steal(session_->symbol_of_data(tensor.get(), o, value));
  if (session_->declined()) throw Declined(session_->decline_reason());
  PyErr_Clear();
  if (!symbol) throw Declined("data-dependent: a number that is computed of one that follows from data");
  symbols_[static_cast<size_t>(step)] = symbol;
  by_value_.emplace(value, step);
  return symbol.release();
}

}  // namespace flashover::frame

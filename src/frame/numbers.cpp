// Records Python's arithmetic on such numbers as steps, and runs the steps of a call with CPython's own functions.
#include "frame/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "compat/integers.h"
#include "frame/interpret/instructions.h"
#include "frame/observe.h"
#include "guards/tensors.h"
#include "sym/found.h"
#include "sym/quotient.h"
#include "trace/trace.h"

namespace flashover::frame {

PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }

namespace {

constexpr int kMaxNumberDepth = 5;
constexpr size_t kMaxSteps = 100000;
constexpr int kInPlace = 13;  // BINARY_OP's argument for a += b, less that for a + b

// By the argument of BINARY_OP, in place or not; null: not of numbers.
binaryfunc arithmetic(int op) {
  switch (op % kInPlace) {
    case 0:
      return PyNumber_Add;
    case 1:
      return PyNumber_And;
    case 2:
      return PyNumber_FloorDivide;
    case 3:
      return PyNumber_Lshift;
    case 5:
      return PyNumber_Multiply;
    case 6:
      return PyNumber_Remainder;
    case 7:
      return PyNumber_Or;
    case 8:
      return power;
    case 9:
      return PyNumber_Rshift;
    case 10:
      return PyNumber_Subtract;
    case 11:
      return PyNumber_TrueDivide;
    case 12:
      return PyNumber_Xor;
    default:
      return nullptr;
  }
}

bool is_number(PyObject* o) { return PyFloat_CheckExact(o) || PyLong_CheckExact(o); }
// What the trace may hold by address.
bool may_stand(PyObject* o) { return is_number(o) || (PyUnicode_CheckExact(o) && PyUnicode_GET_LENGTH(o) > 0); }

constexpr long long kLargestSize = 1LL << 40;
constexpr unaryfunc kUnary[] = {PyNumber_Negative, PyNumber_Positive, PyNumber_Invert};

PyObject* formatted(PyObject* v, int conversion, PyObject* spec) {
  Ref value = conversion == 0   ? Ref::borrow(v)
              : conversion == 1 ? Ref::steal(PyObject_Str(v))
              : conversion == 2 ? Ref::steal(PyObject_Repr(v))
                                : Ref::steal(PyObject_ASCII(v));
  return value ? PyObject_Format(value.get(), spec) : nullptr;
}

std::shared_ptr<PyObject> shared(PyObject* o) {
  return std::shared_ptr<PyObject>(Py_NewRef(o), [](PyObject* p) { Py_DECREF(p); });
}

PyObject* run_number_step(const NumberStep& s, const std::vector<PyObject*>& values, PyObject* const* objects,
                          ReadItem read_item) {
  using Kind = NumberStep::Kind;
  const auto value = [&](int32_t i) { return values[static_cast<size_t>(i)]; };
  switch (s.kind) {
    case Kind::kSource:
      return Py_NewRef(objects[s.a]);
    case Kind::kItem:
      return read_item(objects[s.a], s.dtype);
    case Kind::kSize:
      return PyLong_FromLongLong(guards::geometry_of(objects[s.a], static_cast<size_t>(s.op)));
    case Kind::kConstant:
      return Py_NewRef(s.object.get());
    case Kind::kOfData:
      return Py_NewRef(Py_None);
    case Kind::kBinary:
      return arithmetic(s.op)(value(s.a), value(s.b));
    case Kind::kUnary:
      return kUnary[s.op](value(s.a));
    case Kind::kFormat:
      return formatted(value(s.a), s.op, s.object.get());
    case Kind::kCall: {
      PyObject* args[3] = {nullptr, value(s.a), s.b < 0 ? nullptr : value(s.b)};
      return PyObject_Vectorcall(s.object.get(), args + 1, s.b < 0 ? 1 : 2, nullptr);
    }
    case Kind::kRound:
      return PyFloat_FromDouble(static_cast<double>(static_cast<float>(PyFloat_AsDouble(value(s.a)))));
  }
  return nullptr;
}

// Functions of numbers that give the same for the same.
bool is_pure_function(PyObject* f) {
  if (f == reinterpret_cast<PyObject*>(&PyFloat_Type) || f == reinterpret_cast<PyObject*>(&PyLong_Type) ||
      f == reinterpret_cast<PyObject*>(&PyUnicode_Type))
    return true;
  if (!PyCFunction_Check(f)) return false;
  PyObject* module = PyCFunction_GET_SELF(f);
  if (module == nullptr || !PyModule_Check(module)) return false;
  const char* name = PyModule_GetName(module);
  if (name == nullptr) PyErr_Clear();
  if (name == nullptr) return false;
  if (std::strcmp(name, "math") == 0) return true;
  if (std::strcmp(name, "builtins") != 0) return false;
  for (const char* known : {"abs", "max", "min", "pow", "divmod", "repr", "round", "sum"})
    if (std::strcmp(reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name, known) == 0) return true;
  return false;
}

}  // namespace

PyObject* own_number(PyObject* number) {
  if (PyUnicode_CheckExact(number)) {
    const Py_ssize_t n = PyUnicode_GET_LENGTH(number);
    if (n == 0) return nullptr;  // there is only one
    PyObject* made = PyUnicode_New(n, PyUnicode_MAX_CHAR_VALUE(number));
    if (made != nullptr) PyUnicode_CopyCharacters(made, 0, number, 0, n);
    return made;
  }
  if (PyFloat_CheckExact(number)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(number));
  return compat::copy_of_int(number);
}

PyObject* evaluate_step(const NumberStep& step, const std::vector<PyObject*>& values) {
  NumberStep s = step;
  s.a = 0;
  s.b = s.b < 0 ? -1 : 1;
  Ref v = Ref::steal(run_number_step(s, values, nullptr, nullptr));
  return v && Py_TYPE(v.get()) == s.type ? v.release() : nullptr;
}

bool evaluate(const NumberProgram& p, PyObject* const* objects, ReadItem read, std::vector<PyObject*>& values) {
  values.reserve(p.steps.size());
  const auto miss = [&] {
    PyErr_Clear();
    for (PyObject* v : values) Py_DECREF(v);
    values.clear();
    return false;
  };
  for (const NumberStep& s : p.steps) {
    PyObject* v = run_number_step(s, values, objects, read);
    if (v == nullptr) return miss();
    values.push_back(v);
    if (Py_TYPE(v) != s.type) return miss();
  }
  for (const NumberCheck& c : p.checks) {
    // (Not RichCompareBool, for which an object equals itself.)
    Ref result =
        Ref::steal(PyObject_RichCompare(values[static_cast<size_t>(c.a)], values[static_cast<size_t>(c.b)], c.op));
    if (!result || (result.get() == Py_True) != c.expected) return miss();
  }
  for (int32_t i : p.inputs) {
    PyObject* v = values[static_cast<size_t>(i)];
    if (PyFloat_CheckExact(v)) {
      const double d = PyFloat_AS_DOUBLE(v);
      if (std::isfinite(d) && std::fabs(d) > p.limit) return miss();
    } else {
      const long long n = PyLong_AsLongLong(v);
      if (PyErr_Occurred() || n > (1 << 24) || n < -(1 << 24)) return miss();
    }
  }
  for (int32_t i : p.sizes) {
    int overflow = 0;
    const long long n = PyLong_AsLongLongAndOverflow(values[static_cast<size_t>(i)], &overflow);
    if (overflow != 0 || n < sym::kSizeSymbolRange.lo || n > kLargestSize) return miss();
  }
  return true;
}

// ------------------------------------------------------------------------------------------------- in a trace

PyObject* Numbers::add(NumberStep step, PyObject* value) {
  Ref own = Ref::steal(own_number(Ref::steal(value).get()));
  if (!own || program.steps.size() >= kMaxSteps) throw Declined("too many numbers that change");
  // (Whole numbers that are computed of sizes are symbols.)
  const bool of_sizes =
      in_graph && PyFloat_CheckExact(own.get()) && (sizes_.contains(step.a) || sizes_.contains(step.b));
  if (of_sizes || follows_data(step)) {
    const auto at = static_cast<int32_t>(program.steps.size());
    step.type = Py_TYPE(own.get());
    if (may_raise(step)) may_raise_.insert(at);
    computed_.emplace(at, step);
    step.kind = NumberStep::Kind::kOfData;
    step.object = nullptr;
  }
  const bool of_data = step.kind == NumberStep::Kind::kOfData;
  any_of_data_ = any_of_data_ || of_data;
  step.type = of_data ? Py_TYPE(Py_None) : Py_TYPE(own.get());
  const auto index = static_cast<int32_t>(program.steps.size());
  program.steps.push_back(std::move(step));
  symbols_.emplace_back();
  sources_.emplace_back();
  read_.push_back(0);
  if (program.steps.back().kind != NumberStep::Kind::kConstant) known_.emplace(own.get(), index);
  objects_.push_back(std::move(own));
  return objects_.back().get();
}

PyObject* Numbers::from_source(guards::SourceId source, PyObject* value) {
  NumberStep s;
  s.kind = NumberStep::Kind::kSource;
  s.a = source;
  Ref now = Ref::borrow(value);
  bool is_few = false;
  if (larger_than_few && ints_are_sizes && PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
    is_few = overflow == 0 && std::abs(n) < sym::kLeastPresumed;
    if (is_few) now = Ref::steal(PyLong_FromLongLong(n < 0 ? -trace::kInsteadOfFew : trace::kInsteadOfFew));
    larger_than_call = larger_than_call || is_few;
  }
  PyObject* made = add(std::move(s), Py_NewRef(now.get()));
  sources_.back() = is_few ? Ref() : Ref::borrow(value);
  return made;
}

namespace {

bool is_symint(PyObject* o) { return std::strcmp(Py_TYPE(o)->tp_name, "SymInt") == 0; }

// What a trace knows of `a ? b` in the order of Python's comparisons.
std::pair<sym::Relation, bool> relation_of(int op) {  // and whether the sides are exchanged
  switch (op) {
    case Py_LT:
      return {sym::Relation::kLess, false};
    case Py_LE:
      return {sym::Relation::kLessEqual, false};
    case Py_EQ:
      return {sym::Relation::kEqual, false};
    case Py_NE:
      return {sym::Relation::kNotEqual, false};
    case Py_GT:
      return {sym::Relation::kLess, true};
    default:
      return {sym::Relation::kLessEqual, true};
  }
}

}  // namespace

// An int as an expression over symbols: what it was computed of, or a symbol of its own.
std::optional<sym::Expr> Numbers::size_of(int32_t step) {
  const auto at = static_cast<size_t>(step);
  if (const auto known = sizes_.find(step); known != sizes_.end()) return known->second;
  PyObject* const now = objects_[at].get();
  const NumberStep s = program.steps[at];
  if (!PyLong_CheckExact(now)) return std::nullopt;
  if (s.kind == NumberStep::Kind::kConstant) return expr_of(s.object.get());
  if (read_[at] || s.kind == NumberStep::Kind::kOfData) return std::nullopt;
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(now, &overflow);
  std::optional<sym::Expr> e;
  if (s.kind == NumberStep::Kind::kBinary)
    if (const auto a = size_of(s.a), b = a ? size_of(s.b) : std::nullopt; b) e = computed(*a, *b, s.op);
  if (s.kind == NumberStep::Kind::kUnary && kUnary[s.op] != PyNumber_Invert)
    if (const auto a = size_of(s.a)) e = kUnary[s.op] == PyNumber_Negative ? -*a : *a;
  if (!e && (overflow != 0 || std::abs(n) < sym::kLeastPresumed || std::abs(n) > kLargestSize)) return std::nullopt;
  if (!e) {
    const std::string path = s.kind == NumberStep::Kind::kSource ? recorder_.name_of(s.a) : "";
    const std::string name = path.empty() ? "number " + std::to_string(step) : path;
    e = n < 0 ? negative_size(now, name) : symbol_of(step, n, name);
  }
  is_size(now, e);
  return e;
}

sym::Expr Numbers::symbol_of(int32_t step, int64_t now, const std::string& name) {
  int32_t input = -1;
  const sym::Expr symbol = session_->add_size(now, name, input);
  size_inputs.emplace_back(input, step);
  program.sizes.push_back(step);
  return symbol;
}

// Symbols are not negative: it is less than 0 by one.
sym::Expr Numbers::negative_size(PyObject* number, const std::string& name) {
  Ref minus = Ref::steal(unary(number, PyNumber_Negative));
  if (!minus) throw Declined("an int that cannot be negated");
  const sym::Expr symbol = symbol_of(step_of(minus.get()), PyLong_AsLongLong(minus.get()), "-" + name);
  session_->sizes().holds(sym::Relation::kLess, 0, symbol);
  is_size(minus.get(), symbol);
  return -symbol;
}

void Numbers::as_sizes(PyObject* o, int depth) {
  if (!ints_are_sizes || o == nullptr) return;
  if (const int32_t step = step_of(o); step >= 0) {
    size_of(step);
  } else if (depth <= 2 && holds(o, depth)) {
    if (PyTuple_Check(o) || PyList_CheckExact(o))
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) as_sizes(PySequence_Fast_GET_ITEM(o, i), depth + 1);
    if (Py_TYPE(o) == &PySlice_Type) {
      auto* s = reinterpret_cast<PySliceObject*>(o);
      for (PyObject* part : {s->start, s->stop, s->step}) as_sizes(part, depth + 1);
    }
  }
}

void Numbers::mixed_with_sizes(PyObject* a, PyObject* b) {
  const int32_t x = step_of(a), y = step_of(b);
  if (x < 0 || y < 0 || sizes_.contains(x) == sizes_.contains(y)) return;
  as_sizes(sizes_.contains(x) ? b : a);
}

std::optional<sym::Expr> Numbers::expr_of(PyObject* o) const {
  if (const int32_t step = step_of(o); step >= 0) {
    const auto known = sizes_.find(step);
    return known == sizes_.end() ? std::nullopt : std::optional(known->second);
  }
  if (!PyLong_CheckExact(o)) return std::nullopt;
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(o, &overflow);
  return overflow == 0 && std::abs(n) < (int64_t{1} << 40) ? std::optional(sym::Expr(int64_t{n})) : std::nullopt;
}

void Numbers::is_size(PyObject* number, std::optional<sym::Expr> e) {
  const int32_t step = step_of(number);
  if (!e || step < 0) return;
  sizes_.emplace(step, *e);
  step_of_size_.try_emplace(*e, step);
}

PyObject* Numbers::of_size(sym::Expr e) {
  if (const auto known = step_of_size_.find(e); known != step_of_size_.end())
    return objects_[static_cast<size_t>(known->second)].get();
  const auto constant = [](int64_t n) { return Ref::steal(PyLong_FromLongLong(n)); };
  if (e.kind() == sym::Kind::kVar || sym::has_data_size(e)) {
    NumberStep s;
    if (sym::has_data_size(e)) {
      s.kind = NumberStep::Kind::kOfData;
    } else {
      const auto [input, dim] = session_->source_of_size(e);
      s.kind = NumberStep::Kind::kSize;
      s.a = recorder_.tensor_sources().at(static_cast<size_t>(input));
      s.op = dim;
    }
    PyObject* made = add(std::move(s), constant(session_->sizes().now(e)).release());
    is_size(made, e);
    return made;
  }
  static constexpr std::pair<sym::Kind, int> kOps[] = {
      {sym::Kind::kAdd, 0}, {sym::Kind::kMul, 5}, {sym::Kind::kFloorDiv, 2}, {sym::Kind::kMod, 6}};
  const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](auto& o) { return o.first == e.kind(); });
  if (op == std::end(kOps)) {  // no step computes it
    session_->sizes().specialize(e);
    return nullptr;
  }
  Ref made;
  for (sym::Expr part : e.operands()) {
    PyObject* known = part.is_const() ? nullptr : of_size(part);
    const Ref other = known ? Ref::borrow(known) : constant(session_->sizes().now(part));
    made = made ? Ref::steal(binary(made.get(), other.get(), op->second)) : other;
    if (!made) throw Declined("a size that cannot be computed: " + e.str());
  }
  if (is(made.get())) step_of_size_.try_emplace(e, step_of(made.get()));
  return made.get();  // (held by its step, or by the caller's constant)
}

PyObject* Numbers::of_sizes(PyObject* o) {
  if (o == nullptr || session_ == nullptr || session_->sizes().empty()) return o;
  Ref own = Ref::steal(o);
  if (is_symint(o)) {
    const std::optional<sym::Expr> e = session_->size_of_symbol(o);
    if (!e) return own.release();
    PyObject* known = e->is_const() ? nullptr : of_size(*e);
    return known ? Py_NewRef(known) : PyLong_FromLongLong(session_->sizes().now(*e));
  }
  if (!PyTuple_Check(o) && !PyList_CheckExact(o)) return own.release();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  bool any = false;
  for (Py_ssize_t i = 0; i < n; ++i) any = any || is_symint(PySequence_Fast_GET_ITEM(o, i));
  if (!any) return own.release();
  Ref items = Ref::steal(PyTuple_New(n));
  for (Py_ssize_t i = 0; i < n; ++i)
    PyTuple_SET_ITEM(items.get(), i, of_sizes(Py_NewRef(PySequence_Fast_GET_ITEM(o, i))));
  if (PyTuple_CheckExact(o)) return items.release();
  return PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(o)), items.get());  // torch.Size, list
}

bool Numbers::all_sizes(PyObject* o, int depth) const {
  if (is(o)) return sizes_.contains(step_of(o));
  if (depth > kMaxNumberDepth) return false;
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o) || Py_TYPE(o) == known_types().size) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!all_sizes(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return false;
    return true;
  }
  if (Py_TYPE(o) == &PySlice_Type) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return all_sizes(s->start, depth + 1) && all_sizes(s->stop, depth + 1) && all_sizes(s->step, depth + 1);
  }
  return !holds(o, depth);
}

PyObject* Numbers::item(PyObject* tensor) {
  if (in_graph) return nullptr;  // it is one that follows from data
  auto host = session_->host_value(tensor);
  if (!host) return nullptr;
  const auto& sources = recorder_.tensor_sources();
  if (static_cast<size_t>(host->input) >= sources.size() || sources[static_cast<size_t>(host->input)] == kNoSource)
    return nullptr;
  NumberStep first;
  first.kind = NumberStep::Kind::kItem;
  first.a = sources[static_cast<size_t>(host->input)];
  first.dtype = host->dtype;
  PyObject* now = add(std::move(first), Py_NewRef(host->now.get()));
  for (const trace::HostValue::Step& step : host->steps) {
    Ref next;
    if (step.op == 'n') {
      next = Ref::steal(unary(now, PyNumber_Negative));
    } else {
      Ref other;
      if (step.value != kNoValue) {
        auto known = by_value_.find(step.value);
        if (known == by_value_.end()) return nullptr;
        other = Ref::borrow(objects_[static_cast<size_t>(known->second)].get());
      } else {
        other =
            Ref::steal(host->dtype == DType::kI64 ? PyLong_FromDouble(step.number) : PyFloat_FromDouble(step.number));
      }
      if (host->dtype == DType::kF32) other = rounded(other.get());  // both operands are of that precision
      next = Ref::steal(binary(now, other.get(), step.op == '+' ? 0 : step.op == '-' ? 10 : step.op == '*' ? 5 : 11));
    }
    if (!next) return nullptr;
    if (host->dtype == DType::kF32) next = rounded(next.get());
    now = next.get();
  }
  return Py_NewRef(now);
}

bool Numbers::holds_always(int32_t input, PyObject* number, DType dtype) {
  const auto& sources = recorder_.tensor_sources();
  if (static_cast<size_t>(input) >= sources.size() || sources[static_cast<size_t>(input)] == kNoSource) return false;
  NumberStep s;
  s.kind = NumberStep::Kind::kItem;
  s.a = sources[static_cast<size_t>(input)];
  s.dtype = dtype;
  for (const NumberStep& known : program.steps)
    if (known.kind == s.kind && known.a == s.a) return true;
  PyObject* now = add(std::move(s), Py_NewRef(number));
  return compare(now, number, Py_EQ) == 1;
}

Ref Numbers::rounded(PyObject* o) {
  const auto narrow = static_cast<float>(PyFloat_AsDouble(o));
  Ref value = Ref::steal(PyFloat_FromDouble(static_cast<double>(narrow)));
  if (!is(o)) return value;
  NumberStep s;
  s.kind = NumberStep::Kind::kRound;
  s.a = step_of(o);
  return Ref::borrow(add(std::move(s), value.release()));
}

int32_t Numbers::step_or_constant(PyObject* o) {
  if (const int32_t known = step_of(o); known >= 0) return known;
  if (!may_stand(o)) return -1;
  NumberStep s;
  s.object = shared(o);
  add(std::move(s), Py_NewRef(o));
  return static_cast<int32_t>(program.steps.size() - 1);
}

PyObject* Numbers::binary(PyObject* a, PyObject* b, int op) {
  const binaryfunc f = arithmetic(op);
  if (f == nullptr || !may_stand(a) || !may_stand(b)) return nullptr;
  Ref value = Ref::steal(f(a, b));
  if (!value || !may_stand(value.get())) {
    PyErr_Clear();  // what eager raises, it raises for these values
    return nullptr;
  }
  mixed_with_sizes(a, b);
  NumberStep s;
  s.kind = NumberStep::Kind::kBinary;
  const std::optional<sym::Expr> x = expr_of(a), y = expr_of(b);
  std::optional<FloatOfSize> real = PyFloat_CheckExact(value.get()) ? float_of(a, b, op) : std::nullopt;
  s.a = step_or_constant(a);
  s.b = step_or_constant(b);
  s.op = op;
  PyObject* made = add(std::move(s), value.release());
  if (x && y) is_size(made, computed(*x, *y, op));
  if (real) floats_.emplace(step_of(made), std::move(*real));
  return Py_NewRef(made);
}

bool Numbers::add_terms(PyObject* number, int64_t times, std::unordered_map<int32_t, int64_t>& terms,
                        int64_t& rest) const {
  const int32_t step = step_of(number);
  const auto part = [&](int32_t i, int64_t sign) {
    return add_terms(objects_[static_cast<size_t>(i)].get(), times * sign, terms, rest);
  };
  if (step < 0) {
    int overflow = 0;
    const long long n = PyLong_CheckExact(number) ? PyLong_AsLongLongAndOverflow(number, &overflow) : kLargestSize;
    if (overflow != 0 || std::abs(n) >= kLargestSize) return false;
    rest += times * n;
    return std::abs(rest) < kLargestSize;
  }
  const NumberStep& s = program.steps[static_cast<size_t>(step)];
  const int plain = s.op % kInPlace;
  if (s.kind == NumberStep::Kind::kBinary && PyLong_CheckExact(number) && (plain == 0 || plain == 10))
    return part(s.a, 1) && part(s.b, plain == 0 ? 1 : -1);
  if (s.kind == NumberStep::Kind::kUnary && kUnary[s.op] == PyNumber_Negative) return part(s.a, -1);
  terms[step] += times;
  return true;
}

std::optional<int64_t> Numbers::constant_difference(PyObject* a, PyObject* b) const {
  std::unordered_map<int32_t, int64_t> terms;
  int64_t rest = 0;
  if (!add_terms(a, 1, terms, rest) || !add_terms(b, -1, terms, rest)) return std::nullopt;
  const bool same = std::ranges::all_of(terms, [](const auto& term) { return term.second == 0; });
  return same ? std::optional(rest) : std::nullopt;
}

std::optional<Numbers::FloatOfSize> Numbers::float_of(PyObject* o) const {
  const int32_t step = step_of(o);
  if (step < 0) return std::nullopt;
  if (const auto known = floats_.find(step); known != floats_.end()) return known->second;
  if (const auto size = sizes_.find(step); size != sizes_.end())
    return FloatOfSize{size->second, [](double n) { return n; }};
  return std::nullopt;
}

// One of the operands is such a number, the other a plain one: as Python's floats, which the sizes below the limit of
// whole_of() are exactly.
std::optional<Numbers::FloatOfSize> Numbers::float_of(PyObject* a, PyObject* b, int op) const {
  using Arithmetic = double (*)(double, double);
  const auto arithmetic = [&]() -> Arithmetic {
    switch (op % kInPlace) {
      case 0:
        return [](double x, double y) { return x + y; };
      case 5:
        return [](double x, double y) { return x * y; };
      case 10:
        return [](double x, double y) { return x - y; };
      case 11:
        return [](double x, double y) { return x / y; };
      default:
        return nullptr;
    }
  }();
  std::optional<FloatOfSize> out = float_of(is(a) ? a : b);
  PyObject* other = is(a) ? b : a;
  if (!arithmetic || !out || is(other)) return std::nullopt;
  const double constant = PyFloat_AsDouble(other);
  if (PyErr_Occurred()) PyErr_Clear();
  if (!(std::fabs(constant) < 1e15)) return std::nullopt;
  out->value = is(a) ? sym::WholeFunction([=, f = out->value](double n) { return arithmetic(f(n), constant); })
                     : sym::WholeFunction([=, f = out->value](double n) { return arithmetic(constant, f(n)); });
  return out;
}

std::optional<sym::Expr> Numbers::whole(PyObject* function, PyObject* number) const {
  const std::optional<FloatOfSize> real = PyFloat_CheckExact(number) ? float_of(number) : std::nullopt;
  if (!real) return std::nullopt;
  const auto rounding = [&]() -> double (*)(double) {
    if (function == reinterpret_cast<PyObject*>(&PyLong_Type)) return std::trunc;
    if (!PyCFunction_Check(function)) return nullptr;
    const std::string_view name = reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_name;
    return name == "floor"   ? static_cast<double (*)(double)>(std::floor)
           : name == "ceil"  ? static_cast<double (*)(double)>(std::ceil)
           : name == "trunc" ? static_cast<double (*)(double)>(std::trunc)
           : name == "round" ? static_cast<double (*)(double)>(std::nearbyint)
                             : nullptr;
  }();
  if (!rounding) return std::nullopt;
  return sym::whole_of(session_->sizes(), real->size, [&](double n) { return rounding(real->value(n)); });
}

// Two by two, from the first.
PyObject* Numbers::fold(PyObject* function, PyObject* items) {
  const PyMethodDef* method = PyCFunction_Check(function) ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml
                                                          : reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  const auto named = [&](const char* name) { return std::strcmp(method->ml_name, name) == 0; };
  const bool sums = named("sum"), multiplies = named("prod") || named("numel");
  if (!sums && !multiplies && !named("max") && !named("min")) return nullptr;
  Ref all = sums || multiplies ? Ref::steal(PyLong_FromLong(sums ? 0 : 1)) : Ref();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    PyObject* two[] = {all.get(), PySequence_Fast_GET_ITEM(items, i)};
    if (!is_number(two[1])) return nullptr;
    if (all && !is(two[0]) && !is(two[1])) {
      all = Ref::steal(sums         ? PyNumber_Add(two[0], two[1])
                       : multiplies ? PyNumber_Multiply(two[0], two[1])
                                    : PyObject_Vectorcall(function, two, 2, nullptr));
    } else if (all) {
      all = Ref::steal(sums         ? binary(two[0], two[1], 0)
                       : multiplies ? binary(two[0], two[1], 5)
                                    : call(function, two, 2));
    } else {
      all = Ref::borrow(two[1]);
    }
    if (!all) PyErr_Clear();
    if (!all) return nullptr;
  }
  return all.release();
}

// Of sizes; nullopt: no expression says it.
std::optional<sym::Expr> Numbers::computed(sym::Expr a, sym::Expr b, int op) const {
  const auto is_positive = [&] {
    sym::Environment& sizes = session_->sizes();
    return sizes.now(b) > 0 && (sym::has_data_size(b) ? sizes.follows(sym::Relation::kLess, 0, b)
                                                      : sizes.holds(sym::Relation::kLess, 0, b));
  };
  const int plain = op % kInPlace;
  const bool divides = (plain == 2 || plain == 6) && is_positive();
  switch (plain) {
    case 0:
      return a + b;
    case 2:
      return divides ? std::optional(sym::quotient(a, b)) : std::nullopt;
    case 5:
      return a * b;
    case 6:
      return divides ? std::optional(sym::mod(a, b)) : std::nullopt;
    case 10:
      return a - b;
    default:
      return std::nullopt;
  }
}

PyObject* Numbers::unary(PyObject* a, unaryfunc f) {
  const auto* at = std::find(std::begin(kUnary), std::end(kUnary), f);
  if (at == std::end(kUnary) || !is_number(a)) return nullptr;
  Ref value = Ref::steal(f(a));
  if (!value || !is_number(value.get())) {
    PyErr_Clear();
    return nullptr;
  }
  NumberStep s;
  s.kind = NumberStep::Kind::kUnary;
  s.op = static_cast<int32_t>(at - std::begin(kUnary));
  s.a = step_of(a);
  const std::optional<sym::Expr> x = expr_of(a);
  PyObject* made = add(std::move(s), value.release());
  if (x && f != PyNumber_Invert) is_size(made, f == PyNumber_Negative ? -*x : *x);
  return Py_NewRef(made);
}

PyObject* Numbers::format(PyObject* a, int conversion, PyObject* spec) {
  if (!is(a) || (spec != nullptr && is(spec))) return nullptr;
  Ref value = Ref::steal(formatted(a, conversion, spec));
  if (!value || !may_stand(value.get())) {
    PyErr_Clear();
    return nullptr;
  }
  NumberStep s;
  s.kind = NumberStep::Kind::kFormat;
  s.op = conversion;
  s.a = step_of(a);
  if (spec != nullptr) s.object = shared(spec);
  return Py_NewRef(add(std::move(s), value.release()));
}

PyObject* Numbers::format_items(PyObject* a) {
  const bool size = Py_TYPE(a) == known_types().size, list = PyList_CheckExact(a);
  if (!size && !list && !PyTuple_CheckExact(a)) return nullptr;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(a);
  PyObject** const items = PySequence_Fast_ITEMS(a);
  if (std::none_of(items, items + count, [this](PyObject* o) { return is(o); })) return nullptr;
  std::vector<Ref> parts;
  const auto say = [&](const char* text) { parts.push_back(Ref::steal(PyUnicode_FromString(text))); };
  say(size ? "torch.Size([" : list ? "[" : "(");
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i > 0) say(", ");
    const bool plain = items[i] == Py_None || PyBool_Check(items[i]) || PyLong_CheckExact(items[i]) ||
                       PyFloat_CheckExact(items[i]) || PyUnicode_CheckExact(items[i]);
    if (!is(items[i]) && !plain) return nullptr;
    parts.push_back(Ref::steal(is(items[i]) ? format(items[i], 2, nullptr) : PyObject_Repr(items[i])));
    if (!parts.back()) return nullptr;
  }
  say(size ? "])" : list ? "]" : count == 1 ? ",)" : ")");
  std::vector<PyObject*> borrowed;
  for (const Ref& part : parts) borrowed.push_back(part.get());
  return join(borrowed.data(), static_cast<int>(borrowed.size()));
}

PyObject* Numbers::join(PyObject* const* parts, int count) {
  bool any = false;
  for (int i = 0; i < count; ++i) {
    any = any || is(parts[i]);
    if (!PyUnicode_CheckExact(parts[i])) return nullptr;
  }
  if (!any) return nullptr;
  Ref all = Ref::steal(PyUnicode_New(0, 0));
  for (int i = 0; i < count; ++i) {
    if (PyUnicode_GET_LENGTH(parts[i]) == 0) continue;
    if (PyUnicode_GET_LENGTH(all.get()) == 0)
      all = Ref::borrow(parts[i]);
    else
      all = Ref::steal(is(all.get()) || is(parts[i]) ? binary(all.get(), parts[i], 0)
                                                     : PyUnicode_Concat(all.get(), parts[i]));
    if (!all) throw Declined("a string could not be put together");
  }
  return all.release();
}

PyObject* Numbers::call(PyObject* function, PyObject* const* args, size_t nargs) {
  if (nargs == 1 && function == reinterpret_cast<PyObject*>(&PyBool_Type) && is(args[0])) {
    const int known = truth(args[0]);
    return known < 0 ? nullptr : PyBool_FromLong(known);
  }
  if (nargs == 0 && PyCFunction_Check(function) && PyCFunction_GET_SELF(function) != nullptr &&
      Py_TYPE(PyCFunction_GET_SELF(function)) == known_types().size)
    return fold(function, PyCFunction_GET_SELF(function));
  if (nargs == 1 && Py_TYPE(function) == &PyMethodDescr_Type && Py_TYPE(args[0]) == known_types().size)
    return fold(function, args[0]);
  if (nargs == 1 && PyCFunction_Check(function) && is_pure_function(function) &&
      (PyTuple_Check(args[0]) || PyList_CheckExact(args[0])))
    return fold(function, args[0]);
  for (size_t i = 0; i < nargs; ++i)
    if (!is_number(args[i])) return nullptr;
  const auto named = [&](const char* name) {
    return PyCFunction_Check(function) &&
           std::strcmp(reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_name, name) == 0;
  };
  if (nargs < 1 || !is_pure_function(function)) return nullptr;
  if (named("divmod")) {
    Ref a = Ref::steal(nargs == 2 ? binary(args[0], args[1], 2) : nullptr);
    Ref b = Ref::steal(a ? binary(args[0], args[1], 6) : nullptr);
    return b ? PyTuple_Pack(2, a.get(), b.get()) : nullptr;
  }
  if (nargs > 2) {  // the first of the largest, two by two
    if (!named("max") && !named("min")) return nullptr;
    Ref best = Ref::borrow(args[0]);
    for (size_t i = 1; best && i < nargs; ++i) {
      PyObject* two[] = {best.get(), args[i]};
      best = Ref::steal(is(two[0]) || is(two[1]) ? call(function, two, 2)
                                                 : PyObject_Vectorcall(function, two, 2, nullptr));
    }
    if (!best) PyErr_Clear();
    return best.release();
  }
  Ref value = Ref::steal(PyObject_Vectorcall(function, args, nargs, nullptr));
  if (!value || !may_stand(value.get())) {
    PyErr_Clear();
    return nullptr;
  }
  NumberStep s;
  s.kind = NumberStep::Kind::kCall;
  s.object = shared(function);
  s.a = step_or_constant(args[0]);
  const std::optional<sym::Expr> x = expr_of(args[0]), y = nargs == 2 ? expr_of(args[1]) : std::nullopt;
  s.b = nargs == 2 ? step_or_constant(args[1]) : -1;
  const bool to_float = nargs == 1 && function == reinterpret_cast<PyObject*>(&PyFloat_Type);
  std::optional<FloatOfSize> real = to_float ? float_of(args[0]) : std::nullopt;
  const bool is_whole = nargs == 1 && PyLong_CheckExact(value.get());
  const std::optional<sym::Expr> rounded_off = is_whole ? whole(function, args[0]) : std::nullopt;
  const bool keeps = function == reinterpret_cast<PyObject*>(&PyLong_Type) || named("floor") || named("ceil") ||
                     named("trunc") || named("round");
  PyObject* made = add(std::move(s), value.release());
  if (real) floats_.emplace(step_of(made), std::move(*real));
  if (is_whole && x && keeps) is_size(made, *x);
  if (rounded_off) is_size(made, *rounded_off);
  if (x && y && named("max")) is_size(made, sym::max(*x, *y));
  if (x && y && named("min")) is_size(made, sym::min(*x, *y));
  return Py_NewRef(made);
}

int Numbers::compare(PyObject* a, PyObject* b, int op) {
  const int wanted = std::exchange(expected, -1);
  if (!is_number(a) || !is_number(b)) return -1;
  Ref result = Ref::steal(PyObject_RichCompare(a, b, op));
  if (!result) PyErr_Clear();
  if (!result) return -1;
  const int now = result.get() == Py_True;
  mixed_with_sizes(a, b);
  if (const auto x = expr_of(a), y = expr_of(b); x && y && (is(a) || is(b))) {
    const auto [relation, exchanged] = relation_of(op);
    const sym::Expr left = exchanged ? *y : *x, right = exchanged ? *x : *y;
    if (!is_of_data(a) && !is_of_data(b)) return session_->sizes().holds(relation, left, right);
    if (const std::optional<bool> known = session_->sizes().known_of_data(relation, left, right)) return *known;
    if (wanted < 0 && !takes_the_usual_way) refuse_question(*x, *y, op);
    answered_usually = answered_usually || wanted < 0;
    if (wanted >= 0) return session_->sizes().expect(relation, left, right, wanted == 1);
    const std::optional<int64_t> a_now = sym::found_in_call(left), b_now = sym::found_in_call(right);
    return session_->sizes().expect(
        relation, left, right,
        a_now && b_now ? sym::satisfied(relation, *a_now, *b_now) : usual_truth(relation, left, right));
  }
  if (is_of_data(a) || is_of_data(b)) throw Declined("data-dependent: a comparison of a number that follows from data");
  NumberCheck c;
  c.a = step_or_constant(a);
  c.b = step_or_constant(b);
  c.op = op;
  c.expected = now != 0;
  program.checks.push_back(c);
  return now;
}

// `if boxes.numel() == 0`: there are elements.
bool Numbers::usual_truth(sym::Relation r, sym::Expr a, sym::Expr b) {
  if (r == sym::Relation::kLess && (a.is_const(0) || b.is_const(1))) return a.is_const(0);
  if (r == sym::Relation::kLessEqual && (a.is_const(1) || b.is_const(0))) return a.is_const(1);
  return sym::Environment::usual(r, a, b);
}

// The program goes one way or the other.
void Numbers::refuse_question(sym::Expr a, sym::Expr b, int op) {
  static constexpr const char* kSigns[] = {"<", "<=", "==", "!=", ">", ">="};
  throw Declined("data-dependent: whether " + a.str() + " " + kSigns[op] + " " + b.str() +
                 " follows from data (torch._check can say so)");
}

int Numbers::truth(PyObject* a) {
  Ref zero = Ref::steal(PyFloat_CheckExact(a) ? PyFloat_FromDouble(0) : PyLong_FromLong(0));
  return compare(a, zero.get(), Py_NE);
}

void Numbers::read_step(int32_t index) {
  if (read_[static_cast<size_t>(index)]) return;
  read_[static_cast<size_t>(index)] = 1;
  if (const auto size = sizes_.find(index); size != sizes_.end()) {
    const int64_t value = session_->sizes().specialize(size->second, sym::Fixing::kRead);
    // (Where nobody could compute it when its object was made, that shows another number.)
    PyObject* shown = objects_[static_cast<size_t>(index)].get();
    if (program.steps[static_cast<size_t>(index)].kind == NumberStep::Kind::kOfData &&
        !(PyLong_CheckExact(shown) && PyLong_AsLongLong(shown) == value))
      throw Declined("data-dependent: a number that follows from data is needed");
    return;
  }
  const NumberStep s = program.steps[static_cast<size_t>(index)];
  switch (s.kind) {
    case NumberStep::Kind::kOfData:
      read_[static_cast<size_t>(index)] = 0;
      throw Declined("data-dependent: a number that follows from data is needed");
    case NumberStep::Kind::kSource:
      if (PyObject* read = sources_[static_cast<size_t>(index)].get())
        recorder_.fact(FactKind::kEquals, s.a, read);
      else
        larger_was_read = true;
      break;
    case NumberStep::Kind::kItem:
      if (elements && recorder_.is_buffer(s.a)) {
        Ref now = Ref::steal(own_number(objects_[static_cast<size_t>(index)].get()));
        if (now && compare(objects_[static_cast<size_t>(index)].get(), now.get(), Py_EQ) == 1) break;
      }
      read_[static_cast<size_t>(index)] = 0;
      throw Declined("data-dependent: the value of a tensor (.item()) is needed");
    case NumberStep::Kind::kConstant:
      break;
    default:
      if (s.a >= 0) read_step(s.a);
      if (s.b >= 0) read_step(s.b);
  }
}

void Numbers::read(PyObject* o) {
  if (const int32_t step = step_of(o); step >= 0) read_step(step);
}

bool Numbers::holds(PyObject* o, int depth) const {
  if (is(o)) return true;
  if (depth > kMaxNumberDepth) return false;
  if (PyTuple_Check(o) || PyList_Check(o)) {  // a torch.Size is an atom, and holds sizes
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (holds(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return true;
  } else if (is_atom(o)) {
    return false;
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &value))
      if (holds(value, depth + 1) || holds(key, depth + 1)) return true;
  } else if (Py_TYPE(o) == &PySlice_Type) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return holds(s->start, depth + 1) || holds(s->stop, depth + 1) || holds(s->step, depth + 1);
  } else if (PyAnySet_Check(o)) {
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(o, &at, &item, &hash))
      if (holds(item, depth + 1)) return true;
  } else if (PyMethod_Check(o)) {
    return holds(PyMethod_GET_SELF(o), depth + 1);
  } else if (PyCFunction_Check(o)) {
    PyObject* self = PyCFunction_GET_SELF(o);
    return self != nullptr && !PyModule_Check(self) && holds(self, depth + 1);
  } else if (!PyType_Check(o) && !PyModule_Check(o) && !PyFunction_Check(o) && !is_tensor(o)) {
    // Iterators, partials and instances: whatever they refer to.
    if (PyObject** dict = _PyObject_GetDictPtr(o); dict != nullptr && *dict != nullptr && !recorder_.is_old(o))
      return holds(*dict, depth + 1);
    if (Py_TYPE(o)->tp_traverse != nullptr && !is_python_class(Py_TYPE(o)) && PyObject_IS_GC(o) && !PyGen_Check(o)) {
      struct Visit {
        const Numbers* numbers;
        int depth;
        bool found;
      } visit{this, depth, false};
      Py_TYPE(o)->tp_traverse(
          o,
          [](PyObject* part, void* arg) {
            auto* v = static_cast<Visit*>(arg);
            v->found = v->found || v->numbers->holds(part, v->depth + 1);
            return 0;
          },
          &visit);
      return visit.found;
    }
  }
  return false;
}

void Numbers::read_deep(PyObject* o, int depth) {
  if (!any() || !holds(o, depth)) return;
  if (is(o)) return read(o);
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) read_deep(PySequence_Fast_GET_ITEM(o, i), depth + 1);
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(o, &at, &key, &value)) {
      read_deep(key, depth + 1);
      read_deep(value, depth + 1);
    }
  } else if (Py_TYPE(o) == &PySlice_Type) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    for (PyObject* part : {s->start, s->stop, s->step}) read_deep(part, depth + 1);
  } else {  // somewhere inside: all that there are
    for (size_t i = 0; i < program.steps.size(); ++i) read_step(static_cast<int32_t>(i));
  }
}

PyObject* Numbers::symbols(PyObject* o, int depth) {
  if (const int32_t step = step_of(o); step >= 0) {
    if (!is_number(o)) {
      read_step(step);
      return Py_NewRef(o);
    }
    Ref& symbol = symbols_[static_cast<size_t>(step)];
    if (const auto size = sizes_.find(step); size != sizes_.end()) return session_->size_symbol(size->second);
    if (is_of_data(o)) return symbol_of_data(o);
    if (!symbol) {
      int32_t input = -1;
      symbol = Ref::steal(session_->add_number(o, "number " + std::to_string(step), input));
      inputs.emplace_back(input, step);
      program.inputs.push_back(step);
      by_value_.emplace(static_cast<ValueId>(session_->input_value(input)), step);
    }
    return Py_NewRef(symbol.get());
  }
  if (depth > 2 || !holds(o, depth)) return Py_NewRef(o);
  if (Py_TYPE(o) == &PySlice_Type && all_sizes(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    const Ref start = Ref::steal(symbols(s->start, depth + 1)), stop = Ref::steal(symbols(s->stop, depth + 1)),
              step = Ref::steal(symbols(s->step, depth + 1));
    return PySlice_New(start.get(), stop.get(), step.get());
  }
  const bool tuple = PyTuple_CheckExact(o) || std::strcmp(Py_TYPE(o)->tp_name, "torch.Size") == 0;
  if (tuple || PyList_CheckExact(o)) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    Ref copy = Ref::steal(tuple ? PyTuple_New(n) : PyList_New(n));
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = symbols(PySequence_Fast_GET_ITEM(o, i), depth + 1);
      if (tuple)
        PyTuple_SET_ITEM(copy.get(), i, item);
      else
        PyList_SET_ITEM(copy.get(), i, item);
    }
    return copy.release();
  }
  read_deep(o, depth);
  return Py_NewRef(o);
}

bool Numbers::read_value(ValueId value) {
  auto it = by_value_.find(value);
  if (it == by_value_.end()) return false;
  try {
    read_step(it->second);
  } catch (const Declined& d) {
    session_->decline(d.reason);
    return false;
  }
  return true;
}

}  // namespace flashover::frame

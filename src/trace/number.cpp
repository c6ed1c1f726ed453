// A Python type that torch takes for a symbolic number; each of its methods says what torch may know of it.
#include "trace/number.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include "base/boundary.h"
#include "base/check.h"
#include "graph/written.h"
#include "ops/names.h"
#include "torch/size_node.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

struct Node {
  PyObject_HEAD ValueId value;  // kNoValue: what was computed of numbers that were read
  PyObject* number;
};

PyTypeObject* node_type();
bool is_node(PyObject* o) { return Py_TYPE(o) == node_type(); }

PyObject* make_node(ValueId value, PyObject* number) {
  auto* node = PyObject_New(Node, node_type());
  if (!node) return nullptr;
  node->value = value;
  node->number = Py_NewRef(number);
  return reinterpret_cast<PyObject*>(node);
}

// Borrowed; null with a Python error set when the trace cannot go on.
PyObject* read(PyObject* self) {
  auto* node = reinterpret_cast<Node*>(self);
  if (node->value == kNoValue) return node->number;
  Session* session = current();
  const bool known = session && session->number_read && session->number_read(node->value);
  if (!known && session && !session->declined()) session->decline("the value of a number is needed");
  if (!known && !PyErr_Occurred()) PyErr_SetString(decline_class(), "the value of a number is needed");
  return known ? node->number : nullptr;
}

PyObject* guard_float(PyObject* self, PyObject*) {
  PyObject* n = read(self);
  return n ? PyFloat_FromDouble(PyFloat_AsDouble(n)) : nullptr;
}
PyObject* guard_int(PyObject* self, PyObject*) { return Py_XNewRef(read(self)); }
PyObject* guard_bool(PyObject* self, PyObject*) {
  PyObject* n = read(self);
  return n ? PyBool_FromLong(PyObject_IsTrue(n)) : nullptr;
}
PyObject* is_int(PyObject* self, PyObject*) {
  return PyBool_FromLong(PyLong_CheckExact(reinterpret_cast<Node*>(self)->number));
}
PyObject* is_bool(PyObject* self, PyObject*) {  // of what C++ compared
  return PyBool_FromLong(PyBool_Check(reinterpret_cast<Node*>(self)->number));
}
PyObject* is_float(PyObject* self, PyObject*) {
  return PyBool_FromLong(PyFloat_Check(reinterpret_cast<Node*>(self)->number));
}
PyObject* yes(PyObject*, PyObject*) { Py_RETURN_TRUE; }
PyObject* no(PyObject*, PyObject*) { Py_RETURN_FALSE; }
PyObject* none(PyObject*, PyObject*) { Py_RETURN_NONE; }
PyObject* itself(PyObject* self, PyObject*) { return Py_NewRef(self); }
PyObject* wrap(PyObject*, PyObject* number) { return make_node(kNoValue, number); }
PyObject* text(PyObject* self) {
  PyObject* n = read(self);
  return n ? PyObject_Repr(n) : nullptr;
}
PyObject* str(PyObject* self, PyObject*) { return text(self); }

// Arithmetic that C++ does with it: on its value.
PyObject* computed(PyObject* result) {
  if (!result) return nullptr;
  PyObject* node = make_node(kNoValue, result);
  Py_DECREF(result);
  return node;
}
template <binaryfunc f>
PyObject* binary(PyObject* self, PyObject* other) {
  PyObject* a = read(self);
  PyObject* b = !a ? nullptr : is_node(other) ? read(other) : other;
  return b ? computed(f(a, b)) : nullptr;
}
template <int op>
PyObject* compared(PyObject* a, PyObject* b) {
  return PyObject_RichCompare(a, b, op);
}
PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }
PyObject* negated(PyObject* self, PyObject*) {
  PyObject* a = read(self);
  return a ? computed(PyNumber_Negative(a)) : nullptr;
}
PyObject* inverted(PyObject* self, PyObject*) {  // of what was compared
  PyObject* a = read(self);
  return a ? computed(PyBool_FromLong(!PyObject_IsTrue(a))) : nullptr;
}
template <int op>
PyObject* extreme(PyObject* a, PyObject* b) {
  const int first = PyObject_RichCompareBool(a, b, op);
  return first < 0 ? nullptr : Py_NewRef(first ? a : b);
}
PyObject* as_float(PyObject* self, PyObject*) {
  PyObject* a = read(self);
  return a ? computed(PyNumber_Float(a)) : nullptr;
}

PyMethodDef kMethods[] = {
    {"guard_float", at_boundary<guard_float>, METH_VARARGS, nullptr},
    {"guard_int", at_boundary<guard_int>, METH_VARARGS, nullptr},
    {"guard_bool", at_boundary<guard_bool>, METH_VARARGS, nullptr},
    {"guard_or_false", at_boundary<guard_bool>, METH_VARARGS, nullptr},
    {"guard_or_true", at_boundary<guard_bool>, METH_VARARGS, nullptr},
    {"guard_size_oblivious", at_boundary<guard_bool>, METH_VARARGS, nullptr},
    {"statically_known_true", at_boundary<guard_bool>, METH_VARARGS, nullptr},
    {"expect_true", at_boundary<guard_bool>, METH_VARARGS, nullptr},
    {"int_", at_boundary<guard_int>, METH_NOARGS, nullptr},
    {"float_", at_boundary<guard_float>, METH_NOARGS, nullptr},
    {"bool_", at_boundary<guard_bool>, METH_NOARGS, nullptr},
    {"is_int", at_boundary<is_int>, METH_NOARGS, nullptr},
    {"is_float", at_boundary<is_float>, METH_NOARGS, nullptr},
    {"is_bool", at_boundary<is_bool>, METH_NOARGS, nullptr},
    {"is_nested_int", at_boundary<no>, METH_NOARGS, nullptr},
    {"is_constant", at_boundary<no>, METH_NOARGS, nullptr},
    {"is_symbolic", at_boundary<yes>, METH_NOARGS, nullptr},
    {"has_hint", at_boundary<yes>, METH_NOARGS, nullptr},
    {"nested_int", at_boundary<none>, METH_NOARGS, nullptr},
    {"nested_int_coeff", at_boundary<none>, METH_NOARGS, nullptr},
    {"maybe_as_int", at_boundary<none>, METH_NOARGS, nullptr},
    {"maybe_as_float", at_boundary<none>, METH_NOARGS, nullptr},
    {"constant_int", at_boundary<none>, METH_NOARGS, nullptr},
    {"constant_bool", at_boundary<none>, METH_NOARGS, nullptr},
    {"clone", at_boundary<itself>, METH_NOARGS, nullptr},
    {"wrap_int", at_boundary<wrap>, METH_O, nullptr},
    {"wrap_float", at_boundary<wrap>, METH_O, nullptr},
    {"wrap_bool", at_boundary<wrap>, METH_O, nullptr},
    {"str", at_boundary<str>, METH_NOARGS, nullptr},
    {"_graph_repr", at_boundary<str>, METH_NOARGS, nullptr},
    {"neg", at_boundary<negated>, METH_NOARGS, nullptr},
    {"sym_float", at_boundary<as_float>, METH_NOARGS, nullptr},
    {"sym_not", at_boundary<inverted>, METH_NOARGS, nullptr},
    {"sym_and", at_boundary<binary<PyNumber_And>>, METH_O, nullptr},
    {"sym_or", at_boundary<binary<PyNumber_Or>>, METH_O, nullptr},
    {"sym_min", at_boundary<binary<extreme<Py_LE>>>, METH_O, nullptr},
    {"sym_max", at_boundary<binary<extreme<Py_GE>>>, METH_O, nullptr},
    {"add", at_boundary<binary<PyNumber_Add>>, METH_O, nullptr},
    {"sub", at_boundary<binary<PyNumber_Subtract>>, METH_O, nullptr},
    {"mul", at_boundary<binary<PyNumber_Multiply>>, METH_O, nullptr},
    {"truediv", at_boundary<binary<PyNumber_TrueDivide>>, METH_O, nullptr},
    {"float_truediv", at_boundary<binary<PyNumber_TrueDivide>>, METH_O, nullptr},
    {"int_truediv", at_boundary<binary<PyNumber_TrueDivide>>, METH_O, nullptr},
    {"floordiv", at_boundary<binary<PyNumber_FloorDivide>>, METH_O, nullptr},
    {"int_floordiv", at_boundary<binary<PyNumber_FloorDivide>>, METH_O, nullptr},
    {"mod", at_boundary<binary<PyNumber_Remainder>>, METH_O, nullptr},
    {"pow", at_boundary<binary<power>>, METH_O, nullptr},
    {"float_pow", at_boundary<binary<power>>, METH_O, nullptr},
    {"pow_by_natural", at_boundary<binary<power>>, METH_O, nullptr},
    {"eq", at_boundary<binary<compared<Py_EQ>>>, METH_O, nullptr},
    {"ne", at_boundary<binary<compared<Py_NE>>>, METH_O, nullptr},
    {"lt", at_boundary<binary<compared<Py_LT>>>, METH_O, nullptr},
    {"le", at_boundary<binary<compared<Py_LE>>>, METH_O, nullptr},
    {"gt", at_boundary<binary<compared<Py_GT>>>, METH_O, nullptr},
    {"ge", at_boundary<binary<compared<Py_GE>>>, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject* node_type() {
  static PyTypeObject* type = [] {
    static PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "flashover._C.Number";
    t.tp_basicsize = sizeof(Node);
    t.tp_flags = Py_TPFLAGS_DEFAULT;
    t.tp_methods = kMethods;
    t.tp_str = at_boundary<text>;
    t.tp_dealloc = [](PyObject* o) noexcept {
      Py_XDECREF(reinterpret_cast<Node*>(o)->number);
      PyObject_Free(o);
    };
    FLASHOVER_CHECK(PyType_Ready(&t) == 0) << "the type of numbers";
    return &t;
  }();
  return type;
}

PyObject* torch_class(const char* name) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  return module ? PyDict_GetItemString(PyModule_GetDict(module), name) : nullptr;
}

PyObject* attribute_name() {
  static PyObject* const name = PyUnicode_InternFromString("_wrapped_number");
  return name;
}

// New reference to the node of a SymFloat / SymInt object.
PyObject* node_of(PyObject* symbol) {
  PyObject* node = PyObject_GetAttrString(symbol, "node");
  if (!node) PyErr_Clear();
  return node;
}

// Of a wrapped number that torch's parser made of a symbol; null if it is not.
PyObject* wrapped_symbol(const at::Tensor& t) {
  PyObject* object = t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  if (!object) return nullptr;
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict && *dict ? PyDict_GetItemWithError(*dict, attribute_name()) : nullptr;
}

}  // namespace

PyObject* make_symbol(ValueId value, PyObject* number) {
  PyObject* type = torch_class(PyFloat_Check(number) ? "SymFloat" : "SymInt");
  static PyObject* const empty = PyTuple_New(0);
  PyObject* node = make_node(value, number);
  PyObject* symbol = type && node ? reinterpret_cast<PyTypeObject*>(type)->tp_new(reinterpret_cast<PyTypeObject*>(type),
                                                                                  empty, nullptr)
                                  : nullptr;
  // (Not by its __init__, which is Python code: that would be the program's.)
  if (symbol && PyObject_SetAttrString(symbol, "node", node) < 0) Py_CLEAR(symbol);
  Py_XDECREF(node);
  if (!symbol) throw Declined("no symbol for a number");
  return symbol;
}

ValueId symbol_value(PyObject* symbol) {
  PyObject* node = node_of(symbol);
  const ValueId value = node && is_node(node) ? reinterpret_cast<Node*>(node)->value : kNoValue;
  Py_XDECREF(node);
  return value;
}

bool is_symbol(const c10::IValue& value) {
  if (value.isSymFloat()) return value.toSymFloat().is_symbolic();
  return value.isSymInt() && value.toSymInt().is_symbolic() && !aten::is_size(value);
}

ValueId symbol_value(const c10::IValue& scalar) {
  if (!is_symbol(scalar)) return kNoValue;
  const c10::SymNode node = scalar.isSymFloat() ? scalar.toSymFloat().toSymNodeImpl() : scalar.toSymInt().toSymNode();
  auto* python = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node.get());
  pybind11::gil_scoped_acquire gil;
  PyObject* inner = python ? python->getPyObj().ptr() : nullptr;
  return inner && is_node(inner) ? reinterpret_cast<Node*>(inner)->value : kNoValue;
}

ValueId symbol_value(const at::Tensor& wrapped) {
  pybind11::gil_scoped_acquire gil;
  PyObject* symbol = wrapped_symbol(wrapped);
  return symbol ? symbol_value(symbol) : kNoValue;
}

std::optional<sym::Expr> wrapped_size(const at::Tensor& wrapped) {
  pybind11::gil_scoped_acquire gil;
  PyObject* symbol = wrapped_symbol(wrapped);
  if (!symbol || !torch::is_symint(pybind11::handle(symbol))) return std::nullopt;
  return aten::expr_of(pybind11::cast<c10::SymInt>(pybind11::handle(symbol)));
}

c10::IValue read_symbol(const c10::IValue& value) {
  if (!is_symbol(value)) return value;
  return value.isSymFloat() ? c10::IValue(value.toSymFloat().guard_float(__FILE__, __LINE__))
                            : c10::IValue(value.toSymInt().guard_int(__FILE__, __LINE__));
}

at::Tensor read_symbol(const at::Tensor& wrapped) {
  pybind11::gil_scoped_acquire gil;
  PyObject* symbol = wrapped_symbol(wrapped);
  PyObject* node = symbol ? node_of(symbol) : nullptr;
  if (!node || !is_node(node)) {
    Py_XDECREF(node);
    return wrapped;
  }
  PyObject* number = read(node);
  Py_DECREF(node);
  if (!number) throw python_error();
  BelowEverything plain;
  at::Tensor out = PyFloat_Check(number) ? c10::scalar_to_tensor(PyFloat_AsDouble(number))
                                         : c10::scalar_to_tensor(static_cast<int64_t>(PyLong_AsLongLong(number)));
  out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

// ------------------------------------------------------------------------------------------------- in the recorder

PyObject* Recorder::add_number(PyObject* number, const std::string& name, int32_t& input) {
  TensorType type;
  type.dtype = PyFloat_Check(number) ? DType::kF64 : DType::kI64;
  type.wrapped_number = true;
  input = static_cast<int32_t>(graph_.inputs.size());
  const ValueId value = graph_.add_input(std::move(type), graph::InputKind::kUser, name, new_storage(make_storage(8)));
  ++numbers_;
  return make_symbol(value, number);
}

bool Recorder::any_symbols(const OpFacts& facts, const Stack& stack, size_t base) const {
  if (numbers_ == 0) return false;
  const auto in = [](const c10::IValue& v) {
    return is_symbol(v) || (v.isTensor() && v.toTensor().defined() && !trace_impl(v.toTensor()) &&
                            symbol_value(v.toTensor()) != kNoValue);
  };
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    const c10::IValue& v = stack[base + i];
    if (in(v)) return true;
    if (v.isList())
      for (const c10::IValue& e : v.toListRef())
        if (in(e)) return true;
  }
  return false;
}

// Numbers instead of symbols, in arguments [from, to): they keep their values from now on.
void Recorder::read_symbols(const OpFacts& facts, Stack& stack, size_t base, bool all) {
  const auto tensor = [](const at::Tensor& t) { return t.defined() && !trace_impl(t) ? read_symbol(t) : t; };
  for (size_t i = 0; i < facts.schema.args.size(); ++i) {
    c10::IValue& v = stack[base + i];
    const aten::ArgSpec& spec = facts.schema.args[i];
    if (is_symbol(v)) {
      if (all || spec.kind != aten::ArgKind::kScalar) v = read_symbol(v);
    } else if (v.isTensor() && all) {
      v = tensor(v.toTensor());
    } else if (v.isList() && spec.kind == aten::ArgKind::kIntList) {
      std::vector<int64_t> list;
      bool any = false;
      for (const c10::IValue& e : v.toListRef()) any |= is_symbol(e);
      if (!any) continue;
      for (const c10::IValue& e : v.toListRef()) list.push_back(read_symbol(e).toInt());
      v = list;
    } else if (v.isList()) {
      for (const c10::IValue& e : v.toListRef())
        if (is_symbol(e) || (e.isTensor() && e.toTensor().defined() && !trace_impl(e.toTensor()) &&
                             symbol_value(e.toTensor()) != kNoValue))
          throw Declined("a list with a number that changes in " + facts.schema.name);
    }
  }
}

bool Recorder::item_as_symbol(Stack& stack) {
  const at::Tensor self = stack.back().toTensor();
  if (!trace_impl(self)) return false;
  pybind11::gil_scoped_acquire gil;
  PyObject* object = THPVariable_Wrap(self);
  PyObject* symbol = item_symbol(object);
  Py_DECREF(object);
  if (!symbol) return false;
  if (const auto size = size_of_symbol(symbol)) {
    Py_DECREF(symbol);
    stack.pop_back();
    stack.emplace_back(aten::to_symint(sizes_, *size));
    return true;
  }
  PyObject* node = node_of(symbol);
  Py_DECREF(symbol);
  if (!node) return false;
  const bool floating = PyFloat_Check(reinterpret_cast<Node*>(node)->number);
  c10::SymNode wrapped =
      c10::make_intrusive<torch::impl::PythonSymNodeImpl>(pybind11::reinterpret_steal<pybind11::object>(node));
  stack.pop_back();
  stack.push_back(floating ? c10::IValue(c10::SymFloat(std::move(wrapped)))
                           : c10::IValue(c10::SymInt(std::move(wrapped))));
  return true;
}

// A number is converted as in eager whatever its value is where the result is floating, or floating tensors are
// compared; elsewhere the value decides (overflow, truncation).
bool Recorder::numbers_fit(const OpFacts& facts, const std::vector<Arg>& args,
                           const std::vector<TensorType>& outs) const {
  const auto every = [&](auto&& test) {
    return std::all_of(outs.begin(), outs.end(),
                       [&](const TensorType& t) { return t.dtype == DType::kUndefined || test(t.dtype); });
  };
  if (every([](DType d) { return is_floating(d); })) return true;
  // Wide integers hold what such whole numbers may be (frame::evaluate); eager refuses a NaN, for one.
  const auto wide = [](DType d) { return d == DType::kI64 || d == DType::kI32; };
  const std::string& name = facts.schema.name;
  const bool integers_too =
      op::is_any_of(name, {op::full, op::add_Tensor, op::sub_Tensor, op::rsub_Tensor, op::mul_Tensor, op::fill_Scalar,
                           op::add__Tensor, op::sub__Tensor, op::mul__Tensor, op::fill__Scalar, op::eq_Tensor,
                           op::ne_Tensor, op::lt_Tensor, op::le_Tensor, op::gt_Tensor, op::ge_Tensor});
  const auto all_wide = [&] {  // tensors and numbers
    bool yes = true;
    for (const Arg& a : args) graph::for_each_ref(a, [&](ValueId v) { yes = yes && wide(graph_.type(v).dtype); });
    return yes;
  };
  if (integers_too && every([&](DType d) { return wide(d) || d == DType::kBool; }) && all_wide() &&
      (!op::is_any_of(name, {op::full}) || every(wide)))
    return true;
  if (!every([](DType d) { return is_floating(d) || d == DType::kBool; })) return false;
  return std::all_of(operands_.begin(), operands_.end(), [&](const Operand& o) {
    const TensorType& t = graph_.type(o.value);
    return t.wrapped_number || is_floating(t.dtype);
  });
}

// What an input of rank 0 on the CPU has become by `name`_(number) operators: the number that the program would read.
std::optional<HostValue> Recorder::host_value(PyObject* tensor) const {
  if (!THPVariable_Check(tensor)) return std::nullopt;
  const TraceImpl* impl = trace_impl(THPVariable_Unpack(tensor));
  if (!impl || impl->liveness.get() != liveness_.get()) return std::nullopt;
  HostValue out;
  const TensorType& type = graph_.type(impl->value);
  if (type.rank() != 0 || type.device.type != DeviceType::kCPU ||
      (type.dtype != DType::kF32 && type.dtype != DType::kF64 && type.dtype != DType::kI64))
    return std::nullopt;
  out.dtype = type.dtype;
  ValueId at = impl->value;
  size_t in_place = 0;
  const auto constant = [&](const Arg& a) -> std::optional<double> {
    if (auto* d = std::get_if<double>(&a)) return *d;
    if (auto* e = std::get_if<sym::Expr>(&a))
      return e->is_const() ? std::optional<double>(static_cast<double>(e->value())) : std::nullopt;
    const auto* r = std::get_if<Ref>(&a);
    if (!r || r->id == kNoValue) return std::nullopt;
    for (const graph::Node& n : graph_.nodes)
      if (n.op->prim == Prim::full && n.outs[0] == r->id) {
        if (auto* d = std::get_if<double>(&n.args[1])) return *d;
        if (auto* e = std::get_if<sym::Expr>(&n.args[1]); e && e->is_const()) return static_cast<double>(e->value());
      }
    return std::nullopt;
  };
  for (size_t i = graph_.nodes.size(); i-- > 0;) {
    const graph::Node& n = graph_.nodes[i];
    if (n.outs.size() != 1 || n.outs[0] != at) continue;
    static const std::unordered_map<std::string_view, std::pair<char, bool>> kOps = {
        {op::add_Tensor, {'+', false}}, {op::add__Tensor, {'+', true}}, {op::add_Scalar, {'+', false}},
        {op::add__Scalar, {'+', true}}, {op::sub_Tensor, {'-', false}}, {op::sub__Tensor, {'-', true}},
        {op::mul_Tensor, {'*', false}}, {op::mul__Tensor, {'*', true}}, {op::div_Tensor, {'/', false}},
        {op::div__Tensor, {'/', true}}, {op::neg, {'n', false}},        {op::neg_, {'n', true}}};
    const auto op = kOps.find(n.op->name);
    const auto* self = op == kOps.end() ? nullptr : std::get_if<Ref>(&n.args[0]);
    if (!self || graph_.type(self->id).dtype != type.dtype || graph_.type(self->id).rank() != 0) return std::nullopt;
    HostValue::Step step{op->second.first};
    if (step.op != 'n') {
      const auto number = constant(n.args[1]);
      const auto* other = std::get_if<Ref>(&n.args[1]);
      if (!number) {
        bool known = false;
        for (const graph::Input& in : graph_.inputs)
          known |= other && in.value == other->id && graph_.type(in.value).wrapped_number;
        if (!known || type.dtype == DType::kI64) return std::nullopt;
        step.value = other->id;
      }
      step.number = number.value_or(0);
      if (type.dtype == DType::kI64 && step.number != static_cast<double>(static_cast<int64_t>(step.number)))
        return std::nullopt;
      if ((step.op == '+' || step.op == '-') && n.args.size() > 2 && !is_none(n.args[2])) {
        const auto alpha = constant(n.args[2]);
        if (!alpha || *alpha != 1) return std::nullopt;
      }
    }
    in_place += op->second.second;
    out.steps.insert(out.steps.begin(), step);
    at = self->id;
  }
  for (size_t i = 0; i < graph_.inputs.size(); ++i)
    if (graph_.inputs[i].value == at && graph_.inputs[i].kind != graph::InputKind::kConstant)
      out.input = static_cast<int32_t>(i);
  if (out.input < 0) return std::nullopt;
  // Nothing else writes that memory, in whichever way.
  const int32_t storage = graph_.values[at].storage;
  size_t writes = 0;
  for (const graph::Node& n : graph_.nodes)
    graph::for_each_written(n, [&](ValueId v) { writes += graph_.values[v].storage == storage; });
  if (writes != in_place && !(in_place == 0 && writes == 0)) return std::nullopt;
  for (const InputRecord& in : inputs_)
    if (in.number == out.input) {
      if (!in.impl->real.is_contiguous() || in.impl->real.is_conj() || in.impl->real.is_neg()) return std::nullopt;
      BelowEverything plain;
      InternalScope internal;
      PyObject* now = out.dtype == DType::kF32
                          ? PyFloat_FromDouble(*static_cast<const float*>(in.impl->real.const_data_ptr()))
                      : out.dtype == DType::kF64
                          ? PyFloat_FromDouble(*static_cast<const double*>(in.impl->real.const_data_ptr()))
                          : PyLong_FromLongLong(*static_cast<const int64_t*>(in.impl->real.const_data_ptr()));
      out.now = std::shared_ptr<PyObject>(now, [](PyObject* o) { Py_XDECREF(o); });
      return out;
    }
  return std::nullopt;
}

PyObject* only_number(const at::Tensor& t) {
  if (!t.is_cpu() || t.numel() != 1 || t.is_conj() || t.is_neg()) return nullptr;
  const void* data = t.const_data_ptr();
  switch (t.scalar_type()) {
    case at::kFloat:
      return PyFloat_FromDouble(static_cast<double>(*static_cast<const float*>(data)));
    case at::kDouble:
      return PyFloat_FromDouble(*static_cast<const double*>(data));
    case at::kLong:
      return PyLong_FromLongLong(*static_cast<const int64_t*>(data));
    case at::kBool:
      return PyLong_FromLong(*static_cast<const bool*>(data));
    default:
      return nullptr;
  }
}

}  // namespace flashover::trace

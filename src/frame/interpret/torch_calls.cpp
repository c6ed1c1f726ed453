// The record of torch's calls: what counts as one is torch.compile's own table (torch._dynamo.trace_rules).
#include "frame/interpret/torch_calls.h"

#include <cstring>

#include "compat/opcodes.h"
#include "frame/interpret/calls.h"
#include "frame/interpret/native.h"
#include "frame/marks.h"
#include "frame/own_calls.h"
#include "frame/size_expression.h"

namespace flashover::frame {
namespace {

bool grad_is_enabled() {
  PyObject* ask = of_module("torch._C", "is_grad_enabled");
  Ref enabled = Ref::steal(ask != nullptr ? PyObject_CallNoArgs(ask) : nullptr);
  PyErr_Clear();
  return enabled.get() == Py_True;
}

bool starts_with_torch(PyObject* module) {
  const char* name = module != nullptr && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  return name != nullptr && (std::strcmp(name, "torch") == 0 || std::strncmp(name, "torch.", 6) == 0);
}

bool is_tensor_class(PyTypeObject* t) {
  const KnownTypes& k = known_types();
  return k.tensor != nullptr && PyType_IsSubtype(t, k.tensor);
}

bool is_recurrent(PyObject* f) {
  const char* name = reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
  for (const char* known : {"lstm", "gru", "rnn_tanh", "rnn_relu"})
    if (std::strcmp(name, known) == 0) return true;
  return false;
}

}  // namespace

// The program may change lists and dicts that it handed over.
Ref TorchCalls::snapshot(PyObject* o, bool with_numbers, int depth) {
  const Numbers& numbers = in_.recorder.numbers;
  if (with_numbers && (numbers.is(o) || in_.session->size_of_symbol(o))) {
    Ref said = number(o);
    if (!said) spoil();
    PyErr_Clear();
    return said ? std::move(said) : Ref::borrow(o);
  }
  if (depth > 16) return Ref::borrow(o);
  const bool size = Py_TYPE(o) == known_types().size;
  if (PyList_CheckExact(o) || PyTuple_CheckExact(o) || size) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    Ref made = Ref::steal(PyList_CheckExact(o) ? PyList_New(n) : PyTuple_New(n));
    for (Py_ssize_t i = 0; made && i < n; ++i) {
      PyObject* item = snapshot(PySequence_Fast_GET_ITEM(o, i), with_numbers, depth + 1).release();
      if (PyList_CheckExact(o))
        PyList_SET_ITEM(made.get(), i, item);
      else
        PyTuple_SET_ITEM(made.get(), i, item);
    }
    return made;
  }
  if (PyDict_CheckExact(o)) {
    Ref made = Ref::steal(PyDict_New());
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (made && PyDict_Next(o, &at, &key, &value)) {
      if (with_numbers && numbers.is(key)) spoil();
      PyDict_SetItem(made.get(), key, snapshot(value, with_numbers, depth + 1).get());
    }
    return made;
  }
  if (Py_TYPE(o) == &PySlice_Type && with_numbers && numbers.any()) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    const Ref start = snapshot(s->start, true, depth + 1), stop = snapshot(s->stop, true, depth + 1),
              step = snapshot(s->step, true, depth + 1);
    return Ref::steal(PySlice_New(start.get(), stop.get(), step.get()));
  }
  return Ref::borrow(o);
}

// Null: no graph says it.
Ref TorchCalls::number(PyObject* o) {
  Numbers& numbers = in_.recorder.numbers;
  const OwnCalls own(&in_.uninterpreted);
  if (!module_) module_ = Ref::steal(PyImport_ImportModule("flashover._torch_graph"));
  if (!module_) return {};
  const auto size = [&](PyObject* symbol) {
    const std::optional<sym::Expr> e = in_.session->size_of_symbol(symbol);
    const Ref expression = Ref::steal(e ? size_expression(*e) : nullptr);
    return Ref::steal(expression ? PyObject_CallMethod(module_.get(), "Size", "(O)", expression.get()) : nullptr);
  };
  if (!numbers.is(o)) return size(o);
  if (!PyLong_CheckExact(o) && !PyFloat_CheckExact(o)) return {};  // strings with such numbers
  if (numbers.is_of_data(o)) return number_of_data(o);
  numbers.as_sizes(o);
  const bool is_size = numbers.all_sizes(o);
  if (!is_size && numbers.was_read(o)) return Ref::borrow(o);
  const Ref symbol = Ref::steal(numbers.symbols(o));
  if (is_size) return size(symbol.get());
  const int32_t step = numbers.step_of(o);
  const NumberStep& s = numbers.program.steps[static_cast<size_t>(step)];
  const std::string name = s.kind == NumberStep::Kind::kSource ? in_.recorder.name_of(s.a) : "";
  for (const auto& [input, its] : numbers.inputs)
    if (its == step)
      return Ref::steal(PyObject_CallMethod(module_.get(), "Number", "iOs", input, Py_TYPE(o), name.c_str()));
  return {};
}

// As what it is computed of, where it is no size.
Ref TorchCalls::number_of_data(PyObject* o) {
  const Numbers& numbers = in_.recorder.numbers;
  if (told_numbers_.contains(o)) return Ref::borrow(o);
  if (numbers.all_sizes(o)) {
    const Ref symbol = Ref::steal(in_.recorder.numbers.symbols(o));
    const std::optional<sym::Expr> e = in_.session->size_of_symbol(symbol.get());
    const Ref expression = Ref::steal(e ? size_expression(*e) : nullptr);
    return Ref::steal(expression ? PyObject_CallMethod(module_.get(), "Size", "(O)", expression.get()) : nullptr);
  }
  const NumberStep* computed = numbers.computed_of_data(numbers.step_of(o));
  if (computed == nullptr) return {};
  const char* name = nullptr;
  if (computed->kind == NumberStep::Kind::kBinary) {
    static constexpr std::pair<int, const char*> kNames[] = {{NB_ADD, "add"},      {NB_FLOOR_DIVIDE, "floordiv"},
                                                             {NB_MULTIPLY, "mul"}, {NB_REMAINDER, "mod"},
                                                             {NB_SUBTRACT, "sub"}, {NB_TRUE_DIVIDE, "truediv"}};
    for (const auto& [op, its] : kNames)
      if (computed->op % NB_INPLACE_ADD == op) name = its;
  } else if (computed->kind == NumberStep::Kind::kUnary && computed->op == 0) {
    name = "neg";
  }
  if (name == nullptr) return {};
  Ref operands = Ref::steal(PyList_New(0));
  for (int32_t of : {computed->a, computed->b}) {
    if (of < 0) continue;
    PyObject* number = numbers.object_of(of);
    const Ref operand = numbers.is(number) ? this->number(number) : Ref::borrow(number);
    if (!operand || PyList_Append(operands.get(), operand.get()) != 0) return {};
  }
  return Ref::steal(PyObject_CallMethod(module_.get(), "Computed", "OO", operator_named(name), operands.get()));
}

// found: (symbol or "", tensor or number, dimension or -1).
void TorchCalls::note_data(PyObject* o, PyObject* found, PyObject* copies, int depth) {
  const auto add = [&](const std::string& symbol, PyObject* of, int64_t dim) {
    const Ref row = Ref::steal(Py_BuildValue("(sOL)", symbol.c_str(), of, static_cast<long long>(dim)));
    if (!row || PyList_Append(found, row.get()) != 0) spoil();
  };
  const auto symbol_of = [&](PyObject* size) -> std::string {
    const std::optional<sym::Expr> e = in_.session->size_of_symbol(size);
    const bool is_new = e && e->kind() == sym::Kind::kVar && sym::has_data_size(*e) && told_sizes_.insert(*e).second;
    return is_new ? e->str() : "";
  };
  Numbers& numbers = in_.recorder.numbers;
  if (is_tensor(o)) {
    const Ref shape = Ref::steal(in_.session->is_trace_tensor(o) ? PyObject_GetAttrString(o, "shape") : nullptr);
    for (Py_ssize_t d = 0; shape && d < PyTuple_GET_SIZE(shape.get()); ++d)
      if (const std::string symbol = symbol_of(PyTuple_GET_ITEM(shape.get(), d)); !symbol.empty()) add(symbol, o, d);
  } else if (numbers.is_of_data(o)) {
    const bool size = numbers.all_sizes(o);
    const Ref symbol = Ref::steal(size ? numbers.symbols(o) : nullptr);
    add(size ? symbol_of(symbol.get()) : "", o, -1);
    told_numbers_.insert(o);
    note_number_of_data(numbers.step_of(o), copies);
  } else if ((PyList_CheckExact(o) || PyTuple_Check(o)) && depth < 8) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      note_data(PySequence_Fast_GET_ITEM(o, i), found, copies, depth + 1);
  }
  PyErr_Clear();
}

// The copies that the number is read from where it is handed out.
void TorchCalls::note_number_of_data(int32_t step, PyObject* copies) {
  const Numbers& numbers = in_.recorder.numbers;
  if (const Numbers::InTensor* in = numbers.in_tensor(step)) {
    if (PySequence_Contains(copies, in->tensor.get()) == 0 && PyList_Append(copies, in->tensor.get()) != 0) spoil();
  } else if (const NumberStep* computed = numbers.computed_of_data(step)) {
    for (int32_t of : {computed->a, computed->b})
      if (of >= 0) note_number_of_data(of, copies);
  }
}

// What was taken for granted in the call before, or of what it gave.
void TorchCalls::flush_checks() {
  for (const sym::SizeGuard& c : std::exchange(checks_, {})) {
    static constexpr std::pair<sym::Relation, const char*> kNames[] = {{sym::Relation::kEqual, "eq"},
                                                                       {sym::Relation::kNotEqual, "ne"},
                                                                       {sym::Relation::kLess, "lt"},
                                                                       {sym::Relation::kLessEqual, "le"}};
    const char* name = nullptr;
    for (const auto& [relation, its] : kNames)
      if (c.relation == relation) name = its;
    const Ref a = Ref::steal(size_expression(c.a)), b = Ref::steal(size_expression(c.b));
    const Ref row = Ref::steal(
        name != nullptr && a && b ? Py_BuildValue("(OOO)", operator_named(name), a.get(), b.get()) : nullptr);
    if (!row || PyList_Append(calls_.get(), row.get()) != 0) spoil();
  }
  PyErr_Clear();
}

TorchCalls::~TorchCalls() {
  if (assume_) in_.session->sizes().assume = assume_;
}

TorchCalls::TorchCalls(Interpreter& in)
    : in_(in),
      ops_before_(in.session->stats().ops),
      grad_before_(grad_is_enabled()),
      calls_(Ref::steal(PyList_New(0))),
      inputs_(Ref::steal(PyList_New(0))),
      assume_(in.session->sizes().assume) {
  if (assume_)
    in.session->sizes().assume = [this](const sym::SizeGuard& fact, std::string words) {
      checks_.push_back(fact);
      assume_(fact, std::move(words));
    };
}

void TorchCalls::input(PyObject* tensor, size_t index, const std::string& path) {
  Ref row = Ref::steal(Py_BuildValue("(Ons)", tensor, static_cast<Py_ssize_t>(index), path.c_str()));
  if (!row || PyList_Append(inputs_.get(), row.get()) != 0) spoil();
  PyErr_Clear();
}

bool TorchCalls::takes(PyObject* f, PyObject* const* args, size_t nargs) {
  if (depth_ > 0 || spoilt_ || in_.uninterpreted > 0) return false;
  if (f == reinterpret_cast<PyObject*>(&PyFloat_Type) || f == reinterpret_cast<PyObject*>(&PyLong_Type))
    return nargs == 1 && is_tensor(args[0]) && in_.session->data_sizes;
  if (PyCFunction_Check(f)) {
    PyObject* self = PyCFunction_GET_SELF(f);
    if (self != nullptr && is_tensor(self)) return true;
    const Native* n = native_function(f);
    if (n == nullptr || !(n->flags & Native::kTensors)) return false;
    if (is_recurrent(f) && !asks_module("recurrent_networks_are_handed_out"))
      throw Declined("a recurrent network for a backend that is not Flashover's (torch._dynamo.config.allow_rnn)");
    return true;
  }
  if (Py_TYPE(f) == &PyMethodDescr_Type || Py_TYPE(f) == &PyWrapperDescr_Type)
    return is_tensor_class(PyDescr_TYPE(reinterpret_cast<PyDescrObject*>(f)));
  const char* type = Py_TYPE(f)->tp_name;
  if (std::strcmp(type, "OpOverload") == 0 || std::strcmp(type, "OpOverloadPacket") == 0) return true;
  if (!PyFunction_Check(f)) return false;
  if (mark_of(f) == Mark::kAllow) return true;
  auto* function = reinterpret_cast<PyFunctionObject*>(f);
  if (!starts_with_torch(function->func_module)) return false;
  if (nargs > 0 && is_tensor(args[0]) && PyUnicode_CompareWithASCIIString(function->func_module, "torch._tensor") == 0)
    return true;
  auto [known, first] = in_graph_.try_emplace(f, false);
  if (first) known->second = asks_module("is_node", f);
  return known->second;
}

// A question that _torch_graph.py answers.
bool TorchCalls::asks_module(const char* function, PyObject* of) {
  const OwnCalls own(&in_.uninterpreted);
  Ref module = Ref::steal(PyImport_ImportModule("flashover._torch_graph"));
  Ref answer = Ref::steal(!module         ? nullptr
                          : of != nullptr ? PyObject_CallMethod(module.get(), function, "(O)", of)
                                          : PyObject_CallMethod(module.get(), function, nullptr));
  PyErr_Clear();
  return answer.get() == Py_True;
}

TorchCalls::Call TorchCalls::begin(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  Call call{Ref::borrow(f), Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(nargs))), Ref::steal(PyDict_New()),
            grad_is_enabled(), in_.session->stats().ops};
  for (size_t i = 0; i < nargs; ++i)
    PyTuple_SET_ITEM(call.args.get(), static_cast<Py_ssize_t>(i), snapshot(args[i], true).release());
  for (size_t i = 0; i < keyword_count(kwnames); ++i)
    PyDict_SetItem(call.kwargs.get(), PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i)),
                   snapshot(args[nargs + i], true).get());
  return call;
}

void TorchCalls::end(Call& call, PyObject* result) {
  const int64_t ran = in_.session->stats().ops - call.ops;
  covered_ += ran;
  if (ran == 0 && !holds_tensor(result)) return;
  Ref found = Ref::steal(PyList_New(0)), copies = Ref::steal(PyList_New(0));
  if (in_.session->sizes().data_sizes() > 0 || in_.recorder.numbers.any_of_data())
    note_data(result, found.get(), copies.get());
  if (state_.changed("is_grad_enabled") != nullptr || !in_.context.torch.dual_levels.empty()) return spoil();
  Ref place = Ref::steal(PyUnicode_FromString(in_.stack().c_str()));
  Ref what = snapshot(result, false);
  Ref row = place ? Ref::steal(PyTuple_Pack(9, call.function.get(), call.args.get(), call.kwargs.get(), what.get(),
                                            call.grad ? Py_True : Py_False, ran != 0 ? Py_True : Py_False, place.get(),
                                            found.get(), copies.get()))
                  : Ref();
  if (!row || PyList_Append(calls_.get(), row.get()) != 0) spoil();
  PyErr_Clear();
  flush_checks();
}

PyObject* TorchCalls::operator_named(const char* name) {
  Ref& kept = names_[name];
  if (!kept) {
    Ref module = Ref::steal(PyImport_ImportModule("operator"));
    kept = Ref::steal(module ? PyObject_GetAttrString(module.get(), name) : nullptr);
    PyErr_Clear();
  }
  return kept.get();
}

bool TorchCalls::says_all() const {
  return !spoilt_ && in_.session->stats().ops - ops_before_ == covered_ && in_.retry_path().empty() &&
         in_.narrowed_inputs.empty();
}

Ref TorchCalls::graph_of(const std::vector<PyObject*>& outputs) {
  if (!says_all()) return {};
  Ref list = Ref::steal(PyList_New(0));
  for (sym::Expr s : in_.session->sizes().relied_on()) checks_.push_back({sym::Relation::kLessEqual, sym::Expr(0), s});
  flush_checks();
  for (PyObject* o : outputs) {
    const std::optional<sym::Expr> size = in_.recorder.numbers.size_handed_out(o);
    const Ref expression = Ref::steal(size ? size_expression(*size) : nullptr);
    if (expression && !module_) module_ = Ref::steal(PyImport_ImportModule("flashover._torch_graph"));
    const Ref said = expression && module_
                         ? Ref::steal(PyObject_CallMethod(module_.get(), "Size", "(O)", expression.get()))
                         : Ref::borrow(o);
    if (!said || PyList_Append(list.get(), said.get()) != 0) return {};
  }
  const sym::Environment& sizes = in_.session->sizes();
  Ref canonical = Ref::steal(PyDict_New());
  for (size_t k = 0; canonical && k < sizes.count(); ++k) {
    const sym::Expr symbol = sym::size_symbol(static_cast<int>(k));
    const Ref e = Ref::steal(size_expression(sizes.canonical(symbol)));
    if (!e || PyDict_SetItemString(canonical.get(), symbol.str().c_str(), e.get()) != 0) return {};
  }
  Ref module = Ref::steal(PyImport_ImportModule("flashover._torch_graph"));
  Ref made = module ? Ref::steal(PyObject_CallMethod(module.get(), "torch_graph", "OOOOO", calls_.get(), inputs_.get(),
                                                     list.get(), grad_before_ ? Py_True : Py_False, canonical.get()))
                    : Ref();
  PyErr_Clear();
  return made.get() == Py_None ? Ref() : std::move(made);
}

}  // namespace flashover::frame

// Decides for each kind of object how it can be made again, or that it cannot.
#include "frame/reconstruction.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "frame/interpret/instructions.h"
#include "frame/interpret/locks.h"
#include "frame/resume.h"
#include "guards/objects.h"

namespace flashover::frame {
namespace {

constexpr int kMaxResultDepth = 100;

bool is_namedtuple(PyObject* o) {
  return PyTuple_Check(o) && !PyTuple_CheckExact(o) &&
         PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "_fields");
}
bool is_c_descriptor(PyObject* o) {  // found on a builtin type, which does not change
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyMethodDescr_Type || t == &PyWrapperDescr_Type || t == &PyGetSetDescr_Type ||
         t == &PyMemberDescr_Type || t == &PyClassMethodDescr_Type;
}
// Immutable, and made of nothing that a trace could have made.
bool is_constant_kind(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (is_python_class(t)) return false;
  for (const char* name : {"types.UnionType", "typing.Union", "re.Match", "re.Pattern"})
    if (std::strcmp(t->tp_name, name) == 0) return true;
  if (std::strncmp(t->tp_name, "numpy.", 6) == 0)  // a number of numpy's
    for (PyTypeObject* b = t->tp_base; b != nullptr; b = b->tp_base)
      if (std::strcmp(b->tp_name, "numpy.generic") == 0)
        return std::strcmp(t->tp_name, "numpy.void") != 0 && std::strcmp(t->tp_name, "numpy.object_") != 0;
  return false;
}

bool are_of_typing(const SourceTracker& recorder, PyObject* args, int depth);

// What module typing makes of types, and `list[int]`: immutable, so that one object serves all calls. Not of classes or
// type variables that the trace made.
bool is_of_typing(const SourceTracker& recorder, PyObject* o, int depth = 0) {
  static PyObject *const module_name = PyUnicode_InternFromString("__module__"),
                         *const args_name = PyUnicode_InternFromString("__args__"),
                         *const parameters_name = PyUnicode_InternFromString("__parameters__");
  if (depth < 8 && Py_TYPE(o) == &Py_GenericAliasType) {
    const Ref args = Ref::steal(PyObject_GetAttr(o, args_name)),
              parameters = Ref::steal(PyObject_GetAttr(o, parameters_name));
    PyErr_Clear();
    return args && parameters && PyTuple_Check(parameters.get()) && PyTuple_GET_SIZE(parameters.get()) == 0 &&
           are_of_typing(recorder, args.get(), depth);
  }
  PyObject* module = depth < 8 ? _PyType_Lookup(Py_TYPE(o), module_name) : nullptr;
  if (module == nullptr || !PyUnicode_Check(module) || PyUnicode_CompareWithASCIIString(module, "typing") != 0)
    return false;
  const char* kind = Py_TYPE(o)->tp_name;
  if (std::strcmp(kind, "_SpecialForm") == 0 || std::strcmp(kind, "_SpecialGenericAlias") == 0) return true;
  if (std::strcmp(kind, "_GenericAlias") != 0 && std::strcmp(kind, "_UnionGenericAlias") != 0) return false;
  PyObject** dict = _PyObject_GetDictPtr(o);
  PyObject* args = dict != nullptr && *dict != nullptr ? PyDict_GetItem(*dict, args_name) : nullptr;
  PyObject* parameters = dict != nullptr && *dict != nullptr ? PyDict_GetItem(*dict, parameters_name) : nullptr;
  if (args == nullptr || !PyTuple_CheckExact(args) || parameters == nullptr || !PyTuple_CheckExact(parameters) ||
      PyTuple_GET_SIZE(parameters) > 0)
    return false;
  return are_of_typing(recorder, args, depth);
}

bool are_of_typing(const SourceTracker& recorder, PyObject* args, int depth) {
  if (!PyTuple_CheckExact(args)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, i);
    const bool type = PyType_Check(arg) && !recorder.is_fresh_type(arg);
    if (!type && !is_atom(arg) && !is_of_typing(recorder, arg, depth + 1)) return false;
  }
  return true;
}

// What `base`, an immutable builtin, holds of an instance of a subclass; null for other bases. (Of a weak reference:
// what it refers to, if that lives.)
Ref immutable_value(PyObject* o, PyTypeObject* base) {
  if (base == &PyTuple_Type) return Ref::steal(PyTuple_GetSlice(o, 0, PyTuple_GET_SIZE(o)));
  if (base == &PyLong_Type) return Ref::steal(_PyLong_Copy(reinterpret_cast<PyLongObject*>(o)));
  if (base == &PyFloat_Type) return Ref::steal(PyFloat_FromDouble(PyFloat_AS_DOUBLE(o)));
  if (base == &PyUnicode_Type) return Ref::steal(PyUnicode_FromObject(o));
  if (base == &_PyWeakref_RefType && PyWeakref_GET_OBJECT(o) != Py_None) return Ref::borrow(PyWeakref_GET_OBJECT(o));
  if (base == &PyBytes_Type) return Ref::steal(PyBytes_FromStringAndSize(PyBytes_AS_STRING(o), PyBytes_GET_SIZE(o)));
  return {};
}

// itertools' objects complain from 3.12 on that they will not be copied one day.
class QuietReduce {
 public:
  explicit QuietReduce(PyObject* o)
      : entered_(compat::kItertoolsWarn && std::strncmp(Py_TYPE(o)->tp_name, "itertools.", 10) == 0) {
    if (entered_) quiet_reduce(true);
  }
  ~QuietReduce() {
    if (entered_) quiet_reduce(false);
  }
  QuietReduce(const QuietReduce&) = delete;

 private:
  const bool entered_;
};

// The set that iterators find later has its items in the order that they have now: it is the same one, or it is made
// of them in this order and then has it again.
bool stays_in_order(Interpreter& in, PyObject* set) {
  const auto writes = [set](const Journal::Entry& e) { return e.target.get() == set; };
  if (in.recorder.is_old(set)) return std::none_of(in.journal.entries().begin(), in.journal.entries().end(), writes);
  Py_ssize_t at = 0, again = 0;
  PyObject *item, *other;
  Py_hash_t hash;
  Ref copy = Ref::steal(PySet_New(nullptr));
  while (copy && _PySet_NextEntry(set, &at, &item, &hash))
    if (!is_atom(item) || PySet_Add(copy.get(), item) < 0) return false;
  at = 0;
  while (_PySet_NextEntry(set, &at, &item, &hash))
    if (!copy || !_PySet_NextEntry(copy.get(), &again, &other, &hash) || other != item) return false;
  return true;
}

bool is_structseq(PyObject* o) {
  return PyTuple_Check(o) && PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "n_sequence_fields");
}

}  // namespace

int32_t Reconstructor::require(SourceId id) {
  auto [it, added] = required_.try_emplace(id, static_cast<int32_t>(capture_.required.size()));
  if (added) {
    // Inputs come first and were entered by capture(); anything else is appended.
    for (size_t i = 0; i < capture_.required.size(); ++i) {
      if (capture_.required[i] == id) {
        it->second = static_cast<int32_t>(i);
        return it->second;
      }
    }
    capture_.required.push_back(id);
  }
  return it->second;
}

int32_t Reconstructor::step(ReconstructionStep::Kind kind, PyObject* object, std::vector<int32_t> items,
                            int32_t index) {
  ReconstructionStep s;
  s.kind = kind;
  s.index = index;
  s.object = Py_XNewRef(object);
  s.items = std::move(items);
  capture_.reconstruction.push_back(std::move(s));
  return static_cast<int32_t>(capture_.reconstruction.size() - 1);
}

std::vector<int32_t> Reconstructor::pairs(PyObject* dict) {
  std::vector<int32_t> items;
  Ref list = ordered_items(dict);
  if (!list) throw Declined("out of memory");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i) {
    PyObject* pair = PyList_GET_ITEM(list.get(), i);
    items.push_back(make(PyTuple_GET_ITEM(pair, 0)));
    items.push_back(make(PyTuple_GET_ITEM(pair, 1)));
  }
  return items;
}

int32_t Reconstructor::instance(ReconstructionStep::Kind kind, PyObject* type, std::vector<int32_t> items) {
  const bool loose = in_.recorder.is_loose(type);
  const int32_t of = loose ? make(type) : -1;
  const int32_t made = step(kind, loose ? nullptr : type, std::move(items));
  capture_.reconstruction[static_cast<size_t>(made)].type = of;
  return made;
}

// What the program keeps in a tensor's attributes.
void Reconstructor::fill_dict_of(PyObject* tensor, int32_t made) {
  PyObject** dict = _PyObject_GetDictPtr(tensor);
  if (dict == nullptr || *dict == nullptr || PyDict_GET_SIZE(*dict) == 0) return;
  auto attributes = pairs(*dict);
  attributes.insert(attributes.begin(), made);
  step(ReconstructionStep::Kind::kFillDict, nullptr, std::move(attributes));
  capture_.calls = true;
}

// A parameter that the call made: one over memory that the graph hands out.
int32_t Reconstructor::make_parameter(PyObject* o) {
  const Ref asks = tensor_attribute(o, "requires_grad"), leaf = tensor_attribute(o, "is_leaf"),
            grad = tensor_attribute(o, "grad");
  if (leaf.get() != Py_True || grad.get() != Py_None) throw Declined("a tensor of a subclass in the result: Parameter");
  made_parameters_ = true;
  made_leaf_ = made_leaf_ || asks.get() == Py_True;
  kept_.push_back(Ref::steal(PyObject_CallMethod(o, "detach", nullptr)));
  if (!kept_.back()) throw Declined("a parameter that the call made has no memory");
  const int32_t memory = make(kept_.back().get());
  const int32_t made = step(ReconstructionStep::Kind::kReduced, of_module("flashover._subclasses", "as_parameter"),
                            {memory, make(asks.get())}, 2);
  capture_.calls = true;
  registers_[o] = made;
  fill_dict_of(o, made);
  return made;
}

int32_t Reconstructor::make(PyObject* o) {
  using Kind = ReconstructionStep::Kind;
  o = behind_python_function(o);
  auto it = registers_.find(o);
  if (it != registers_.end()) {
    if (it->second < 0) throw Declined("a result that contains itself");
    return it->second;
  }
  if (in_.recorder.numbers.is_of_data(o)) return registers_[o] = make_number_of_data(in_.recorder.numbers.step_of(o));
  if (const int32_t number = in_.recorder.numbers.step_of(o); number >= 0)
    return registers_[o] = step(Kind::kNumber, nullptr, {}, number);
  if (Py_TYPE(o) == known_types().size && in_.recorder.numbers.holds(o)) {
    kept_.push_back(Ref::steal(PySequence_List(o)));
    return registers_[o] = step(Kind::kReduced, reinterpret_cast<PyObject*>(Py_TYPE(o)), {make(kept_.back().get())}, 1);
  }
  if (is_atom(o)) return registers_[o] = step(Kind::kConstant, o);
  SourceId id = in_.recorder.source_of(o);
  if (id != kNoSource) {
    const guards::Source& s = in_.recorder.source(id);
    // (A module is not kept for what was compiled for it.)
    if (s.kind == SourceKind::kConstantObject || (is_pinned_kind(o) && in_.recorder.pinned(id) && !is_module(o)))
      return registers_[o] = step(Kind::kConstant, o);
    return registers_[o] = step(Kind::kSource, nullptr, {}, require(id));
  }
  if (is_made_array(o)) {
    if (PyObject* origin = origin_of_array(o)) return registers_[o] = make(origin);
    const Ref parts = hand_out_array(o);
    kept_.push_back(parts);
    if (!parts) {
      PyErr_Clear();
      throw Declined(in_.session->declined() ? in_.session->decline_reason() : "an array of numpy in the result");
    }
    return make_of_parts(o, parts.get());
  }
  if (is_tensor(o) && is_wrapper_type(Py_TYPE(o))) return make_wrapper(o);
  if (is_tensor(o)) {
    if (in_.session == nullptr || !in_.session->is_trace_tensor(o))
      throw Declined("a tensor in the result that the trace did not make");
    if (Py_TYPE(o) == known_types().parameter) return make_parameter(o);
    const bool plain = std::strcmp(Py_TYPE(o)->tp_name, "Tensor") == 0;
    if (!plain && !is_class_over_memory(Py_TYPE(o)))
      throw Declined(std::string("a tensor of a subclass in the result: ") + Py_TYPE(o)->tp_name);
    const Ref asks = tensor_attribute(o, "requires_grad");
    const Ref leaf = asks.get() == Py_True ? tensor_attribute(o, "is_leaf") : Ref();
    if (leaf.get() == Py_True) throw Declined("a leaf that requires grad was made");
    if (tensor_attribute(o, "is_inference").get() == Py_True)
      capture_.inference_outputs.push_back(static_cast<int32_t>(outputs_.size()));
    PyErr_Clear();
    outputs_.push_back(o);
    int32_t made = step(Kind::kGraphOutput, nullptr, {}, static_cast<int32_t>(outputs_.size() - 1));
    if (!plain) {
      const int32_t type = make(reinterpret_cast<PyObject*>(Py_TYPE(o)));
      made = step(Kind::kReduced, of_module("flashover._subclasses", "as_class"), {type, made}, 2);
      capture_.calls = true;
    }
    registers_[o] = made;
    fill_dict_of(o, made);
    if (asks.get() == Py_False) {
      static PyObject* const grad = PyUnicode_InternFromString("grad");
      kept_.push_back(tensor_attribute(o, "grad"));
      if (!kept_.back()) throw Declined("the gradient of a tensor cannot be read");
      if (PyObject* value = kept_.back().get(); value != Py_None) {
        const int32_t name = make(grad);
        capture_.effects.push_back({Effect::Kind::kSetAttr, {made, name, make(value)}});
      }
    }
    return made;
  }
  if (PyCFunction_Check(o)) {
    auto* c = reinterpret_cast<PyCFunctionObject*>(o);
    PyObject* self = c->m_self;
    if (self != nullptr && !PyModule_Check(self) && !PyType_Check(self)) {  // a method bound during the trace
      Ref name = Ref::steal(PyUnicode_InternFromString(c->m_ml->ml_name));
      PyObject* d = _PyType_Lookup(Py_TYPE(self), name.get());
      if (d == nullptr || Py_TYPE(d) != &PyMethodDescr_Type ||
          reinterpret_cast<PyMethodDescrObject*>(d)->d_method != c->m_ml) {
        if (!in_.recorder.is_old(self) && !PyCapsule_CheckExact(self))
          throw Declined("a method of a C object that cannot be made again");
        return registers_[o] = step(Kind::kConstant, o);
      }
      const int32_t owner = make(self);
      return registers_[o] = step(Kind::kBuiltinMethod, d, {owner});
    }
  }
  if (is_pinned_kind(o) && !PyFunction_Check(o) && !in_.recorder.is_fresh_type(o) &&
      (PyType_Check(o) || PyModule_Check(o) || PyCFunction_Check(o) || PyCode_Check(o) || is_c_descriptor(o) ||
       (known_types().enum_type != nullptr && PyObject_TypeCheck(o, known_types().enum_type))))
    return registers_[o] = step(Kind::kConstant, o);
  if (++depth_ > kMaxResultDepth) throw Declined("a result nested too deeply");
  registers_[o] = -1;
  int32_t r = make_object(o);
  --depth_;
  registers_[o] = r;
  if (depth_ == 0) fill_cells();
  return r;
}

int32_t Reconstructor::make_number_of_data(int32_t number) {
  if (const auto known = numbers_of_data_.find(number); known != numbers_of_data_.end()) return known->second;
  Numbers& numbers = in_.recorder.numbers;
  const auto add = [&](NumberOfData n, std::vector<int32_t> items) {
    capture_.numbers_of_data.push_back(std::move(n));
    return step(ReconstructionStep::Kind::kNumberOfData, nullptr, std::move(items),
                static_cast<int32_t>(capture_.numbers_of_data.size() - 1));
  };
  using Kind = NumberOfData::Kind;
  const auto made = [&]() -> int32_t {
    if (const Numbers::InTensor* in = numbers.in_tensor(number)) {
      if (in->at < 0) return add({Kind::kItem}, {make(in->tensor.get())});
      const auto [list, first] = lists_of_data_.try_emplace(in->tensor.get(), -1);
      if (first) list->second = add({Kind::kList}, {make(in->tensor.get())});
      return add({Kind::kElement, in->at}, {list->second});
    }
    const NumberStep* computed = numbers.computed_of_data(number);
    if (computed == nullptr) {
      kept_.push_back(numbers.size_in_tensor(number));
      if (!kept_.back()) throw Declined("data-dependent: a number that follows from data is handed out");
      return add({Kind::kItem}, {make(kept_.back().get())});
    }
    may_raise_ = may_raise_ || numbers.may_raise_of_data(number);
    std::vector<int32_t> operands;
    for (int32_t of : {computed->a, computed->b}) {
      if (of < 0) continue;
      const NumberStep& s = numbers.program.steps[static_cast<size_t>(of)];
      operands.push_back(s.kind == NumberStep::Kind::kOfData ? make_number_of_data(of)
                         : s.kind == NumberStep::Kind::kConstant
                             ? step(ReconstructionStep::Kind::kConstant, s.object.get())
                             : step(ReconstructionStep::Kind::kNumber, nullptr, {}, of));
    }
    return add({Kind::kComputed, 0, *computed}, std::move(operands));
  }();
  return numbers_of_data_[number] = made;
}

void Reconstructor::numbers_of_data() {
  const std::vector<int32_t> steps = in_.recorder.numbers.must_be_computed();
  for (int32_t step : steps) make_number_of_data(step);
}

void Reconstructor::fill_cells() {
  while (!cells_.empty()) {
    auto [cell, contents] = cells_.back();
    cells_.pop_back();
    ++depth_;
    int32_t value = make(contents);
    --depth_;
    step(ReconstructionStep::Kind::kFillItems, nullptr, {cell, value});
  }
}

int32_t Reconstructor::make_iterator(PyObject* o) {
  using Kind = ReconstructionStep::Kind;
  PyTypeObject* t = Py_TYPE(o);
  if (t == &PyDictIterKey_Type || t == &PyDictIterValue_Type || t == &PyDictIterItem_Type) {
    PyObject* dict = reinterpret_cast<DictIteratorLayout*>(o)->dict;
    if (dict == nullptr || in_.recorder.has_writes(dict)) throw Declined("an iterator of a dict that changed");
    Ref left = Ref::steal(PyObject_CallMethod(o, "__length_hint__", nullptr));
    if (!left) throw Declined("an iterator of a dict that changed");
    const Py_ssize_t n = PyLong_AsSsize_t(left.get()), size = PyDict_GET_SIZE(dict);
    if (n == 0 && reinterpret_cast<DictIteratorLayout*>(o)->used != size)
      throw Declined("an iterator of a dict that changed");
    return step(Kind::kDictIterator, reinterpret_cast<PyObject*>(t), {make(dict)}, static_cast<int32_t>(size - n));
  }
  if (t == &PySetIter_Type) {
    const auto* it = reinterpret_cast<SetIteratorLayout*>(o);
    if (it->set != nullptr && it->used == PySet_GET_SIZE(it->set) && stays_in_order(in_, it->set))
      return step(Kind::kDictIterator, reinterpret_cast<PyObject*>(t), {make(it->set)},
                  static_cast<int32_t>(it->used - it->left));
  }
  if (PyDictKeys_Check(o) || PyDictValues_Check(o) || PyDictItems_Check(o))
    return step(Kind::kDictIterator, reinterpret_cast<PyObject*>(t), {make(*guards::proxied_slot(o))}, -1);
  // Their __reduce__ tells the whole of them.
  static const std::unordered_set<std::string_view> kKnown = {"list_iterator",
                                                              "list_reverseiterator",
                                                              "tuple_iterator",
                                                              "range_iterator",
                                                              "longrange_iterator",
                                                              "str_iterator",
                                                              "str_ascii_iterator",
                                                              "bytes_iterator",
                                                              "set_iterator",
                                                              "enumerate",
                                                              "zip",
                                                              "map",
                                                              "filter",
                                                              "reversed",
                                                              "functools.partial",
                                                              "operator.itemgetter",
                                                              "operator.attrgetter",
                                                              "operator.methodcaller",
                                                              "itertools.count",
                                                              "itertools.cycle",
                                                              "itertools.repeat",
                                                              "itertools.chain",
                                                              "itertools.islice",
                                                              "itertools.product",
                                                              "itertools.permutations",
                                                              "itertools.combinations",
                                                              "itertools.combinations_with_replacement",
                                                              "itertools.accumulate",
                                                              "itertools.zip_longest",
                                                              "itertools.starmap",
                                                              "itertools.takewhile",
                                                              "itertools.dropwhile",
                                                              "itertools.filterfalse",
                                                              "itertools.compress",
                                                              "itertools.groupby",
                                                              "iterator",
                                                              "callable_iterator"};
  if (is_python_class(t) || kKnown.count(t->tp_name) == 0) return -1;
  const QuietReduce quiet(o);
  Ref parts = Ref::steal(PyObject_CallMethod(o, "__reduce__", nullptr));
  if (!parts || !PyTuple_Check(parts.get()) || PyTuple_GET_SIZE(parts.get()) < 2)
    throw Declined("an iterator that cannot be copied");
  PyObject *f = PyTuple_GET_ITEM(parts.get(), 0), *args = PyTuple_GET_ITEM(parts.get(), 1);
  std::vector<int32_t> items;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, i);
    // A subclass could make of iter() what it likes.
    if ((PyList_Check(arg) || PyTuple_Check(arg)) && Py_TYPE(arg)->tp_iter != PyList_Type.tp_iter &&
        Py_TYPE(arg)->tp_iter != PyTuple_Type.tp_iter)
      throw Declined("an iterator over a list with an __iter__ of its own");
    if (Py_REFCNT(arg) == 1)
      kept_.push_back(Ref::borrow(arg));  // made by __reduce__: its address must not be used again
    items.push_back(make(arg));
  }
  const auto count = static_cast<int32_t>(items.size());
  if (PyTuple_GET_SIZE(parts.get()) > 2 && PyTuple_GET_ITEM(parts.get(), 2) != Py_None)
    items.push_back(make(PyTuple_GET_ITEM(parts.get(), 2)));
  kept_.push_back(std::move(parts));
  const bool of_list = items.size() == 2 && count == 1 && PyList_Check(PyTuple_GET_ITEM(args, 0));
  const int32_t state = of_list ? items.back() : -1;  // (zip() and product() of nothing have no items)
  const int32_t made = step(Kind::kReduced, f, std::move(items), count);
  if (of_list) list_iterators_.push_back({made, state, PyTuple_GET_ITEM(args, 0)});
  return made;
}

namespace {

// May the local be read from `next` on before something is stored to it?
bool is_live(const DecodedCode& code, PyCodeObject* co, int next, int local) {
  if (local == 0 && co->co_nfreevars > 0) return true;  // super() looks for it in the frame
  std::vector<char> seen(code.instructions.size());
  std::vector<int> todo{next};
  while (!todo.empty()) {
    int pc = todo.back();
    todo.pop_back();
    while (pc >= 0 && pc < static_cast<int>(seen.size()) && !seen[static_cast<size_t>(pc)]) {
      seen[static_cast<size_t>(pc)] = 1;
      const BytecodeInstruction& in = code.instructions[static_cast<size_t>(pc)];
      for (const Handler& h : code.handlers)
        if (h.start <= pc && pc < h.end) todo.push_back(h.target);
      const LocalUse use = local_use(in, local);
      if (use == LocalUse::kReads) return true;
      if (use == LocalUse::kWrites) break;
      const Flow flow = flow_of(in, pc);
      if (flow.target >= 0) todo.push_back(flow.target);
      if (!flow.falls_through) break;
      pc += 1 + in.skip;
    }
  }
  return false;
}

}  // namespace

int32_t Reconstructor::make_generator(PyObject* o) {
  auto* g = reinterpret_cast<PyGenObject*>(o);
  _PyInterpreterFrame* frame = compat::frame_of(g);
  if (!compat::is_suspended(g) && g->gi_frame_state != FRAME_CREATED)
    throw Declined("a generator that is running or has ended");
  if (g->gi_exc_state.exc_value != nullptr && g->gi_exc_state.exc_value != Py_None)
    throw Declined("a generator in an exception handler");
  PyCodeObject* co = code_of(frame);
  const DecodedCode* code = decode(co);
  const int next = next_unit(frame);
  if (code == nullptr) throw Declined("out of memory");
  std::vector<int32_t> items{make(function_of(frame)), make(reinterpret_cast<PyObject*>(co))};
  const bool all = reads_its_locals(co);
  for (int i = 0; i < compat::depth_of(frame); ++i) {
    if (compat::is_instruction(frame->localsplus[i])) throw Declined("a generator in an exception handler");
    PyObject* slot = compat::local_of(frame, i);
    const bool dead = slot != nullptr && i < co->co_nlocals && !all && !PyCell_Check(slot) && !is_atom(slot) &&
                      !in_.recorder.is_old(slot) && !is_live(*code, co, next, i);
    items.push_back(slot == nullptr || dead ? -1 : make(slot));
  }
  return step(ReconstructionStep::Kind::kGenerator, g->gi_frame_state == FRAME_CREATED ? nullptr : Py_True,
              std::move(items), next);
}

void Reconstructor::frames(const Snapshot& snapshot) {
  for (size_t f = 0; f < snapshot.frames.size(); ++f) {
    const Snapshot::Frame& frame = snapshot.frames[f];
    auto* co = reinterpret_cast<PyCodeObject*>(frame.code.get());
    const DecodedCode* code = decode(co);
    if (code == nullptr || code->coroutine || (code->generator && f > 0))
      throw Declined("a frame that cannot be resumed");
    const bool all = reads_its_locals(co);
    FramePoint point;
    point.next = frame.next;
    point.function = make(frame.function.get());
    point.code = make(frame.code.get());
    for (size_t i = 0; i < frame.slots.size(); ++i) {
      PyObject* o = frame.slots[i].get();
      const bool local = i < static_cast<size_t>(co->co_nlocals);
      if (o == nullptr) {
        point.slots.push_back(-1);
      } else if (f == 0 && in_.untouched(i)) {
        PyObject* name = i < static_cast<size_t>(co->co_nlocalsplus)
                             ? PyTuple_GET_ITEM(co->co_localsplusnames, static_cast<Py_ssize_t>(i))
                             : nullptr;
        point.slots.push_back(step(ReconstructionStep::Kind::kSource, nullptr, {},
                                   require(in_.recorder.pass_through(static_cast<int64_t>(i), name, o))));
      } else if (local && !all && !PyCell_Check(o) && !is_atom(o) && !in_.recorder.is_old(o) &&
                 !is_live(*code, co, frame.next, static_cast<int>(i))) {
        point.slots.push_back(-1);
      } else {
        point.slots.push_back(make(o));
      }
    }
    capture_.frames.push_back(std::move(point));
  }
  enter_ranges();
  for (const TorchModes::InferenceMode& m : in_.context.torch.inference_modes)
    if (m.entered) step(ReconstructionStep::Kind::kEnter, nullptr, {make(m.guard.get())});
  capture_.calls = true;
}

// Left out of the trace, but what follows leaves them.
void Reconstructor::enter_ranges() {
  for (const Ref& range : in_.context.ranges.entered) {
    step(ReconstructionStep::Kind::kEnter, nullptr, {make(range.get())});
    capture_.calls = true;
  }
}

std::vector<int32_t> Reconstructor::elements(PyObject* sequence) {
  std::vector<int32_t> items;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)
    items.push_back(make(PySequence_Fast_GET_ITEM(sequence, i)));
  return items;
}

// A builtin container or slice; -1: something else.
int32_t Reconstructor::make_container(PyObject* o) {
  using Kind = ReconstructionStep::Kind;
  PyTypeObject* t = Py_TYPE(o);
  auto* type = reinterpret_cast<PyObject*>(t);
  if (t == &PyTuple_Type) return step(Kind::kTuple, nullptr, elements(o));
  if (t == &PyList_Type) return step(Kind::kList, nullptr, elements(o));
  if (t == &PyDict_Type) return step(Kind::kDict, nullptr, pairs(o));
  if (t == &PyODict_Type) {
    const int32_t made = step(Kind::kDict, type, pairs(o));
    registers_[o] = made;
    fill_attributes(o, made, t);
    return made;
  }
  if (t == &PySet_Type || t == &PyFrozenSet_Type) {
    std::vector<int32_t> items;
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(o, &at, &item, &hash)) items.push_back(make(item));
    return step(t == &PySet_Type ? Kind::kSet : Kind::kFrozenSet, nullptr, std::move(items));
  }
  if (t == &PySlice_Type) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return step(Kind::kSlice, nullptr, {make(s->start), make(s->stop), make(s->step)});
  }
  return -1;
}

// A method of an array of numpy that the trace made: the array's own.
int32_t Reconstructor::make_array_method(PyObject* o) {
  static PyObject* const getattr = PyDict_GetItemString(PyEval_GetBuiltins(), "getattr");
  Ref name = Ref::steal(PyObject_GetAttrString(PyMethod_GET_FUNCTION(o), "__name__"));
  kept_.push_back(name);
  if (!name || !PyUnicode_Check(name.get())) throw Declined("a method of an array of numpy");
  return step(ReconstructionStep::Kind::kReduced, getattr, {make(PyMethod_GET_SELF(o)), make(name.get())}, 2);
}

int32_t Reconstructor::make_of_parts(PyObject* o, PyObject* parts) {
  std::vector<int32_t> given;
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(parts); ++i) given.push_back(make(PyTuple_GET_ITEM(parts, i)));
  capture_.calls = true;
  const auto count = static_cast<int32_t>(given.size());
  return registers_[o] = step(ReconstructionStep::Kind::kReduced, PyTuple_GET_ITEM(parts, 0), std::move(given), count);
}

// Its frames are over: lines and code are what there is left to see.
int32_t Reconstructor::make_traceback(PyObject* o) {
  auto* tb = reinterpret_cast<PyTracebackObject*>(o);
  PyFrameObject* frame = tb->tb_frame;
  if (tb->tb_next != nullptr && is_code_of_ours(code_of(frame->f_frame)))
    return make(reinterpret_cast<PyObject*>(tb->tb_next));
  Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  Ref globals = Ref::borrow(frame->f_frame->f_globals);
  Ref line = Ref::steal(PyLong_FromLong(
      tb->tb_lineno >= 0 ? tb->tb_lineno
                         : PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(code.get()), tb->tb_lasti)));
  kept_.push_back(line);
  const int32_t next = tb->tb_next != nullptr ? make(reinterpret_cast<PyObject*>(tb->tb_next)) : -1;
  return step(ReconstructionStep::Kind::kTraceback, code.get(),
              {step(ReconstructionStep::Kind::kConstant, globals.get()), make(line.get()), next}, tb->tb_lasti);
}

int32_t Reconstructor::make_function(PyObject* o) {
  using Kind = ReconstructionStep::Kind;
  auto* f = reinterpret_cast<PyFunctionObject*>(o);
  std::vector<int32_t> items;
  for (PyObject* part : {f->func_code, f->func_globals, f->func_name, f->func_qualname, f->func_defaults,
                         f->func_kwdefaults, f->func_closure, f->func_annotations, f->func_doc, f->func_module}) {
    for (const Ref& own : in_.context.own_globals)
      if (part == f->func_globals && own.get() == part)
        throw Declined("a function of code that was compiled during the call in the result");
    if (part == f->func_globals || part == f->func_code)
      items.push_back(step(Kind::kConstant, part));
    else
      items.push_back(part == nullptr ? make(Py_None) : make(part));
  }
  if (compat::kAnnotatesLater) {
    PyObject* annotate = *compat::annotate_slot(f);
    items.push_back(make(annotate != nullptr ? annotate : Py_None));
  }
  const int32_t made = step(Kind::kFunction, nullptr, std::move(items));
  if (f->func_dict != nullptr && PyDict_GET_SIZE(f->func_dict) > 0) {
    registers_[o] = made;
    auto attributes = pairs(f->func_dict);
    attributes.insert(attributes.begin(), made);
    step(Kind::kFillDict, nullptr, std::move(attributes));
  }
  return made;
}

int32_t Reconstructor::make_object(PyObject* o) {
  using Kind = ReconstructionStep::Kind;
  PyTypeObject* t = Py_TYPE(o);
  auto* type = reinterpret_cast<PyObject*>(t);
  for (const InputHook& h : in_.input_hooks)
    if (h.is_of(o)) return make_hook(h);
  for (const TorchModes::InferenceMode& m : in_.context.torch.inference_modes)
    if (m.guard.get() == o) return step(Kind::kReduced, type, {make(m.on ? Py_True : Py_False)}, 1);
  if (int32_t container = make_container(o); container >= 0) return container;
  if (t == &PyMethod_Type && is_made_array(PyMethod_GET_SELF(o))) return make_array_method(o);
  if (t == &PyMethod_Type)
    return step(Kind::kBoundMethod, nullptr, {make(PyMethod_GET_FUNCTION(o)), make(PyMethod_GET_SELF(o))});
  if (t == &PyCell_Type) {
    const int32_t cell = step(Kind::kCell);
    if (PyCell_GET(o) != nullptr) cells_.emplace_back(cell, PyCell_GET(o));
    return cell;
  }
  if (t == &PyRange_Type) return step(Kind::kConstant, o);
  if (t == &PyDictProxy_Type && PyDict_Check(*guards::proxied_slot(o)))
    return step(Kind::kReduced, type, {make(*guards::proxied_slot(o))}, 1);
  if (t == &PyTraceBack_Type) return make_traceback(o);
  if (t == &PyGen_Type) return make_generator(o);
  if (int32_t iterator = make_iterator(o); iterator >= 0) return iterator;
  if (t == &PyFunction_Type) return make_function(o);
  if (PyObject* maker = maker_of_lock(o)) {  // (a lock that is held ends the graph before it was taken)
    const auto same = [o](const Ref& lock) { return lock.get() == o; };
    if (std::none_of(in_.context.locks.made.begin(), in_.context.locks.made.end(), same))
      throw Declined("a lock in the result");
    return step(Kind::kReduced, maker, {}, 0);
  }
  if (in_.recorder.is_fresh_type(type)) throw Declined("an instance of a class made during the call in the result");
  if (is_structseq(o) || is_namedtuple(o)) {
    const int32_t made = instance(Kind::kNamedTuple, type, elements(o));
    registers_[o] = made;
    fill_attributes(o, made, &PyTuple_Type);
    return made;
  }
  if (is_constant_kind(o) || is_of_typing(in_.recorder, o)) return step(Kind::kConstant, o);
  return make_instance(o);
}

// An instance of a Python class: __new__ of its builtin base, then its contents, its slots and its __dict__.
int32_t Reconstructor::make_instance(PyObject* o) {
  using Kind = ReconstructionStep::Kind;
  PyTypeObject* t = Py_TYPE(o);
  auto* type = reinterpret_cast<PyObject*>(t);
  PyTypeObject* base = t;
  while (is_python_class(base)) base = base->tp_base;
  if (PyExceptionClass_Check(base)) return make_exception(o, base);
  if (base != t || t == &_PyWeakref_RefType) {
    Ref value = immutable_value(o, base);
    if (value) {
      kept_.push_back(value);
      std::vector<int32_t> given{make(value.get())};
      if (base == &_PyWeakref_RefType) {
        kept_.push_back(Ref::steal(PyObject_GetAttrString(o, "__callback__")));
        given.push_back(make(kept_.back().get()));
      }
      const int32_t made = instance(Kind::kNewFrom, type, std::move(given));
      registers_[o] = made;
      fill_attributes(o, made, base);
      return made;
    }
  }
  const KnownTypes& k = known_types();
  if (base != &PyBaseObject_Type && base != &PyDict_Type && base != &PyODict_Type && base != &PyList_Type &&
      base != &PySet_Type && base != k.defaultdict && base != k.deque)
    throw Declined(std::string("an object in the result that cannot be made again: ") + t->tp_name);
  if (PyDict_GetItemString(type_dict(t), "__del__") != nullptr)
    throw Declined("an object with a finalizer in the result");
  int32_t made;
  if (base == k.deque) {
    Ref limit = Ref::steal(PyObject_GetAttrString(o, "maxlen"));
    if (!limit) throw Declined("a deque without a maxlen");
    kept_.push_back(limit);
    made = instance(Kind::kDeque, type, {make(limit.get())});
  } else {
    made = instance(Kind::kObject, type);
  }
  registers_[o] = made;  // contents may refer back to it
  std::vector<int32_t> items;
  if (PyDict_Check(o)) {
    capture_.reconstruction[static_cast<size_t>(made)].index = 1;
    items = pairs(o);
  } else if (PyList_Check(o)) {
    items = elements(o);
  } else if (base == &PySet_Type || base == k.deque) {
    Ref list = Ref::steal(PyList_New(0));
    Ref it = Ref::steal(base->tp_iter(o));
    while (PyObject* item = it ? PyIter_Next(it.get()) : nullptr) {
      items.push_back(make(item));
      Py_DECREF(item);
    }
    PyErr_Clear();
  }
  if (!items.empty()) {
    items.insert(items.begin(), made);
    step(Kind::kFillItems, nullptr, std::move(items));
  }
  fill_attributes(o, made, base);
  return made;
}

// Members that classes with __slots__ (and builtin bases that keep some) have, then the instance's __dict__.
void Reconstructor::fill_attributes(PyObject* o, int32_t made, PyTypeObject* base) {
  using Kind = ReconstructionStep::Kind;
  PyTypeObject* t = Py_TYPE(o);
  std::vector<int32_t> slots{made};
  const bool members = PyExceptionClass_Check(base) || base == known_types().defaultdict;
  for (PyTypeObject* c = t; c != nullptr && (c != base || members); c = c->tp_base) {
    PyObject *name, *descriptor;
    Py_ssize_t at = 0;
    Ref dict = Ref::borrow(type_dict(c));
    while (PyDict_Next(dict.get(), &at, &name, &descriptor)) {
      if (Py_TYPE(descriptor) != &PyMemberDescr_Type) continue;
      PyMemberDef* def = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
      if (def->flags & READONLY) continue;
      Ref value = Ref::steal(PyMember_GetOne(reinterpret_cast<const char*>(o), def));
      PyErr_Clear();
      if (!value || (value.get() == Py_None && !is_python_class(c))) continue;
      kept_.push_back(value);
      slots.push_back(make(name));
      slots.push_back(make(value.get()));
    }
    if (c->tp_base == &PyBaseObject_Type) break;
  }
  PyObject** place = has_instance_dict(t) ? _PyObject_GetDictPtr(o) : nullptr;
  PyObject* dict = place != nullptr ? *place : nullptr;
  // One that was there before, or that others hold too (`self.__dict__ = shared`), stays that one.
  const bool is_shared = dict != nullptr && (in_.recorder.is_old(dict) || Py_REFCNT(dict) > 1);
  if (is_shared) {
    static PyObject* const name = PyUnicode_InternFromString("__dict__");
    slots.push_back(make(name));
    slots.push_back(make(dict));
  }
  if (slots.size() > 1) step(Kind::kFillSlots, nullptr, std::move(slots));
  if (!is_shared && dict != nullptr && PyDict_GET_SIZE(dict) > 0) {
    auto items = pairs(dict);
    items.insert(items.begin(), made);
    step(Kind::kFillDict, nullptr, std::move(items));
  }
}

int32_t Reconstructor::make_exception(PyObject* o, PyTypeObject* base) {
  using Kind = ReconstructionStep::Kind;
  if (PyType_IsSubtype(base, reinterpret_cast<PyTypeObject*>(PyExc_UnicodeError)))
    throw Declined(std::string("an exception that cannot be made again: ") + Py_TYPE(o)->tp_name);
  Ref args = Ref::steal(PyObject_GetAttrString(o, "args"));
  if (!args) throw Declined("an exception without arguments");
  kept_.push_back(args);
  const int32_t made = instance(Kind::kException, reinterpret_cast<PyObject*>(Py_TYPE(o)), {make(args.get())});
  registers_[o] = made;
  Ref cause = Ref::steal(PyException_GetCause(o)), context = Ref::steal(PyException_GetContext(o)),
      tb = Ref::steal(PyException_GetTraceback(o));
  std::vector<int32_t> parts{made};
  for (const Ref& part : {cause, context, tb}) {
    if (part) kept_.push_back(part);
    parts.push_back(!part || part.get() == Py_None ? -1 : make(part.get()));
  }
  step(Kind::kFinishException, nullptr, std::move(parts));
  fill_attributes(o, made, base);
  return made;
}

// Items that were there and stayed keep their places, all others stand behind them in the order they ended in. (The
// dict may hold more by the time of a later call than it did while it was traced.)
void Reconstructor::dict_effects(PyObject* dict, int32_t target) {
  using Kind = Effect::Kind;
  auto emit = [this](Kind kind, std::vector<int32_t> items) { capture_.effects.push_back({kind, std::move(items)}); };
  Ref last = Ref::steal(PyDict_New());  // key -> was it taken out
  for (const Journal::Entry& e : in_.journal.entries()) {
    if (e.kind != Journal::Entry::Kind::kDictItem || e.target.get() != dict) continue;
    PyObject* now = PyDict_GetItemWithError(dict, e.key.get());
    if (now == nullptr) {
      if (e.before || e.removed) emit(Kind::kDiscardItem, {target, make(e.key.get())});
    } else if (e.removed || !e.before) {
      PyDict_SetItem(last.get(), e.key.get(), e.removed ? Py_True : Py_False);
    } else {
      // What was there before is not known unless it was read: written also if this call found the same.
      emit(Kind::kSetItem, {target, make(e.key.get()), make(now)});
    }
  }
  if (PyDict_GET_SIZE(last.get()) == 0) return;
  Ref items = ordered_items(dict);
  for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* pair = PyList_GET_ITEM(items.get(), i);
    PyObject *key = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
    PyObject* removed = PyDict_GetItemWithError(last.get(), key);
    if (removed == nullptr) continue;
    if (removed == Py_True) emit(Kind::kDiscardItem, {target, make(key)});
    emit(Kind::kSetItem, {target, make(key), make(value)});
  }
}

// A call of a function that only tells about what it is given.
void Reconstructor::warn(const Warning& w) {
  kept_.push_back(Ref::steal(PyLong_FromLong(w.line_or_level)));
  const int32_t message = make(w.message.get()), category = make(w.category.get()), at = make(kept_.back().get());
  if (!w.globals) {
    capture_.effects.push_back({Effect::Kind::kWarnAtCaller, {message, category, at}});
    return;
  }
  const int32_t file = make(w.file.get()), module = make(w.module.get());
  const int32_t globals = step(ReconstructionStep::Kind::kConstant, w.globals.get());
  capture_.effects.push_back({Effect::Kind::kWarn, {message, category, file, at, module, globals}});
}

void Reconstructor::tell(const Warning& w) {
  if (!w.still_true()) throw Declined("a tensor is written after the program told about it");
  PyObject* call = of_module("operator", "call");
  Ref only = Ref::steal(call != nullptr ? PyTuple_Pack(1, call) : nullptr);
  Ref named = Ref::borrow(call);
  if (only && PyDict_GET_SIZE(w.kwargs.get()) > 0)
    named = Ref::steal(PyObject_Call(reinterpret_cast<PyObject*>(known_types().partial), only.get(), w.kwargs.get()));
  if (!only || !named) throw Declined("a call that cannot be put behind the graph");
  std::vector<int32_t> given{make(w.function.get())};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(w.args.get()); ++i)
    given.push_back(make(PyTuple_GET_ITEM(w.args.get(), i)));
  const auto count = static_cast<int32_t>(given.size());
  step(ReconstructionStep::Kind::kReduced, named.get(), std::move(given), count);
  capture_.calls = true;
}

int32_t Reconstructor::make_hook(const InputHook& h) {
  // What leads to the tensor is another node of autograd's then.
  if (!h.tensor_is_unwritten()) throw Declined("a tensor is written after a hook was registered on it");
  const int32_t tensor = make(h.tensor.get()), hook = make(h.hook.get());
  const int32_t made = step(ReconstructionStep::Kind::kReduced, h.method.get(), {tensor, hook}, 2);
  capture_.calls = true;
  if (h.removed()) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(h.handle.get()));
    kept_.push_back(Ref::steal(PyObject_GetAttrString(type, "remove")));
    step(ReconstructionStep::Kind::kReduced, kept_.back().get(), {made}, 1);
  }
  return registers_[h.handle.get()] = made;
}

void Reconstructor::input_hooks() {
  for (const InputHook& h : in_.input_hooks)
    if (!h.removed()) make_hook(h);
}

void Reconstructor::effects() {
  using Kind = Effect::Kind;
  for (const Ref& range : in_.context.ranges.left) {
    step(ReconstructionStep::Kind::kLeave, nullptr, {make(range.get())});
    capture_.calls = true;
  }
  auto emit = [this](Kind kind, std::vector<int32_t> items) { capture_.effects.push_back({kind, std::move(items)}); };
  for (const Warning& w : in_.context.warnings.said) w.function ? tell(w) : warn(w);
  std::unordered_set<const PyObject*> written;
  for (const Journal::Entry& e : in_.journal.entries()) {
    PyObject* t = e.target.get();
    int32_t target = make(t);
    written.insert(t);
    switch (e.kind) {
      case Journal::Entry::Kind::kDictItem:
        if (e.order) dict_effects(t, target);  // all of them with the first
        break;
      case Journal::Entry::Kind::kDictAll: {
        auto items = pairs(t);
        items.insert(items.begin(), target);
        emit(Kind::kDictReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kList: {
        std::vector<int32_t> items{target};
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(t); ++i) items.push_back(make(PyList_GET_ITEM(t, i)));
        emit(Kind::kListReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kAppend: {
        std::vector<int32_t> items{target};
        for (const Ref& item : e.added) items.push_back(make(item.get()));
        if (items.size() > 1) emit(Kind::kListAppend, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kSet: {
        std::vector<int32_t> items{target};
        Py_ssize_t at = 0;
        PyObject* item;
        Py_hash_t hash;
        while (_PySet_NextEntry(t, &at, &item, &hash)) items.push_back(make(item));
        emit(Kind::kSetReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kDeque: {
        std::vector<int32_t> items{target};
        for (Py_ssize_t i = 0; i < Py_SIZE(t); ++i) {
          Ref item = Ref::steal(known_types().deque->tp_as_sequence->sq_item(t, i));
          if (!item) throw Declined("a deque changed");
          items.push_back(make(item.get()));
        }
        emit(Kind::kDequeReplace, std::move(items));
        break;
      }
      case Journal::Entry::Kind::kCell:
        if (PyCell_GET(t) == nullptr)
          emit(Kind::kCellSet, {target});
        else
          emit(Kind::kCellSet, {target, make(PyCell_GET(t))});
        break;
      case Journal::Entry::Kind::kClassAttribute: {
        PyObject* now = PyDict_GetItemWithError(type_dict(reinterpret_cast<PyTypeObject*>(t)), e.key.get());
        if (now != nullptr)
          emit(Kind::kSetAttr, {target, make(e.key.get()), make(now)});
        else if (e.before)
          emit(Kind::kDelAttr, {target, make(e.key.get())});
        break;
      }
      case Journal::Entry::Kind::kTensorAttribute: {
        kept_.push_back(Ref::steal(PyObject_GenericGetAttr(t, e.key.get())));
        if (!kept_.back()) throw Declined("an attribute of a tensor cannot be read");
        emit(Kind::kSetAttr, {target, make(e.key.get()), make(kept_.back().get())});
        break;
      }
      case Journal::Entry::Kind::kSlot: {
        Ref now = Ref::steal(PyObject_GenericGetAttr(t, e.key.get()));
        if (!now) {
          PyErr_Clear();
          emit(Kind::kDelAttr, {target, make(e.key.get())});
        } else {
          emit(Kind::kSetAttr, {target, make(e.key.get()), make(now.get())});
        }
        break;
      }
    }
  }
  // (An iterator is set no further than its list goes, which is written only here.)
  for (const ListIterator& it : list_iterators_)
    if (written.contains(it.list)) emit(Kind::kSetState, {it.made, it.state});
  if (in_.context.warnings.filters_mutated) emit(Kind::kFiltersMutated, {make(Py_None)});
}

}  // namespace flashover::frame

// The other end of the reconstruction: on each call of compiled code, the result object out of graph outputs and
// sources.
#include <cstring>

#include "frame/frame.h"
#include "frame/internals.h"
#include "frame/interpret/interpreter.h"
#include "frame/reconstruction.h"

namespace flashover::frame {
namespace {

int store(PyObject* dict, PyObject* key, PyObject* value) {
  return PyODict_Check(dict) ? PyODict_SetItem(dict, key, value) : PyDict_SetItem(dict, key, value);
}

int clear(PyObject* dict) {
  if (!PyODict_Check(dict)) {
    PyDict_Clear(dict);
    return 0;
  }
  static PyObject* const method = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyODict_Type), "clear");
  PyObject* none = PyObject_CallOneArg(method, dict);
  Py_XDECREF(none);
  return none != nullptr ? 0 : -1;
}

}  // namespace

// One filter in front of the list, and away again: nobody else sees a difference.
void quiet_reduce(bool on) {
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  Ref warnings = Ref::steal(PyImport_ImportModule("warnings"));
  Ref filters = Ref::steal(warnings ? PyObject_GetAttrString(warnings.get(), "filters") : nullptr);
  if (filters && PyList_Check(filters.get())) {
    if (on) {
      Ref rule = Ref::steal(Py_BuildValue("(sOOOi)", "ignore", Py_None, PyExc_DeprecationWarning, Py_None, 0));
      if (rule) PyList_Insert(filters.get(), 0, rule.get());
    } else {
      PyList_SetSlice(filters.get(), 0, 1, nullptr);
    }
    compat::tell_filters_mutated();
  }
  PyErr_Clear();
  PyErr_Restore(type, value, tb);
}

namespace {

PyTypeObject* builtin_base(PyTypeObject* type) {
  while (is_python_class(type)) type = type->tp_base;
  return type;
}

PyObject* new_instance(PyTypeObject* type) {
  static PyObject* const empty = PyTuple_New(0);
  return builtin_base(type)->tp_new(type, empty, nullptr);
}

PyObject* new_from(PyTypeObject* type, PyObject* args, bool initialize) {
  PyTypeObject* base = builtin_base(type);
  Ref made = Ref::steal(base->tp_new(type, args, nullptr));
  if (!made || (initialize && base->tp_init(made.get(), args, nullptr) < 0)) return nullptr;
  return made.release();
}

// A traceback's line of a frame that is over. The frame object is an empty one of the same code. Its free variables are
// empty cells, and it stands behind the instruction that copies them: who reads f_locals takes them from the frame's
// function before that, and this frame's function has no closure.
PyObject* make_traceback(PyObject* code, PyObject* globals, PyObject* line, int32_t last, PyObject* next) {
  Ref frame = Ref::steal(reinterpret_cast<PyObject*>(
      PyFrame_New(PyThreadState_Get(), reinterpret_cast<PyCodeObject*>(code), globals, nullptr)));
  if (!frame) return nullptr;
  const auto* of = reinterpret_cast<PyCodeObject*>(code);
  std::vector<PyObject*> slots(static_cast<size_t>(of->co_nlocalsplus));
  for (int i = of->co_nlocalsplus - of->co_nfreevars; i < of->co_nlocalsplus; ++i)
    if ((slots[static_cast<size_t>(i)] = PyCell_New(nullptr)) == nullptr) return nullptr;
  auto* object = reinterpret_cast<PyFrameObject*>(frame.get());
  load_frame(object->f_frame, slots.data(), slots.size(),
             std::max(last, 0) / static_cast<int>(sizeof(_Py_CODEUNIT)) + 1);
  object->f_lineno = static_cast<int>(PyLong_AsLong(line));
  return PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyTraceBack_Type), "OOiO", next != nullptr ? next : Py_None,
                               frame.get(), static_cast<int>(last), line);
}

// A generator that stands at a yield. A call with any arguments makes it; its frame is then overwritten.
PyObject* make_generator(PyObject* function, PyObject* code, const std::vector<PyObject*>& slots, int32_t next,
                         bool started) {
  Ref made = Ref::steal(call_with_nothing(function));
  if (!made) return nullptr;
  auto* g = reinterpret_cast<PyGenObject*>(made.get());
  auto* frame = PyGen_CheckExact(made.get()) ? compat::frame_of(g) : nullptr;
  if (frame == nullptr || reinterpret_cast<PyObject*>(code_of(frame)) != code) {
    PyErr_SetString(PyExc_SystemError, "flashover: a generator could not be made again");
    return nullptr;
  }
  for (PyObject* o : slots) Py_XINCREF(o);
  load_frame(frame, slots.data(), slots.size(), next);
  g->gi_frame_state = started ? FRAME_SUSPENDED : FRAME_CREATED;
  return made.release();
}

struct Registers {
  std::vector<PyObject*> values;
  ~Registers() {
    for (PyObject* v : values) Py_XDECREF(v);
  }
  PyObject* operator[](int32_t i) const { return values[static_cast<size_t>(i)]; }
};

PyObject* make_reduced(const ReconstructionStep& s, const Registers& r) {
  Ref args = Ref::steal(PyTuple_New(s.index));
  for (Py_ssize_t i = 0; args && i < s.index; ++i)
    PyTuple_SET_ITEM(args.get(), i, Py_NewRef(r[s.items[static_cast<size_t>(i)]]));
  Ref made = Ref::steal(args ? PyObject_CallObject(s.object, args.get()) : nullptr);
  if (!made || s.items.size() == static_cast<size_t>(s.index)) return made.release();
  Ref none = Ref::steal(PyObject_CallMethod(made.get(), "__setstate__", "(O)", r[s.items.back()]));
  return none ? made.release() : nullptr;
}

bool is_of_itertools(PyObject* f) {
  return compat::kItertoolsWarn && PyType_Check(f) &&
         std::strncmp(reinterpret_cast<PyTypeObject*>(f)->tp_name, "itertools.", 10) == 0;
}

bool append_to_deque(PyObject* deque, PyObject* item) {
  static PyObject* const append = PyObject_GetAttrString(reinterpret_cast<PyObject*>(known_types().deque), "append");
  Ref none = Ref::steal(PyObject_CallFunctionObjArgs(append, deque, item, nullptr));
  return static_cast<bool>(none);
}

// The registers that a step reads.
struct Operands {
  const ReconstructionStep& step;
  const Registers& registers;
  Py_ssize_t size() const { return static_cast<Py_ssize_t>(step.items.size()); }
  PyObject* operator()(Py_ssize_t i) const { return registers[step.items[static_cast<size_t>(i)]]; }
};

PyObject* finish_exception(const Operands& item) {
  auto operand = [&](Py_ssize_t i) {
    return item.step.items[static_cast<size_t>(i)] < 0 ? nullptr : Py_NewRef(item(i));
  };
  PyException_SetCause(item(0), operand(1));
  PyException_SetContext(item(0), operand(2));
  reinterpret_cast<PyBaseExceptionObject*>(item(0))->suppress_context = 0;
  Ref tb = Ref::steal(operand(3));
  if (tb && PyException_SetTraceback(item(0), tb.get()) < 0) return nullptr;
  return Py_NewRef(Py_None);
}

PyObject* fill_items(const Operands& item) {
  const Py_ssize_t n = item.size();
  PyObject* target = item(0);
  if (PyCell_Check(target)) {
    PyCell_Set(target, item(1));
    return Py_NewRef(Py_None);
  }
  if (PyDict_Check(target)) {
    for (Py_ssize_t i = 1; i < n; i += 2)
      if (store(target, item(i), item(i + 1)) < 0) return nullptr;
  } else if (PySet_Check(target)) {
    for (Py_ssize_t i = 1; i < n; ++i)
      if (PySet_Add(target, item(i)) < 0) return nullptr;
  } else if (is_deque(target)) {
    for (Py_ssize_t i = 1; i < n; ++i)
      if (!append_to_deque(target, item(i))) return nullptr;
  } else {
    for (Py_ssize_t i = 1; i < n; ++i)
      if (PyList_Append(target, item(i)) < 0) return nullptr;
  }
  return Py_NewRef(Py_None);
}

PyObject* make_record(const Operands& item, PyObject* class_of_it) {
  const Py_ssize_t n = item.size();
  auto* type = reinterpret_cast<PyTypeObject*>(class_of_it);
  Ref values = Ref::steal(PyTuple_New(n));
  for (Py_ssize_t i = 0; values && i < n; ++i) PyTuple_SET_ITEM(values.get(), i, Py_NewRef(item(i)));
  if (!values) return nullptr;
  Ref args = Ref::steal(PyTuple_Pack(1, values.get()));
  if (!args) return nullptr;
  // tuple.__new__ for named tuples and their subclasses, the record's own for torch.return_types.
  const bool record = PyObject_HasAttrString(class_of_it, "n_sequence_fields");
  return (record ? type->tp_new : PyTuple_Type.tp_new)(type, args.get(), nullptr);
}

PyObject* make_dict_iterator(const Operands& item) {
  const ReconstructionStep& s = item.step;
  auto* type = reinterpret_cast<PyTypeObject*>(s.object);
  const bool keys = type == &PyDictIterKey_Type || type == &PyDictKeys_Type;
  const bool values = type == &PyDictIterValue_Type || type == &PyDictValues_Type;
  const char* view = keys ? "keys" : values ? "values" : "items";
  static PyObject* const dict_type = reinterpret_cast<PyObject*>(&PyDict_Type);
  Ref of =
      type == &PySetIter_Type ? Ref::borrow(item(0)) : Ref::steal(PyObject_CallMethod(dict_type, view, "O", item(0)));
  if (s.index < 0) return of.release();
  Ref made = Ref::steal(!of                       ? nullptr
                        : type == &PySetIter_Type ? PySet_Type.tp_iter(of.get())
                                                  : PyObject_GetIter(of.get()));
  for (int32_t i = 0; made && i < s.index; ++i) {
    Ref taken = Ref::steal(PyIter_Next(made.get()));
    if (!taken && PyErr_Occurred()) return nullptr;
  }
  return made.release();
}

PyObject* rebuild_function(const Operands& item) {
  PyObject* made = PyFunction_NewWithQualName(item(0), item(1), item(3));
  if (made == nullptr) return nullptr;
  auto* f = reinterpret_cast<PyFunctionObject*>(made);
  Py_XSETREF(f->func_name, Py_NewRef(item(2)));
  auto set = [](PyObject** slot, PyObject* v) {
    if (v != Py_None) Py_XSETREF(*slot, Py_NewRef(v));
  };
  set(&f->func_defaults, item(4));
  set(&f->func_kwdefaults, item(5));
  set(&f->func_closure, item(6));
  set(&f->func_annotations, item(7));
  if (compat::kAnnotatesLater) set(compat::annotate_slot(f), item(10));
  Py_XSETREF(f->func_doc, Py_NewRef(item(8)));
  Py_XSETREF(f->func_module, Py_NewRef(item(9)));
  return made;
}

PyObject* make_number_of_data(const NumberOfData& n, const Operands& item) {
  switch (n.kind) {
    case NumberOfData::Kind::kItem:
      return PyObject_CallMethod(item(0), "item", nullptr);
    case NumberOfData::Kind::kList: {
      Ref flat = Ref::steal(PyObject_CallMethod(item(0), "reshape", "i", -1));
      return flat ? PyObject_CallMethod(flat.get(), "tolist", nullptr) : nullptr;
    }
    case NumberOfData::Kind::kElement:
      return Py_XNewRef(PyList_GetItem(item(0), static_cast<Py_ssize_t>(n.at)));
    case NumberOfData::Kind::kComputed:
      break;
  }
  std::vector<PyObject*> values;
  for (Py_ssize_t i = 0; i < item.size(); ++i) values.push_back(item(i));
  PyObject* made = evaluate_step(n.step, values);
  if (made != nullptr) return made;
  number_of_data_failed() = true;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "flashover: a number of data is of another type");
  return nullptr;
}

PyObject* run_step(const Capture& capture, const ReconstructionStep& s, const Registers& r, PyObject* const* objects,
                   PyObject* const* outputs) {
  using Kind = ReconstructionStep::Kind;
  const size_t numbers = capture.required.size();
  const Operands item{s, r};
  const Py_ssize_t n = item.size();
  PyObject* const class_of_it = s.type < 0 ? s.object : r[s.type];
  switch (s.kind) {
    case Kind::kGraphOutput:
      return Py_NewRef(outputs[s.index]);
    case Kind::kSource:
      return Py_NewRef(objects[s.index]);
    case Kind::kConstant:
      return Py_NewRef(s.object);
    case Kind::kTuple: {
      PyObject* t = PyTuple_New(n);
      for (Py_ssize_t i = 0; t != nullptr && i < n; ++i) PyTuple_SET_ITEM(t, i, Py_NewRef(item(i)));
      return t;
    }
    case Kind::kList: {
      PyObject* t = PyList_New(n);
      for (Py_ssize_t i = 0; t != nullptr && i < n; ++i) PyList_SET_ITEM(t, i, Py_NewRef(item(i)));
      return t;
    }
    case Kind::kSet:
    case Kind::kFrozenSet: {
      Ref set = Ref::steal(s.kind == Kind::kSet ? PySet_New(nullptr) : PyFrozenSet_New(nullptr));
      for (Py_ssize_t i = 0; i < n; ++i)
        if (!set || PySet_Add(set.get(), item(i)) < 0) return nullptr;
      return set.release();
    }
    case Kind::kDict: {
      Ref dict = Ref::steal(s.object == nullptr ? PyDict_New() : PyODict_New());
      for (Py_ssize_t i = 0; i < n; i += 2)
        if (!dict || store(dict.get(), item(i), item(i + 1)) < 0) return nullptr;
      return dict.release();
    }
    case Kind::kObject:
      return new_instance(reinterpret_cast<PyTypeObject*>(class_of_it));
    case Kind::kDeque: {
      Ref args = Ref::steal(Py_BuildValue("(()O)", item(0)));
      return args ? new_from(reinterpret_cast<PyTypeObject*>(class_of_it), args.get(), true) : nullptr;
    }
    case Kind::kNewFrom: {
      Ref args = Ref::steal(n == 1 ? PyTuple_Pack(1, item(0)) : PyTuple_Pack(2, item(0), item(1)));
      return args ? new_from(reinterpret_cast<PyTypeObject*>(class_of_it), args.get(), false) : nullptr;
    }
    case Kind::kException:
      return new_from(reinterpret_cast<PyTypeObject*>(class_of_it), item(0), true);
    case Kind::kFinishException:
      return finish_exception(item);
    case Kind::kTraceback:
      return make_traceback(s.object, item(0), item(1), s.index, s.items[2] < 0 ? nullptr : item(2));
    case Kind::kFillSlots:
      for (Py_ssize_t i = 1; i < n; i += 2)
        if (PyObject_GenericSetAttr(item(0), item(i), item(i + 1)) < 0) return nullptr;
      return Py_NewRef(Py_None);
    case Kind::kFillDict: {
      Ref dict = Ref::steal(PyObject_GenericGetDict(item(0), nullptr));
      for (Py_ssize_t i = 1; i < n; i += 2)
        if (!dict || PyDict_SetItem(dict.get(), item(i), item(i + 1)) < 0) return nullptr;
      return Py_NewRef(Py_None);
    }
    case Kind::kFillItems:
      return fill_items(item);
    case Kind::kNamedTuple:
      return make_record(item, class_of_it);
    case Kind::kSlice:
      return PySlice_New(item(0), item(1), item(2));
    case Kind::kCell:
      return PyCell_New(nullptr);
    case Kind::kReduced: {
      const bool quiet = is_of_itertools(s.object);
      if (quiet) quiet_reduce(true);
      Ref made = Ref::steal(make_reduced(s, r));
      if (quiet) quiet_reduce(false);
      return made.release();
    }
    case Kind::kDictIterator:
      return make_dict_iterator(item);
    case Kind::kGenerator: {
      std::vector<PyObject*> slots;
      for (Py_ssize_t i = 2; i < n; ++i) slots.push_back(s.items[static_cast<size_t>(i)] < 0 ? nullptr : item(i));
      return make_generator(item(0), item(1), slots, s.index, s.object != nullptr);
    }
    case Kind::kBuiltinMethod:
      return Py_TYPE(s.object)->tp_descr_get(s.object, item(0), reinterpret_cast<PyObject*>(Py_TYPE(item(0))));
    case Kind::kBoundMethod:
      return PyMethod_New(item(0), item(1));
    // Of code, globals, name, qualname, defaults, kwdefaults, closure, annotations, doc, module, annotate.
    case Kind::kFunction:
      return rebuild_function(item);
    case Kind::kEnter:
      return PyObject_CallMethod(item(0), "__enter__", nullptr);
    case Kind::kLeave:
      return PyObject_CallMethod(item(0), "__exit__", "OOO", Py_None, Py_None, Py_None);
    case Kind::kNumber:
      return Py_NewRef(objects[numbers + static_cast<size_t>(s.index)]);
    case Kind::kNumberOfData:
      return make_number_of_data(capture.numbers_of_data[static_cast<size_t>(s.index)], item);
  }
  PyErr_SetString(PyExc_SystemError, "flashover: a recipe step of an unknown kind");
  return nullptr;
}

int run_effect(const Effect& e, const Registers& r) {
  using Kind = Effect::Kind;
  auto item = [&](size_t i) { return r[e.items[i]]; };
  PyObject* t = item(0);
  const size_t n = e.items.size();
  switch (e.kind) {
    case Kind::kSetItem:
      return store(t, item(1), item(2));
    case Kind::kDelItem:
      return PyODict_Check(t) ? PyODict_DelItem(t, item(1)) : PyDict_DelItem(t, item(1));
    case Kind::kDiscardItem: {
      const int there = PyDict_Contains(t, item(1));
      if (there <= 0) return there;
      return PyODict_Check(t) ? PyODict_DelItem(t, item(1)) : PyDict_DelItem(t, item(1));
    }
    case Kind::kSetAttr:
      return (PyType_Check(t) ? PyType_Type.tp_setattro : PyObject_GenericSetAttr)(t, item(1), item(2));
    case Kind::kDelAttr:
      return (PyType_Check(t) ? PyType_Type.tp_setattro : PyObject_GenericSetAttr)(t, item(1), nullptr);
    case Kind::kListReplace: {
      Ref values = Ref::steal(PyList_New(static_cast<Py_ssize_t>(n - 1)));
      if (!values) return -1;
      for (size_t i = 1; i < n; ++i) PyList_SET_ITEM(values.get(), static_cast<Py_ssize_t>(i - 1), Py_NewRef(item(i)));
      return PyList_SetSlice(t, 0, PyList_GET_SIZE(t), values.get());
    }
    case Kind::kListAppend:
      for (size_t i = 1; i < n; ++i)
        if (PyList_Append(t, item(i)) < 0) return -1;
      return 0;
    case Kind::kSetReplace:
      if (PySet_Clear(t) < 0) return -1;
      for (size_t i = 1; i < n; ++i)
        if (PySet_Add(t, item(i)) < 0) return -1;
      return 0;
    case Kind::kDictReplace:
      if (clear(t) < 0) return -1;
      for (size_t i = 1; i < n; i += 2)
        if (store(t, item(i), item(i + 1)) < 0) return -1;
      return 0;
    case Kind::kSetState:
      return Ref::steal(PyObject_CallMethod(t, "__setstate__", "O", item(1))) ? 0 : -1;
    case Kind::kCellSet:
      return PyCell_Set(t, n > 1 ? item(1) : nullptr);
    case Kind::kWarn: {
      static PyObject* const name = PyUnicode_InternFromString("__warningregistry__");
      Ref registry = Ref::borrow(PyDict_GetItemWithError(item(5), name));
      if (!registry) {
        if (PyErr_Occurred()) return -1;
        registry = Ref::steal(PyDict_New());
        if (!registry || PyDict_SetItem(item(5), name, registry.get()) < 0) return -1;
      }
      return PyErr_WarnExplicitObject(item(1), t, item(2), static_cast<int>(PyLong_AsLong(item(3))), item(4),
                                      registry.get());
    }
    case Kind::kFiltersMutated:
      return compat::tell_filters_mutated() ? 0 : -1;
    case Kind::kWarnAtCaller: {
      static PyObject* const warn = [] {
        Ref m = Ref::steal(PyImport_ImportModule("_warnings"));
        return m ? PyObject_GetAttrString(m.get(), "warn") : nullptr;
      }();
      Ref none =
          Ref::steal(warn == nullptr ? nullptr : PyObject_CallFunctionObjArgs(warn, t, item(1), item(2), nullptr));
      return none ? 0 : -1;
    }
    case Kind::kDequeReplace: {
      Ref cleared = Ref::steal(PyObject_CallMethod(reinterpret_cast<PyObject*>(known_types().deque), "clear", "O", t));
      if (!cleared) return -1;
      for (size_t i = 1; i < n; ++i)
        if (!append_to_deque(t, item(i))) return -1;
      return 0;
    }
  }
  PyErr_SetString(PyExc_SystemError, "flashover: an effect of an unknown kind");
  return -1;
}

bool run_steps(const Capture& capture, Registers& r, PyObject* const* objects, PyObject* const* graph_outputs) {
  r.values.reserve(capture.reconstruction.size());
  for (const ReconstructionStep& s : capture.reconstruction) {
    PyObject* v = run_step(capture, s, r, objects, graph_outputs);
    if (v == nullptr) return false;
    r.values.push_back(v);
  }
  for (const Effect& e : capture.effects)
    if (run_effect(e, r) < 0) return false;
  for (const StateChange& s : capture.state) {
    std::vector<PyObject*> args(1);
    args.insert(args.end(), s.args.begin(), s.args.end());
    if (s.value != nullptr) args.push_back(s.value);
    Ref done = Ref::steal(PyObject_Vectorcall(s.setter, args.data() + 1, args.size() - 1, nullptr));
    if (!done) return false;
  }
  if (capture.handled != Capture::kAsBefore) {
    _PyErr_StackItem* info = PyThreadState_Get()->exc_info;
    Py_XSETREF(info->exc_value, capture.handled < 0 ? nullptr : Py_NewRef(r[capture.handled]));
  }
  return true;
}

}  // namespace

bool& number_of_data_failed() {
  thread_local bool failed = false;
  return failed;
}

PyObject* rebuild(const Capture& capture, PyObject* const* objects, PyObject* const* graph_outputs) {
  using Kind = ReconstructionStep::Kind;
  const ReconstructionStep& last = capture.reconstruction[static_cast<size_t>(capture.result)];
  if (capture.effects.empty() && !capture.calls && capture.numbers_of_data.empty() && capture.state.empty() &&
      capture.handled == Capture::kAsBefore) {  // the common shapes, without registers
    if (last.kind == Kind::kGraphOutput) return Py_NewRef(graph_outputs[last.index]);
    if (last.kind == Kind::kTuple) {
      bool plain = true;
      for (int32_t i : last.items)
        plain = plain && capture.reconstruction[static_cast<size_t>(i)].kind == Kind::kGraphOutput;
      if (plain) {
        PyObject* t = PyTuple_New(static_cast<Py_ssize_t>(last.items.size()));
        if (t == nullptr) return nullptr;
        for (size_t i = 0; i < last.items.size(); ++i)
          PyTuple_SET_ITEM(t, static_cast<Py_ssize_t>(i),
                           Py_NewRef(graph_outputs[capture.reconstruction[static_cast<size_t>(last.items[i])].index]));
        return t;
      }
    }
  }
  Registers r;
  if (!run_steps(capture, r, objects, graph_outputs)) return nullptr;
  return Py_NewRef(r[capture.result]);
}

bool rebuild_frames(const Capture& capture, PyObject* const* objects, PyObject* const* graph_outputs,
                    std::vector<FrameState>& frames) {
  Registers r;
  if (!run_steps(capture, r, objects, graph_outputs)) return false;
  for (const FramePoint& p : capture.frames) {
    FrameState f;
    f.function = Py_NewRef(r[p.function]);
    f.code = Py_NewRef(r[p.code]);
    f.next = p.next;
    for (int32_t i : p.slots) f.slots.push_back(i < 0 ? nullptr : Py_NewRef(r[i]));
    frames.push_back(std::move(f));
  }
  return true;
}

FrameState::FrameState(FrameState&& other) noexcept
    : function(std::exchange(other.function, nullptr)),
      code(std::exchange(other.code, nullptr)),
      next(other.next),
      slots(std::move(other.slots)) {
  other.slots.clear();
}
FrameState& FrameState::operator=(FrameState&& other) noexcept {
  std::swap(function, other.function);
  std::swap(code, other.code);
  std::swap(next, other.next);
  slots.swap(other.slots);
  return *this;
}
FrameState::~FrameState() {
  for (PyObject* o : slots) Py_XDECREF(o);
  Py_XDECREF(function);
  Py_XDECREF(code);
}

void release(Capture& c) {
  guards::release(c.observations);
  for (PyObject* o : c.constants) Py_XDECREF(o);
  for (ReconstructionStep& s : c.reconstruction) Py_XDECREF(s.object);
  for (StateChange& s : c.state) Py_XDECREF(s.value);
  Py_CLEAR(c.torch_graph);
  c.constants.clear();
  c.reconstruction.clear();
  c.state.clear();
}

}  // namespace flashover::frame

// One attempt after the other: run the frame, see why it stopped, undo, and choose how to try again or where to break.
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/interrupt.h"
#include "frame/bytecode/code_file.h"
#include "frame/fetched_error.h"
#include "frame/frame.h"
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/interpret/torch_calls.h"
#include "frame/operands.h"
#include "frame/reconstruction.h"
#include "frame/signals.h"
#include "frame/torch_state.h"
#include "frame/tracers.h"
#include "graph/analysis/devices.h"
#include "graph/written.h"
#include "sym/found.h"
#include "trace/assume.h"
#include "trace/exchange.h"
#include "trace/no_memory.h"

namespace flashover::frame {
namespace {

// A copy of the current context: what the program sets in it is gone when the trace ends.
class ContextCopy {
 public:
  ContextCopy() : context_(PyContext_CopyCurrent()) {
    if (context_ == nullptr || PyContext_Enter(context_) < 0) throw Declined("the context could not be copied");
  }
  ~ContextCopy() {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyContext_Exit(context_);
    Py_XDECREF(context_);
    PyErr_Restore(type, value, tb);
  }
  ContextCopy(const ContextCopy&) = delete;
  ContextCopy& operator=(const ContextCopy&) = delete;

  bool changed() const {
    Ref was = items(before_.get()), is = items(context_);
    if (!was || !is) return true;
    Ref known = Ref::steal(PyDict_New());
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(was.get()); ++i) {
      PyObject* pair = PyList_GET_ITEM(was.get(), i);
      PyDict_SetItem(known.get(), PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(is.get()); ++i) {
      PyObject* pair = PyList_GET_ITEM(is.get(), i);
      PyObject* before = PyDict_GetItemWithError(known.get(), PyTuple_GET_ITEM(pair, 0));
      if (before == nullptr && is_decimals(PyTuple_GET_ITEM(pair, 0))) continue;
      if (before != PyTuple_GET_ITEM(pair, 1)) return true;
      ++found;
    }
    return found != PyList_GET_SIZE(was.get());
  }

 private:
  // The first number of the decimal module makes the thread's context, which is the default one.
  static bool is_decimals(PyObject* variable) {
    Ref name = Ref::steal(PyObject_GetAttrString(variable, "name"));
    if (!name) PyErr_Clear();
    return name && PyUnicode_Check(name.get()) && PyUnicode_CompareWithASCIIString(name.get(), "decimal_context") == 0;
  }
  static Ref items(PyObject* context) {
    Ref view = Ref::steal(PyObject_CallMethod(context, "items", nullptr));
    Ref list = view ? Ref::steal(PySequence_List(view.get())) : Ref();
    PyErr_Clear();
    return list;
  }
  PyObject* context_;
  Ref before_ = Ref::steal(PyContext_CopyCurrent());
};

// What is being handled where the capture starts; put back however it ends.
class HandledException {
 public:
  HandledException() : info_(PyThreadState_Get()->exc_info), before_(Ref::borrow(info_->exc_value)) {}
  ~HandledException() {
    if (changed()) Py_XSETREF(info_->exc_value, Py_XNewRef(before_.get()));
  }
  HandledException(const HandledException&) = delete;
  HandledException& operator=(const HandledException&) = delete;
  bool changed() const { return now() != none(before_.get()); }
  PyObject* now() const { return none(info_->exc_value); }

 private:
  static PyObject* none(PyObject* o) { return o == Py_None ? nullptr : o; }
  _PyErr_StackItem* info_;
  Ref before_;
};

// The reconstruction of `before` would be written again as it is.
bool makes_the_same(Interpreter& in, const Capture& before, const Snapshot* stopped, PyObject* result,
                    PyObject* handled) {
  Capture after;
  for (SourceId id : before.input_sources)
    if (id != kNoSource) after.required.push_back(id);
  Reconstructor reconstructor(in, after);
  if (stopped != nullptr) {
    reconstructor.frames(*stopped);
  } else {
    reconstructor.make(result);
    reconstructor.enter_ranges();
  }
  if (handled != nullptr) reconstructor.make(handled);
  reconstructor.effects();
  const auto same_object = [](PyObject* a, PyObject* b) {
    return a == b || (a != nullptr && b != nullptr && Py_TYPE(a) == Py_TYPE(b) && is_atom(a) &&
                      PyObject_RichCompareBool(a, b, Py_EQ) == 1);
  };
  const bool same = std::equal(before.reconstruction.begin(), before.reconstruction.end(), after.reconstruction.begin(),
                               after.reconstruction.end(),
                               [&](const ReconstructionStep& a, const ReconstructionStep& b) {
                                 return a.kind == b.kind && a.index == b.index && a.type == b.type &&
                                        a.items == b.items && same_object(a.object, b.object);
                               }) &&
                    std::equal(before.effects.begin(), before.effects.end(), after.effects.begin(), after.effects.end(),
                               [](const Effect& a, const Effect& b) { return a.kind == b.kind && a.items == b.items; });
  release(after);
  return same;
}

// Where a traceback ends: the line that raised.
std::string raised_at(PyObject* tb) {
  if (tb == nullptr || !PyTraceBack_Check(tb)) return "";
  auto* t = reinterpret_cast<PyTracebackObject*>(tb);
  while (t->tb_next != nullptr) t = t->tb_next;
  Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(t->tb_frame)));
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
  return std::string(file != nullptr ? file : "?") + ":" +
         std::to_string(PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(code.get()), t->tb_lasti));
}

// The code that a call of nn.Module.__call__ hands its arguments on to; null for other functions.
PyCodeObject* forward_of(PyObject* callable, PyObject* self) {
  static PyObject* const call = PyUnicode_InternFromString("__call__");
  static PyObject* const name = PyUnicode_InternFromString("forward");
  PyTypeObject* module = known_types().module;
  if (module == nullptr || !PyObject_TypeCheck(self, module) || _PyType_Lookup(module, call) != callable)
    return nullptr;
  PyObject* f = _PyType_Lookup(Py_TYPE(self), name);
  return f != nullptr && PyFunction_Check(f) ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f)) : nullptr;
}
std::vector<std::string> parameters_of(PyCodeObject* code) {  // but for self
  std::vector<std::string> names;
  for (int i = 1; i < code->co_argcount; ++i)
    names.emplace_back(PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_localsplusnames, i)));
  return names;
}
std::string place_of(PyCodeObject* code, int32_t instruction) {  // of its first line: -1
  const std::string_view file = file_of(code);
  const int line = instruction < 0 ? code->co_firstlineno : PyCode_Addr2Line(code, instruction * 2);
  return std::string(file.empty() ? "?" : file) + ":" + std::to_string(line);
}

// bound is in localsplus order: positional and keyword-only parameters, then *args, then **kwargs.
PyObject* call_bound(Interpreter& in, PyObject* callable, PyObject* const* bound) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(callable));
  const int positional = code->co_argcount, named = code->co_kwonlyargcount;
  std::vector<PyObject*> args(1);
  Ref names = Ref::steal(PyList_New(0));
  args.insert(args.end(), bound, bound + positional);
  int at = positional + named;
  if (code->co_flags & CO_VARARGS) {
    PyObject* rest = bound[at++];
    in.recorder.contents(rest);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i) args.push_back(PyTuple_GET_ITEM(rest, i));
  }
  const size_t count = args.size() - 1;
  for (int i = 0; i < named; ++i) {
    args.push_back(bound[positional + i]);
    PyList_Append(names.get(), PyTuple_GET_ITEM(code->co_localsplusnames, positional + i));
  }
  if (code->co_flags & CO_VARKEYWORDS) {
    PyObject* rest = bound[at++];
    in.recorder.contents(rest);
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(rest, &pos, &key, &value)) {
      args.push_back(value);
      PyList_Append(names.get(), key);
    }
  }
  Ref kwnames = PyList_GET_SIZE(names.get()) > 0 ? Ref::steal(PyList_AsTuple(names.get())) : Ref();
  return PyObject_Vectorcall(callable, args.data() + 1, count, kwnames.get());
}

// What the numbers that change are made of, ready to run before each call.
void take_numbers(Numbers& numbers, Reconstructor& reconstructor, Capture& out) {
  out.numbers = std::move(numbers.program);
  for (NumberStep& s : out.numbers.steps)
    if (s.kind == NumberStep::Kind::kSource || s.kind == NumberStep::Kind::kItem || s.kind == NumberStep::Kind::kSize)
      s.a = reconstructor.require(s.a);
  out.number_inputs.assign(out.graph.inputs.size(), -1);
  for (auto [input, step] : numbers.inputs) out.number_inputs[static_cast<size_t>(input)] = step;
  out.size_inputs.assign(out.graph.inputs.size(), -1);
  for (auto [input, step] : numbers.size_inputs) out.size_inputs[static_cast<size_t>(input)] = step;
  for (NarrowedInput& p : out.narrowed_inputs) p.base = reconstructor.require(p.base);
  out.numbers.limit = 3.4028234663852886e38;
  for (const graph::Value& v : out.graph.values)
    if (v.type.dtype == DType::kF16) out.numbers.limit = 65504;
}

}  // namespace

namespace {
// A collection in the middle of a trace would run other people's finalizers and weak reference callbacks as if the
// program had called them.
class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) {}
  ~NoCollection() {
    if (was_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;

 private:
  int was_;
};
}  // namespace

namespace {

// What a run takes for granted. Whether it holds is seen when it has run; else it runs again without.
struct Speculation {
  bool assumptions = true;      // trace/assume.h
  bool narrowed_inputs = true;  // the parts of inputs that are inputs are only read
  bool elements = false;        // buffers of one element hold what they hold now
  bool data_sizes = false;      // sizes that follow from data are symbols (Session::data_sizes)
  bool data_values = false;     // and numbers where the program needs them (sym/found.h)
  bool usual_answers = false;   // of questions about such sizes (Numbers::takes_the_usual_way)
  bool own_operators = false;   // whose derivatives have none (Session::own_operators)
  // Divisors that follow from data are asserted in the graph: a call that CPython would have to end runs again from its
  // start, which one that writes cannot.
  bool asserts_divisors = false;
};

constexpr char kMayRaise[] = "data-dependent: what is computed of a number that follows from data may raise";

void decline(Capture& out, std::string reason, std::string where) {
  out.declined = true;
  out.reason = std::move(reason);
  out.where = std::move(where);
}

// Why a call cannot be captured at all; null: it may be.
const char* reason_not_to_capture(const CaptureRequest& request) {
  if (PyErr_Occurred() || !PyFunction_Check(request.function)) return "not a Python function";
  if (Interpreter::current() != nullptr) return "a capture inside a capture";
  if (const char* tracer = active_tracer(nullptr)) return tracer;
  const int flags = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(request.function))->co_flags;
  const bool starts = request.next < 0;
  return flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | (starts ? CO_GENERATOR : 0)) ? "a generator or coroutine function"
                                                                                   : nullptr;
}

// The steps of one run.
struct Run {
  const CaptureRequest& request;
  Capture& out;
  Interpreter& in;
  trace::Session& session;
  Ref& result;
  Path& broke;
  std::vector<PyObject*> slots;       // the arguments as the program sees them
  std::unique_ptr<TorchCalls> calls;  // if they were asked for
  ~Run() { forget_calls(); }
  void forget_calls() {
    in.torch_calls = nullptr;
    in.recorder.note_input = nullptr;
  }

  bool continues() const { return request.next >= 0; }
  PyCodeObject* code() const { return reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(request.function)); }
  void set_up(Speculation speculation, Path stop, bool gives_way);
  void read_arguments();
  void run_frame();
  void note_exception();
  void look_at_ending(const ContextCopy& variables, PyObject* autocast_cache);
  void reconstruct(TorchState& state, const HandledException& handled);
  void add_backward(Reconstructor& reconstructor, const HandledException& handled);
  void take_wrappers(Reconstructor& reconstructor);
  void take_sizes(Reconstructor& reconstructor);
  void finish(Reconstructor& reconstructor, size_t inputs);
};

// A function of _subclasses.py on new arguments: no part of the program.
PyObject* call_of_ours(Interpreter& in, const char* function, PyObject* args) {
  const Ref given = Ref::steal(args);
  PyObject* f = of_module("flashover._subclasses", function);
  ++in.uninterpreted;
  PyObject* made = f != nullptr && args != nullptr ? PyObject_CallObject(f, args) : nullptr;
  --in.uninterpreted;
  return made;
}

void Run::set_up(Speculation speculation, Path stop, bool gives_way) {
  session.location = [&in = in] { return in.operator_location(); };
  session.sizes().line = [&in = in] {
    struct WithGil {  // operators ask without it
      const PyGILState_STATE state = PyGILState_Ensure();
      ~WithGil() { PyGILState_Release(state); }
    } gil;
    std::string text = in.operator_location().text;  // "model.py:12 in self.a"
    const size_t number = text.rfind(':');
    if (number != std::string::npos) text.resize(std::min(text.size(), text.find(' ', number)));
    return text;
  };
  session.unknown_tensor = [&in = in](PyObject* tensor) {
    try {
      return in.recorder.add_tensor(tensor);
    } catch (const Declined&) {
      return false;
    } catch (const std::exception& e) {
      in.abort_for(e);
      return false;
    }
  };
  static const bool check_sources = std::getenv("FLASHOVER_CHECK_SOURCES") != nullptr;
  if (check_sources) in.remember_old_objects();
  in.stop_at(std::move(stop));
  in.recorder.varying_numbers = request.varying_numbers;
  in.recorder.per_call_paths = request.per_call_paths;
  in.recorder.varying_sizes = request.varying_sizes;
  in.recorder.uninterpreted = &in.uninterpreted;
  PyCodeObject* const forward =
      continues() || request.count == 0 ? nullptr : forward_of(request.function, request.slots[0]);
  if (forward != nullptr) in.recorder.name_positional(parameters_of(forward));
  if (request.torch_calls) {
    calls = std::make_unique<TorchCalls>(in);
    in.torch_calls = calls.get();
    in.recorder.note_input = [calls = calls.get()](PyObject* tensor, size_t index, const std::string& path) {
      calls->input(tensor, index, path);
    };
  }
  in.begins_at = place_of(forward != nullptr ? forward : code(), continues() ? request.next : -1);
  in.assumes = speculation.assumptions;
  in.gives_way = gives_way;
  in.narrows_inputs = speculation.narrowed_inputs;
  trace::assumption() = {};
  if (request.varying_numbers != nullptr)
    session.item_symbol = [&in = in](PyObject* tensor) -> PyObject* {
      if (!in.items_as_symbols) return nullptr;
      Ref number = Ref::steal(in.recorder.numbers.item(tensor));
      if (!number) number = Ref::steal(in.recorder.numbers.of_data(tensor));
      return number ? in.recorder.numbers.symbols(number.get()) : nullptr;
    };
  session.data_sizes = speculation.data_sizes;
  session.own_operators = speculation.own_operators;
  sym::may_be_found() = speculation.data_values;
  session.sizes().opens =
      request.varying_sizes != nullptr && request.varying_sizes->few && !request.varying_sizes->marked_only;
  if (request.refuted != nullptr)
    session.sizes().refuted = *request.refuted;
  else if (request.likely_refuted != nullptr)
    session.sizes().refuted = *request.likely_refuted;
  in.recorder.numbers.takes_the_usual_way = speculation.usual_answers;
  in.recorder.numbers.in_graph = request.whole;
  in.recorder.numbers.asserts_divisors = speculation.asserts_divisors;
  in.recorder.numbers.elements = speculation.elements;
  in.recorder.numbers.ints_are_sizes = request.varying_sizes != nullptr && !request.varying_sizes->marked_only;
  in.recorder.numbers.larger_than_few = session.sizes().opens;
  if (speculation.elements)
    session.element_read = [&in = in, raw = &session](int32_t input) {
      DType dtype{};
      Ref number = Ref::steal(raw->element(input, dtype));
      return number && in.recorder.numbers.holds_always(input, number.get(), dtype);
    };
  session.wrapper_classes = {
      [&in = in](PyObject* wrapper) { return call_of_ours(in, "leaves", PyTuple_Pack(1, wrapper)); },
      [&in = in](PyObject* wrapper, PyObject* parts) {
        return call_of_ours(in, "like", PyTuple_Pack(2, wrapper, parts));
      },
      [&in = in](const std::function<void()>& call) { in.as_program(call); }};
  session.number_read = [&in = in](ValueId value) { return in.recorder.numbers.read_value(value); };
  read_arguments();
}

void Run::read_arguments() {
  if (continues()) {
    // The frame's own objects are looked at as it runs (Interpreter::run_frame).
    for (size_t i = request.count - 2; i < request.count; ++i)
      in.recorder.reach(SourceKind::kArgument, kNoSource, static_cast<int64_t>(i), nullptr, request.slots[i]);
    in.start_with(&request);
  } else {
    in.recorder.add_root(request.function);
    for (size_t i = 0; i < request.count; ++i)
      slots.push_back(in.recorder.read(SourceKind::kArgument, kNoSource, static_cast<int64_t>(i),
                                       PyTuple_GET_ITEM(code()->co_localsplusnames, static_cast<Py_ssize_t>(i)),
                                       request.slots[i]));
  }
}

void Run::run_frame() {
  HookInstalled hook;
  if (continues()) {
    result = Ref::steal(call_for_frame(
        request.function, [this](PyThreadState* t, _PyInterpreterFrame* f) { return in.run_frame(t, f, 0); }));
  } else {
    result = Ref::steal(call_bound(in, request.function, slots.data()));
  }
  if (result) return;
  if (!in.aborted()) note_exception();
  PyErr_Clear();
}

// An error of a file that may pass: no room, no descriptor, a device that fails.
bool is_passing_file_error(PyObject* error) {
  if (error == nullptr || !PyErr_GivenExceptionMatches(error, PyExc_OSError)) return false;
  const Ref number = Ref::steal(PyObject_GetAttrString(error, "errno"));
  const long code = number && PyLong_CheckExact(number.get()) ? PyLong_AsLong(number.get()) : 0;
  PyErr_Clear();
  return code == EIO || code == ENOSPC || code == EMFILE || code == ENFILE || code == ENOMEM;
}

void Run::note_exception() {
  out.raised = true;
  FetchedError error;
  error.normalize();
  Ref text = Ref::steal(error.value != nullptr ? PyObject_Repr(error.value) : nullptr);
  const char* told = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  out.out_of_memory = trace::says_no_memory(error.type, error.value) || is_passing_file_error(error.value);
  decline(out, std::string("the program raised ") + (told != nullptr ? told : "an exception"), raised_at(error.trace));
}

// Where the capture ended before its end, or left open what cannot stay open: declined.
void Run::look_at_ending(const ContextCopy& variables, PyObject* autocast_cache) {
  const Snapshot* stopped = in.stopped();
  if (in.aborted() && stopped == nullptr) {
    decline(out, in.reason(), in.where());
    out.stack = in.stack_at_abort();
    out.differentiated_twice = in.differentiates_twice;
    out.must_raise = in.must_raise();
    if (!in.differentiates_twice) broke = in.context.before_what_is_open(variables.changed(), in.break_path());
  } else if (session.declined()) {
    decline(out, session.decline_reason(), in.location());
  } else if (!in.context.torch.saved_hooks.empty()) {
    decline(out, "saved-tensor hooks are pushed across a graph break", "");
  } else if (!in.context.torch.dual_levels.empty()) {
    decline(out, "a dual level is open across a graph break", "");
  } else if (!in.context.locks.held.empty()) {
    decline(out, "a lock is held across a graph break", "");
    broke = in.context.before_what_is_open(variables.changed(), {});
  } else if (variables.changed()) {
    decline(out, stopped != nullptr ? "a context variable is set across a graph break" : "a context variable is set",
            "");
    broke = in.context.before_what_is_open(true, {});
  } else if (in.context.torch.autocast_cache.get() != autocast_cache) {
    decline(out, "torch's state is changed: is_autocast_cache_enabled", "");
  }
}

void Run::reconstruct(TorchState& state, const HandledException& handled) {
  const Snapshot* stopped = in.stopped();
  // The graph's inputs, in order; a constant of the trace stands among them without a source.
  out.state = state.changes(stopped != nullptr && !in.context.torch.inference_modes.empty());
  out.input_sources = in.recorder.tensor_sources();
  for (SourceId id : out.input_sources)
    if (id != kNoSource) out.required.push_back(id);
  const size_t inputs = out.input_sources.size();
  Reconstructor reconstructor(in, out);
  reconstructor.input_hooks();
  if (stopped != nullptr) {
    reconstructor.frames(*stopped);
    out.yields = in.yields();
  } else {
    out.result = reconstructor.make(result.get());
    reconstructor.enter_ranges();
  }
  if (handled.changed()) out.handled = handled.now() == nullptr ? -1 : reconstructor.make(handled.now());
  reconstructor.numbers_of_data();
  reconstructor.effects();
  in.context.torch.leave_inference_modes();  // what follows leaves them for real
  // (A graph of torch's calls knows nothing of how wrappers lead into a backward.)
  if (calls && reconstructor.wrapped().empty() && !reconstructor.made_parameters())
    out.torch_graph = calls->graph_of(reconstructor.outputs()).release();
  forget_calls();
  if (out.torch_graph == nullptr) add_backward(reconstructor, handled);
  finish(reconstructor, inputs);
}

void Run::add_backward(Reconstructor& reconstructor, const HandledException& handled) {
  const Snapshot* stopped = in.stopped();
  // Hooks and autograd Functions of the program run here: interpreted, and without a trace of theirs left.
  HookInstalled hook;
  if (stopped != nullptr) in.revive();
  in.uninterpreted = 0;
  const size_t writes = in.journal.entries().size(), said = in.context.warnings.said.size();
  const int64_t frames = in.frames;
  out.joint = session.add_backward(reconstructor.outputs(), reconstructor.wrapped());
  if (reconstructor.made_leaf() && out.joint.present) throw Declined("a leaf that requires grad was made");
  in.uninterpreted = 1;
  if (in.aborted()) throw Declined(in.reason(), in.where());
  if (in.journal.entries().size() != writes) throw Declined("training: the backward writes Python objects");
  if (in.context.warnings.said.size() != said) throw Declined("training: the backward warns");
  // Those that the call made and hands out are made as they were before.
  if (in.frames != frames && out.reconstruction.size() + out.effects.size() > 1 &&
      !makes_the_same(in, out, stopped, result.get(), handled.changed() ? handled.now() : nullptr))
    throw Declined("training: the backward writes Python objects that the call made");
  reconstructor.lead_wrapped(session.wrapped_gradients());
}

void Run::take_wrappers(Reconstructor& reconstructor) {
  for (const auto& [wrapper, steps] : session.written_wrappers())
    out.written_wrappers.emplace_back(reconstructor.require(in.recorder.source_of(wrapper)), steps);
  if (out.wrapped_gradients.empty()) return;
  for (size_t k = 0; k < session.sizes().count(); ++k)
    out.size_sources.push_back(session.source_of_size(sym::size_symbol(static_cast<int>(k))));
}

// Guards with numbers for sizes that are numbers now: others may say together which single one a size is (x // 4 == 1,
// x mod 4 == 0), and the input is compared as that.
std::vector<sym::AskedGuard> settled_guards(const graph::Graph& g, trace::Session& session) {
  sym::Environment& sizes = session.sizes();
  std::unordered_map<sym::Expr, sym::Expr> settled;
  for (size_t k = 0; k < sizes.count(); ++k) {
    const sym::Expr symbol = sym::size_symbol(static_cast<int>(k));
    const auto [input, dim] = session.source_of_size(symbol);
    if (input < 0 || static_cast<size_t>(input) >= g.inputs.size()) continue;
    const TensorType& type = g.type(g.inputs[static_cast<size_t>(input)].value);
    const Sizes& now = is_stride_part(static_cast<size_t>(dim)) ? type.strides : type.sizes;
    const size_t at = dimension_of_part(static_cast<size_t>(dim));
    if (at < now.size() && now[at].is_const()) settled.emplace(symbol, now[at]);
  }
  std::vector<sym::AskedGuard> out = sizes.asked();
  if (settled.empty()) return out;
  const auto number = [&](sym::Expr v) -> std::optional<sym::Expr> {
    const auto it = settled.find(v);
    return it == settled.end() ? std::nullopt : std::optional(it->second);
  };
  for (sym::AskedGuard& g : out)
    g.guard = {g.guard.relation, sym::substitute(g.guard.a, number), sym::substitute(g.guard.b, number)};
  std::erase_if(out, [](const sym::AskedGuard& g) { return g.guard.a.is_const() && g.guard.b.is_const(); });
  return out;
}

std::string bounds_in_words(const sym::Promise& p) {
  return p.most == sym::Range::kInf ? "at least " + std::to_string(p.least)
                                    : std::to_string(p.least) + " to " + std::to_string(p.most);
}

// Symbols among the sizes of inputs are compared by a program of their own, not with the sizes of this call.
void Run::take_sizes(Reconstructor& reconstructor) {
  out.broken_marks = std::move(in.recorder.broken_marks);
  const sym::Environment& sizes = session.sizes();
  if (sizes.empty()) return;
  std::vector<std::string> names, equal_at;
  for (size_t k = 0; k < sizes.count(); ++k) {
    const auto [input, dim] = session.source_of_size(sym::size_symbol(static_cast<int>(k)));
    SizeSymbol s;
    s.path = out.graph.inputs[static_cast<size_t>(input)].name;
    s.dim = static_cast<size_t>(dim);
    s.number = out.size_inputs[static_cast<size_t>(input)] >= 0;
    s.name = sym::size_symbol(static_cast<int>(k)).str();
    s.where = sizes.where_equal(static_cast<int>(k));
    s.marked = sizes.promise(static_cast<int>(k)).kind != sym::Promise::Kind::kNone;
    names.push_back(s.in_words());
    equal_at.push_back(s.where);
    out.size_symbols.push_back(std::move(s));
  }
  for (size_t k = 0; k < names.size(); ++k) {
    SizeSymbol& s = out.size_symbols[k];
    s.canonical = sizes.canonical(sym::size_symbol(static_cast<int>(k)));
    s.stands_for = guards::in_words(s.canonical.str(), names);
  }
  for (const auto& [guard, where] : sizes.asked()) {
    const int64_t strict = guard.relation == sym::Relation::kLess ? 1 : 0;
    if (strict == 0 && guard.relation != sym::Relation::kLessEqual) continue;
    if (const auto k = sym::size_symbol_index(guard.b); k && guard.a.is_const())
      out.size_symbols[static_cast<size_t>(*k)].least =
          std::max(out.size_symbols[static_cast<size_t>(*k)].least, guard.a.value() + strict);
    if (const auto k = sym::size_symbol_index(guard.a); k && guard.b.is_const())
      out.size_symbols[static_cast<size_t>(*k)].most =
          std::min(out.size_symbols[static_cast<size_t>(*k)].most, guard.b.value() - strict);
  }
  for (const sym::Fixed& f : sizes.fixed()) {
    SizeSymbol& s = out.size_symbols[static_cast<size_t>(f.symbol)];
    s.fixed = true;
    s.how = f.how;
    s.value = f.value;
    s.where = f.where;
  }
  for (const auto& [what, guard] : sizes.broken()) {
    const SizeSymbol& s = out.size_symbols[static_cast<size_t>(what.symbol)];
    const sym::Promise& p = sizes.promise(what.symbol);
    BrokenMark b{s.path, s.dim, "", what.where, what.how == sym::Fixing::kOperator};
    b.reason = guard ? "its sizes were said to be " + bounds_in_words(p) + ", but " + std::to_string(what.value) +
                           " does not satisfy " + guards::in_words(str(*guard), names)
                     : (b.ours ? "an operator needs its value, " : "the program takes it for the constant ") +
                           std::to_string(what.value);
    out.broken_marks.push_back(std::move(b));
  }
  std::vector<guards::SizeProgram::Input> inputs;
  for (size_t i = 0; i < out.graph.inputs.size(); ++i) {
    const TensorType& type = out.graph.type(out.graph.inputs[i].value);
    const int64_t parts = guards::symbolic_parts(type);
    const SourceId source = out.input_sources[i];
    if (parts == 0 || source == kNoSource) continue;
    in.recorder.leave_open(source, parts);
    inputs.push_back({reconstructor.require(source), out.graph.inputs[i].name, type});
  }
  const auto behind = static_cast<int32_t>(out.required.size());  // numbers lie behind the objects
  for (size_t i = 0; i < out.graph.inputs.size(); ++i)
    if (const int32_t step = out.size_inputs[i]; step >= 0)
      inputs.push_back({behind + step, out.graph.inputs[i].name, out.graph.type(out.graph.inputs[i].value), true});
  out.sizes = guards::SizeProgram(std::move(inputs), settled_guards(out.graph, session), std::move(names), equal_at);
}

void Run::finish(Reconstructor& reconstructor, size_t inputs) {
  out.graph = session.end(reconstructor.outputs(), out.constants);
  out.version_steps = session.version_steps();
  out.own_counters = session.own_counters();
  // Such a call runs again, as the program itself.
  if (reconstructor.may_raise() && (out.calls || !graph::repeatable(out.graph))) throw Declined(kMayRaise);
  if (in.recorder.tensor_sources().size() != inputs) throw Declined("training: the backward reads a new tensor");
  take_wrappers(reconstructor);
  out.input_sources.resize(out.graph.inputs.size(), kNoSource);
  out.narrowed_inputs = std::move(in.narrowed_inputs);
  take_numbers(in.recorder.numbers, reconstructor, out);
  take_sizes(reconstructor);
  for (size_t i = 0; i < out.graph.inputs.size(); ++i) {
    const graph::InputKind kind = out.graph.inputs[i].kind;
    const bool constant = kind == graph::InputKind::kConstant || kind == graph::InputKind::kTangent;
    const bool number = out.number_inputs.at(i) >= 0 || out.size_inputs.at(i) >= 0;
    const bool narrowed = std::any_of(out.narrowed_inputs.begin(), out.narrowed_inputs.end(),
                                      [&](const NarrowedInput& p) { return p.input == static_cast<int32_t>(i); });
    const bool gradient = std::ranges::any_of(out.wrapped_gradients, [&](const WrappedInput& w) {
      return std::ranges::find(w.inputs, static_cast<int32_t>(i)) != w.inputs.end();
    });
    if ((constant || number || narrowed || gradient) != (out.input_sources[i] == kNoSource))
      throw Declined("a tensor input without a source");
  }
  for (const Journal::Entry& e : in.journal.entries()) in.recorder.only_way_to(e.target.get());
  in.recorder.fact(FactKind::kGlobalState, kNoSource);
  in.recorder.fact(FactKind::kNotAliases, kNoSource);
}

// One run. `stop`: where to end it (empty: at the end of the call); `broke`: where it could be ended had it to.
// `first_call`: what has to be called before the program can be captured.
// `made_class`: where it made its first class.
Capture run_uninterrupted(const CaptureRequest& request, Speculation speculation, Path stop, Path& broke,
                          Path& made_class, Ref& first_call, bool gives_way) {
  const auto start = std::chrono::steady_clock::now();
  Capture out;
  trace::exchange() = {};
  if (const char* reason = reason_not_to_capture(request)) {
    decline(out, reason, "");
    return out;
  }
  const WithoutProfiler no_profiler;
  try {
    NoCollection no_collection;
    TorchState before;
    struct Restore {  // also where there is no memory to go on
      TorchState& state;
      ~Restore() {
        state.restore();
        PyErr_Clear();
      }
    } restore(before);
    const Ref autocast_cache = before.value_of("is_autocast_cache_enabled");
    Ref result;  // outlives the session: what it holds of the trace is dead by then
    trace::wait_for_others = wait_until_unused;
    std::unique_ptr<trace::Session> session = trace::begin();
    TorchState state;  // as the session sets it up
    {
      HandledException handled;
      Interpreter in(session.get());
      try {
        in.context.torch.autocast_cache = Ref::borrow(autocast_cache.get());
        Compiling compiling;
        ContextCopy variables;
        Run run{request, out, in, *session, result, broke, {}, {}};
        run.set_up(speculation, std::move(stop), gives_way);
        run.run_frame();
        // Hashes and comparisons of the program's that are needed from here on are not its own doing. (The hook may
        // still be there: what called this may take on its callees.)
        in.uninterpreted = 1;
        if (in.gives_way && signal_waits()) throw Interrupted{};
        in.gives_way = false;  // what follows is short, or looks itself
        run.look_at_ending(variables, autocast_cache.get());
        if (!out.declined) run.reconstruct(state, handled);
      } catch (const Declined& d) {
        out.retry_as_opaque = in.retry_as_opaque();
        decline(out, d.reason, d.where.empty() ? in.location() : d.where);
        if (broke.empty() && !in.differentiated_twice) broke = in.retry_path();
        if (broke.empty() && !in.differentiated_twice) broke = in.class_path();
        out.differentiated_twice = broke.empty() && in.differentiated_twice;
      } catch (const Interrupted&) {
        decline(out, "a signal came", "");
      } catch (const std::exception& e) {
        if (trace::says_no_memory(e)) {
          in.abort("out of memory");
          out.declined = out.out_of_memory = true;
        } else {
          decline(out, std::string("internal error: ") + e.what(), "");
        }
      }
      if (in.out_of_memory()) {
        out.declined = out.out_of_memory = true;
        broke.clear();
      }
      if (trace::exchange().interfered) {
        if (!out.declined) decline(out, "another thread was in the way", "");
        out.raised = false;
        broke.clear();
      }
      made_class = in.class_path();
      out.data_sizes = session->sizes().data_sizes() > 0;
      out.assumes = in.recorder.numbers.answered_usually && request.may_break;
      PyErr_Clear();
      out.varies = session->sizes().count() > 0 || in.recorder.numbers.any();
      out.larger_was_read = in.recorder.numbers.larger_was_read;
      out.larger_than_call =
          in.recorder.larger_than_call || in.recorder.numbers.larger_than_call || !session->sizes().opened().empty();
      out.took_narrowed_inputs = !in.narrowed_inputs.empty() || !out.narrowed_inputs.empty();
      if (out.declined && in.first_call) {
        try {  // (it throws where a transform is entered)
          if (state.changes(false).empty()) first_call = in.first_call;
        } catch (const Declined&) {
        }
      }
      in.uninterpreted = 1;
      in.context.undo();
      in.uninterpreted = 0;
      in.end_generators();
      in.uninterpreted = 1;
      PyErr_Clear();
      in.journal.undo();
      out.observations = in.recorder.take();  // also of a decline: such calls need not be tried again
    }
  } catch (const Declined& d) {
    decline(out, d.reason, d.where);
  } catch (const std::exception& e) {
    if (trace::says_no_memory(e))
      out.declined = out.out_of_memory = true;
    else
      decline(out, std::string("internal error: ") + e.what(), "");
  }
  PyErr_Clear();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

// The same, given up and begun again where signals come: their handlers run in between. One that raises ends the
// capture with its error set. A program that is signalled all the time gets its signals late.
Capture run_once(const CaptureRequest& request, Speculation speculation, const Path& stop, Path& broke,
                 Path& made_class, Ref& first_call) {
  constexpr int kTimes = 3;
  const Path broke_before = broke;
  for (int times = 0;; ++times) {
    const bool gives_way = times < kTimes;
    Capture out = run_uninterrupted(request, speculation, stop, broke, made_class, first_call, gives_way);
    const bool came = signal_waits();
    const bool raised = came && run_signal_handlers();
    if (raised || (came && gives_way && out.declined)) {
      release(out);
      broke = broke_before;
      if (!raised) continue;
      Capture interrupted;
      interrupted.declined = true;
      interrupted.reason = "a signal came";
      return interrupted;
    }
    return out;
  }
}

// Nothing writes the memory that parts lie in, and no output lies in it.
bool narrowed_inputs_fit(const Capture& c) {
  if (c.took_narrowed_inputs && c.declined) return false;
  const auto storage = [&](ValueId v) { return c.graph.values[static_cast<size_t>(v)].storage; };
  for (const NarrowedInput& p : c.narrowed_inputs) {
    const int32_t memory = storage(c.graph.inputs[static_cast<size_t>(p.input)].value);
    for (const graph::Node& n : c.graph.nodes) {
      if (n.op->name.find("as_strided") != std::string::npos) return false;
      bool writes = false;
      graph::for_each_written(n, [&](ValueId v) { writes = writes || storage(v) == memory; });
      if (writes) return false;
    }
    for (const graph::Output& o : c.graph.outputs)
      if (storage(o.value) == memory) return false;
  }
  return true;
}

bool is_data_dependent(const Capture& c) { return c.reason.find("data-dependent") != std::string::npos; }

Capture capture(const CaptureRequest& request, Speculation speculation) {
  Path path, made_class;
  Ref call;
  Capture first = run_once(request, speculation, {}, path, made_class, call);
  constexpr int kCalls = 100, kOperators = 8;  // operators whose backwards are found not to be traceable, one by one
  for (int calls = 0, operators = 0; first.declined && !PyErr_Occurred();) {
    if (call && calls++ < kCalls) {
      const SignalsPass as_usual;
      const Ref done =
          Ref::steal(PyObject_CallObject(PyTuple_GET_ITEM(call.get(), 0), PyTuple_GET_ITEM(call.get(), 1)));
      call = {};
      if (!done && (as_usual.came() || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt))) break;
      if (!done) PyErr_Clear();  // the program will raise it
      if (!done) break;
    } else if (first.out_of_memory || trace::exchange().interfered || !first.retry_as_opaque ||
               operators++ >= kOperators) {
      break;
    }
    release(first);
    path.clear();
    first = run_once(request, speculation, {}, path, made_class, call);
  }
  if (!first.declined || first.raised || first.out_of_memory || trace::exchange().interfered || first.must_raise ||
      !request.may_break || PyErr_Occurred())
    return first;
  // Again, up to the instruction that it ran into; when a frame cannot be rebuilt there, up to the call that led into
  // it.
  constexpr int kTries = 4;
  bool tried_class = false;
  for (int tries = 0; !path.empty() && tries < kTries; ++tries) {
    Path unused;
    Capture cut = run_once(request, speculation, path, unused, made_class, call);
    if (PyErr_Occurred()) {
      release(cut);
      return first;
    }
    if (trace::exchange().interfered || cut.out_of_memory) {  // another call tries again
      release(first);
      return cut;
    }
    if (!cut.declined && !cut.frames.empty()) {
      cut.reason = std::move(first.reason);
      cut.where = std::move(first.where);
      cut.stack = std::move(first.stack);
      cut.seconds += first.seconds;
      release(first);
      return cut;
    }
    first.reason_to_stay =
        cut.declined ? cut.reason + (cut.where.empty() ? "" : " at " + cut.where) : "the second run took another way";
    // An earlier place would only make sizes of data anew in what follows: capture without them ends before the first.
    const bool hands_out_data = cut.declined && cut.data_sizes && speculation.data_sizes && is_data_dependent(cut);
    release(cut);
    if (hands_out_data) break;
    // Instances of classes that the call makes cannot be made again: but those of a class that is there already can.
    if (!made_class.empty() && !tried_class) {
      tried_class = true;
      path = std::exchange(made_class, {});
    } else if (tries + 2 == kTries && path.size() > 1) {
      path.resize(1);
    } else {
      path.pop_back();
    }
  }
  return first;
}

}  // namespace

Capture capture(const CaptureRequest& request) {
  Speculation speculation;
  speculation.assumptions = request.varying_numbers != nullptr;  // others than the own pipeline take no numbers either
  speculation.elements = request.varying_numbers != nullptr && request.steady_values;
  // (Backends of others get such sizes where the graph may not end before them.)
  speculation.data_sizes = request.varying_numbers != nullptr && !(request.torch_calls && request.may_break);
  speculation.data_values = request.refuted != nullptr && !request.may_break;
  // (A whole program would be another one than the user's, without a word.)
  speculation.usual_answers = !request.whole && (!request.may_break || request.may_assume);
  speculation.own_operators = request.own_operators;
  Capture out = capture(request, speculation);
  if (PyErr_Occurred()) return out;
  const auto again = [&] {
    release(out);
    out = capture(request, speculation);
    return PyErr_Occurred() == nullptr;
  };
  if (speculation.own_operators && (out.declined || !out.frames.empty()) &&
      out.reason.find(trace::kDifferentiatedTwice) != std::string::npos) {
    speculation.own_operators = false;
    if (!again()) return out;
  }
  if ((out.declined || !out.frames.empty()) && out.reason == kMayRaise) {
    speculation.asserts_divisors = true;
    if (!again()) return out;
  }
  const auto ends_for_data = [](const Capture& c) { return (c.declined || !c.frames.empty()) && is_data_dependent(c); };
  // A graph ends where data is asked for, then: before the first size that follows from it.
  if (out.data_sizes && request.may_break && !out.raised && (out.declined || ends_for_data(out))) {
    speculation.data_sizes = speculation.usual_answers = false;
    if (!again()) return out;
  }
  if (out.data_sizes && !request.may_break && !speculation.data_values && !out.raised && ends_for_data(out)) {
    speculation.data_values = true;
    if (!again()) return out;
  }
  if (speculation.narrowed_inputs && !narrowed_inputs_fit(out)) {
    speculation.narrowed_inputs = false;
    if (!again()) return out;
  }
  // (What was drawn is put back.)
  if (out.declined || !trace::assumption().made || graph::repeatable(out.graph) ||
      (!graph::writes_an_input(out.graph) && !graph::uses_cuda(out.graph)))
    return out;
  release(out);
  speculation.assumptions = false;
  return capture(request, speculation);
}

Capture capture(PyObject* callable, PyObject* const* bound, size_t count) {
  return capture(CaptureRequest{callable, bound, count});
}

}  // namespace flashover::frame

// The evaluator of one capture: runs frames' bytecode on the real objects and reports to the SourceTracker what it read
// of old ones. evaluate.cpp is the instruction loop; names.cpp, build.cpp, raise.cpp and match.cpp are what its
// instructions do; attribute.cpp, container.cpp and call.cpp with the handlers of calls.h are what the program's objects
// do. What a capture has open beside objects and facts is its context (context.h).
//
// Inside, "stop here" is a C++ exception (Declined) thrown straight up to the frame's evaluate(), which turns it into
// the sticky abort state: every frame then unwinds at once without running handlers, and capture() reports the reason.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "frame/bytecode/decode.h"
#include "frame/frame.h"
#include "frame/interpret/context.h"
#include "frame/journal.h"
#include "frame/marks.h"
#include "frame/observe.h"

namespace flashover::frame {

struct Native;  // what is known of a C callable (native.h)

// A frame that is being evaluated. Instructions are counted, so that a second run of the same capture can be told where
// to stop: a break is found by running into it, and by then its instruction has taken its operands.
struct ActiveFrame {
  ActiveFrame* caller = nullptr;
  _PyInterpreterFrame* frame = nullptr;
  bool direct = false;  // what it returns is the result of the caller's instruction
  bool to_c = false;    // C code gets what it returns or yields, and may look at it
  bool on_path = false;
  signed char torchs_own = -1;  // its code is in a file of torch's; -1: not asked yet
  size_t depth = 0;             // of direct calls
  int64_t count = 0;            // instructions begun
  int64_t names = 0;            // KW_NAMES of the running call, which belongs to it
  int64_t stop = -1;
  int32_t next = 0;            // after the running call
  PyObject** below = nullptr;  // the stack below the result of the running call
};

// The frames at the instruction where a capture was told to stop.
struct Snapshot {
  struct Frame {
    Ref function, code;
    int32_t next;
    std::vector<Ref> slots;
  };
  std::vector<Frame> frames;  // root first
};

// How a frame is run for real: instruction by instruction with CPython's own meaning, until one that is worth a
// capture.
struct PlainRun {
  std::function<PyObject*()> before;  // makes the result that the frame waits for; may be empty
  int64_t least = 1;                  // instructions to run in any case
  bool stopped = false;               // out: the frame is ready to go on
  bool unknown = false;               // out: stopped at an instruction that only CPython knows
};

// How a capture ended before its frame did.
struct Ending {
  bool aborted = false;  // sticky: every frame unwinds
  bool yields = false, out_of_memory = false, must_raise = false;
  std::string reason, where, stack;
  std::unique_ptr<Snapshot> snapshot;  // where it was told to stop
};

// Instructions of a capture that another one may have to stop at.
struct Waypoints {
  Path broke, stop, retry, first_class;
};

// What code and modules that were met are called, and whose they are. The program holds them meanwhile.
struct ProgramNames {
  std::unordered_map<PyCodeObject*, bool> torchs_own;
  std::unordered_map<PyObject*, std::string> modules;
  std::unordered_map<PyObject*, std::string> paths;  // below root_module()
  bool looked_for_paths = false;
};

class TorchCalls;

// A hook that the program registered on a tensor from before the call: autograd calls it, after the call.
struct InputHook {
  Ref tensor, method, hook, handle;
  Ref hooks;    // {key: hook} while it is registered; the program's own handle.remove() takes it out
  Ref version;  // of the tensor then
  bool is_of(PyObject* its_handle) const { return handle.get() == its_handle; }
  bool removed() const { return PyDict_GET_SIZE(hooks.get()) == 0; }
  bool tensor_is_unwritten() const;  // since then
};

class Interpreter {
 public:
  explicit Interpreter(trace::Session* session);
  ~Interpreter();
  // One that only serves step(): no hook, no trace; operations are CPython's.
  struct Plain {};
  explicit Interpreter(Plain) : recorder(nullptr), session(nullptr), plain(true), outer_(nullptr) {}
  PyObject* step(PyThreadState* tstate, _PyInterpreterFrame* frame, PlainRun& run) {
    return evaluate(tstate, frame, 0, &run);
  }

  static Interpreter* current();  // of this thread; null outside a capture

  // The hook's entry. On return the frame is as CPython's evaluator leaves it.
  PyObject* run_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag);

  // Sticky: the capture is over. Sets a Python error if none is set.
  void abort(const std::string& reason) noexcept;
  void abort_for(const std::exception& e) noexcept;  // not a decline
  bool aborted() const { return ending_.aborted; }
  bool out_of_memory() const { return ending_.out_of_memory; }  // that is why it is over
  bool evaluates(const _PyInterpreterFrame* frame) const {
    for (const ActiveFrame* a = top_; a != nullptr; a = a->caller)
      if (a->frame == frame) return true;
    return false;
  }
  bool is_root(const _PyInterpreterFrame* frame) const {
    const ActiveFrame* a = top_;
    while (a != nullptr && a->caller != nullptr) a = a->caller;
    return a != nullptr && a->frame == frame;
  }
  bool is_continuation() const { return is_continuation_; }  // the capture began in the middle of a frame
  PyCodeObject* running_code() const { return top_ != nullptr ? code_of(top_->frame) : nullptr; }
  bool is_inlined() const { return top_ != nullptr && top_->caller != nullptr; }  // not the frame that is compiled
  void revive() {
    ending_.aborted = false;
  }  // after a stop, when every frame is gone: to call hooks and autograd Functions
  const std::string& reason() const { return ending_.reason; }
  const std::string& where() const { return ending_.where; }
  const std::string& stack_at_abort() const { return ending_.stack; }
  bool must_raise() const { return ending_.must_raise; }  // the program forbids the graph break that it stopped for
  std::string location() const;
  // For the graph: "file:line in self.layers.0": the innermost line that is not torch's own, and the innermost module.
  graph::Location operator_location();
  std::string stack() const;  // "file:line in function", the caller first, one a line
  // For guards: the innermost line that is not torch's own; before there is one, `begins_at`.
  std::string asking_line();
  uint64_t asking_key();
  std::string begins_at;

  // Objects. New references; null with a Python error set. Throw Declined.
  PyObject* get_attr(PyObject* o, PyObject* name);
  int find_attr(PyObject* o, PyObject* name, PyObject** out);  // 1 found, 0 absent without an error, -1 error
  int set_attr(PyObject* o, PyObject* name, PyObject* value);  // null value: delete
  PyObject* call(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);  // args[-1] is free to use
  PyObject* call_by_kind(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* call_spread(PyObject* f, PyObject* tuple, PyObject* dict);
  PyObject* subscript(PyObject* o, PyObject* key);
  Ref key_with_numbers(PyObject* tensor, PyObject* key);  // in the place of tensors in its slices; null: there are none
  PyObject* subscript_by_kind(PyObject* o, PyObject* key);
  int set_subscript(PyObject* o, PyObject* key, PyObject* value);  // null value: delete
  int set_subscript_by_kind(PyObject* o, PyObject* key, PyObject* value);
  PyObject* iterator(PyObject* o);
  // Null without an error: exhausted. `keep_stop`: a StopIteration that was raised stays, with its value.
  PyObject* next(PyObject* it, bool keep_stop = false);
  int truth(PyObject* o);
  int contains(PyObject* container, PyObject* item);
  Ref cached_result(PyObject* lru_cache, PyObject* const* args, size_t count, PyObject* kwnames);
  PyObject* subscript_by_sizes(PyObject* tensor, PyObject* key);
  int set_subscript_by_sizes(PyObject* tensor, PyObject* key, PyObject* value);
  PyObject* subscript_by_number(PyObject* tensor, PyObject* key);                  // null without an error: not taken
  bool set_subscript_by_number(PyObject* tensor, PyObject* key, PyObject* value);  // false: not taken
  Ref number_for(PyObject* tensor, PyObject* number);                              // null: an error
  PyObject* compare(PyObject* a, PyObject* b, int op);
  PyObject* compare_by_kind(PyObject* a, PyObject* b, int op);
  PyObject* binary(PyObject* a, PyObject* b, int op);
  PyObject* binary_by_kind(PyObject* a, PyObject* b, int op);
  PyObject* unary(PyObject* o, unaryfunc f);
  PyObject* unary_by_kind(PyObject* o, unaryfunc f);
  // Arrays of numpy (array.cpp).
  bool is_traced_array(PyObject* o) const;  // from before the trace, and no constant
  PyObject* array_of(PyObject* o);          // borrowed: what stands for such an array; others as they are
  PyObject* lift_array(PyObject* o);        // the same for any from before the trace
  bool holds_array(PyObject* o, int depth = 0) const;
  void look_around_arrays(PyObject* o);
  PyObject* array_operation(const std::function<PyObject*()>& run, std::initializer_list<PyObject*> operands);
  int array_attribute(PyObject* o, PyObject* name, PyObject** out);
  bool call_with_arrays(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames, PyObject** result);
  void consume(PyObject* o);                           // a native callee is about to read all of `o`
  void look_through(PyObject* o);                      // the same, but numbers in it are only handed on
  void look_special(PyObject* o, const char* name);    // the type's special method is about to be looked up by C code
  bool is_slot_in_c(PyTypeObject* t, PyObject* name);  // ... and not Python code: nobody sees what it does
  PyObject* global(_PyInterpreterFrame* frame, PyObject* name);  // new reference

  // Self-check for tests: with the objects that existed before the trace known, one that turns up without a source is a
  // hole in the bookkeeping. Walks the whole heap once, so off by default (FLASHOVER_CHECK_SOURCES=1).
  void remember_old_objects();

  // Where the first capture was stopped; its last instruction could not be captured.
  const Path& break_path() const { return waypoints_.broke; }
  // Where the first hook, checkpoint or new leaf is: such a thing may turn out not to fit when all has run.
  const Path& retry_path() const { return waypoints_.retry; }
  // A registered operator's backward turned out to read data: another capture records it as an operator.
  bool retry_as_opaque() const { return retry_as_opaque_; }
  void note_retry() {
    if (waypoints_.retry.empty()) waypoints_.retry = path_here();
  }
  // Where the first class was made.
  const Path& class_path() const { return waypoints_.first_class; }
  void note_class() {
    if (waypoints_.first_class.empty()) waypoints_.first_class = path_here();
  }
  // In a call of the engine with create_graph: the frame cannot be taken apart there.
  bool differentiates_twice = false;
  bool differentiated_twice = false;  // at some time in the capture: a part that led there could not be
  void stop_at(Path path) { waypoints_.stop = std::move(path); }
  const Snapshot* stopped() const { return ending_.snapshot.get(); }
  bool yields() const { return ending_.yields; }  // it stopped there because the root, a generator's, yields
  // The frame that this capture starts in the middle of.
  void start_with(const CaptureRequest* request) { start_ = request; }
  bool untouched(size_t slot) const { return slot < untouched_.size() && untouched_[slot]; }

  SourceTracker recorder;
  Journal journal{recorder};
  CaptureContext context;
  TorchCalls* torch_calls = nullptr;  // null: nobody asks for them
  trace::Session* session;
  const bool plain = false;
  bool gives_way = false;  // to signals: the capture is given up where one comes
  // Generators that were started and are not finished are of the trace: they end without running anything more.
  void end_generators();
  bool assumes = false;         // that a tensor does not make the program raise, and the graph checks it
  bool narrows_inputs = false;  // x[i] of an input with an i that changes may be an input of its own
  std::vector<NarrowedInput> narrowed_inputs;
  std::vector<InputHook> input_hooks;
  // (function, arguments) of an lru_cache that has to hold their result before the capture can go on.
  Ref first_call;
  bool items_as_symbols = false;  // an operator of torch runs: what it asks a tensor for goes to an operator again
  PyObject* push_saved_hooks(PyObject* f, PyObject* const* args, size_t nargs);
  int64_t frames = 0;       // run so far
  bool on_torchs_behalf();  // what runs is torch's own code, or the standard library's called by it
  Path path_here() const;
  int uninterpreted = 0;  // > 0: frames run in CPython's own evaluator, effects stay
  int in_library = 0;     // of these for code of a library that is left to CPython
  void as_program(const std::function<void()>& call);
  int making_classes = 0;  // > 0: inside of type.__new__

 private:
  friend struct CallHandlers;
  PyObject* evaluate(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag, PlainRun* run = nullptr);
  char* begin(ActiveFrame& act, _PyInterpreterFrame* frame);
  PyObject* call_from(ActiveFrame& act, int next, PyObject** base, int count, PyObject* kwnames);
  PyObject* given_to_c(PyCodeObject* co, PyObject* o);
  PyObject* call_spread_from(ActiveFrame& act, int next, PyObject** sp, const Ref& f, Ref& args, const Ref& kwargs);
  PyObject* call_substitute(_PyInterpreterFrame* frame, PyObject* other);
  PyObject* call_inside_torch_compile(_PyInterpreterFrame* frame);
  bool breaks_are_errors() const;
  PyObject* users_polyfill(PyObject* f) const;  // borrowed
  PyObject* record_operator_backward(_PyInterpreterFrame* frame);
  void note_operator_backward(PyObject* function);
  int truth_for_jump(PyObject* o, const DecodedCode& code, int next, int target, bool jumps_when);
  int truth_before(PyObject* o, const DecodedCode& code, int next);
  int expected_truth(PyObject* called, const DecodedCode& code,
                     int next);  // of the comparison that runs; -1: it may go either way
  bool is_only_checked(bool floating, bool* compared);
  void read_logging_functions();
  bool call_logged(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);  // false: not one of these
  const std::string* path_of_module(PyObject* module);
  bool steps_are_operators(PyObject* data);
  PyObject* constant_batch_sizes(const char* name, PyObject* const* args, size_t nargs);  // null: another function
  void note_break();
  PyObject* call_checkpoint(PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* call_register_hook(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* hook_on_input(PyObject* method, PyObject* tensor, PyObject* hook);
  PyObject* call_of_autograd(PyObject* f, PyMethodDef* method, PyObject* self, PyObject* const* args, size_t nargs,
                             PyObject* const* all, size_t all_nargs, PyObject* kwnames);
  Ref called_by_autograd(PyObject* hook);
  void take_snapshot(const ActiveFrame& innermost, int next, PyObject** sp);
  void touch(size_t slot, PyCodeObject* code, PyObject* object);
  void take_up(const CaptureRequest& start, _PyInterpreterFrame* frame);
  int lookup_generic(PyObject* o, PyObject* name, PyObject** out);
  int lookup_type(PyTypeObject* t, PyObject* name, PyObject** out);
  int lookup_module(PyObject* m, PyObject* name, PyObject** out);
  int lookup_super(PyObject* s, PyObject* name, PyObject** out);
  int lookup_by_slot(PyObject* o, getattrofunc slot, PyObject* name, PyObject** out);
  int lookup_nn_module(PyObject* o, PyObject* name, PyObject** out);
  PyObject* bind(PyObject* descriptor, PyObject* o, PyTypeObject* type);
  PyObject* read_of_tensor(PyObject* descriptor, PyObject* o, PyObject* name);
  PyObject* from_slot(PyObject* o, PyObject* name, PyObject* descriptor, PyObject* value);
  void require_known_descriptor(PyObject* o, PyObject* descriptor);
  int set_generic(PyObject* o, PyObject* name, PyObject* value);
  int set_property(PyObject* o, PyObject* name, PyObject* property, PyObject* value);
  PyObject* call_type(PyTypeObject* t, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* call_marked(Mark mark, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* call_for_constant(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* call_native(PyObject* f, PyObject* self, const Native& native, PyObject* const* args, size_t nargs,
                        PyObject* kwnames);
  PyObject* call_wrapper(PyObject* f, PyWrapperDescrObject* descr, PyObject* self, PyObject* const* args, size_t nargs,
                         PyObject* kwnames);
  PyObject* call_plain(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  void stop_if_declined();  // after a native call: throws Declined where the trace cannot follow what it did
  template <typename F>
  PyObject* with_tensor(PyObject* a, PyObject* b, F f);
  // A C callable is given numbers that change: true when `result` (null with an error set) is that of the call.
  bool call_with_numbers(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames, PyObject** result);
  [[noreturn]] void unknown_call(PyObject* f);
  Ref as_python_function(PyObject* f);
  void know_module(PyObject* m);

  void check_origin(PyObject* o);
  bool torchs_own(ActiveFrame& a);  // its code is in a file of torch's
  _PyInterpreterFrame* asking_frame();

  std::unordered_set<PyObject*> old_objects;
  ActiveFrame* top_ = nullptr;
  Ending ending_;
  Waypoints waypoints_;
  ProgramNames names_;
  bool tail_ = false;             // the next frame's result is that of the running instruction
  PyObject* gathered_ = nullptr;  // the generator that tuple() or list() runs now: what it yields is only put together
  bool retry_as_opaque_ = false;
  int checkpoint_depth_ = 0, checkpoints_ = 0;
  const CaptureRequest* start_ = nullptr;
  std::vector<Ref> generators_;  // weak references
  bool is_continuation_ = false;
  bool resumed_ = false;                       // the next frame is the resumed root frame
  std::vector<char> untouched_;                // arguments that the resumed root frame has not looked at
  int inner_fullgraph_ = 0;                    // calls of functions that torch.compile(fullgraph=True) wrapped
  std::unordered_map<PyObject*, Ref> arrays_;  // from before the trace -> Array
  Interpreter* outer_;
  Ref logging_functions_;  // a set, or nothing
};

bool is_made_array(PyObject* o);
bool names_made_array(const char* words);  // the text of an error, that of C code which was given one
bool is_code_of_arrays(PyCodeObject* code);
PyObject* origin_of_array(PyObject* array);
Ref type_of_array(PyObject* array);
Ref hand_out_array(PyObject* array);

PyObject* call_with_nothing(PyObject* function);  // None for each parameter
// Calls `function` with any arguments, only to get a frame of it: the frame goes to `take` instead of an evaluator.
using TakeFrame = std::function<PyObject*(PyThreadState*, _PyInterpreterFrame*)>;
PyObject* call_for_frame(PyObject* function, const TakeFrame& take);
// Makes a frame that is about to run, or stands still, one that goes on at `next`. Steals the slots.
void load_frame(_PyInterpreterFrame* frame, PyObject* const* slots, size_t count, int32_t next);

// Runs a frame that is about to begin, one capture after the other (resume.cpp).
class Continuations;
PyObject* take_on(PyThreadState* tstate, _PyInterpreterFrame* frame, Continuations& continuations);

bool is_wrapper_of_torch_compile(PyCodeObject* code);
bool works_for_itself(PyCodeObject* code);  // an import, or a compiler at work

// Installs / removes the PEP 523 hook (counted). The evaluator that was there before is chained to for other threads.
void install_hook();
void remove_hook();
class HookInstalled {
 public:
  HookInstalled() { install_hook(); }
  ~HookInstalled() { remove_hook(); }
  HookInstalled(const HookInstalled&) = delete;
  HookInstalled& operator=(const HookInstalled&) = delete;
};

}  // namespace flashover::frame

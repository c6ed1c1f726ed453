// The evaluator of one capture: runs frames' bytecode on the real objects and reports to the Recorder what it read of
// old ones. One file per object family: evaluate.cpp (the instruction loop), attribute.cpp, call.cpp, native.cpp (C
// callables), container.cpp.
//
// Inside, "stop here" is a C++ exception (Declined) thrown straight up to the frame's evaluate(), which turns it into
// the sticky abort state: every frame then unwinds at once without running handlers, and capture() reports the reason.
#pragma once
#include <cstdint>
#include <string>

#include "base/check.h"
#include "frame/bytecode/decode.h"
#include "frame/journal.h"
#include "frame/observe.h"

namespace flashover::frame {

struct Native;  // what is known of a C callable (native.h)

class Interpreter {
 public:
  explicit Interpreter(trace::Session* session);
  ~Interpreter();

  static Interpreter* current();  // of this thread; null outside a capture

  // The hook's entry. On return the frame is as CPython's evaluator leaves it.
  PyObject* run_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag);

  // Sticky: the capture is over. Sets a Python error if none is set.
  void abort(const std::string& reason);
  bool aborted() const { return aborted_; }
  const std::string& reason() const { return reason_; }
  const std::string& where() const { return where_; }
  std::string location() const;
  uint64_t location_key() const;

  // Objects. New references; null with a Python error set. Throw Declined.
  PyObject* get_attr(PyObject* o, PyObject* name);
  int find_attr(PyObject* o, PyObject* name, PyObject** out);  // 1 found, 0 absent without an error, -1 error
  int set_attr(PyObject* o, PyObject* name, PyObject* value);  // null value: delete
  PyObject* call(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);  // args[-1] is free to use
  PyObject* call_spread(PyObject* f, PyObject* tuple, PyObject* dict);
  PyObject* subscript(PyObject* o, PyObject* key);
  int set_subscript(PyObject* o, PyObject* key, PyObject* value);  // null value: delete
  PyObject* iterator(PyObject* o);
  PyObject* next(PyObject* it);  // null without an error: exhausted
  int truth(PyObject* o);
  int contains(PyObject* container, PyObject* item);
  PyObject* compare(PyObject* a, PyObject* b, int op);
  PyObject* binary(PyObject* a, PyObject* b, int op);
  PyObject* unary(PyObject* o, unaryfunc f);
  void consume(PyObject* o);  // a native callee is about to read all of `o`
  void look_special(PyObject* o, const char* name);  // the type's special method is about to be looked up by C code
  PyObject* global(_PyInterpreterFrame* frame, PyObject* name);  // new reference

  // Self-check for tests: with the objects that existed before the trace known, one that turns up without a source is a hole in
  // the bookkeeping. Walks the whole heap once, so off by default (FLASHOVER_CHECK_SOURCES=1).
  void remember_old_objects();

  Recorder recorder;
  Journal journal{recorder};
  trace::Session* session;
  int uninterpreted = 0;  // > 0: frames run in CPython's own evaluator, effects stay

 private:
  friend struct NativeCalls;
  PyObject* evaluate(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag);
  int lookup_generic(PyObject* o, PyObject* name, PyObject** out);
  int lookup_type(PyTypeObject* t, PyObject* name, PyObject** out);
  int lookup_module(PyObject* m, PyObject* name, PyObject** out);
  int lookup_super(PyObject* s, PyObject* name, PyObject** out);
  int lookup_by_slot(PyObject* o, getattrofunc slot, PyObject* name, PyObject** out);
  int lookup_nn_module(PyObject* o, PyObject* name, PyObject** out);
  PyObject* bind(PyObject* descriptor, PyObject* o, PyTypeObject* type);
  PyObject* from_slot(PyObject* o, PyObject* name, PyObject* descriptor, PyObject* value);
  int set_generic(PyObject* o, PyObject* name, PyObject* value);
  PyObject* call_type(PyTypeObject* t, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* call_native(PyObject* f, PyObject* self, const Native& native, PyObject* const* args, size_t nargs,
                        PyObject* kwnames);
  PyObject* call_wrapper(PyObject* f, PyWrapperDescrObject* descr, PyObject* self, PyObject* const* args, size_t nargs,
                         PyObject* kwnames);
  PyObject* call_plain(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  [[noreturn]] void unknown_call(PyObject* f);

  void check_origin(PyObject* o);

  std::unordered_set<PyObject*> old_objects;
  bool aborted_ = false;
  std::string reason_, where_;
  Interpreter* outer_;
};

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

// Locks and context variables inside of a capture.
//
// Taking or releasing a lock is an effect that other threads wait for, so the graph ends before it and the frame itself
// does it: what is compiled runs while the frame holds what eager's would hold. Two kinds of locks stay in the trace,
// since nobody else waits for them: those that torch, `logging` and `cached_property` take around their own tables, and
// those that the trace made.
// They are in order when the trace ends; where one is still held, the graph ends before it was taken.
// Queues, files, sockets, locks of other processes and other objects with a state of their own are in no table of
// native.cpp, so that a call of theirs ends the graph in any case.
#include "frame/interpret/locks.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "frame/bytecode/code_file.h"
#include "frame/bytecode/decode.h"
#include "frame/interpret/instructions.h"

namespace flashover::frame {
namespace {

bool is_own(const NativeCall& c) {
  const auto same = [&c](const Ref& lock) { return lock.get() == c.self; };
  return std::any_of(c.in.context.locks.made.begin(), c.in.context.locks.made.end(), same);
}

// The lock of `logging` around its table of loggers and what they remember of levels; handlers have locks of their own.
bool is_of_logging(const NativeCall& c) { return c.self == of_module("logging", "_lock"); }

// The lock of Python 3.11's functools.cached_property, around the first look at an attribute.
bool is_of_cached_property(const NativeCall& c) {
  PyObject* type = of_module("functools", "cached_property");
  if (type == nullptr || !PyType_Check(type)) return false;
  PyObject* get = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(type)->tp_dict, "__get__");
  return get != nullptr && PyFunction_Check(get) &&
         PyFunction_GET_CODE(get) == reinterpret_cast<PyObject*>(c.in.running_code());
}

// A lock that the trace holds: nobody but the trace could release it while another acquire waits.
bool would_wait(const NativeCall& c) {
  const auto same = [&c](const Locks::Held& held) { return held.lock.get() == c.self; };
  return std::strcmp(Py_TYPE(c.self)->tp_name, "_thread.RLock") != 0 &&
         std::any_of(c.in.context.locks.held.begin(), c.in.context.locks.held.end(), same);
}

[[noreturn]] void end_graph(const NativeCall& c) { throw Declined("call of " + callable_name(c.f)); }

// Parts of torch whose locks are between threads and processes of the program.
bool is_between_threads(PyCodeObject* code) {
  const std::string_view file = file_of(code);
  for (const char* part : {"/torch/distributed/", "/torch/multiprocessing/", "/torch/utils/data/", "/torch/futures/"})
    if (file.find(part) != file.npos) return true;
  return false;
}

}  // namespace

bool Interpreter::on_torchs_behalf() {
  for (ActiveFrame* a = top_; a != nullptr; a = a->caller) {
    PyCodeObject* code = code_of(a->frame);
    if (torchs_own(*a)) return !is_between_threads(code);
    const std::string_view file = file_of(code);
    if (file.find("-packages/") != file.npos || !is_library(code)) return false;
  }
  return false;
}

PyObject* maker_of_lock(PyObject* lock) {
  if (std::strcmp(Py_TYPE(lock)->tp_name, "_thread.RLock") == 0) return reinterpret_cast<PyObject*>(Py_TYPE(lock));
  return std::strcmp(Py_TYPE(lock)->tp_name, "_thread.lock") == 0 ? of_module("_thread", "allocate_lock") : nullptr;
}

PyObject* do_make_lock(const NativeCall& c) {
  Ref made = Ref::steal(c.run());
  if (made) c.in.context.locks.made.push_back(Ref::borrow(made.get()));
  return made.release();
}

PyObject* do_lock(const NativeCall& c) {
  if (c.in.session == nullptr) return c.run();
  if (c.self == nullptr || would_wait(c) ||
      (!is_own(c) && !is_of_logging(c) && !is_of_cached_property(c) && !c.in.on_torchs_behalf()))
    end_graph(c);
  Path path = c.in.path_here();
  Ref result = Ref::steal(c.run());
  if (result && result.get() != Py_False) c.in.context.locks.held.push_back({Ref::borrow(c.self), std::move(path)});
  return result.release();
}

PyObject* do_unlock(const NativeCall& c) {
  if (c.in.session == nullptr) return c.run();
  auto& held = c.in.context.locks.held;
  const auto last =
      std::find_if(held.rbegin(), held.rend(), [&c](const Locks::Held& lock) { return lock.lock.get() == c.self; });
  if (last == held.rend() && !(c.self != nullptr && is_own(c))) end_graph(c);
  Ref result = Ref::steal(c.run());
  if (result && last != held.rend()) held.erase(std::next(last).base());
  return result.release();
}

PyObject* do_context_get(const NativeCall& c) {
  Ref value = Ref::steal(c.run());
  if (!c.in.recorder.is_old(c.self) || c.in.recorder.detached(c.self)) return value.release();
  PyObject* held = nullptr;
  if (PyContextVar_Get(c.self, nullptr, &held) < 0) PyErr_Clear();
  Ref keep = Ref::steal(held);
  if (!held) throw Declined("a context variable without a value is read");
  c.in.recorder.reach(SourceKind::kContextValue, c.in.recorder.source_of(c.self), -1, nullptr, held);
  return value.release();
}

// A variable that keeps another value is set by the frame itself, too: the graph ends before the first that was set.
PyObject* do_context_set(const NativeCall& c) {
  if (c.in.context.variable_path.empty()) c.in.context.variable_path = c.in.path_here();
  if (c.in.recorder.is_old(c.self)) c.in.recorder.detach(c.self);
  return c.run();
}
PyObject* do_context_reset(const NativeCall& c) {
  // The context of before is a copy in the trace, in which such a token is worth nothing.
  if (c.nargs != 1 || c.in.recorder.is_old(c.args[0])) end_graph(c);
  if (c.in.recorder.is_old(c.self)) c.in.recorder.detach(c.self);
  return c.run();
}

}  // namespace flashover::frame

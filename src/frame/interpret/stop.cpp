// How a capture ends before its frame does: where it stopped, told so that a second run finds the place; the frames
// there; the reason.
#include <algorithm>

#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"
#include "frame/resume.h"
#include "trace/no_memory.h"

namespace flashover::frame {

void Interpreter::note_break() {
  if (!plain && waypoints_.broke.empty()) waypoints_.broke = path_here();
}

Path Interpreter::path_here() const {
  Path path;
  std::vector<const ActiveFrame*> chain;
  for (const ActiveFrame* a = top_; a != nullptr; a = a->caller) chain.push_back(a);
  std::reverse(chain.begin(), chain.end());
  if (chain.empty()) return path;
  size_t last = 0;  // the innermost frame that only direct calls lead to
  while (last + 1 < chain.size() && chain[last + 1]->direct) ++last;
  // A library's own functions run for real as a whole: nothing in them is worth a graph of its own.
  while (last > 0 && is_library(code_of(chain[last]->frame))) --last;
  for (size_t i = 0; i <= last; ++i)
    path.push_back({chain[i]->count, chain[i]->names != 0 ? chain[i]->names : chain[i]->count});
  return path;
}

void Interpreter::take_snapshot(const ActiveFrame& innermost, int next, PyObject** sp) {
  auto snapshot = std::make_unique<Snapshot>();
  for (const ActiveFrame* a = &innermost; a != nullptr; a = a->caller) {
    const bool last = a == &innermost;
    _PyInterpreterFrame* f = a->frame;
    Snapshot::Frame out{
        Ref::borrow(function_of(f)), Ref::borrow(reinterpret_cast<PyObject*>(code_of(f))), last ? next : a->next, {}};
    PyObject** end = last ? sp : a->below;
    for (int i = 0; i < code_of(f)->co_nlocalsplus; ++i) out.slots.push_back(Ref::borrow(compat::local_of(f, i)));
    for (PyObject** p = compat::stack_of(f); p < end; ++p) out.slots.push_back(Ref::borrow(*p));
    snapshot->frames.insert(snapshot->frames.begin(), std::move(out));
  }
  ending_.snapshot = std::move(snapshot);
}

void Interpreter::end_generators() {
  const bool was = std::exchange(ending_.aborted, true);  // frames that are entered are left at once
  for (Ref& weak : generators_) {
    Ref generator = Ref::borrow(weak ? PyWeakref_GET_OBJECT(weak.get()) : nullptr);
    if (!generator || generator.get() == Py_None) continue;
    HookInstalled hook;
    Ref closed = Ref::steal(PyObject_CallMethod(generator.get(), "close", nullptr));
    PyErr_Clear();
  }
  generators_.clear();
  ending_.aborted = was;
}

void Interpreter::remember_old_objects() {
  Ref gc = Ref::steal(PyImport_ImportModule("gc"));
  Ref all = gc ? Ref::steal(PyObject_CallMethod(gc.get(), "get_objects", nullptr)) : Ref();
  if (!all) throw Declined("gc.get_objects() failed");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.get()); ++i) old_objects.insert(PyList_GET_ITEM(all.get(), i));
}

void Interpreter::check_origin(PyObject* o) {
  if (is_atom(o) || recorder.is_old(o) || is_pinned_kind(o) || old_objects.count(o) == 0) return;
  if (PyTuple_CheckExact(o)) return;  // constants of code objects
  throw Declined(std::string("an old object without a source: ") + Py_TYPE(o)->tp_name);
}

void Interpreter::abort(const std::string& reason) noexcept {
  const bool first = !std::exchange(ending_.aborted, true);
  try {
    if (first) {
      ending_.reason = reason;
      ending_.where = top_ != nullptr ? asking_line() : location();
      ending_.stack = stack();
      ending_.must_raise = breaks_are_errors();
      note_break();
    }
  } catch (const std::exception&) {  // no memory to say where
    ending_.out_of_memory = true;
  }
  if (first && PyErr_Occurred()) PyErr_Clear();
  if (PyErr_Occurred()) return;
  try {
    if (session != nullptr && !ending_.snapshot) session->decline(ending_.reason);  // a stop leaves the trace as it is
  } catch (const std::exception&) {
    ending_.out_of_memory = true;
  }
  if (!PyErr_Occurred()) PyErr_SetString(decline_exception(), ending_.reason.c_str());
}

void Interpreter::abort_for(const std::exception& e) noexcept {
  try {
    ending_.out_of_memory = ending_.out_of_memory || trace::says_no_memory(e);
    if (ending_.out_of_memory)
      abort("out of memory");
    else if (session != nullptr && session->declined())  // what it throws is torch's kind of exception
      abort(session->decline_reason());
    else
      abort(std::string("internal error: ") + e.what());
  } catch (const std::exception&) {
    abort({});
  }
}

}  // namespace flashover::frame

// Frames of other threads, the instructions they stand at, and the operands on their stacks.
#include "frame/operands.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "compat/evaluator.h"
#include "compat/opcodes.h"
#include "compat/python_lock.h"
#include "frame/bytecode/depth.h"
#include "frame/fetched_error.h"

namespace flashover::frame {
namespace {

// Copies of an object that may have been freed, as C code drops its operands one by one: no harm if it is not there.
bool peek(const void* from, void* to, size_t bytes) {
  const iovec here{to, bytes}, there{const_cast<void*>(from), bytes};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

// What `x.mul` is bound to; null if it is something else.
PyObject* bound_to(PyObject* callable) {
  MethodWrapperLayout wrapper;
  if (callable == nullptr || !peek(callable, &wrapper, sizeof wrapper)) return nullptr;
  if (Py_TYPE(&wrapper) == &_PyMethodWrapper_Type) return wrapper.self;
  PyCFunctionObject function;
  const bool builtin = Py_TYPE(&wrapper) == &PyCFunction_Type || Py_TYPE(&wrapper) == &PyCMethod_Type;
  return builtin && peek(callable, &function, sizeof function) ? function.m_self : nullptr;
}

bool may_be_called(PyObject* o) {
  PyObject object;
  PyTypeObject type;
  if (o == nullptr || !peek(o, &object, sizeof object)) return false;
  return !peek(Py_TYPE(&object), &type, sizeof type) || type.tp_call != nullptr;
}

// The descriptors of a tensor's methods: `x.mul(2)` puts one of them where the result will lie.
bool is_method_of_tensors(const PyObject* descriptor) {
  static const std::vector<const PyObject*> known = [] {
    std::vector<const PyObject*> found;
    PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C");
    const Ref type = Ref::steal(torch != nullptr ? PyObject_GetAttrString(torch, "TensorBase") : nullptr);
    PyErr_Clear();
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (type && PyType_Check(type.get()))
      while (PyDict_Next(type_dict(reinterpret_cast<PyTypeObject*>(type.get())), &at, &name, &value))
        found.push_back(value);
    std::sort(found.begin(), found.end());
    return found;
  }();
  return std::binary_search(known.begin(), known.end(), descriptor);
}

using Objects = std::vector<PyObject*>;

void add_arguments_of(PyObject* tuple, Objects& out) {
  constexpr Py_ssize_t kMost = 64;
  PyTupleObject head;
  if (tuple == nullptr || !peek(tuple, &head, sizeof head) || Py_TYPE(&head) != &PyTuple_Type) return;
  const Py_ssize_t count = std::min(Py_SIZE(&head), kMost);
  PyObject* items[kMost];
  const auto* first = reinterpret_cast<const char*>(tuple) + offsetof(PyTupleObject, ob_item);
  if (count > 0 && peek(first, items, static_cast<size_t>(count) * sizeof *items))
    out.insert(out.end(), items, items + count);
}

void add_operands(const _PyInterpreterFrame* f, bool innermost, Objects& out) {
  if (!compat::is_amid_instruction(f)) return;
  const int unit = unit_of(f);
  DecodedCode* code = decode(code_of(f));
  if (code == nullptr) throw std::bad_alloc();
  if (unit < 0 || static_cast<size_t>(unit) >= code->instructions.size()) return;
  const BytecodeInstruction& in = code->instructions[static_cast<size_t>(unit)];
  const int count = operands_of(in);
  if (count == 0) return;
  const Objects stack = compat::addresses_on_stack(f);
  PyObject* const* const bottom = stack.data();
  const std::vector<int32_t>* depths = stack_depths(code_of(f));
  if (depths == nullptr) throw std::bad_alloc();
  const int depth = depths->empty() ? -1 : (*depths)[static_cast<size_t>(unit)];
  if (depth < count || depth > code_of(f)->co_stacksize) {  // not known: more than there is, then
    out.insert(out.end(), bottom, bottom + code_of(f)->co_stacksize);
    return;
  }
  PyObject* const* const first = bottom + depth - count;
  const bool calls = compat::is_call(in.op);
  const bool method = calls && first[compat::kCallableFirst ? 1 : 0] != nullptr;
  // A call that is done has its result there, and the thread waits for its turn.
  if (method && (in.op == CALL_FUNCTION_EX || !is_method_of_tensors(*first))) return;
  if (!calls || method) {
    out.insert(out.end(), first, first + count);
    return;
  }
  PyObject* const callable = first[compat::kCallableFirst ? 0 : 1];
  if (compat::kCallableFirst && !may_be_called(callable)) return;  // likewise
  PyObject* const self = bound_to(callable);
  if (self != nullptr) out.push_back(self);
  if (!innermost) return;
  out.insert(out.end(), first, first + count);
  if (in.op == CALL_FUNCTION_EX) add_arguments_of(first[2], out);
}

std::vector<PyThreadState*>& resting() {  // GIL held
  static auto* const all = new std::vector<PyThreadState*>;
  return *all;
}

// Of all other threads, sorted. They stay the same while none of them has the GIL.
const Objects& operands_elsewhere(PyThreadState* self) {
  static Objects* const operands = new Objects;
  static unsigned long turn = 0;
  static bool known = false;
  const unsigned long now = compat::gil_state(self->interp).switch_number;
  if (known && turn == now) return *operands;
  known = false;
  operands->clear();
  for (PyThreadState* t = PyInterpreterState_ThreadHead(self->interp); t != nullptr; t = PyThreadState_Next(t)) {
    if (t == self) continue;
    const _PyInterpreterFrame* const innermost = current_frame(t);
    const bool rests = std::find(resting().begin(), resting().end(), t) != resting().end();
    for (const _PyInterpreterFrame* f = innermost; f != nullptr; f = f->previous)
      if (f != innermost || !rests) add_operands(f, f == innermost, *operands);
  }
  std::sort(operands->begin(), operands->end());
  turn = now;
  known = true;
  return *operands;
}

bool alone(const PyThreadState* self) {
  PyThreadState* first = PyInterpreterState_ThreadHead(self->interp);
  return first == self && PyThreadState_Next(first) == nullptr;
}

// Threads take turns after each call instead of every few milliseconds: else one that calls one method after another is
// always met in the midst of one, where it gave up the GIL itself.
class ShortTurns {
 public:
  explicit ShortTurns(PyThreadState* self)
      : interval_(compat::gil_state(self->interp).interval), before_(std::exchange(interval_, kShort)) {}
  ~ShortTurns() {
    if (interval_ == kShort) interval_ = before_;
  }
  ShortTurns(const ShortTurns&) = delete;

 private:
  static constexpr unsigned long kShort = 1;  // microseconds
  unsigned long& interval_;
  const unsigned long before_;
};

}  // namespace

AtRest::AtRest() noexcept {
  try {
    resting().push_back(PyThreadState_Get());
  } catch (const std::bad_alloc&) {  // others wait for this one, then, and give up
  }
}
AtRest::~AtRest() { std::erase(resting(), PyThreadState_Get()); }

bool in_use_elsewhere(PyObject* const* objects, size_t count) noexcept {
  PyThreadState* self = PyThreadState_Get();
  if (alone(self)) return false;
  FetchedError in_flight;  // the capture that asks may be over for an error
  bool used = true;
  try {
    const Objects& operands = operands_elsewhere(self);
    used = std::any_of(objects, objects + count,
                       [&](PyObject* o) { return std::binary_search(operands.begin(), operands.end(), o); });
  } catch (const std::bad_alloc&) {
    PyErr_Clear();
  }
  in_flight.restore();
  return used;
}

bool wait_until_unused(PyObject* const* objects, size_t count, double& seconds) noexcept {
  using Clock = std::chrono::steady_clock;
  if (!in_use_elsewhere(objects, count)) return true;
  const ShortTurns turns(PyThreadState_Get());
  const Clock::time_point start = Clock::now();
  bool used = true;
  for (double waited = 0; used && waited < seconds;
       waited = std::chrono::duration<double>(Clock::now() - start).count()) {
    PyThreadState* self = PyEval_SaveThread();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    compat::take_lock_again(self);
    used = in_use_elsewhere(objects, count);
  }
  seconds -= std::chrono::duration<double>(Clock::now() - start).count();
  return !used;
}

}  // namespace flashover::frame

// Signals are held by handlers of our own in the place of Python's, which only note that they came.
#include "frame/signals.h"

#include <Python.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/interrupt.h"
#include "frame/fetched_error.h"

namespace flashover::frame {
namespace {

constexpr int kSignals = 64;
std::array<struct sigaction, kSignals + 1> before;  // of those that are held
uint64_t holding = 0;                               // main thread only, as all but the atomics
int depth = 0;
std::atomic<bool> passing{false};
std::atomic<uint64_t> passed{0};  // how many signals came while `passing`
// What a handler raised where nobody could take it. It leaves the call where handlers are run next, or behind the hold.
// (Never destroyed: Python is gone by then.)
std::optional<FetchedError>& raised = *new std::optional<FetchedError>;

uint64_t bit(int number) { return uint64_t{1} << (number - 1); }

void note(int number) {
  const int error = errno;
  // (PyErr_SetInterruptEx may be called in a handler: it only trips Python's own.)
  if (passing) ++passed;
  if (passing || (held_signals.fetch_or(bit(number)) & bit(number))) PyErr_SetInterruptEx(number);
  errno = error;
}

// The signals for which the program has handlers written in Python. (An interrupt has one from the start.)
uint64_t handled() {
  static PyObject* const ask = [] {
    PyObject* module = PyImport_ImportModule("_signal");
    PyObject* function = module ? PyObject_GetAttrString(module, "getsignal") : nullptr;
    Py_XDECREF(module);
    PyErr_Clear();
    return function;
  }();
  uint64_t out = 0;
  for (int s = 1; ask && s <= kSignals && s < NSIG; ++s) {
    PyObject* handler = PyObject_CallFunction(ask, "i", s);
    if (handler && PyCallable_Check(handler)) out |= bit(s);
    Py_XDECREF(handler);
    PyErr_Clear();
  }
  return out;
}

void hand_to_python(uint64_t signals) {
  for (int s = 1; s <= kSignals; ++s)
    if (signals & bit(s)) PyErr_SetInterruptEx(s);
}

// The first error of a handler is kept; Python's that is set stays.
void run_those_that_wait() {
  FetchedError error;
  if (PyErr_CheckSignals() < 0) {
    if (raised)
      PyErr_Clear();
    else
      raised.emplace();
  }
  error.restore();
}

int raise_what_was_raised(void* /*unused*/) {
  if (depth > 0 || !raised) return 0;  // (the end of the hold asks again)
  raised->restore();
  raised.reset();
  return -1;
}

}  // namespace

HeldSignals::HeldSignals() {
  if (!on_main_thread()) return;
  outermost_ = depth++ == 0;
  if (!outermost_) {
    --depth;
    return;
  }
  const uint64_t wanted = handled();
  for (int s = 1; s <= kSignals; ++s) {
    if (!(wanted & bit(s))) continue;
    struct sigaction ours;
    if (::sigaction(s, nullptr, &before[static_cast<size_t>(s)]) != 0) continue;
    ours = before[static_cast<size_t>(s)];
    // What C code installed behind Python's back stays; so do those that want to know who sent the signal.
    if ((ours.sa_flags & SA_SIGINFO) || ours.sa_handler == SIG_DFL || ours.sa_handler == SIG_IGN) continue;
    ours.sa_handler = note;
    if (::sigaction(s, &ours, nullptr) == 0) holding |= bit(s);
  }
  // Those that came before would have their handlers run by the first Python code, whose errors may count for nothing.
  run_those_that_wait();
}

HeldSignals::~HeldSignals() {
  if (!outermost_) return;
  depth = 0;
  for (int s = 1; s <= kSignals; ++s) {
    if (!(holding & bit(s))) continue;
    struct sigaction now;
    // Unless the program has set another one meanwhile.
    if (::sigaction(s, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == note)
      ::sigaction(s, &before[static_cast<size_t>(s)], nullptr);
  }
  holding = 0;
  hand_to_python(held_signals.exchange(0));
  if (raised) Py_AddPendingCall(raise_what_was_raised, nullptr);
}

SignalsPass::SignalsPass() : main_(on_main_thread()), before_(passed) {
  if (!main_) return;
  was_ = passing.exchange(true);
  const uint64_t signals = held_signals.exchange(0);
  passed += signals != 0 ? 1 : 0;
  hand_to_python(signals);
}
// A signal that came behind the last look of the program's code at signals is Python's already: its handler would run
// at the next look, in the middle of the trace. So it runs here.
SignalsPass::~SignalsPass() {
  if (!main_) return;
  passing = was_;
  if (!was_ && passed != before_) run_those_that_wait();
}
bool SignalsPass::came() const { return main_ && passed != before_; }

bool on_main_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)) == ::getpid(); }

bool run_signal_handlers() {
  if (!on_main_thread()) return false;
  {
    const SignalsPass pass;
    if (PyErr_CheckSignals() < 0) return true;
  }
  if (!raised) return false;
  raised->restore();
  raised.reset();
  return true;
}

bool signal_waits() { return held_signals.load(std::memory_order_relaxed) != 0 || (raised && on_main_thread()); }

}  // namespace flashover::frame

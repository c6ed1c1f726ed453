// Where C code calls in: CPython's slots, methods and hooks. A C++ exception that passed through a C caller's frames
// would leave that caller's work half done, or end the process.
//
//   type.tp_call = at_boundary<call>;           PyMethodDef rows, vectorcall, watchers and hooks alike
//
// What an exception becomes there is the business of whoever knows the C side: src/python/bind_errors.cpp sets
// `tell_of_exception` when the module is loaded. Functions that no exception can leave are declared noexcept instead.
// tests/environment/test_boundaries.py reads the sources for entry points that are neither.
#pragma once
#include <cxxabi.h>
#include <unistd.h>

#include <type_traits>

namespace flashover {

// CPython ends a thread that wants the GIL after the interpreter has ended, by unwinding it (pthread_exit). Who catches
// that must not go on, nor may it pass a noexcept or a destructor that wants the GIL, too: the thread waits for the
// process to end, as CPython 3.14 lets it.
[[noreturn]] inline void wait_for_the_end() noexcept {
  for (;;) ::pause();
}

// Called while an exception is handled: makes a Python error of it. Needs the GIL.
inline void (*tell_of_exception)() noexcept = nullptr;

namespace detail {

// What says "an error is set" to C.
template <typename R>
constexpr R error_result() {
  if constexpr (std::is_pointer_v<R>) {
    return nullptr;
  } else {
    static_assert(std::is_integral_v<R> || std::is_enum_v<R>, "C is told of an error by null or by -1");
    return static_cast<R>(-1);
  }
}

template <auto f>
struct Boundary;
template <typename R, typename... A, R (*f)(A...)>
struct Boundary<f> {
  static R call(A... args) noexcept {
    try {
      return f(args...);
    } catch (abi::__forced_unwind&) {
      wait_for_the_end();
    } catch (...) {
      tell_of_exception();
      return error_result<R>();
    }
  }
};

}  // namespace detail

template <auto f>
inline constexpr auto at_boundary = &detail::Boundary<f>::call;

}  // namespace flashover

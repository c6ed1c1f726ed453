// Three ways to stop, three names.
//   Declined   a value-like exception: "this cannot be compiled"; the caller runs eager. Never a bug.
//   UserError  the user must change something; the message says what.
//   CHECK      our bug: throws InternalError with file:line and a message; the compiler's top level turns it into an
//              eager run with one warning (or BackendCompilerFailed under fullgraph / strict).
#pragma once
#include <stdexcept>
#include <string>

#include "base/text.h"

namespace flashover {

struct Declined : std::runtime_error {
  explicit Declined(std::string reason, std::string where = "")
      : std::runtime_error(where.empty() ? reason : where + ": " + reason),
        reason(std::move(reason)),
        where(std::move(where)) {}
  std::string reason;  // one sentence, machine readable prefix before the first ':'
  std::string where;   // the user's file:line, when known
};

// Declined because of the machine at hand (no compiler, no room, a binary that does not load): said to the user once.
struct EnvironmentFailure : Declined {
  using Declined::Declined;
};

// Declined because one kernel takes the compiler too long; it says nothing about other kernels.
struct SlowKernel : Declined {
  using Declined::Declined;
};

struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

namespace detail {
// Collects a streamed message and throws when destroyed at the end of the full expression.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    out_ = std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition + " ";
  }
  [[noreturn]] ~CheckFailure() noexcept(false) { throw InternalError(out_); }
  template <typename T>
  CheckFailure& operator<<(const T& value) {
    append_text(out_, value);
    return *this;
  }

 private:
  std::string out_;
};
}  // namespace detail

}  // namespace flashover

// CHECK(cond) << "message";   throws InternalError when cond is false.
#define FLASHOVER_CHECK(cond)          \
  if (__builtin_expect(!!(cond), 1)) { \
  } else                               \
    ::flashover::detail::CheckFailure(__FILE__, __LINE__, #cond)

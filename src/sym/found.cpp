// What a thread's trace knows of its own call.
#include "sym/found.h"

#include <utility>

namespace flashover::sym {
namespace {

FoundInCall& found_of_thread() {
  thread_local FoundInCall found;
  return found;
}

}  // namespace

void find_by(FoundInCall found) {
  found_of_thread() = std::move(found);
  may_be_found() = false;
}

bool& may_be_found() {
  thread_local bool may = false;
  return may;
}

std::optional<int64_t> found_in_call(Expr e) {
  if (e.is_const()) return e.value();
  return may_be_found() && found_of_thread() ? found_of_thread()(e) : std::nullopt;
}

}  // namespace flashover::sym

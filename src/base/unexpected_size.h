// A call in which a size that follows from data is not as compiled code takes it to be.
#pragma once
#include <stdexcept>
#include <string>

namespace flashover {

struct UnexpectedSize : std::runtime_error {
  explicit UnexpectedSize(const std::string& what, std::string fact = "")
      : std::runtime_error(what), fact(std::move(fact)) {}
  // In the words of the check that failed; empty: some size is another one than it was taken to equal.
  std::string fact;
};

}  // namespace flashover

// Calls of Python by the interpreter itself.
#pragma once

namespace flashover::frame {

// What is called while it lives is no part of the program.
class OwnCalls {
 public:
  explicit OwnCalls(int* uninterpreted) : uninterpreted_(uninterpreted) {
    if (uninterpreted_ != nullptr) ++*uninterpreted_;
  }
  ~OwnCalls() {
    if (uninterpreted_ != nullptr) --*uninterpreted_;
  }
  OwnCalls(const OwnCalls&) = delete;

 private:
  int* const uninterpreted_;
};

}  // namespace flashover::frame

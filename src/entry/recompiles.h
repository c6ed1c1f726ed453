// Why a call was compiled again, for people: FLASHOVER_LOGS=recompiles, explain(), the warning at the limit.
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guards/guards.h"

namespace flashover::entry {

// One of the versions there were, and the guard of it that the call does not meet.
struct Missed {
  int64_t version = 0, hits = 0;
  guards::Failure failure;
  std::string advice;  // of sizes: what comes of it, and what to mark or change; may be empty
};

struct Recompile {
  std::vector<Missed> missed;  // the version used last comes first; empty: compiled for the first time
  std::string called;          // file:line of the call
  bool by_values = false;      // some version was left for the value of a number alone
  explicit operator bool() const { return !missed.empty(); }
  std::string last() const { return missed.empty() ? "" : missed.front().failure.text(); }
};

std::string calling_line();                       // where Python stands now
std::string with_text(const std::string& where);  // "file:line" with the text of that line, if it can be had
std::string describe(const Recompile& why, int64_t version, size_t limit);  // several lines, with those of the program
PyObject* to_python(const Recompile& why);                                  // a list of dicts

}  // namespace flashover::entry

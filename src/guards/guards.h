// May this cached entry run for this call?
//
//   In        what a trace observed (source.h); the bound arguments of a call that is about to run
//   Out       yes / no, and the values at the sources the plan needs (its input tensors)
//   Promises  sound: whatever the trace observed is checked; runs no Python code (no __eq__, no property), allocates
//             nothing; holds borrowed references only, checked parent before child; explain() agrees with check()
//   Declines  build(): an observation that cannot be guarded (Declined; the caller does not cache the entry)
// The fast program is one dense array on containers: dict version tags (CPython 3.11, 3.12), type and dict pointers,
// tensor metadata; the facts are kept for a re-check when a tag moved, for naive.cpp (the plain reference) and for
// explaining.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "guards/source.h"

namespace flashover::guards {

extern const uint64_t kDictTick;

// A guard that a call does not meet, for people.
struct Failure {
  std::string guard;  // what was so while tracing: "self.training is False"; empty: none failed
  std::string now;    // what is found now
  std::string where;  // file:line of the program that made the trace ask; may be empty
  explicit operator bool() const { return !guard.empty(); }
  std::string text() const;
};

class GuardProgram {
 public:
  virtual ~GuardProgram() = default;
  // args: the bound arguments (borrowed), in SourceKind::kArgument order. On success writes borrowed references to the
  // objects at `required` sources (see build) and returns true. Never raises, leaves no Python error set.
  // untouched: no dict of the process changed since the end of the last call for which this said yes (see dict_clock).
  virtual bool check(PyObject* const* args, PyObject** objects, bool untouched = false) = 0;
  // check() holds what getsets made for it (gradients, say); to be called when the caller holds `objects` no longer.
  virtual void let_go() = 0;
  virtual bool check_plainly(
      PyObject* const* args) const = 0;                      // the same answer from the facts alone (naive.cpp); slow
  virtual Failure failure(PyObject* const* args) const = 0;  // the first guard that fails
  std::string explain_failure(PyObject* const* args) const { return failure(args).text(); }
  // Paths of the numbers (float, int) that are guarded by value and have other values now.
  virtual std::vector<std::string> changed_numbers(PyObject* const* args) const = 0;
  // Tensors that are as they were but for sizes, and strides that no size explains, which are guarded by value: their
  // paths, and each such part of their geometry (ops/geometry.h).
  virtual std::vector<std::pair<std::string, size_t>> changed_geometry(PyObject* const* args) const = 0;
  // Paths of objects that are guarded by identity, and of classes, which are other ones now; with those (borrowed).
  virtual std::vector<std::pair<std::string, PyObject*>> changed_objects(PyObject* const* args) const = 0;
  virtual std::vector<std::string> describe() const = 0;
  virtual size_t size() const = 0;  // instructions in the fast program
  virtual std::string composition()
      const = 0;                           // what the fast program compares: "1090 dicts, 340 objects, 220 tensors"
  virtual bool worth_a_clock() const = 0;  // many dicts to look at
};

// The version that the interpreter gives a dict made now. If it has moved by kDictTick since it was read last, no dict
// at all was made or changed in between. 0: the interpreter does not say.
uint64_t dict_clock();

// required: sources whose objects the caller needs on each call (graph inputs, reconstruction and effect targets).
std::unique_ptr<GuardProgram> build(Observations observations, const std::vector<SourceId>& required);

}  // namespace flashover::guards

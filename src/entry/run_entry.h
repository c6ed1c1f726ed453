// Runs what was compiled for a call: checks an entry's guards, gathers its inputs, runs the plan, rebuilds the result.
#pragma once
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "entry/eager.h"
#include "entry/entry.h"
#include "frame/numbers.h"

namespace flashover::entry {

// Why a call that ran, or was to run, as what was compiled is made again in CPython.
struct Repeat {
  bool needed = false;
  EagerCause cause = EagerCause::kRaises;
  std::string reason;
  bool unexpected_size = false;  // another version may serve the call
  std::string fact;              // UnexpectedSize's
};

// What a call of an entry needs: the objects at its sources (borrowed), behind them its numbers (owned).
class SourceObjects {
 public:
  SourceObjects() = default;
  SourceObjects(const SourceObjects&) = delete;
  ~SourceObjects() { clear(); }
  // Whether this is the entry for such a call.
  bool match(const Entry& e, PyObject* const* slots, bool untouched = false) {
    return read(e, slots, untouched) && (e.capture.sizes.empty() || e.capture.sizes.holds(objects_.data()));
  }
  // The same but for the symbolic sizes, which may be others.
  bool read(const Entry& e, PyObject* const* slots, bool untouched = false) {
    clear();
    const size_t numbers = e.capture.numbers.steps.size();
    objects_.resize(std::max(objects_.size(), e.required + numbers));
    if (!e.guards->check(slots, objects_.data(), untouched)) return false;
    if (numbers == 0) return true;
    if (!frame::evaluate(e.capture.numbers, objects_.data(), read_item, values_)) return false;
    std::copy(values_.begin(), values_.end(), objects_.begin() + static_cast<std::ptrdiff_t>(e.required));
    return true;
  }
  PyObject** data() { return objects_.data(); }

 private:
  void clear() {
    for (PyObject* v : std::exchange(values_, {})) Py_DECREF(v);
  }
  c10::SmallVector<PyObject*, 64> objects_;
  std::vector<PyObject*> values_;
};

// Null without an error: with `repeat`, nothing happened and the call must be repeated in eager (it raises there, as
// the program would, with its effects so far; or the entry was retired); else it ends in a graph break, and `frames`
// say where to resume.
PyObject* run_entry(const EntryPtr& e, const Settings& settings, PyObject** objects,
                    std::vector<frame::FrameState>& frames, Repeat& repeat);

}  // namespace flashover::entry

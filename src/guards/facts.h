// What sources and facts mean, once, for the fast program and for the plain checker: fetch an object, test a fact on
// it.
#pragma once
#include <Python.h>
#include <cstdint>

#include <string>
#include <vector>

#include "guards/guards.h"
#include "guards/objects.h"
#include "guards/source.h"
#include "guards/tensors.h"

namespace flashover::guards {

// New references made on the way (getsets make their values), held until the next check.
class Keep {
 public:
  Keep() = default;
  Keep(const Keep&) = delete;
  ~Keep() { clear(); }
  PyObject* hold(PyObject* object) {
    if (object) held_.push_back(object);
    return object;
  }
  void clear() {
    std::vector<PyObject*> old;
    old.swap(held_);
    for (PyObject* o : old) Py_DECREF(o);
  }

 private:
  std::vector<PyObject*> held_;
};

// Observations made ready for checking: they no longer keep the observed program alive (identity is held by weak
// reference where the type allows it), and everything that needs the objects of trace time has been read off them.
class FactTable {
 public:
  explicit FactTable(Observations o);  // throws Declined
  FactTable(const FactTable&) = delete;
  ~FactTable();

  // What `source` stands for now. Borrowed (from its parent, or from `keep`); null if it is gone.
  PyObject* resolve(SourceId source, PyObject* parent, PyObject* const* args, Keep& keep) const;
  // Facts about one object. is_between() facts look at several: current[] by source.
  bool holds(int32_t fact, PyObject* object) const;
  bool holds_between(int32_t fact, PyObject* const* current) const;
  // The same for a kWritten fact that held until the object of `moved` became another one.
  bool still_alone(int32_t fact, SourceId moved, PyObject* const* current) const;
  static bool is_between(FactKind kind);
  Failure failure(int32_t fact, PyObject* object, PyObject* const* current) const;  // empty if it holds
  std::string describe(int32_t fact) const;  // with the place where the trace asked

  const std::vector<Source>& sources() const { return o_.sources; }
  const std::vector<Fact>& facts() const { return o_.facts; }
  const Observations& observations() const { return o_; }
  const std::vector<int32_t>& facts_of(SourceId s) const { return facts_of_[s]; }
  const std::vector<SourceId>& children_of(SourceId s) const { return children_of_[s]; }
  const std::vector<int32_t>& between() const { return between_; }
  // Abstract classes answer as they did. Cheap while no class was registered with any of them.
  bool subclasses_hold() const;
  const TensorSpec& spec(int32_t fact) const { return specs_[o_.facts[fact].number]; }
  PyTypeObject* type_of_identity(int32_t fact) const { return types_[fact]; }  // maybe gone: an address
  // The objects at build time, by source. Borrowed: valid only until control returns to the program.
  const std::vector<PyObject*>& seen() const { return seen_; }

 private:
  void prepare(int32_t fact);
  std::string claim(int32_t fact) const;
  Observations o_;
  std::vector<PyObject*> seen_;
  std::vector<std::vector<int32_t>> facts_of_;
  std::vector<std::vector<SourceId>> children_of_;
  bool is_subclass_as_seen(const Fact& f) const;

  std::vector<int32_t> between_;
  std::vector<int32_t> subclass_facts_;
  mutable int64_t abc_token_ = -1;                // registrations of abstract classes when they were asked last
  std::vector<std::vector<SourceId>> strangers_;  // by kWritten fact: sources that must not be the written object
  std::vector<TensorSpec> specs_;
  std::vector<PyTypeObject*> types_;  // by kIdentity fact: identity includes the class, which can be assigned to
  std::vector<int64_t> offsets_;      // by kTensorAliases fact: difference of storage offsets
  std::vector<int32_t> groups_;       // by source: tensors recorded as sharing memory have equal numbers
};

// The plain checker: every source fetched, every fact tested, in order. naive.cpp. Fills current[] by source.
// Returns the first failing fact, -1 if all hold, or -2 - source if a source is gone.
int32_t check_all(const FactTable& table, PyObject* const* args, std::vector<PyObject*>& current, Keep& keep);

}  // namespace flashover::guards

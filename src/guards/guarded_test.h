// Observations written by hand, as the frame interpreter writes them, and the program built of them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "guards/guards.h"
#include "guards/interpreter_test.h"

namespace flashover::guards {

class Guarded {
 public:
  explicit Guarded(Python& py) : py_(py) {}
  ~Guarded() { release(o_); }

  SourceId argument(const std::string& object, int32_t index = 0) {
    return add(SourceKind::kArgument, kNoSource, object, object.c_str(), index);
  }
  // key: a string, "" for none.
  SourceId add(SourceKind kind, SourceId parent, const std::string& object, const std::string& key = "",
               int32_t index = -1) {
    PyObject* name = key.empty() ? nullptr : PyUnicode_InternFromString(key.c_str());
    o_.sources.push_back({kind, parent, index, name, Py_NewRef(py_[object])});
    return static_cast<SourceId>(o_.sources.size()) - 1;
  }
  void fact(FactKind kind, SourceId source, const std::string& expected = "", int64_t number = 0) {
    o_.locations.push_back("model.py:" + std::to_string(o_.facts.size() + 1));
    o_.facts.push_back({kind, source, expected.empty() ? nullptr : Py_NewRef(py_[expected]), number,
                        static_cast<int32_t>(o_.facts.size())});
  }
  // A segment of up to three sources is checked plainly; with some more below an argument it is armed.
  void fill(SourceId argument, const std::string& object) {
    for (int i = 0; i < 4; ++i) add(SourceKind::kType, argument, "type(" + object + ")");
  }
  void build(std::vector<SourceId> required = {}) {
    required_.resize(required.size());
    py_.forget();  // guards hold what they must hold
    program_ = guards::build(std::exchange(o_, {}), required);
  }

  // The fast program and the plain checker agree, and so does the explanation. Nothing is left of an error.
  bool check(const std::vector<std::string>& arguments) {
    std::vector<PyObject*> args;
    for (const std::string& a : arguments) args.push_back(py_[a]);
    required_.resize(required_.size() + 1);  // an array, whatever the number
    const bool yes = program_->check(args.data(), required_.data());
    required_.pop_back();
    EXPECT_EQ(yes, program_->check_plainly(args.data()));
    failure_ = program_->failure(args.data());
    EXPECT_EQ(yes, !failure_) << failure_.text();
    EXPECT_EQ(PyErr_Occurred(), nullptr);
    if (yes) return true;
    py_.forget();
    return false;
  }
  const Failure& failure() const { return failure_; }  // of the last check
  GuardProgram& program() { return *program_; }
  const std::vector<PyObject*>& required() const { return required_; }

 private:
  Python& py_;
  Observations o_;
  std::unique_ptr<GuardProgram> program_;
  std::vector<PyObject*> required_;
  Failure failure_;
};

}  // namespace flashover::guards

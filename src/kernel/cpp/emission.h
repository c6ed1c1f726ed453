// What the functions that write one kernel in C++ share: the kernel, what was decided about it, the text so far, and
// names for its variables.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel/cpp/facts.h"
#include "kernel/cpp/iteration.h"
#include "kernel/cpp/scalar.h"
#include "kernel/text.h"

namespace flashover::kernel::cpp {

// Lines of C++, indented by the braces around them.
struct Writer {
  std::string text;
  int indent = 0;
  void line(const std::string& s) { text += std::string(2 * static_cast<size_t>(indent), ' ') + s + "\n"; }
  void open(const std::string& head = "") {
    line(head + (head.empty() ? "{" : " {"));
    ++indent;
  }
  void close() {
    --indent;
    line("}");
  }
};

// An instruction's result as it stands in the text.
struct EmittedValue {
  bool varying = false;  // a vector, once per copy; else a scalar
  RegisterClass cls = RegisterClass::kF;
  DType dtype = DType::kF32;  // after narrowing
  std::string text;           // of a scalar its name or literal; of a vector its name without the copy's suffix
  bool literal = false;
  double number = 0;  // of literals
  int64_t integer = 0;
  std::string name(int copy) const { return varying ? text + "_" + num(copy) : text; }
};

// The variable that k_indirect defines.
struct Indirect {
  std::string name;
  bool varying = false;  // an array over the lanes, once per copy
};

// How many lanes a run of a stage covers: `copies` whole vectors side by side, or the first `count` lanes of one.
struct LaneRun {
  int copies = 1;
  std::string count;  // "": all
};

// Where in a stage text is being written, and what its instructions are called there.
struct Scope {
  const loops::Stage* stage = nullptr;
  const StageFacts* facts = nullptr;
  std::vector<EmittedValue> values;
  std::map<const sym::Node*, Indirect> indirect;
  bool vector = false;
  LaneLoop lanes;
  std::string lane_text;  // the lane variable at lane 0 of copy 0
  LaneRun run;
  bool row_block = false;  // the stage's loops run over rows [jb, je) only (see row_blocks.h)
  int vectors() const { return vector ? run.copies : 1; }
};

struct Emission {
  Emission(const loops::Kernel& kernel, const Target& target)
      : k(kernel), facts(facts_of(kernel, target)), iteration(iteration_of(kernel, facts)) {
    for (size_t i = 0; i < k.sizes.size(); ++i) variables[k.sizes[i].node()] = "s" + num(i);
    for (size_t i = 0; i < k.outer.size(); ++i) variables[k.outer[i].var.node()] = "i" + num(i);
  }

  const loops::Kernel& k;
  const KernelFacts facts;
  const Iteration iteration;
  Writer out;
  std::unordered_map<const sym::Node*, std::string> variables;
  bool in_body = true;  // geometry of a shared body comes from the job
  std::vector<int64_t> constants;
  std::map<loops::Id, std::string> tile_names;  // arrays of vectors, one for each row

  bool inner() const { return facts.inner(); }
  bool outer() const { return facts.outer(); }
  // Qualifies library names: scalars have a namespace of their own where the kernel itself is vectors.
  std::string ns(bool vector) const { return vector || facts.lanes.width == 1 ? "" : "one::"; }
  std::string constant(RegisterClass c, double number, int64_t integer, bool vector) const {
    return kernel::constant(c, number, integer, vector, ns(vector));
  }
};

}  // namespace flashover::kernel::cpp

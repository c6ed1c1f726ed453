// What the functions that write one kernel in C++ share: the kernel, what was decided about it, the text so far, and
// names for its variables.
#pragma once
#include <functional>
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
struct Value {
  bool varying = false;  // a vector, once per copy; else a scalar
  Class cls = Class::kF;
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
  std::vector<Value> values;
  std::map<const sym::Node*, Indirect> indirect;
  bool vector = false;
  LaneLoop lanes;
  std::string lane_text;  // the lane variable at lane 0 of copy 0
  LaneRun run;
  bool few_rows = false;  // the stage's loops run over rows [jb, je) only (see rows.h)
  int vectors() const { return vector ? run.copies : 1; }
};

struct Emission {
  Emission(const loops::Kernel& kernel, const Target& target);

  const loops::Kernel& k;
  const Facts facts;
  const Iteration iteration;
  Writer out;
  std::unordered_map<const sym::Node*, std::string> variables;
  bool in_body = true;  // numbers of a shared body come from the job
  std::vector<int64_t> constants;
  std::map<loops::Id, std::string> tile_names;  // arrays of vectors, one for each row

  bool inner() const { return facts.inner(); }
  bool outer() const { return facts.outer(); }
  // Qualifies library names: scalars have a namespace of their own where the kernel itself is vectors.
  std::string ns(bool vector) const { return vector || facts.lanes.width == 1 ? "" : "one::"; }
  std::string constant(Class c, double number, int64_t integer, bool vector) const {
    return kernel::constant(c, number, integer, vector, ns(vector));
  }
};

// ---- values (values.cpp)

// Operand `a` as class `want`, as a vector if `vector`.
std::string operand(const Emission& e, const Scope& s, loops::Id a, int copy, Class want, bool vector);

using TextOfCopy = std::function<std::string(int copy)>;
// Writes "const type name = text" for every copy.
void define(Emission& e, Scope& s, loops::Id i, bool varying, DType dtype, const TextOfCopy& text);
// Defines a vector by computing one lane `l` after the other, where `condition` holds if there is one.
void define_by_lane(Emission& e, Scope& s, loops::Id i, DType dtype, const TextOfCopy& text,
                    const TextOfCopy& condition = nullptr);
void set_literal(Emission& e, Scope& s, loops::Id i, double number, int64_t integer);

// A value before it is rounded to `narrow`: whoever rounds it again gets the same.
loops::Id unrounded(const Scope& s, loops::Id i, DType narrow);
bool varies(const Scope& s, loops::Id i);  // false for kNone
std::string mask_text(const Scope& s, const loops::Instr& in, int copy);
std::string lane_count(const Scope& s);

// ---- index expressions as text (index.cpp)

LaneStep step_of(const Scope& s, sym::Expr index);
std::string variable(const Emission& e, sym::Expr v);
// A number of the kernel's geometry: in place, or read from the job by a shared body.
std::string geometry(Emission& e, int64_t v);
// Outside of any stage.
std::string index(Emission& e, sym::Expr x);
// The same for all lanes, or that of the first lane.
std::string index(Emission& e, const Scope& s, sym::Expr x);
// That of a copy's first lane.
std::string index_of_copy(Emission& e, const Scope& s, sym::Expr x, int copy);
// That of a copy's lane `l`, a variable of the text.
std::string index_of_lane(Emission& e, const Scope& s, sym::Expr x, int copy);
// With any text for the lane variable.
std::string index_at(Emission& e, const Scope& s, sym::Expr x, const std::string& lane);

}  // namespace flashover::kernel::cpp

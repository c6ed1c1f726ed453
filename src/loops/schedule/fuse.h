// Groups: nodes that run in one kernel, their loop variables expressed in the group's.
#pragma once
#include <cstdint>
#include <vector>

#include "loops/schedule/loop_nodes.h"
#include "loops/schedule/options.h"

namespace flashover::loops {

struct GroupVar {
  enum class Role : uint8_t {
    kFree,   // no member reduces: all points are alike
    kRow,    // outer: distinct rows share nothing
    kInner,  // within a row
  };
  sym::Expr var;
  Role role = Role::kFree;
};

struct Group {
  std::vector<int32_t> nodes;  // in program order; their indices, vars and accesses are over `vars`
  std::vector<GroupVar> vars;
  bool frozen = false;
};

// A step of the program in dependency order: a group or an extern node.
struct Unit {
  int32_t group = -1;
  int32_t node = -1;
};

struct Fused {
  std::vector<Group> groups;
  std::vector<Unit> order;  // a valid execution order
};

// Sets LoopNode::stored.
Fused fuse(LoopProgram& program, const ScheduleOptions& options);

// How a read of one member depends on what another member of its group wrote.
enum class Dependence : uint8_t {
  kSameElement,  // the same point of the same loops: may pass in a register
  kSameRow,      // another element, made by an earlier stage of the same row
  kElsewhere,    // not (provably) made in this row
};
Dependence dependence_of(const Group& g, const LoopNode& producer, const Access& read);

std::string print(const Fused& f, const LoopProgram& p);

}  // namespace flashover::loops

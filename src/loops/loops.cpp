// The table of instructions, equality and identity of kernels, and how deep a value must be computed.
#include "loops/loops.h"

#include <algorithm>

#include "base/check.h"
#include "sym/bounded.h"

namespace flashover::loops {
namespace {
constexpr OpInfo kOps[] = {
#define POINTWISE(name, arity, types, cost, traits, meaning) {#name, arity, types, true, cost},
#include "ops/prims.def"
    {"convert", 1, "", true, 1},        {"round_to", 1, "", true, 1}, {"const", 0, "", true, 0},
    {"index", 0, "", true, 1},          {"in_range", 0, "", true, 1}, {"uniform", 2, "", true, 20},
    {"normal", 2, "", true, 20},        {"indirect", 1, "", true, 1}, {"load", 0, "", true, 1},
    {"load_scratch", 0, "", true, 1},   {"acc", 0, "", true, 0},      {"store", 1, "", false, 1},
    {"store_scratch", 1, "", false, 1}, {"reduce", 1, "", false, 1},  {"scan", 1, "", true, 1},
};
static_assert(std::size(kOps) == static_cast<size_t>(Op::k_scan) + 1);

bool same_bits(double a, double b) { return __builtin_bit_cast(uint64_t, a) == __builtin_bit_cast(uint64_t, b); }
}  // namespace

const OpInfo& info(Op op) { return kOps[static_cast<size_t>(op)]; }

bool Instr::operator==(const Instr& o) const {
  return op == o.op && dtype == o.dtype && args == o.args && mask == o.mask && slot == o.slot && index == o.index &&
         lo == o.lo && hi == o.hi && same_bits(number, o.number) && integer == o.integer && narrow == o.narrow &&
         mode == o.mode && wrap == o.wrap;
}

sym::Expr loop_var(char letter, int position, sym::Expr extent) {
  std::string name(1, letter);
  name += std::to_string(position) + ".";
  for (char c : extent.str()) {
    switch (c) {
      case ' ':
        break;
      case '*':
        name += 'x';
        break;
      case '+':
        name += 'p';
        break;
      case '-':
        name += 'm';
        break;
      case '/':
        name += 'd';
        break;
      case '(':
        name += 'L';
        break;
      case ')':
        name += 'R';
        break;
      case ',':
        name += '_';
        break;
      default:
        name += c;
    }
  }
  return sym::var_below(name, extent);
}

std::vector<int> depths(const Stage& stage) {
  const int full = static_cast<int>(stage.loops.size());
  std::vector<int> depth(stage.body.size(), 0);
  std::vector<std::pair<sym::Expr, int>> variable_depth;
  for (int i = 0; i < full; ++i) variable_depth.emplace_back(stage.loops[i].var, i + 1);
  auto of_expr = [&](sym::Expr e) {
    std::vector<sym::Expr> vars;
    sym::collect_vars(e, vars);
    int d = 0;
    for (sym::Expr v : vars)
      for (auto& [var, at] : variable_depth)
        if (var == v) d = std::max(d, at);
    return d;
  };
  for (size_t i = 0; i < stage.body.size(); ++i) {
    const Instr& in = stage.body[i];
    int d = 0;
    for (Id a : in.args)
      if (a != kNone) d = std::max(d, depth[a]);
    if (in.mask != kNone) d = std::max(d, depth[in.mask]);
    switch (in.op) {
      case Op::k_indirect:
        variable_depth.emplace_back(in.index, d);
        break;
      case Op::k_store:
      case Op::k_store_scratch:
      case Op::k_reduce:
      case Op::k_scan:
        d = full;
        break;
      default:
        d = std::max({d, of_expr(in.index), of_expr(in.lo), of_expr(in.hi)});
    }
    depth[i] = d;
  }
  return depth;
}

Hash128 identity(const Kernel& k) { return Hasher().text(text(k)).finish(); }

}  // namespace flashover::loops

// Triton's // and % round towards zero: what may be negative goes through the library.
#include "kernel/triton/index.h"

#include <algorithm>

#include "kernel/text.h"

namespace flashover::kernel::triton {

using loops::Instr;
using loops::Loop;
using loops::Op;
using sym::Expr;

namespace {

std::string sum(const Coordinates& c, Expr e) {
  std::string out;
  for (Expr o : e.operands()) {
    const std::string term = text(c, o);
    if (out.empty()) {
      out = term;
    } else if (term[0] == '-') {
      out += " - " + term.substr(1);
    } else {
      out += " + " + term;
    }
  }
  return out;
}

std::string multiplication(const Coordinates& c, Expr e) {
  const auto ops = e.operands();
  std::string out;
  if (ops[0].is_const(-1)) {
    for (Expr o : ops.subspan(1)) out += (out.empty() ? "" : " * ") + atom(c, o);
    return "-" + (ops.size() > 2 ? "(" + out + ")" : out);
  }
  for (Expr o : ops) out += out.empty() ? (o.is_const() ? text(c, o) : atom(c, o)) : " * " + atom(c, o);
  return out;
}

std::string division(const Coordinates& c, Expr e, const char* op, const char* library) {
  const Expr a = e.operands()[0], b = e.operands()[1];
  if (a.range().lo < 0) return std::string(library) + "(" + text(c, a) + ", " + text(c, b) + ")";
  return "(" + atom(c, a) + op + divisor(c, b) + ")";
}

// More points than this could be counted beyond INT32_MAX by the last program, masked or not.
bool too_many(const std::vector<Loop>& loops) {
  int64_t n = 1;
  for (const Loop& l : loops) n *= l.extent.value();
  return n > INT32_MAX - (1 << 17);
}

}  // namespace

bool fits_int32(Expr e) {
  const sym::Range r = e.range();
  if (r.lo < INT32_MIN || r.hi > INT32_MAX) return false;
  return std::all_of(e.operands().begin(), e.operands().end(), fits_int32);
}

bool needs_int64(const loops::Kernel& k, const std::vector<Loop>& points) {
  if (!k.sizes.empty()) return true;  // nothing is known of their product
  if (too_many(points)) return true;
  for (const loops::Stage& s : k.stages) {
    if (too_many(s.loops)) return true;
    for (const Instr& in : s.body)
      if ((in.op != Op::k_indirect && !fits_int32(in.index)) || !fits_int32(in.lo) || !fits_int32(in.hi)) return true;
  }
  return false;
}

bool has_indirect(Expr e) {
  std::vector<Expr> vars;
  sym::collect_vars(e, vars);
  return std::any_of(vars.begin(), vars.end(), [](Expr v) { return v.name()[0] == 't'; });
}

Axes axes_of(const Coordinates& c, Expr e) {
  std::vector<Expr> vars;
  sym::collect_vars(e, vars);
  Axes axes = 0;
  for (Expr v : vars) axes |= c.names.at(v.node()).axes;
  return axes;
}

std::string atom(const Coordinates& c, Expr e) {
  const std::string s = text(c, e);
  return e.kind() == sym::Kind::kAdd || (e.is_const() && e.value() < 0) ? "(" + s + ")" : s;
}

std::string divisor(const Coordinates& c, Expr e) {
  return e.kind() == sym::Kind::kMul ? "(" + text(c, e) + ")" : atom(c, e);
}

std::string text(const Coordinates& c, Expr e) {
  switch (e.kind()) {
    case sym::Kind::kConst:
      return num(e.value());
    case sym::Kind::kVar:
      if (c.by_fours)
        if (auto it = c.fours.find(e.node()); it != c.fours.end()) return it->second;
      return c.names.at(e.node()).text;
    case sym::Kind::kAdd:
      return sum(c, e);
    case sym::Kind::kMul:
      return multiplication(c, e);
    case sym::Kind::kFloorDiv:
      return division(c, e, " // ", "lib.floor_div");
    case sym::Kind::kMod:
      return division(c, e, " % ", "lib.floor_mod");
    case sym::Kind::kMin:
    case sym::Kind::kMax: {
      const char* function = e.kind() == sym::Kind::kMin ? "tl.minimum(" : "tl.maximum(";
      std::string out = text(c, e.operands()[0]);
      for (Expr o : e.operands().subspan(1)) out = function + out + ", " + text(c, o) + ")";
      return out;
    }
  }
  return "";
}

Expr relinearized(const Coordinates& c, Expr e) {
  for (const LinearizedLoops& l : c.linearized) {
    const auto last = sym::coefficient(e, l.loops.back().var);
    if (!last || !last->is_const() || last->is_const(0)) continue;
    Expr stride = *last;
    bool all = true;
    for (size_t i = l.loops.size(); i-- > 0 && all;) {
      const auto of = sym::coefficient(e, l.loops[i].var);
      all = of && sym::known_eq(*of, stride);
      stride *= l.loops[i].extent;
    }
    if (!all) continue;
    e = sym::substitute(e, [&](Expr v) -> std::optional<Expr> {
      for (const Loop& loop : l.loops)
        if (loop.var == v) return Expr(0);
      return std::nullopt;
    });
    e += *last * l.whole;
  }
  return e;
}

std::string index(const Coordinates& c, Expr e) { return text(c, relinearized(c, e)); }

void linearize(Coordinates& c, const std::vector<Loop>& loops, char letter, const std::string& name, Axes axes,
               bool fours) {
  if (loops.size() < 2) return;
  Expr total = 1;
  for (const Loop& l : loops) total *= l.extent;
  if (total.range().hi == sym::Range::kInf) return;
  const Expr whole = loops::loop_var('f', letter, total);
  c.names[whole.node()] = {name, axes};
  if (fours) c.fours[whole.node()] = name + "q";
  c.linearized.push_back({loops, whole});
}

}  // namespace flashover::kernel::triton

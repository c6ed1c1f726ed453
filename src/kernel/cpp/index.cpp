// C++ rounds quotients towards zero: what may be negative goes through the library.
#include "kernel/cpp/index.h"

#include "base/check.h"

namespace flashover::kernel::cpp {
namespace {

using sym::Expr;

// Where in a vector an index is written.
struct Lane {
  std::string variable;  // text for the lane variable; "": the variable's own name
  int copy = 0;
  std::string number;  // text of the lane's number, for indirect variables that differ by lane
};

struct IndexText {
  Emission& e;
  const Scope& s;
  const Lane& lane;

  std::string of(Expr x) {
    switch (x.kind()) {
      case sym::Kind::kConst:
        return geometry(e, x.value());
      case sym::Kind::kVar:
        return of_variable(x);
      case sym::Kind::kAdd:
        return "(" + sum(x) + ")";
      case sym::Kind::kMul: {
        std::string text;
        for (Expr t : x.operands()) text += (text.empty() ? "" : " * ") + of(t);
        return text;
      }
      case sym::Kind::kFloorDiv:
      case sym::Kind::kMod:
        return division(x);
      case sym::Kind::kMin:
      case sym::Kind::kMax: {
        const char* function = x.kind() == sym::Kind::kMin ? "index_min(" : "index_max(";
        std::string text = of(x.operands()[0]);
        for (Expr t : x.operands().subspan(1)) text = e.ns(false) + function + text + ", " + of(t) + ")";
        return text;
      }
    }
    return "";
  }

  std::string of_variable(Expr x) {
    if (s.vector && x == s.lanes.variable && !lane.variable.empty()) return lane.variable;
    auto it = s.indirect.find(x.node());
    if (it == s.indirect.end()) return variable(e, x);
    const Indirect& i = it->second;
    return i.varying ? i.name + "_" + num(lane.copy) + "[" + lane.number + "]" : i.name;
  }

  std::string sum(Expr x) {
    std::string text;
    for (Expr t : x.operands()) {
      if (t.is_const() && t.value() < 0 && !text.empty() && !e.facts.shared) {
        text += " - " + num(-t.value());
      } else {
        text += (text.empty() ? "" : " + ") + of(t);
      }
    }
    return text;
  }

  std::string of_divisor(Expr x) { return x.kind() == sym::Kind::kMul ? "(" + of(x) + ")" : of(x); }

  std::string division(Expr x) {
    const Expr a = x.operands()[0], b = x.operands()[1];
    const bool div = x.kind() == sym::Kind::kFloorDiv;
    if (a.range().lo >= 0 && b.range().lo >= 0) {
      // (The compiler takes what is the same for all points out of a loop, and may do so where there are none.)
      const std::string by = b.range().lo > 0 ? of_divisor(b) : "(" + of(b) + " + (" + of(b) + " == 0))";
      return "(" + of(a) + (div ? " / " : " % ") + by + ")";
    }
    return e.ns(false) + (div ? "index_div(" : "index_mod(") + of(a) + ", " + of(b) + ")";
  }
};

std::string index_text(Emission& e, const Scope& s, Expr x, const Lane& lane) { return IndexText{e, s, lane}.of(x); }

VariesTest varying_variables(const Scope& s) {
  return [&s](Expr v) {
    const auto it = s.indirect.find(v.node());
    return it != s.indirect.end() && it->second.varying;
  };
}

std::string lanes_before(const Scope& s, int copy) { return num(int64_t{copy} * s.lanes.width); }

}  // namespace

LaneStep step_of(const Scope& s, Expr index) { return lane_step(index, s.lanes, varying_variables(s)); }
std::optional<Expr> symbolic_step_of(const Scope& s, Expr index) {
  return symbolic_step(index, s.lanes, varying_variables(s));
}

std::string variable(const Emission& e, Expr v) {
  auto it = e.variables.find(v.node());
  FLASHOVER_CHECK(it != e.variables.end()) << "no variable " << v.str() << " in " << loops::print(e.k);
  return it->second;
}

std::string geometry(Emission& e, int64_t v) {
  if (!e.facts.shared || !e.in_body || v == 0 || v == 1) return v < 0 ? "(" + num(v) + ")" : num(v);
  e.constants.push_back(v);
  return "c" + num(e.constants.size() - 1);
}

std::string index(Emission& e, Expr x) { return index_text(e, Scope{}, x, {}); }

std::string divisor(Emission& e, Expr x) { return IndexText{e, Scope{}, {}}.of_divisor(x); }

std::string index(Emission& e, const Scope& s, Expr x) { return index_text(e, s, x, {s.lane_text, 0, ""}); }

std::string index_of_copy(Emission& e, const Scope& s, Expr x, int copy) {
  return index_text(e, s, x,
                    {copy == 0 ? s.lane_text : "(" + s.lane_text + " + " + lanes_before(s, copy) + ")", 0, ""});
}

std::string index_of_lane(Emission& e, const Scope& s, Expr x, int copy) {
  const std::string first = copy ? lanes_before(s, copy) + " + " : "";
  return index_text(e, s, x, {"(" + s.lane_text + " + " + first + "l)", copy, "l"});
}

std::string index_at(Emission& e, const Scope& s, Expr x, const std::string& lane) {
  return index_text(e, s, x, {lane, 0, ""});
}

}  // namespace flashover::kernel::cpp

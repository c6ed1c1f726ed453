// Equal right-hand sides are one name, wherever it stays defined.
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

using loops::Id;
using loops::Instr;
using loops::kNone;
using loops::Loop;
using sym::Expr;

void stage_line(Emission& e, const std::string& text) {
  e.stage.body += (e.stage.looped ? "        " : "    ") + text + "\n";
}
void before_loop(Emission& e, const std::string& text) { e.stage.before += "    " + text + "\n"; }
void after_loop(Emission& e, const std::string& text) { e.stage.after += "    " + text + "\n"; }
void hoisted_line(Emission& e, Axes axes, const std::string& text) {
  if (e.over_keys && !(axes & kX)) {
    e.hoisted += "    " + text + "\n";
    return;
  }
  e.stage.looped && !(axes & kR) ? before_loop(e, text) : stage_line(e, text);
}

std::string fresh(Emission& e, const char* prefix) { return e.role.temporary + prefix + num(e.next++); }

void delinearize(Emission& e, const std::vector<NamedLoop>& nest, const std::string& from, Axes axes, bool fours,
                 const std::function<void(const std::string&)>& write) {
  Expr below = 1;
  for (size_t n = nest.size(); n-- > 0;) {
    const Loop& l = *nest[n].loop;
    const auto coordinate = [&](const std::string& number) {
      std::string c = number;
      if (!below.is_const(1)) c += " // " + divisor(e.at, below);
      if (n > 0) c = (below.is_const(1) ? c : "(" + c + ")") + " % " + divisor(e.at, l.extent);
      return c;
    };
    const std::string c = coordinate(from), name = c == from ? from : nest[n].name;
    if (name != from) write(name + " = " + c);
    e.at.names[l.var.node()] = {name, axes};
    e.at.fours.erase(l.var.node());
    if (fours) {
      if (name != from) write(name + "q = " + coordinate(from + "q"));
      e.at.fours[l.var.node()] = name + "q";
    }
    below *= l.extent;
  }
}

std::string shape(const Emission& e, Axes axes) {
  const Tile& t = e.tile;
  if (t.rows) return "[" + num(axes & kX ? t.x : 1) + ", " + num(axes & kR ? e.r : 1) + "]";
  if (t.y) return "[" + num(axes & kY ? t.y : 1) + ", " + num(axes & kX ? t.x : 1) + "]";
  return "[" + num(t.x) + "]";
}

Axes all_axes(const Emission& e) {
  if (e.tile.rows) return static_cast<Axes>(kX | (e.stage.in_row ? kR : 0));
  return e.tile.y ? static_cast<Axes>(kX | kY) : kX;
}

std::string broadcast(const Emission& e, const EmittedValue& v, Axes to) {
  if (v.literal || v.axes == 0) return "tl.full(" + shape(e, to) + ", " + v.text + ", " + type_name(v.dtype) + ")";
  return v.axes == to ? v.text : "tl.broadcast_to(" + v.text + ", " + shape(e, to) + ")";
}

std::string conjunction(const std::string& mask, const std::string& other) {
  return mask + (mask.empty() || other.empty() ? "" : " & ") + other;
}

std::string tile_mask(const Emission& e, Axes axes) {
  std::string m;
  if (axes & kY) m = conjunction(m, e.y_mask);
  if (axes & kX) m = conjunction(m, e.x_mask);
  if (axes & kR) m = conjunction(m, e.stage.r_mask);
  return m;
}

std::string mask(const Emission& e, const Instr& in, Axes axes) {
  return conjunction(tile_mask(e, axes), in.mask == kNone ? "" : e.stage.values[in.mask].text);
}

Axes mask_axes(const Emission& e, const Instr& in) { return in.mask == kNone ? Axes{0} : e.stage.values[in.mask].axes; }

const EmittedValue& arg(const Emission& e, const Instr& in, int n) { return e.stage.values[in.args[n]]; }

std::string full(const EmittedValue& v, DType d) {
  return v.dtype == d || v.literal ? v.text : v.text + ".to(" + type_name(d) + ")";
}

void set_value(Emission& e, Id id, EmittedValue v) { e.stage.values[id] = std::move(v); }

void define(Emission& e, Id id, Axes axes, const std::string& text, DType d) {
  const bool pure = text.find("tl.load(") == std::string::npos;
  if (pure)
    for (const auto* memo : {&e.memo, &e.stage.memo})
      if (auto it = memo->find(text); it != memo->end()) return set_value(e, id, it->second);
  EmittedValue v{fresh(e, "v"), axes, d, false, ""};
  hoisted_line(e, axes, v.text + " = " + text);
  const bool stays_defined = e.over_keys ? !(axes & kX) : !e.stage.looped || !(axes & kR);
  if (pure) (stays_defined ? e.memo : e.stage.memo)[text] = v;
  set_value(e, id, std::move(v));
}

}  // namespace flashover::kernel::triton

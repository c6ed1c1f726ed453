// `x` is the linear index of a point; a tile of two axes has coordinates of its own for these.
#include "kernel/triton/points.h"

#include <optional>

namespace flashover::kernel::triton {
namespace {

using loops::Loop;
using sym::Expr;

std::string program_id(const Emission& e) { return e.wide ? "tl.program_id(0).to(tl.int64)" : "tl.program_id(0)"; }

// The loops that `x` goes over: all but the two axes of such a tile.
std::vector<NamedLoop> linearized_loops(const Emission& e) {
  const std::vector<Loop>& points = e.tile.points;
  std::vector<NamedLoop> nest;
  for (size_t i = 0; i < points.size(); ++i)
    if (!e.tile.y || (static_cast<int32_t>(i) != e.tile.across && i + 1 < points.size()))
      nest.push_back({&points[i], "i" + num(i)});
  return nest;
}

// A tile of two axes: y points along loop `across`, x along the last loop. `total`: points of the other loops. Writes
// what is left of the program's index as x, unless there are no other loops.
void two_axes(Emission& e, Expr total, bool others) {
  const Tile& t = e.tile;
  const Loop &a = t.points[t.across], &b = t.points.back();
  const Expr na = sym::ceildiv(a.extent, t.y), nb = sym::ceildiv(b.extent, t.x);
  e.grid = na * nb * total;
  line(e, "pid = " + program_id(e));
  const std::string ia = "i" + num(t.across), ib = "i" + num(t.points.size() - 1);
  const std::string column = nb.is_const(1)  ? ""
                             : nb.is_const() ? "pid % " + num(nb.value())
                                             : "pid % (" + text(e.at, nb) + ")";
  const std::string begin = column.empty() ? "" : column + " * " + num(t.x) + " + ";
  line(e, ib + " = " + begin + "tl.arange(0, " + num(t.x) + ")[None, :]" + wide_cast(e));
  if (e.random && t.x % 4 == 0) {
    line(e, ib + "q = " + begin + "4 * tl.arange(0, " + num(t.x / 4) + ")[None, :]" + wide_cast(e));
    e.at.fours[b.var.node()] = ib + "q";
  }
  if (!nb.is_const(1)) line(e, "pid = pid // " + divisor(e.at, nb));
  const std::string row =
      na.is_const(1) ? "" : (total.is_const(1) ? "pid" : "pid % " + divisor(e.at, na)) + " * " + num(t.y) + " + ";
  line(e, ia + " = " + row + "tl.arange(0, " + num(t.y) + ")[:, None]" + wide_cast(e));
  e.at.names[b.var.node()] = {ib, kX};
  e.at.names[a.var.node()] = {ia, kY};
  if (!sym::known_divisible(b.extent, t.x)) {
    line(e, "xm = " + ib + " < " + text(e.at, b.extent));
    e.x_mask = "xm";
  }
  if (!sym::known_divisible(a.extent, t.y)) {
    line(e, "ym = " + ia + " < " + text(e.at, a.extent));
    e.y_mask = "ym";
  }
  if (others) line(e, na.is_const(1) ? "x = pid" : "x = pid // " + divisor(e.at, na));
}

// Does each fourth point have a name?
bool one_axis(Emission& e, Expr total) {
  const Tile& t = e.tile;
  const std::string pid = program_id(e), lanes = "tl.arange(0, " + num(t.x) + ")" + (t.rows ? "[:, None]" : "");
  line(e, "x = " + pid + (t.x == 1 && t.rows ? "" : " * " + num(t.x)) + " + " + lanes);
  const bool fours = e.random && !t.rows && t.x % 4 == 0;
  if (fours) line(e, "xq = " + pid + " * " + num(t.x) + " + 4 * tl.arange(0, " + num(t.x / 4) + ")");
  if (!sym::known_divisible(total, t.x)) {
    line(e, "xm = x < " + text(e.at, total));
    e.x_mask = "xm";
  }
  linearize(e.at, t.points, 0, "x", kX, fours);
  return fours;
}

}  // namespace

void program_points(Emission& e) {
  const std::vector<NamedLoop> nest = linearized_loops(e);
  Expr total = 1;
  for (const NamedLoop& l : nest) total *= l.loop->extent;
  const auto write = [&](const std::string& text) { line(e, text); };
  if (e.tile.y) {
    two_axes(e, total, !nest.empty());
    delinearize(e, nest, "x", 0, false, write);
    return;
  }
  e.grid = sym::ceildiv(total, e.tile.x);
  if (nest.empty() && !e.tile.rows) return;  // one point
  const bool fours = one_axis(e, total);
  delinearize(e, nest, "x", kX, fours, write);
}

}  // namespace flashover::kernel::triton

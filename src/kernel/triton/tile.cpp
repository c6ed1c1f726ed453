// Chooses block sizes and warps from extents, loads and how memory is walked.
#include "kernel/triton/tile.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace flashover::kernel::triton {

using loops::Instr;
using loops::Op;
using loops::Stage;

int64_t power_of_2(int64_t n) {
  int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}
int64_t points_of(const std::vector<loops::Loop>& loops) {
  int64_t n = 1;
  for (const loops::Loop& l : loops) n *= l.extent.hint();
  return n;
}

namespace {

bool is_scatter(const Stage& s) {
  return s.ordered && std::none_of(s.body.begin(), s.body.end(),
                                   [](const Instr& i) { return i.op == Op::k_scan || i.op == Op::k_reduce; });
}

// Values that each element of a row keeps alive at most: its distinct loads and what passes between stages.
int64_t loads_of(const loops::Kernel& k) {
  std::set<std::pair<int32_t, const sym::Node*>> seen;
  for (const Stage& s : k.stages)
    for (const Instr& i : s.body)
      if (i.op == Op::k_load && !s.loops.empty()) seen.emplace(i.slot, i.index.node());
  return static_cast<int64_t>(seen.size() + k.scratch.size());
}

int warps_for(int64_t elements, int64_t each, int most) {
  return static_cast<int>(std::clamp<int64_t>(power_of_2((elements + 32 * each - 1) / (32 * each)), 1, most));
}

// Neighbouring points of a scatter are those that its loads find side by side.
void along_memory(const Stage& s, std::vector<loops::Loop>& points) {
  auto stride = [&](const loops::Loop& l) {
    int64_t most = 0;
    for (const Instr& i : s.body) {
      if (i.op != Op::k_load) continue;
      const auto c = sym::coefficient(i.index, l.var);
      most = std::max(most, c && c->is_const() ? std::abs(c->value()) : 1);
    }
    return most;
  };
  std::stable_sort(points.begin(), points.end(),
                   [&](const loops::Loop& a, const loops::Loop& b) { return stride(a) > stride(b); });
}

// Many operations an element: more of them in flight.
bool is_heavy(const loops::Kernel& k) {
  return std::any_of(k.stages.begin(), k.stages.end(), [](const Stage& s) {
    return std::any_of(s.body.begin(), s.body.end(), [](const Instr& i) {
      return i.op == Op::k_erf || i.op == Op::k_tanh || i.op == Op::k_exp || i.op == Op::k_sigmoid;
    });
  });
}

// Flat points: 8 elements a thread where there is enough work to fill the machine with such programs.
void flat(const loops::Kernel& k, const Gpu& gpu, Tile& t) {
  const int64_t n = points_of(t.points);
  int64_t loads = 0;
  for (const Stage& s : k.stages)
    for (const Instr& i : s.body) loads += i.op == Op::k_load;
  t.x = is_heavy(k) && loads <= 4 && n >= int64_t{8192} * gpu.processors ? 2048 : 1024;
  if (loads > 20) t.x = 512;  // pooling windows: registers
  while (t.x > 128 && n / t.x < int64_t{4} * gpu.processors) t.x /= 2;
  t.x = std::min(t.x, power_of_2(n));
  t.warps = warps_for(t.x, loads > 20 ? 4 : t.x == 2048 ? 16 : 8, 8);
}

void transposed(const loops::Kernel& k, const Gpu& gpu, Tile& t) {
  t.across = k.transpose;
  const int64_t a = t.points[static_cast<size_t>(t.across)].extent.hint(), b = t.points.back().extent.hint();
  const int64_t n = points_of(t.points);
  int64_t side = 64;
  while (side > 16 && n / (side * side) < int64_t{2} * gpu.processors) side /= 2;
  t.y = std::min(side, power_of_2(a));
  t.x = std::min(side, power_of_2(b));
  // A short axis leaves room on the other.
  while (t.y < side && t.x * t.y < side * side && t.x < power_of_2(b)) t.x *= 2;
  while (t.x < side && t.x * t.y < side * side && t.y < power_of_2(a)) t.y *= 2;
  t.warps = warps_for(t.x * t.y, 16, 8);
}

bool writes_elements(const loops::Kernel& k) {
  return std::any_of(k.stages.begin(), k.stages.end(), [](const Stage& s) {
    return !s.loops.empty() &&
           std::any_of(s.body.begin(), s.body.end(), [](const Instr& i) { return i.op == Op::k_store; });
  });
}

// A tensor in which the elements of a row lie far apart, and those of neighbouring rows side by side.
bool crosses_rows(const loops::Kernel& k) {
  if (k.outer.empty()) return false;
  const auto step = [](const sym::Expr& index, const loops::Loop& l) -> int64_t {
    const auto c = sym::coefficient(index, l.var);
    return c && c->is_const() ? std::abs(c->value()) : 0;
  };
  for (const Stage& s : k.stages)
    for (const Instr& i : s.body)
      if ((i.op == Op::k_load || i.op == Op::k_store) && !s.loops.empty() && step(i.index, k.outer.back()) == 1 &&
          step(i.index, s.loops.back()) > 1)
        return true;
  return false;
}

// Bytes of each row where all rows are multiplied with one, which a program then reads once for several of its rows: the
// product of a vector and a matrix. 0: there is no such row, or they are not only summed.
int64_t bytes_beside_a_shared_row(const loops::Kernel& k) {
  bool shared = false;
  int64_t bytes = 0;
  for (const Stage& s : k.stages)
    for (const Instr& i : s.body) {
      if (i.op == Op::k_reduce && k.accs[static_cast<size_t>(i.slot)].kind != loops::Reduce::kSum) return 0;
      if (s.loops.empty()) continue;
      if (i.op == Op::k_store) return 0;
      if (i.op != Op::k_load) continue;
      const auto in_row = [&](const loops::Loop& l) {
        return !sym::coefficient(i.index, l.var).value_or(1).is_const(0);
      };
      const bool along = std::any_of(s.loops.begin(), s.loops.end(), in_row);
      const bool across = std::any_of(k.outer.begin(), k.outer.end(), in_row);
      // (What is loaded under a mask is part of a row: both halves of a byte, stacked.)
      const int64_t elements = points_of(s.loops) / (i.mask == loops::kNone ? 1 : 4);
      if (along && across) bytes += info(k.params[static_cast<size_t>(i.slot)].dtype).bytes * elements;
      shared |= along && !across;
    }
  return shared ? bytes : 0;
}

void rows(const loops::Kernel& k, const Gpu& gpu, Tile& t) {
  t.rows = true;
  int64_t longest = 1;
  for (const Stage& s : k.stages) longest = std::max(longest, points_of(s.loops));
  bool fixed = true;
  for (const Stage& s : k.stages)
    for (const loops::Loop& l : s.loops) fixed &= l.extent.is_const();
  if (!fixed && !k.scratch.empty()) throw Declined("triton: scratch of a row of unknown length");
  const int64_t n = points_of(t.points), whole = power_of_2(longest), loads = std::max<int64_t>(1, loads_of(k));
  if (k.vector == loops::Vector::kOuter && n >= 16) {
    // Columns: neighbours in memory are neighbours in x.
    t.persistent = (fixed && whole <= 128) || !k.scratch.empty();
    if (!t.persistent && writes_elements(k) && n / 64 >= gpu.processors) {  // whole lines of 16-bit values
      t.x = t.r = 64;
      t.warps = is_heavy(k) ? 8 : 4;
      return;
    }
    t.r = t.persistent ? whole : 128;
    t.x = std::min<int64_t>(power_of_2(n), t.persistent ? std::max<int64_t>(8, 4096 / t.r) : 32);
    while (t.x > 16 && n / t.x < int64_t{2} * gpu.processors) t.x /= 2;
    // Not a program for each processor: more in flight in each.
    while (!t.persistent && t.x * t.r < 8192 && t.r < whole && n / t.x < gpu.processors) t.r *= 2;
    t.warps = warps_for(t.x * t.r, 32, 8);
    return;
  }
  // Of elements, a power of two: compile time and registers.
  const int64_t cap = std::max<int64_t>(1024, power_of_2(int64_t{64} * 1024 / loads + 1) / 2);
  // (Longer rows that are read several times are better held by 32 warps than read again.)
  t.persistent =
      whole <= 8192 || (whole == 16384 && n < gpu.processors) || (whole == 32768 && loads <= 2 && k.accs.size() > 1);
  if (whole > 1024 && whole > cap && !(whole == 32768 && loads <= 2)) t.persistent = false;
  if (!k.scratch.empty()) t.persistent = true;
  t.persistent &= fixed;
  if (!t.persistent) {
    t.r = std::min<int64_t>(4096, cap);
    t.x = 1;
    t.warps = warps_for(t.r, 16, 8);
    return;
  }
  t.r = whole;
  const bool crossed = crosses_rows(k);
  const int64_t several = crossed ? std::min<int64_t>(8, 8192 / whole) : 1;
  // 8 KB a program: below, it ends before its first bytes have come (docs/benchmarks/decode.md).
  const int64_t bytes = bytes_beside_a_shared_row(k),
                together = bytes > 0 ? power_of_2(std::clamp<int64_t>(8192 / bytes, 1, 8) + 1) / 2 : 1;
  t.x = std::min(power_of_2(n), std::max<int64_t>({1, 1024 / whole, several, together}));
  while (t.x > 1 && n / t.x < int64_t{2} * gpu.processors) t.x /= 2;
  t.warps = whole >= 32768 ? 32 : whole >= 16384 ? 16 : warps_for(t.x * whole, crossed || together > 1 ? 32 : 16, 8);
}

}  // namespace

Tile choose_tile(const loops::Kernel& k, const Gpu& gpu) {
  Tile t;
  t.points = k.outer;
  bool loops = false;
  for (const Stage& s : k.stages) loops |= !s.loops.empty();
  if (loops && std::any_of(k.stages.begin(), k.stages.end(), is_scatter)) {
    if (k.stages.size() != 1 || !k.accs.empty()) throw Declined("triton: a scatter within a larger nest");
    t.scatter = true;
    t.points.insert(t.points.end(), k.stages[0].loops.begin(), k.stages[0].loops.end());
    along_memory(k.stages[0], t.points);
    flat(k, gpu, t);
  } else if (loops) {
    rows(k, gpu, t);
  } else if (k.vector == loops::Vector::kOuter && k.transpose >= 0 &&
             k.transpose + 1 < static_cast<int32_t>(k.outer.size())) {
    transposed(k, gpu, t);
  } else {
    flat(k, gpu, t);
  }
  return t;
}

std::vector<loops::ProductTile> tiles_for(const loops::Product& p) {
  static constexpr loops::ProductTile kTiles[] = {
      {128, 256, 64, 8, 3}, {256, 128, 64, 8, 3}, {128, 128, 64, 8, 3}, {128, 128, 64, 4, 4},
      {128, 64, 64, 4, 4},  {64, 128, 64, 4, 4},  {64, 64, 64, 4, 4},   {64, 32, 128, 4, 4},
      {32, 64, 128, 4, 4},  {32, 128, 64, 4, 4},  {16, 64, 128, 4, 5},  {16, 128, 64, 4, 5},
  };
  std::vector<loops::ProductTile> out;
  for (const loops::ProductTile& t : kTiles) {
    // Not more than half of a tile empty, but for the smallest.
    const bool tall = t.m > 16 && t.m / 2 >= p.m, broad = t.n > 64 && t.n / 2 >= p.n;
    const int64_t programs = ((p.m + t.m - 1) / t.m) * ((p.n + t.n - 1) / t.n) * p.batch;
    const bool small = t.m <= 32 && p.m > 512;  // rows are read again by each column of programs
    if (!tall && !broad && !small && programs < INT32_MAX / 16) out.push_back(t);
  }
  return out;
}

}  // namespace flashover::kernel::triton

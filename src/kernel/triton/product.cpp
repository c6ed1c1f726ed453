// Operands are loads, or what kernels of their own (prologues) compute in the loop over k.
#include "kernel/triton/product.h"

#include <array>

#include "kernel/triton/stage.h"

namespace flashover::kernel::triton {
namespace {

using loops::Loop;
using loops::Product;

Tile tile_of(const Product& p, int32_t rows, int32_t columns) {
  Tile t;
  t.points = p.epilogue.outer;
  t.y = rows;
  t.x = columns;
  t.warps = p.tile.warps;
  return t;
}

int64_t row_tiles(const Product& p) { return (p.m + p.tile.m - 1) / p.tile.m; }
int64_t column_tiles(const Product& p) { return (p.n + p.tile.n - 1) / p.tile.n; }

using Prologues = std::array<std::optional<Emission>, 2>;

Prologues prologues(const Product& p) {
  Prologues out;
  for (size_t side = 0; side < 2; ++side) {
    if (!p.prologue[side].given()) continue;
    const Tile tile = side ? tile_of(p, p.tile.k, p.tile.n) : tile_of(p, p.tile.m, p.tile.k);
    out[side].emplace(p.prologue[side].kernel, tile,
                      ProductRole{nullptr, &p, side, side ? "q" : "o", side ? "b" : "a"});
  }
  return out;
}

// Do offsets of the last element that a program may compute, masked or not, need 64 bits?
bool has_wide_offsets(const Product& p, const Prologues& before) {
  const int64_t rows = row_tiles(p) * p.tile.m, columns = column_tiles(p) * p.tile.n, depth = p.k + p.tile.k;
  const auto far = [&](int64_t i, int64_t j, const std::array<int64_t, 3>& strides) {
    return p.batch * strides[0] + i * strides[1] + j * strides[2] > INT32_MAX;
  };
  if (p.batch * rows * columns > INT32_MAX || far(rows, depth, p.a) || far(depth, columns, p.b)) return true;
  for (size_t side = 0; side < 2; ++side)
    if (before[side] && (needs_int64(before[side]->k, before[side]->tile.points) ||
                         p.batch * depth * (side ? columns : rows) > INT32_MAX))
      return true;
  return false;
}

// Which tile a program computes: z, m, n and their masks. Programs that run together share rows and columns.
void program_tile(Emission& e, const Product& p) {
  constexpr int64_t kTogether = 8;
  const int64_t gm = row_tiles(p), gn = column_tiles(p);
  const std::string width = num(kTogether * gn), wide = wide_cast(e);
  e.grid = p.batch * gm * gn;
  line(e, "pid = tl.program_id(0)");
  if (p.batch > 1) {
    line(e, "z = (pid // " + num(gm * gn) + ")" + wide);
    line(e, "pid = pid % " + num(gm * gn));
  }
  line(e, "first = pid // " + width + " * " + num(kTogether));
  line(e, "height = tl.minimum(" + num(gm) + " - first, " + num(kTogether) + ")");
  line(e, "m = (first + pid % " + width + " % height) * " + num(p.tile.m) + " + tl.arange(0, " + num(p.tile.m) +
              ")[:, None]" + wide);
  line(e, "n = (pid % " + width + " // height) * " + num(p.tile.n) + " + tl.arange(0, " + num(p.tile.n) + ")[None, :]" +
              wide);
  if (p.m % p.tile.m) {
    line(e, "ym = m < " + num(p.m));
    e.y_mask = "ym";
  }
  if (p.n % p.tile.n) {
    line(e, "xm = n < " + num(p.n));
    e.x_mask = "xm";
  }
  line(e, "k = tl.arange(0, " + num(p.tile.k) + ")");
}

// Where an operand's first tile lies.
std::string first_tile(const Product& p, const char* pointer, const std::array<int64_t, 3>& strides,
                       const std::string& row, const std::string& column) {
  const auto times = [](const std::string& index, int64_t stride) {
    return stride == 1 ? index : index + " * " + num(stride);
  };
  return std::string(pointer) + (p.batch > 1 && strides[0] ? " + " + times("z", strides[0]) : "") + " + " +
         times(row, strides[1]) + " + " + times(column, strides[2]);
}

std::string load_tile(const Product& p, const std::string& at, const std::string& outside, const std::string& k) {
  const std::string mask = conjunction(outside, p.k % p.tile.k ? "(" + k + " < " + num(p.k) + " - start)" : "");
  return "tl.load(" + at + (mask.empty() ? "" : ", " + mask + ", 0") + ")";
}

// Loops that go over matrices as they lie in memory, by the indices of the matrix (z), the row and the column.
struct Side {
  int64_t extent;
  std::string name;
  Axes axes;
};

// The loops, counted back from `end`, that make up exactly so many points: the first of them.
std::optional<size_t> first_of(const std::vector<Loop>& loops, size_t end, int64_t points) {
  int64_t inside = 1;
  while (end > 0 && inside < points) inside *= loops[--end].extent.value();
  if (inside != points) return std::nullopt;
  while (end > 0 && loops[end - 1].extent.is_const(1)) --end;
  return end;
}

void coordinates(Emission& e, const std::vector<Loop>& loops, int64_t batch, const Side& slow, const Side& fast) {
  const auto spread = [&](size_t from, size_t to, char letter, const std::string& whole, Axes axes) {
    linearize(e.at,
              {loops.begin() + static_cast<std::ptrdiff_t>(from), loops.begin() + static_cast<std::ptrdiff_t>(to)},
              letter, whole, axes);
    std::vector<NamedLoop> nest;
    for (size_t i = from; i < to; ++i) nest.push_back({&loops[i], e.role.temporary + "i" + num(i)});
    delinearize(e, nest, whole, axes, false, [&](const std::string& text) { line(e, text); });
  };
  const std::optional<size_t> inner = first_of(loops, loops.size(), fast.extent);
  const std::optional<size_t> middle = inner ? first_of(loops, *inner, slow.extent) : std::nullopt;
  if (middle) {
    if (batch > 1)
      spread(0, *middle, 5, "z", 0);
    else
      for (size_t i = 0; i < *middle; ++i) e.at.names[loops[i].var.node()] = {"0", 0};
    spread(*middle, *inner, 2, slow.name, slow.axes);
    spread(*inner, loops.size(), 3, fast.name, fast.axes);
  } else {
    const std::string x = e.role.temporary + "x";
    const std::string row = batch > 1 ? "(z * " + num(slow.extent) + " + " + slow.name + ")" : slow.name;
    line(e, x + " = " + row + " * " + num(fast.extent) + " + " + fast.name);
    spread(0, loops.size(), 4, x, kX | kY);
  }
}

// Puts what an operand's own kernel computes into the loop of the product; the name of the result.
std::string prologue(Emission& e, Emission& operand) {
  const Product& p = *e.role.epilogue_of;
  const size_t side = operand.role.side;
  const std::string k = side ? "kb" : "ka";
  operand.wide = e.wide;
  operand.fast = !operand.k.exact;  // the operand has 16 bits
  line(e, "    " + k + " = start + " + (side ? "k[:, None]" : "k[None, :]") + wide_cast(e));
  std::string k_mask;
  if (p.k % p.tile.k) {
    k_mask = k + "m";
    line(e, "    " + k_mask + " = " + k + " < " + num(p.k));
  }
  operand.x_mask = side ? e.x_mask : k_mask;
  operand.y_mask = side ? k_mask : e.y_mask;
  const Side rows = side ? Side{p.k, k, kY} : Side{p.m, "m", kY},
             columns = side ? Side{p.n, "n", kX} : Side{p.k, k, kX};
  const bool turned = p.prologue[side].turned;
  coordinates(operand, operand.k.outer, p.batch, turned ? columns : rows, turned ? rows : columns);
  stage(operand, 0);
  for (size_t from = 0, to; (to = operand.out.find('\n', from)) != std::string::npos; from = to + 1)
    line(e, operand.out.substr(from, to - from));
  e.asserts |= operand.asserts;
  return operand.result;
}

}  // namespace

Emission emission_of(const Product& p) { return {p.epilogue, tile_of(p, p.tile.m, p.tile.n), ProductRole{&p}}; }

void product(Emission& e) {
  const Product& p = *e.role.epilogue_of;
  Prologues before = prologues(p);
  e.wide |= has_wide_offsets(p, before);
  program_tile(e, p);
  if (!before[0]) line(e, "a_at = " + first_tile(p, "a", p.a, "m", "k[None, :]"));
  if (!before[1]) line(e, "b_at = " + first_tile(p, "b", p.b, "k[:, None]", "n"));
  line(e, "acc = tl.zeros(" + shape(e, kX | kY) + ", tl.float32)");
  line(e, "for start in range(0, " + num(p.k) + ", " + num(p.tile.k) + "):");
  const std::string a = before[0] ? prologue(e, *before[0]) : load_tile(p, "a_at", e.y_mask, "k[None, :]"),
                    b = before[1] ? prologue(e, *before[1]) : load_tile(p, "b_at", e.x_mask, "k[:, None]");
  line(e, "    acc = tl.dot(" + a + ", " + b + ", acc)");
  if (!before[0]) line(e, "    a_at += " + num(p.tile.k * p.a[2]));
  if (!before[1]) line(e, "    b_at += " + num(p.tile.k * p.b[1]));
  if (p.bias != DType::kUndefined)
    line(e, "acc += tl.load(bias + n" + (e.x_mask.empty() ? "" : ", " + e.x_mask + ", 0") + ").to(tl.float32)");
  if (p.relu) line(e, "acc = tl.where(acc < 0, 0.0, acc)");
  coordinates(e, e.k.outer, p.batch, {p.m, "m", kY}, {p.n, "n", kX});
}

}  // namespace flashover::kernel::triton

// A block's vectors are taken `unroll` at a time, then one by one, then the first lanes of one.
#include "kernel/cpp/outer.h"

#include "kernel/cpp/index.h"
#include "kernel/cpp/memory.h"
#include "kernel/cpp/stage.h"

namespace flashover::kernel::cpp {
namespace {

using sym::Expr;

// Reads the tile of load `id`: W rows of loop `transpose` by `n` lanes ("" for all), and transposes it.
void read_tile(Emission& e, loops::Id id, const std::string& n, const std::string& rows) {
  const loops::Instr& in = e.k.stages[0].body[id];
  const Expr across = e.k.outer[e.k.transpose].var;
  const std::string row = variable(e, across), lane = variable(e, e.k.outer.back().var), w = num(e.facts.lanes.width);
  const MemoryAccess m = memory_of(e.k, in);
  const std::string name = "tile" + num(id);
  e.tile_names[id] = name;
  e.out.line("VF " + name + "[W]" + (n.empty() ? "" : " = {}") + ";");
  Scope s;
  s.vector = true;
  s.lanes = {e.k.outer.back().var, e.facts.lanes.width};
  e.variables[across.node()] = row + "b";
  const std::string address = m.pointer + " + " + index_at(e, s, in.index, "(" + lane + " + c)");
  e.variables[across.node()] = row;
  std::string whole = "load_" + m.suffix + "(" + address + ")",
              first = "load_" + m.suffix + "_n(" + address + ", rows)";
  if (m.dtype == DType::kI32) whole = "from_bits(" + whole + ")", first = "from_bits(" + first + ")";
  e.out.line("for (int c = 0; c < " + (n.empty() ? w : n) + "; ++c) " + name +
             "[c] = " + (rows == w ? whole : "rows == W ? " + whole + " : " + first) + ";");
  e.out.line("transpose_tile(" + name + ");");
}

// One tile: W rows of loop `transpose` by W lanes, of which `n` are there ("" for all).
void tile(Emission& e, const std::string& n) {
  const loops::Loop& across = e.k.outer[e.k.transpose];
  const std::string row = variable(e, across.var), w = num(e.facts.lanes.width);
  const auto extent = across.extent.as_const();
  const bool whole = extent && *extent % e.facts.lanes.width == 0;
  e.out.line("const long " + row + "b = across * " + w + ";");
  if (!whole) {
    const std::string end = index(e, across.extent);
    e.out.line("const int rows = " + row + "b + " + w + " <= " + end + " ? " + w + " : (int)(" + end + " - " + row +
               "b);");
  }
  const std::string rows = whole ? w : "rows";
  for (loops::Id i : e.facts.tiles) read_tile(e, i, n, rows);
  for (size_t r : e.facts.repeats) {
    const std::string v = variable(e, e.k.outer[r].var);
    e.out.open("for (long " + v + " = 0; " + v + " < " + index(e, e.k.outer[r].extent) + "; ++" + v + ")");
  }
  e.out.open("for (int row = 0; row < " + rows + "; ++row)");
  e.out.line("const long " + row + " = " + row + "b + row;");
  stage(e, 0, {1, n});
  e.out.close();
  for (size_t r = 0; r < e.facts.repeats.size(); ++r) e.out.close();
}

// Loop variables out of the linear index `o`, the fastest first.
void delinearize(Emission& e) {
  std::string rest = "o";
  auto take = [&](const std::string& name, Expr extent, bool last) {
    if (extent.is_const(1)) {
      e.out.line("const long " + name + " = 0;");
    } else if (last) {
      e.out.line("const long " + name + " = " + rest + ";");
    } else {
      const std::string n = divisor(e, extent);
      e.out.line("const long " + name + " = " + rest + " % " + n + ", " + name + "r = " + rest + " / " + n + ";");
      rest = name + "r";
    }
  };
  const size_t loops = linearized_loops(e.k, e.facts);
  if (e.outer()) take("block", e.iteration.blocks, loops == 0);
  for (size_t i = loops; i-- > 0;) {
    bool last = true;
    for (size_t j = 0; j < i; ++j) last &= steps_of(e.k, e.facts, j).is_const(1);
    if (e.facts.is_repeat(i)) continue;
    take(is_across(e.k, e.facts, i) ? "across" : "i" + num(i), steps_of(e.k, e.facts, i), last);
  }
}

}  // namespace

void lanes_of_block(Emission& e, const std::function<void(const LaneRun& run)>& stages) {
  const std::string lane = variable(e, e.k.outer.back().var);
  const Expr extent = e.k.outer.back().extent;
  const int64_t w = e.facts.lanes.width, block_size = e.iteration.block;
  const int unroll = e.iteration.unroll;
  const bool known = !e.facts.shared && extent.is_const();
  const int64_t n = known ? extent.value() : 0;
  const bool one_block = known && n <= block_size;
  const std::string block = one_block ? "" : geometry(e, block_size), size = index(e, extent);
  e.out.line("long " + lane + " = " + (one_block ? "0" : "block * " + block) + ";");
  if (!one_block)
    e.out.line("const long stop = " + lane + " + " + block + " < " + size + " ? " + lane + " + " + block + " : " +
               size + ";");
  const std::string stop = one_block ? size : "stop";
  auto vectors = [&](int many) {
    const std::string step = num(many * w);
    e.out.open("for (; " + lane + " + " + step + " <= " + stop + "; " + lane + " += " + step + ")");
    stages({many, ""});
    e.out.close();
  };
  if (unroll > 1 && (!known || n >= unroll * w)) vectors(unroll);
  if (!known || (unroll > 1 ? n % (unroll * w) >= w : n >= w)) vectors(1);
  if (known && n % w == 0) return;
  e.out.open("if (" + lane + " < " + stop + ")");
  if (!known) e.out.line("const int n = (int)(" + stop + " - " + lane + ");");
  stages({1, known ? num(n % w) : "n"});
  e.out.close();
}

void each_linear_index(Emission& e) {
  auto stages = [&](const LaneRun& run) {
    if (!e.facts.tiles.empty()) return tile(e, run.count);
    for (size_t i = 0; i < e.k.stages.size(); ++i) stage(e, i, run);
  };
  e.out.open("for (long o = begin; o < end; ++o)");
  delinearize(e);
  if (e.outer()) {
    lanes_of_block(e, stages);
  } else {
    stages({});
  }
  e.out.close();
}

}  // namespace flashover::kernel::cpp

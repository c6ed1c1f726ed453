// What the functions that write one Triton function share: the kernel and its tile, what the text so far holds, and the
// state of the stage that is being written.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernel/ranges.h"
#include "kernel/text.h"
#include "kernel/triton/index.h"
#include "kernel/triton/scalar.h"
#include "kernel/triton/tile.h"
#include "kernel/triton/triton.h"

namespace flashover::kernel::triton {

// An instruction's result as it stands in the text.
struct EmittedValue {
  std::string text;  // a name or a literal
  Axes axes = 0;
  DType dtype = DType::kF32;  // kI32 for an i64 value that provably fits
  bool literal = false;
  std::string rounded;  // its name in the 16-bit type that it was rounded to
  DType rounded_to = DType::kUndefined;
};

// A value in a register that is also in memory (a parameter or scratch) at `index`: loads of it need no memory. Valid
// while nothing else is stored to that slot.
struct Available {
  int32_t slot;
  sym::Expr index;
  int row;  // StageState::row, or -1 where the value does not depend on the stage's loops
  EmittedValue value;
};

// The name of an accumulator in the text, once it is reduced.
struct Accumulated {
  Axes axes = 0;
  DType position = DType::kUndefined;  // of what argmax and argmin find
};

// A kernel may be the epilogue of a product, or compute one of its operands (a prologue).
struct ProductRole {
  const loops::Product* epilogue_of = nullptr;
  const loops::Product* operand_of = nullptr;
  size_t side = 0;                         // which operand
  std::string parameter = "p", temporary;  // what names begin with
};

struct StageState {
  const loops::Stage* stage = nullptr;
  std::vector<EmittedValue> values;
  NarrowRanges ranges;
  std::vector<bool> exact;  // values of which more than 16 bits' worth goes on
  bool in_row = false;      // its loops are the axis r
  bool looped = false;      // over chunks of r
  int row = -1;             // tells its loops apart: stages with the same loops have the same
  std::string r_mask;
  std::string header, before, body, after;   // of the loop over chunks
  std::map<std::string, EmittedValue> memo;  // values inside of that loop by right-hand side
  std::vector<int32_t> loads;                // parameters that it reads from memory
};

struct Emission {
  Emission(const loops::Kernel& kernel, Tile t, ProductRole r = {})
      : k(kernel), tile(std::move(t)), role(std::move(r)) {}

  const loops::Kernel& k;
  const Tile tile;
  const ProductRole role;
  // of the whole function
  bool wide = false;     // index arithmetic in 64 bits
  bool fast = false;     // all results have 16 bits: approximations will do
  bool random = false;   // neighbours may share a call of the generator
  bool asserts = false;  // has device-side asserts
  bool early = false;    // starts before the kernels in front have ended ...
  bool waited = false;   // ... and has waited for them from here on
  Coordinates at;
  std::string x_mask, y_mask;
  sym::Expr grid = 1;
  std::string out, result;  // result: the name of an operand's tile
  // The stages stand in a loop over the points of axis x: what does not depend on these goes before it, here.
  bool over_keys = false;
  std::string hoisted;
  int64_t next = 0;  // of the next name
  // what stages hand to later ones
  int64_t r = 1;  // length of the axis r
  std::map<std::vector<const sym::Node*>, int> rows;
  std::vector<Available> available, scratch;
  std::map<int32_t, Accumulated> accumulated;
  std::map<std::string, EmittedValue> memo;  // by right-hand side
  std::vector<bool> loaded, stored;          // parameters touched since the last barrier, not only in registers
  StageState stage;
};

// ---- lines
inline void line(Emission& e, const std::string& text) { e.out += "    " + text + "\n"; }
// Writes a line of the stage: within its loop over chunks if it has one.
void stage_line(Emission& e, const std::string& text);
void before_loop(Emission& e, const std::string& text);
void after_loop(Emission& e, const std::string& text);
// Writes it before the stage's loop where `axes` say that nothing in it depends on the chunk.
void hoisted_line(Emission& e, Axes axes, const std::string& text);
std::string fresh(Emission& e, const char* prefix);
// Coordinates of a nest's loops (by name) out of the linear index `from`, the fastest first; `write` writes a line.
// `fours`: names for every fourth index too.
struct NamedLoop {
  const loops::Loop* loop;
  std::string name;
};
void delinearize(Emission& e, const std::vector<NamedLoop>& nest, const std::string& from, Axes axes, bool fours,
                 const std::function<void(const std::string&)>& write);

// ---- shapes and masks
std::string shape(const Emission& e, Axes axes);  // "[64, 1]"
Axes all_axes(const Emission& e);
// The whole shape, as reductions and scans need it.
std::string broadcast(const Emission& e, const EmittedValue& v, Axes to);
// Behind what indices are made of.
inline const char* wide_cast(const Emission& e) { return e.wide ? ".to(tl.int64)" : ""; }
std::string conjunction(const std::string& mask, const std::string& other);  // "" is always true
// The mask of lanes within the tile.
std::string tile_mask(const Emission& e, Axes axes);
// The same, where the instruction's own mask is set too.
std::string mask(const Emission& e, const loops::Instr& in, Axes axes);
Axes mask_axes(const Emission& e, const loops::Instr& in);

// ---- values
const EmittedValue& arg(const Emission& e, const loops::Instr& in, int n);
// At its full width.
std::string full(const EmittedValue& v, DType d);
void set_value(Emission& e, loops::Id id, EmittedValue v);
void define(Emission& e, loops::Id id, Axes axes, const std::string& text, DType d);

}  // namespace flashover::kernel::triton

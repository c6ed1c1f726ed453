// Loop nests over raw memory: what is left of a tensor program when only scalars, indices and loops remain.
//
// A Kernel is one fused nest, the unit of emission:
//
//     for each point of the outer loops (in parallel, any order)
//       for each stage, in order
//         accumulators that the stage reduces into := identity
//         for each point of the stage's loops (in order only where the stage scans or scatters)
//           run the stage's body, a straight-line SSA program over scalars
//
// Stages talk to later stages of the same outer point through accumulators (one scalar each), scratch (a small array
// each) and parameters they stored to. So softmax is four stages over a row that stays in L1: max, exp + sum (to
// scratch or to the output), scale. A body sees the loop variables through sym::Expr indices; all addressing is in
// elements.
//
// Vectorisation is a mark, not a structure: `vector` says which loop runs over SIMD lanes, and the body stays scalar.
//   kInner  the last loop of each stage (rows: reductions over contiguous memory; accumulators need a horizontal step)
//   kOuter  the last outer loop (pointwise kernels; column reductions, pooling, scans: accumulators are whole vectors)
//   kNone   no lanes are worth it or allowed
//
//   In        made by schedule/ out of the lowered graph
//   Out       read by kernel/ (emits C++) and by interpret() (the plain reference)
//   Promises  verify(): SSA, dtypes, every index in range for every point (where provable), written before read;
//             print() parses back to an equal kernel; text() of two kernels that need the same code is equal (no names,
//             no labels in it)
//   Declines  nothing
//   Sample    see print.cpp and loops_test.cpp
//
// Aliasing: two parameters may be the same memory only if every access to both in a stage uses the same index (the
// planner guarantees it), so loading a whole vector before storing it is always right. Emitters must not use restrict.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "loops/attention.h"
#include "ops/names.h"
#include "ops/types.h"
#include "sym/sym.h"

namespace flashover::loops {

enum class Op : uint8_t {
#define POINTWISE(name, arity, types, cost, traits, meaning) k_##name,
#include "ops/prims.def"
  k_convert,   // args[0] to `dtype` (a compute dtype): float -> int truncates, -> bool is x != 0
  k_round_to,  // f32 args[0] rounded to the precision of `narrow` (bf16, f16), still f32
  k_const,     // `number` (floats) or `integer` (integers, bool)
  k_index,     // `index` as an i64 value
  k_in_range,  // lo <= index < hi, bool. Emitters split or skip loops on these
  k_uniform,   // prim.uniform's number `index`: args seed, offset (i64); first in `lo`, threads in `hi`, width in
               // `integer`
  k_normal,    // the same of prim.normal
  k_indirect,  // the i64 value args[0] as a variable for later indices: defines `index` (a variable with range [0,
               // hi-1]). `wrap`: a negative value has hi added. slot >= 0: out of range is error `slot` (no memory is
               // touched then); slot < 0: in range by construction. Where mask is false: no check, the variable is 0.
  k_load,      // parameter `slot` at `index`; a masked-out lane reads nothing and gives 0
  k_load_scratch,
  k_acc,    // accumulator `slot` as reduced by an earlier stage
  k_store,  // args[0] to parameter `slot` at `index`, unless masked out
  k_store_scratch,
  k_reduce,  // folds args[0] into accumulator `slot`, unless masked out; argmax/argmin: args[1] is its i64 index
  k_scan,    // as k_reduce, and the result is the running value including this one
};
struct OpInfo {
  const char* name;
  uint8_t arity;      // operands in args, mask not counted
  const char* flags;  // see ops/prims.def; "" for the structural ones
  bool has_result;
  int64_t cost;  // of an element, in units of an addition; 0: it is no work of its own
};
const OpInfo& info(Op op);
inline bool is_scalar_op(Op op) { return op < Op::k_convert; }
// The pointwise rows come first in both enums.
constexpr Prim prim_of(Op scalar) { return static_cast<Prim>(scalar); }
constexpr Op op_of(Prim pointwise) { return static_cast<Op>(pointwise); }
static_assert(prim_of(Op::k_neg) == Prim::neg && prim_of(Op::k_fma) == Prim::fma);
inline bool is_random(Op op) { return op == Op::k_uniform || op == Op::k_normal; }

// How a store meets what is there (k_store): kAdd and the rest read, combine and write; distinct outer points never
// meet at one address, points of one stage may (then the stage is `ordered`).
enum class StoreMode : uint8_t { kSet, kAdd, kMul, kMax, kMin };

using Id = int32_t;  // instruction number within its body; also the value it defines
constexpr Id kNone = -1;

struct Instr {
  Op op = Op::k_const;
  DType dtype = DType::kUndefined;  // compute dtype of the result: f32 f64 b8 and the integers; never bf16 or f16
  std::array<Id, 3> args{kNone, kNone, kNone};
  Id mask = kNone;    // bool value: loads, stores, reductions, indirect
  int32_t slot = -1;  // parameter, scratch, accumulator or error number
  sym::Expr index;    // loads, stores, k_index, k_in_range, random numbers; the defined variable of k_indirect
  sym::Expr lo, hi;   // k_in_range, random numbers; k_indirect: the size in hi
  double number = 0;
  int64_t integer = 0;
  DType narrow = DType::kUndefined;  // k_round_to
  StoreMode mode = StoreMode::kSet;
  bool wrap = false;
  bool operator==(const Instr&) const;
};

struct Loop {
  sym::Expr var;  // named "<letter><position>.<extent>", range [0, extent)
  sym::Expr extent;
};
// Loop variable `letter``position` of that extent: 'i' outer, 'j' stage, 't' indirect ("j0.768").
sym::Expr loop_var(char letter, int position, sym::Expr extent);

struct Stage {
  std::vector<Loop> loops;  // outermost first; may be empty: the body runs once per outer point
  std::vector<Instr> body;
  bool ordered =
      false;  // iterations must run one after the other (scans; stores that may meet). kOuter lanes stay independent
};

enum class Reduce : uint8_t {
  kSum,
  kProd,
  kMax,
  kMin,
  kAny,
  kAll,
  kArgMax,
  kArgMin
};  // max/min: NaN wins; arg: first of equals
struct Accumulator {
  Reduce kind = Reduce::kSum;
  DType dtype = DType::kF32;  // of the folded values; argmax/argmin: their result is i64 all the same
};
struct Scratch {  // per outer point
  DType dtype = DType::kF32;
  sym::Expr size;
};

struct Param {
  DType dtype = DType::kF32;  // in memory; f16/bf16 widen to f32 on load, f32 rounds to nearest even on store
  sym::Expr numel;            // addressable elements from the pointer
  bool read = false, written = false;
  bool number = false;  // GPU: not memory but the value of a one-element CPU tensor, handed over with the launch
  bool steady = false;  // GPU: no step of the plan writes it, so that it may be read while earlier kernels still run
};

enum class Vector : uint8_t { kNone, kInner, kOuter };

struct Kernel {
  std::vector<Param> params;  // read-only first in order of first use, then written ones: the launch's pointer order
  std::vector<Loop> outer;
  std::vector<Accumulator> accs;
  std::vector<Scratch> scratch;
  std::vector<Stage> stages;
  std::shared_ptr<const FlexAttention> attention;  // the stages make scores (attention.h)
  Vector vector = Vector::kNone;
  int32_t transpose =
      -1;  // >= 0 (kOuter): loads run contiguously along outer loop `transpose`, stores along the last one: tile both
  bool serial = false;  // outer points must run in order on one thread
  bool exact = false;   // no approximate forms of functions: other kernels compute the same values
  int64_t cost = 1;     // of one outer point, in scalar operations (a load is 1, exp about 10): for the choice of grain
  std::vector<std::string> errors;  // what a failed k_indirect check says
  std::vector<sym::Expr> sizes;     // free size variables, passed as int64 arguments in this order
  std::string label;                // for people: "native_layer_norm+add"; not part of the identity
};

// How deep in its stage each value must be computed: 0 = depends on outer variables and accumulators only, d = on the
// first d loops of the stage. Emitters hoist by it. Stores, reductions and scans are at the full depth.
std::vector<int> depths(const Stage& stage);

std::string print(const Kernel& k);
std::string text(const Kernel& k);    // print() without label and error texts: equal text = equal code
Hash128 identity(const Kernel& k);    // of text()
Kernel parse(std::string_view text);  // throws UserError "line: what"
void verify(const Kernel& k);         // throws InternalError naming the instruction and the broken rule

// The reference: runs a kernel on raw memory, one scalar at a time. `pointers` in params order, `sizes` in sizes order.
// Returns 0, or i + 1 when check i failed. CHECKs every address against Param::numel.
int32_t interpret(const Kernel& k, std::span<void* const> pointers, std::span<const int64_t> sizes = {});

}  // namespace flashover::loops

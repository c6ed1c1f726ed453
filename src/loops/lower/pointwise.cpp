// Pointwise prims, conversions and constants: one scalar operation each, where the dtype has it.
#include "loops/lower/lower.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::loops {
namespace {

// Where a prim takes a dtype that the scalar operation of that name does not know.
Id other_dtype(Emitter& e, Op op, Id a, Id b) {
  const DType d = e.dtype(a);
  switch (op) {
    case Op::k_ceil:
    case Op::k_floor:
    case Op::k_round:
    case Op::k_trunc:
    case Op::k_abs:
    case Op::k_relu:
      return a;  // integers and bool
    case Op::k_isnan:
    case Op::k_isinf:
    case Op::k_signbit:
      return e.constant(DType::kBool, int64_t{0});
    case Op::k_logical_not:
      return e.op(Op::k_eq, a, e.constant(d, int64_t{0}));
    case Op::k_sub:
    case Op::k_neg:
    case Op::k_pow:
    case Op::k_floordiv:
    case Op::k_truncdiv:
    case Op::k_fmod:
    case Op::k_remainder:
    case Op::k_shift_left:
    case Op::k_shift_right: {  // bool: as u8
      Id x = e.convert(a, DType::kU8);
      return e.convert(b == kNone ? e.op(op, x) : e.op(op, x, e.convert(b, DType::kU8)), DType::kBool);
    }
    default:
      break;
  }
  throw Declined(std::string("loops: no ") + info(op).name + " on " + flashover::info(d).name);
}

Id scalar(Emitter& e, const graph::Node& node, const Index& at) {
  const Op op = op_of(node.op->prim);
  const int arity = info(op).arity;
  Id ids[3] = {kNone, kNone, kNone};
  for (int i = 0; i < arity; ++i) ids[i] = e.read(ops::as_value(node.args[i]), at);
  const DType d = e.dtype(ids[op == Op::k_where ? 1 : 0]);
  const char kind = d == DType::kBool ? 'b' : is_floating(d) ? 'f' : 'i';
  if (std::string_view(info(op).flags).find(kind) == std::string_view::npos) return other_dtype(e, op, ids[0], ids[1]);
  return e.op(op, ids[0], ids[1], ids[2]);
}
Id convert(Emitter& e, const graph::Node& node, const Index& at) {
  const DType to = ops::as_dtype(node.args[1]);
  Id a = e.read(ops::as_value(node.args[0]), at);
  // A narrow integer or bool on the way matters, a 16-bit float only where the program itself asked for it (third
  // argument): elsewhere computing in f32 is more exact than eager.
  const DType from = e.dtype(a);
  const bool exact = is_reduced(to) && (from == DType::kBool || from == DType::kI8 || from == DType::kU8);
  Id x = e.convert(a, to);
  if (exact) return x;
  if ((node.args.size() > 2 && is_reduced(to)) || is_eight_bit_float(to))
    x = e.add({.op = Op::k_round_to, .dtype = DType::kF32, .args = {x, kNone, kNone}, .narrow = to});
  return x;
}
Id copy(Emitter& e, const graph::Node& node, const Index& at) { return e.read(ops::as_value(node.args[0]), at); }

Id full(Emitter& e, const graph::Node& node, const Index&) {
  return e.constant(ops::as_dtype(node.args[2]), node.args[1]);
}
Id iota(Emitter& e, const graph::Node& node, const Index& at) {
  const DType d = compute_dtype(ops::as_dtype(node.args[3]));
  const Arg &start = node.args[1], &step = node.args[2];
  if (std::holds_alternative<sym::Expr>(start) && std::holds_alternative<sym::Expr>(step) && !is_floating(d))
    return e.convert(e.index_value(ops::as_expr(start) + at[0] * ops::as_expr(step)), d);
  // start + i*step, the product in f64 as eager's arange does for f32 too
  const DType wide = is_floating(d) ? DType::kF64 : DType::kI64;
  Id i = e.convert(e.index_value(at[0]), wide);
  if (!ops::is_number(step, 1)) i = e.op(Op::k_mul, i, e.constant(wide, step));
  if (!ops::is_number(start, 0)) i = e.op(Op::k_add, i, e.constant(wide, start));
  return e.convert(i, d);
}

Id random(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId state = ops::as_value(node.args[0]);
  const Id seed = e.read(state, {0}), offset = e.read(state, {1});
  return e.add({.op = node.op->prim == Prim::uniform ? Op::k_uniform : Op::k_normal,
                .dtype = DType::kF32,
                .args = {seed, offset, kNone},
                .index = flatten(at, ops::as_sizes(node.args[2])),
                .lo = ops::as_expr(node.args[3]),
                .hi = ops::as_expr(node.args[4]),
                .integer = ops::as_int(node.args[5])});
}

}  // namespace

void add_pointwise(std::vector<LoweringRow>& rows) {
#define POINTWISE(name, arity, types, cost, traits, meaning) rows.push_back({Prim::name, scalar});
#include "ops/prims.def"
  rows.push_back({Prim::convert, convert});
  rows.push_back({Prim::copy, copy});
  rows.push_back({Prim::full, full});
  rows.push_back({Prim::iota, iota});
  rows.push_back({Prim::uniform, random});
  rows.push_back({Prim::normal, random});
}

}  // namespace flashover::loops

// Appends instructions, each once, and asks the producers of a value for its element at an index.
#include "loops/lower/emitter.h"

#include <cmath>

#include "base/check.h"
#include "loops/lower/lower.h"
#include "ops/args.h"

namespace flashover::loops {

Producers::Producers(const graph::Graph& g) : of(g.values.size()) {
  for (size_t n = 0; n < g.nodes.size(); ++n)
    for (size_t i = 0; i < g.nodes[n].outs.size(); ++i)
      if (g.nodes[n].outs[i] != kNoValue) of[g.nodes[n].outs[i]] = {static_cast<int32_t>(n), static_cast<int32_t>(i)};
}

size_t Emitter::Hash::operator()(const std::vector<uint64_t>& v) const {
  uint64_t h = v.size();
  for (uint64_t x : v) h = (h ^ x) * 0x9E3779B97F4A7C15ull + (h >> 27);
  return h;
}
size_t Emitter::Hash::operator()(const Instr& i) const {
  auto id = [](sym::Expr e) { return reinterpret_cast<uint64_t>(e.node()); };
  uint64_t fields[] = {static_cast<uint64_t>(i.op),
                       static_cast<uint64_t>(i.dtype),
                       static_cast<uint64_t>(i.args[0]),
                       static_cast<uint64_t>(i.args[1]),
                       static_cast<uint64_t>(i.args[2]),
                       static_cast<uint64_t>(i.mask),
                       static_cast<uint64_t>(i.slot),
                       id(i.index),
                       id(i.lo),
                       id(i.hi),
                       std::bit_cast<uint64_t>(i.number),
                       static_cast<uint64_t>(i.integer)};
  uint64_t h = 0;
  for (uint64_t x : fields) h = (h ^ x) * 0x9E3779B97F4A7C15ull + (h >> 27);
  return h;
}

Id Emitter::add(Instr in) {
  // Stores, folds and variable definitions happen; everything else is a value.
  bool value = info(in.op).has_result && in.op != Op::k_scan && in.op != Op::k_indirect;
  if (value) {
    auto [it, fresh] = numbering_.try_emplace(in, static_cast<Id>(body_.size()));
    if (!fresh) return it->second;
  }
  body_.push_back(in);
  return static_cast<Id>(body_.size()) - 1;
}

// An integer that follows from the loops alone.
std::optional<sym::Expr> Emitter::position(Id id) const {
  const Instr& in = body_[id];
  if (in.op == Op::k_index) return in.index;
  constexpr int64_t kMost = int64_t{1} << 40;  // (sums of these do not wrap)
  if (in.op == Op::k_const && is_integral(in.dtype) && std::abs(in.integer) < kMost) return sym::Expr(in.integer);
  return std::nullopt;
}

Id Emitter::op(Op op, Id a, Id b, Id c) {
  const DType operand = body_[op == Op::k_where ? b : a].dtype;
  const bool to_bool = std::string_view(info(op).flags).ends_with('>');
  // Index arithmetic of constants and of masks folds here; everything else is the graph passes' work.
  if (op == Op::k_bitwise_and && a == b) return a;
  if (operand == DType::kI64 && (op == Op::k_add || op == Op::k_sub))
    if (const auto x = position(a), y = position(b); x && y) return index_value(op == Op::k_add ? *x + *y : *x - *y);
  return add({.op = op, .dtype = to_bool ? DType::kBool : operand, .args = {a, b, c}});
}
Id Emitter::convert(Id a, DType to) {
  to = compute_dtype(to);
  if (body_[a].dtype == to) return a;
  return add({.op = Op::k_convert, .dtype = to, .args = {a, kNone, kNone}});
}
Id Emitter::constant(DType d, double v) {
  d = compute_dtype(d);
  if (is_floating(d))
    return add(
        {.op = Op::k_const, .dtype = d, .number = d == DType::kF32 ? static_cast<double>(static_cast<float>(v)) : v});
  return add({.op = Op::k_const, .dtype = d, .integer = d == DType::kBool ? v != 0 : static_cast<int64_t>(v)});
}
Id Emitter::constant(DType d, int64_t v) {
  if (is_floating(d)) return constant(d, static_cast<double>(v));
  return add({.op = Op::k_const, .dtype = d, .integer = d == DType::kBool ? v != 0 : v});
}
Id Emitter::constant(DType d, const Arg& scalar) {
  if (auto* e = std::get_if<sym::Expr>(&scalar)) {
    if (e->is_const()) return constant(d, e->value());
    return convert(index_value(*e), d);
  }
  if (auto* b = std::get_if<bool>(&scalar)) return constant(d, static_cast<int64_t>(*b));
  return constant(d, ops::as_double(scalar));
}
Id Emitter::index_value(sym::Expr e) {
  if (e.is_const()) return constant(DType::kI64, e.value());
  return add({.op = Op::k_index, .dtype = DType::kI64, .index = e});
}
std::optional<Id> Emitter::in_range(sym::Expr e, sym::Expr lo, sym::Expr hi) {
  const bool above = sym::known_le(lo, e), below = sym::known_lt(e, hi);
  if (above && below) return std::nullopt;
  if (sym::known_lt(e, lo) || sym::known_le(hi, e)) return constant(DType::kBool, int64_t{0});
  return add({.op = Op::k_in_range, .dtype = DType::kBool, .index = e, .lo = lo, .hi = hi});
}
sym::Expr Emitter::indirect(Id value, sym::Expr size, bool wrap, const std::string& message) {
  // An index computed from loop variables needs no memory and, within bounds, no check.
  if (body_[value].op == Op::k_index || body_[value].op == Op::k_const) {
    const sym::Expr e = body_[value].op == Op::k_const ? sym::Expr(body_[value].integer) : body_[value].index;
    if (sym::known_le(0, e) && sym::known_lt(e, size)) return e;
  }
  // The same index used twice is one variable and one check.
  for (const Instr& in : body_)
    if (in.op == Op::k_indirect && in.args[0] == value && in.hi == size && in.wrap == wrap && in.mask == mask_)
      return in.index;
  Instr in{.op = Op::k_indirect, .dtype = DType::kI64, .args = {value, kNone, kNone}, .mask = mask_};
  in.index = loop_var('t', static_cast<int>(body_.size()), size);
  in.hi = size;
  in.wrap = wrap;
  if (!message.empty()) {
    in.slot = static_cast<int32_t>(errors_.size());
    for (size_t i = 0; i < errors_.size(); ++i)
      if (errors_[i] == message) in.slot = static_cast<int32_t>(i);
    if (in.slot == static_cast<int32_t>(errors_.size())) errors_.push_back(message);
  }
  sym::Expr var = in.index;
  add(in);
  return var;
}
Id Emitter::load(int32_t param, DType memory, sym::Expr address) {
  return add({.op = Op::k_load, .dtype = compute_dtype(memory), .mask = mask_, .slot = param, .index = address});
}

Id Emitter::read(ValueId v, const Index& at) {
  std::vector<uint64_t> key{static_cast<uint64_t>(v), static_cast<uint64_t>(mask_)};
  for (sym::Expr e : at) key.push_back(reinterpret_cast<uint64_t>(e.node()));
  if (auto it = memo_.find(key); it != memo_.end()) return it->second;
  auto fetched = source_.fetch(*this, v, at);
  Id id = fetched ? *fetched : compute(v, at);
  memo_.emplace(std::move(key), id);
  return id;
}

Id Emitter::compute(ValueId v, const Index& at) {
  Producers::Def def = producers_.of[v];
  FLASHOVER_CHECK(def.node >= 0) << "graph input %" << v << " is not realised";
  const graph::Node& node = graph_.nodes[def.node];
  Lowering lower = find_lowering(node.op->prim);
  FLASHOVER_CHECK(lower) << node.op->name << " (%" << v << ") cannot be computed in place";
  FLASHOVER_CHECK(at.size() == type(v).rank()) << "index rank of %" << v << " " << node.op->name;
  return lower(*this, node, at);
}

}  // namespace flashover::loops

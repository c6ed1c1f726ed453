// kernel "softmax" {
//   p0 = f32[393216] read
//   p1 = f32[393216] write
//   outer i0.512
//   acc a0 = max f32
//   vector inner
//   cost 2304
//   stage j0.768 {
//     v0 = load f32 p0[768*i0.512 + j0.768]
//     v1 = reduce a0 v0
//   }
//   ...
// }
// Every instruction takes a number, also those without a result.
#include <cmath>

#include "base/decimal.h"
#include "loops/loops.h"

namespace flashover::loops {

extern const char* const kReduceNames[8] = {"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"};
extern const char* const kStoreNames[5] = {"set", "add", "mul", "max", "min"};

namespace {

std::string number(double v) {
  if (std::isnan(v)) return std::signbit(v) ? "-nan" : "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  return decimal(v, 17);
}
std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}
void print_loops(const std::vector<Loop>& loops, std::string& out) {
  for (const Loop& l : loops) {
    out += " ";
    out += l.var.name();
    if (!l.extent.is_const()) out += "[" + l.extent.str() + "]";
  }
}
std::string value(Id id) { return " v" + std::to_string(id); }
std::string bracket(sym::Expr e) { return "[" + e.str() + "]"; }

std::string operand(const FlexOperand& o) {
  std::string out = " p" + std::to_string(o.slot);
  for (sym::Expr s : o.strides) out += bracket(s);
  return o.offset.is_const(0) ? out : out + " at " + bracket(o.offset);
}
void print_attention(const FlexAttention& a, std::string& out) {
  static const char* const kResults[] = {"softmax", "rows", "columns"};
  out += std::string("  attention ") + kResults[static_cast<int>(a.result)] + " group " + std::to_string(a.group) +
         " values" + operand(a.values) + " width " + std::to_string(a.value_width) + "\n";
  for (const FlexAttention::Score& s : a.scores)
    out += "  score" + operand(s.left) + operand(s.right) + " width " + std::to_string(s.width) + " scale " +
           number(s.scale) + "\n";
  if (a.query_block > 0) out += "  blocks " + std::to_string(a.query_block) + " " + std::to_string(a.key_block) + "\n";
  for (const auto& [name, o] : {std::pair{"partial", &a.partial.counts},
                                {"partial_indices", &a.partial.indices},
                                {"full", &a.full.counts},
                                {"full_indices", &a.full.indices},
                                {"out", &a.out},
                                {"log_sum", &a.log_sum},
                                {"largest", &a.largest}})
    if (o->given()) out += std::string("  ") + name + operand(*o) + "\n";
  for (const auto& [name, b] : {std::pair{"partial", &a.partial}, {"full", &a.full}})
    if (b->counts.given())
      out += std::string("  most_") + name + " " + bracket(b->rows) + " " + bracket(b->most) + "\n";
}

void print_instr(const Instr& in, size_t id, std::string& out) {
  out += "    v" + std::to_string(id) + " = " + info(in.op).name;
  if (info(in.op).has_result) out += std::string(" ") + flashover::info(in.dtype).name;
  auto slot = [&](char letter) { return " " + std::string(1, letter) + std::to_string(in.slot); };
  switch (in.op) {
    case Op::k_const:
      out += " " + (is_floating(in.dtype) ? number(in.number) : std::to_string(in.integer));
      break;
    case Op::k_index:
      out += " " + bracket(in.index);
      break;
    case Op::k_in_range:
      out += " " + bracket(in.index) + " " + bracket(in.lo) + " " + bracket(in.hi);
      break;
    case Op::k_uniform:
    case Op::k_normal:
      out += " " + bracket(in.index) + " " + bracket(in.lo) + " " + bracket(in.hi) + " " + std::to_string(in.integer);
      break;
    case Op::k_indirect:
      out += " " + std::string(in.index.name()) + " " + bracket(in.hi);
      break;
    case Op::k_load:
    case Op::k_store:
      out += slot('p') + bracket(in.index);
      break;
    case Op::k_load_scratch:
    case Op::k_store_scratch:
      out += slot('r') + bracket(in.index);
      break;
    case Op::k_acc:
    case Op::k_reduce:
    case Op::k_scan:
      out += slot('a');
      break;
    case Op::k_round_to:
      out += std::string(" ") + flashover::info(in.narrow).name;
      break;
    default:
      break;
  }
  for (Id a : in.args)
    if (a != kNone) out += value(a);
  if (in.op == Op::k_indirect && in.wrap) out += " wrap";
  if (in.op == Op::k_indirect && in.slot >= 0) out += " error " + std::to_string(in.slot);
  if (in.op == Op::k_store && in.mode != StoreMode::kSet)
    out += std::string(" ") + kStoreNames[static_cast<int>(in.mode)];
  if (in.mask != kNone) out += " if" + value(in.mask);
  out += "\n";
}

std::string render(const Kernel& k, bool for_people) {
  std::string out = "kernel" + (for_people && !k.label.empty() ? " " + quoted(k.label) : "") + " {\n";
  for (sym::Expr s : k.sizes) {
    if (sym::size_symbol_index(s)) {  // known by name
      out += "  size " + std::string(s.name()) + "\n";
      continue;
    }
    auto bound = [](int64_t v) {
      return v == sym::Range::kInf ? "inf" : v == -sym::Range::kInf ? "-inf" : std::to_string(v);
    };
    out += "  size " + std::string(s.name()) + " " + bound(s.range().lo) + " " + bound(s.range().hi) + " " +
           std::to_string(s.hint()) + "\n";
  }
  for (size_t i = 0; i < k.params.size(); ++i) {
    const Param& p = k.params[i];
    out += "  p" + std::to_string(i) + " = " + flashover::info(p.dtype).name + bracket(p.numel) +
           (p.read ? " read" : "") + (p.written ? " write" : "") + (p.number ? " number" : "") +
           (p.steady ? " steady" : "") + "\n";
  }
  out += "  outer";
  print_loops(k.outer, out);
  out += "\n";
  for (size_t i = 0; i < k.accs.size(); ++i)
    out += "  acc a" + std::to_string(i) + " = " + kReduceNames[static_cast<int>(k.accs[i].kind)] + " " +
           flashover::info(k.accs[i].dtype).name + "\n";
  for (size_t i = 0; i < k.scratch.size(); ++i)
    out += "  scratch r" + std::to_string(i) + " = " + flashover::info(k.scratch[i].dtype).name +
           bracket(k.scratch[i].size) + "\n";
  if (k.attention) print_attention(*k.attention, out);
  for (size_t i = 0; i < k.errors.size(); ++i)
    out += "  error " + std::to_string(i) + (for_people ? " " + quoted(k.errors[i]) : "") + "\n";
  if (k.vector != Vector::kNone)
    out += std::string("  vector ") + (k.vector == Vector::kInner ? "inner" : "outer") + "\n";
  if (k.transpose >= 0) out += "  transpose " + std::to_string(k.transpose) + "\n";
  if (k.serial) out += "  serial\n";
  if (k.exact) out += "  exact\n";
  out += "  cost " + std::to_string(k.cost) + "\n";
  for (const Stage& s : k.stages) {
    out += "  stage";
    print_loops(s.loops, out);
    out += s.ordered ? " ordered {\n" : " {\n";
    for (size_t i = 0; i < s.body.size(); ++i) print_instr(s.body[i], i, out);
    out += "  }\n";
  }
  return out + "}\n";
}

}  // namespace

std::string print(const Kernel& k) { return render(k, true); }
std::string text(const Kernel& k) { return render(k, false); }

}  // namespace flashover::loops

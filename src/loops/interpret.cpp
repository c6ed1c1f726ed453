// The plain reference: no vectors, no threads, one scalar at a time in the order the kernel is written down.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "loops/half.h"
#include "loops/loops.h"
#include "loops/philox.h"
#include "ops/scalar.h"

namespace flashover::loops {
namespace {

using ops::Scalar;

Scalar scalar_op(Op op, DType operand, const Scalar& a, const Scalar& b = {}, const Scalar& c = {}) {
  return compute(prim_of(op), operand, a, b, c);
}

template <typename T>
T read_as(const void* p, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(p) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}
template <typename T>
void write_as(void* p, int64_t i, T v) {
  std::memcpy(static_cast<char*>(p) + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}
Scalar load(DType d, const void* p, int64_t i) {
  switch (d) {
    case DType::kF32:
      return {read_as<float>(p, i), 0};
    case DType::kF64:
      return {read_as<double>(p, i), 0};
    case DType::kBF16:
      return {bf16_to_float(read_as<uint16_t>(p, i)), 0};
    case DType::kF16:
      return {f16_to_float(read_as<uint16_t>(p, i)), 0};
    case DType::kBool:
    case DType::kU8:
      return {0, read_as<uint8_t>(p, i)};
    case DType::kI8:
      return {0, read_as<int8_t>(p, i)};
    case DType::kI16:
      return {0, read_as<int16_t>(p, i)};
    case DType::kU16:
      return {0, read_as<uint16_t>(p, i)};
    case DType::kI32:
      return {0, read_as<int32_t>(p, i)};
    case DType::kU32:
      return {0, read_as<uint32_t>(p, i)};
    case DType::kI64:
    case DType::kU64:
      return {0, read_as<int64_t>(p, i)};
    default:
      FLASHOVER_CHECK(false) << "cannot load " << info(d).name;
      return {};
  }
}
void store(DType d, void* p, int64_t i, const Scalar& v) {
  switch (d) {
    case DType::kF32:
      return write_as(p, i, static_cast<float>(v.f));
    case DType::kF64:
      return write_as(p, i, v.f);
    case DType::kBF16:
      return write_as(p, i, float_to_bf16(static_cast<float>(v.f)));
    case DType::kF16:
      return write_as(p, i, float_to_f16(static_cast<float>(v.f)));
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return write_as(p, i, static_cast<uint8_t>(v.i));
    case DType::kI16:
    case DType::kU16:
      return write_as(p, i, static_cast<uint16_t>(v.i));
    case DType::kI32:
    case DType::kU32:
      return write_as(p, i, static_cast<uint32_t>(v.i));
    case DType::kI64:
    case DType::kU64:
      return write_as(p, i, v.i);
    default:
      FLASHOVER_CHECK(false) << "cannot store " << info(d).name;
  }
}

struct AccState {
  Scalar value;
  int64_t index = 0;
  bool started = false;
};
AccState identity_of(const Accumulator& a) {
  AccState s;
  switch (a.kind) {
    case Reduce::kSum:
    case Reduce::kAny:
      break;
    case Reduce::kProd:
    case Reduce::kAll:
      s.value = {1, 1};
      break;
    case Reduce::kMax:
    case Reduce::kArgMax:
      s.value.f = -std::numeric_limits<double>::infinity();
      s.value.i =
          a.dtype == DType::kU64 || !info(a.dtype).is_signed ? 0 : -(int64_t{1} << (info(a.dtype).bytes * 8 - 2)) * 2;
      break;
    case Reduce::kMin:
    case Reduce::kArgMin:
      s.value.f = std::numeric_limits<double>::infinity();
      s.value.i = a.dtype == DType::kU64    ? -1
                  : a.dtype == DType::kBool ? 1
                  : info(a.dtype).is_signed ? ((int64_t{1} << (info(a.dtype).bytes * 8 - 2)) - 1) * 2 + 1
                                            : (int64_t{1} << info(a.dtype).bytes * 8) - 1;
      break;
  }
  return s;
}

class Machine {
 public:
  Machine(const Kernel& k, std::span<void* const> pointers, std::span<const int64_t> sizes)
      : k_(k), pointers_(pointers) {
    FLASHOVER_CHECK(pointers.size() == k.params.size() && sizes.size() == k.sizes.size())
        << "wrong number of arguments";
    for (size_t i = 0; i < sizes.size(); ++i) values_[k.sizes[i].node()] = sizes[i];
    for (const Scratch& s : k.scratch) scratch_.emplace_back(static_cast<size_t>(evaluate(s.size)));
    for (const Param& p : k.params) numel_.push_back(evaluate(p.numel));
  }
  int32_t run() {
    accs_.resize(k_.accs.size());
    if (k_.attention && k_.attention->result == FlexAttention::Result::kColumns)
      sums_.resize(static_cast<size_t>(numel_[k_.attention->out.slot]));
    nest(k_.outer, 0, [&] {
      if (k_.attention) return attend(*k_.attention);
      for (const Stage& s : k_.stages) {
        for (const Instr& in : s.body)
          if (in.op == Op::k_reduce || in.op == Op::k_scan) accs_[in.slot] = identity_of(k_.accs[in.slot]);
        registers_.assign(s.body.size(), {});
        nest(s.loops, 0, [&] { body(s.body); });
      }
    });
    return failed_;
  }

 private:
  // ---- attention (attention.h), at an outer point
  using Place = std::array<int64_t, 4>;
  int64_t place(const FlexOperand& o, const Place& at) {
    int64_t a = evaluate(o.offset);
    for (size_t d = 0; d < o.strides.size(); ++d) a += at[d] * evaluate(o.strides[d]);
    FLASHOVER_CHECK(a >= 0 && a < numel_[o.slot]) << "address " << a << " of " << numel_[o.slot] << "\n" << print(k_);
    return a;
  }
  Scalar operand(const FlexOperand& o, const Place& at) {
    return load(k_.params[o.slot].dtype, pointers_[o.slot], place(o, at));
  }
  void result(const FlexOperand& o, const Place& at, double v) {
    if (o.given()) store(k_.params[o.slot].dtype, pointers_[o.slot], place(o, at), {v, 0});
  }
  // Which of the keys are seen: 0 none, 1 those that the mask leaves, 2 all.
  std::vector<char> seen_keys(const FlexAttention& a, int64_t keys, const Place& at) {
    if (a.query_block == 0) return std::vector<char>(static_cast<size_t>(keys), 1);
    std::vector<char> seen(static_cast<size_t>(keys), 0);
    if (a.result == FlexAttention::Result::kColumns) {  // lists of blocks of queries: looked up the other way
      for (int64_t j = 0; j < keys; ++j) seen[static_cast<size_t>(j)] = lists_query(a, j / a.key_block, at) ? 1 : 0;
      return seen;
    }
    const auto list = [&](const FlexAttention::Blocks& b, char how) {
      const int64_t row = at[2] / a.query_block;
      if (!b.counts.given() || row >= evaluate(b.rows)) return;
      const int64_t count = std::min(operand(b.counts, {at[0], at[1], row, 0}).i, evaluate(b.most));
      for (int64_t n = 0; n < count; ++n) {
        const int64_t from = operand(b.indices, {at[0], at[1], row, n}).i * a.key_block;
        for (int64_t j = from; j < std::min(keys, from + a.key_block); ++j) seen[static_cast<size_t>(j)] = how;
      }
    };
    list(a.partial, 1);
    list(a.full, 2);
    return seen;
  }
  bool lists_query(const FlexAttention& a, int64_t row, const Place& at) {
    for (const FlexAttention::Blocks* b : {&a.partial, &a.full}) {
      if (!b->counts.given() || row >= evaluate(b->rows)) continue;
      const int64_t count = std::min(operand(b->counts, {at[0], at[1], row, 0}).i, evaluate(b->most));
      for (int64_t n = 0; n < count; ++n)
        if (operand(b->indices, {at[0], at[1], row, n}).i == at[2] / a.query_block) return true;
    }
    return false;
  }
  // Sums of a backward: the scratch holds weights.
  void add_up(const FlexAttention& a, const std::vector<char>& seen, const Place& at) {
    const bool rows = a.result == FlexAttention::Result::kRows;
    const auto keys = static_cast<int64_t>(seen.size()), head = at[1] / a.group;
    for (int64_t d = 0; d < a.value_width; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        if (seen[static_cast<size_t>(j)] == 0) continue;
        const double weight = scratch_[0][static_cast<size_t>(j)].f;
        if (rows) {
          sum += weight * operand(a.values, {at[0], head, j, d}).f;
          continue;
        }
        double& to = sums_[static_cast<size_t>(place(a.out, {at[0], head, j, d}))];
        to += weight * operand(a.values, {at[0], at[1], at[2], d}).f;
        result(a.out, {at[0], head, j, d}, to);
      }
      if (rows) result(a.out, {at[0], at[1], at[2], d}, sum);
    }
  }
  void attend(const FlexAttention& a) {
    Place at{};
    for (size_t d = 0; d < 3; ++d) at[d] = values_.at(k_.outer[d].var.node());
    const int64_t keys = evaluate(k_.stages[0].loops[0].extent), head = at[1] / a.group;
    const std::vector<char> seen = seen_keys(a, keys, at);
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    double largest = kNone, total = 0;
    for (int64_t j = 0; j < keys && !failed_; ++j) {
      if (seen[static_cast<size_t>(j)] == 0) continue;
      for (size_t i = 0; i < a.scores.size(); ++i) {
        double sum = 0;
        for (int64_t d = 0; d < a.scores[i].width; ++d)
          sum +=
              operand(a.scores[i].left, {at[0], at[1], at[2], d}).f * operand(a.scores[i].right, {at[0], head, j, d}).f;
        scratch_[i][static_cast<size_t>(j)] = {sum * a.scores[i].scale, 0};
      }
      for (size_t s = 0; s < k_.stages.size(); ++s) {
        if (s == 1 && seen[static_cast<size_t>(j)] == 2) continue;
        registers_.assign(k_.stages[s].body.size(), {});
        values_[k_.stages[s].loops[0].var.node()] = j;
        body(k_.stages[s].body);
      }
      largest = std::max(largest, scratch_[0][static_cast<size_t>(j)].f);
    }
    if (a.result != FlexAttention::Result::kSoftmax) return add_up(a, seen, at);
    std::vector<double> sums(static_cast<size_t>(a.value_width));
    for (int64_t j = 0; j < keys; ++j) {
      const double score = seen[static_cast<size_t>(j)] ? scratch_[0][static_cast<size_t>(j)].f : kNone;
      const double weight = score == kNone ? 0 : std::exp(score - largest);
      total += weight;
      for (int64_t d = 0; weight != 0 && d < a.value_width; ++d)
        sums[static_cast<size_t>(d)] += weight * operand(a.values, {at[0], head, j, d}).f;
    }
    for (int64_t d = 0; d < a.value_width; ++d)
      result(a.out, {at[0], at[1], at[2], d}, total == 0 ? 0 : sums[static_cast<size_t>(d)] / total);
    result(a.log_sum, at, total == 0 ? kNone : largest + std::log(total));
    result(a.largest, at, largest);
  }

  int64_t evaluate(sym::Expr e) {
    return sym::evaluate(e, [&](sym::Expr v) {
      auto it = values_.find(v.node());
      FLASHOVER_CHECK(it != values_.end()) << "unbound variable " << v.str();
      return it->second;
    });
  }
  template <typename F>
  void nest(const std::vector<Loop>& loops, size_t depth, F&& f) {
    if (depth == loops.size()) return f();
    int64_t extent = evaluate(loops[depth].extent);
    for (int64_t i = 0; i < extent && !failed_; ++i) {
      values_[loops[depth].var.node()] = i;
      nest(loops, depth + 1, f);
    }
  }
  int64_t address(const Instr& in, int64_t size) {
    int64_t a = evaluate(in.index);
    FLASHOVER_CHECK(a >= 0 && a < size) << "address " << a << " of " << size << ": " << info(in.op).name << " ["
                                        << in.index.str() << "]\n"
                                        << print(k_);
    return a;
  }
  Scalar fold(int32_t slot, const Scalar& v, int64_t index) {
    const Accumulator& a = k_.accs[slot];
    AccState& s = accs_[slot];
    switch (a.kind) {
      case Reduce::kSum:
        s.value = scalar_op(a.dtype == DType::kBool ? Op::k_bitwise_or : Op::k_add, a.dtype, s.value, v, {});
        break;
      case Reduce::kProd:
        s.value = scalar_op(Op::k_mul, a.dtype, s.value, v, {});
        break;
      case Reduce::kMax:
        s.value = scalar_op(Op::k_maximum, a.dtype, s.value, v, {});
        break;
      case Reduce::kMin:
        s.value = scalar_op(Op::k_minimum, a.dtype, s.value, v, {});
        break;
      case Reduce::kAny:
        s.value.i |= v.i;
        break;
      case Reduce::kAll:
        s.value.i &= v.i;
        break;
      case Reduce::kArgMax:
      case Reduce::kArgMin: {
        // The first NaN wins, else the best, of equals the smallest index.
        bool old_nan = is_floating(a.dtype) && std::isnan(s.value.f), new_nan = is_floating(a.dtype) && std::isnan(v.f);
        bool better = scalar_op(a.kind == Reduce::kArgMax ? Op::k_gt : Op::k_lt, a.dtype, v, s.value, {}).i != 0;
        bool equal = scalar_op(Op::k_eq, a.dtype, v, s.value, {}).i != 0 || (old_nan && new_nan);
        if (!s.started || (!old_nan && (new_nan || better)) || (equal && index < s.index)) {
          s.value = v;
          s.index = index;
        }
        s.started = true;
        break;
      }
    }
    return s.value;
  }
  void body(const std::vector<Instr>& instrs) {
    for (size_t n = 0; n < instrs.size() && !failed_; ++n) {
      const Instr& in = instrs[n];
      auto arg = [&](int i) -> const Scalar& { return registers_[in.args[i]]; };
      Scalar& out = registers_[n];
      bool on = in.mask == kNone || registers_[in.mask].i != 0;
      if (is_scalar_op(in.op)) {
        static const Scalar kZero;
        int arity = info(in.op).arity;
        out =
            scalar_op(in.op, instrs[in.args[0]].dtype, arg(0), arity > 1 ? arg(1) : kZero, arity > 2 ? arg(2) : kZero);
        continue;
      }
      switch (in.op) {
        case Op::k_convert:
          out = convert(instrs[in.args[0]].dtype, in.dtype, arg(0));
          break;
        case Op::k_round_to: {
          auto f = static_cast<float>(arg(0).f);
          out.f = in.narrow == DType::kBF16 ? bf16_to_float(float_to_bf16(f)) : f16_to_float(float_to_f16(f));
          break;
        }
        case Op::k_const:
          out = {in.dtype == DType::kF32 ? static_cast<float>(in.number) : in.number, in.integer};
          break;
        case Op::k_index:
          out.i = evaluate(in.index);
          break;
        case Op::k_in_range: {
          int64_t v = evaluate(in.index);
          out.i = evaluate(in.lo) <= v && v < evaluate(in.hi);
          break;
        }
        case Op::k_uniform:
        case Op::k_normal: {
          const auto u32 = [](int64_t v) { return static_cast<uint32_t>(static_cast<uint64_t>(v)); };
          const Drawn d = drawn(evaluate(in.index), evaluate(in.hi), in.integer);
          const int64_t counter = (arg(1).i >> 2) + evaluate(in.lo) + d.call;
          const auto bits =
              philox({u32(counter), u32(counter >> 32), u32(d.thread), 0}, u32(arg(0).i), u32(arg(0).i >> 32));
          out.f = in.op == Op::k_uniform ? uniform(bits[d.lane]) : normal(bits, d.lane);
          break;
        }
        case Op::k_indirect: {
          int64_t size = evaluate(in.hi), v = arg(0).i;
          if (in.wrap && v < 0) v += size;
          if (!on) {
            v = 0;
          } else if (v < 0 || v >= size) {
            FLASHOVER_CHECK(in.slot >= 0) << "unchecked indirect index " << v << " of " << size;
            failed_ = in.slot + 1;
          }
          values_[in.index.node()] = out.i = v;
          break;
        }
        case Op::k_load:
          out = on ? load(k_.params[in.slot].dtype, pointers_[in.slot], address(in, numel_[in.slot])) : Scalar{};
          break;
        case Op::k_store: {
          if (!on) break;
          int64_t a = address(in, numel_[in.slot]);
          DType d = k_.params[in.slot].dtype;
          Scalar v = arg(0);
          static constexpr Op kCombine[] = {Op::k_add, Op::k_add, Op::k_mul, Op::k_maximum, Op::k_minimum};
          if (in.mode != StoreMode::kSet)
            v = scalar_op(kCombine[static_cast<int>(in.mode)], instrs[in.args[0]].dtype, load(d, pointers_[in.slot], a),
                          v, {});
          store(d, pointers_[in.slot], a, v);
          break;
        }
        case Op::k_load_scratch:
          out = on ? scratch_[in.slot][address(in, static_cast<int64_t>(scratch_[in.slot].size()))] : Scalar{};
          break;
        case Op::k_store_scratch:
          if (on) scratch_[in.slot][address(in, static_cast<int64_t>(scratch_[in.slot].size()))] = arg(0);
          break;
        case Op::k_acc:
          if (k_.accs[in.slot].kind >= Reduce::kArgMax) {
            out.i = accs_[in.slot].index;
          } else {
            out = accs_[in.slot].value;
          }
          break;
        case Op::k_reduce:
          if (on) fold(in.slot, arg(0), in.args[1] == kNone ? 0 : arg(1).i);
          break;
        case Op::k_scan:
          out = on ? fold(in.slot, arg(0), 0) : accs_[in.slot].value;
          break;
        default:
          break;
      }
    }
  }

  const Kernel& k_;
  std::span<void* const> pointers_;
  std::unordered_map<const sym::Node*, int64_t> values_;
  std::vector<std::vector<Scalar>> scratch_;
  std::vector<double> sums_;  // of columns
  std::vector<int64_t> numel_;
  std::vector<AccState> accs_;
  std::vector<Scalar> registers_;
  int32_t failed_ = 0;
};

}  // namespace

int32_t interpret(const Kernel& k, std::span<void* const> pointers, std::span<const int64_t> sizes) {
  return Machine(k, pointers, sizes).run();
}

}  // namespace flashover::loops

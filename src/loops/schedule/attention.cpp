// The function is a graph of its own, whose values are read as those of any other; its first inputs are the scores.
#include "loops/schedule/attention.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "graph/origin.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::loops {
namespace {

using graph::Graph;

class AttentionBuilder : public RealisedValues {
 public:
  AttentionBuilder(const LoopProgram& program, const graph::Node& node)
      : p_(program),
        node_(node),
        function_(graph::parse(std::get<std::string>(node.args[8]))),
        producers_(function_),
        captured_(ops::as_values(node.args[7])) {}

  Built run() {
    scores();
    loops();
    // Parameters: operands, what the function reads, results.
    const ValueId values = ops::as_value(node_.args[4]);
    attention_.values = operand(values, false);
    attention_.value_width = p_.graph.type(values).sizes[3].value();
    attention_.group = sym::floordiv(heads_, p_.graph.type(ops::as_values(node_.args[1])[0].id).sizes[1]).value();
    attention_.result = node_.op->name == op::flex_fused_rows      ? FlexAttention::Result::kRows
                        : node_.op->name == op::flex_fused_columns ? FlexAttention::Result::kColumns
                                                                   : FlexAttention::Result::kSoftmax;
    blocks();
    Kernel& k = built_.kernel;
    for (size_t o = 0; o < function_.outputs.size(); ++o) stage(o);
    result(0, attention_.out);
    if (node_.outs.size() > 1) {
      result(1, attention_.log_sum);
      result(2, attention_.largest);
    }
    k.attention = std::make_shared<const FlexAttention>(attention_);
    k.vector = Vector::kInner;
    k.sizes = sizes();
    k.label = label();
    const bool forward = attention_.result == FlexAttention::Result::kSoftmax;
    built_.operators = forward ? "flex_attention" : "flex_attention_backward";
    k.cost = cost();
    return std::move(built_);
  }

 private:
  // ---- operands
  const Sizes& strides_of(ValueId v) const {
    return p_.views[v].base != kNoValue ? p_.views[v].strides : p_.memory[v].strides;
  }
  // Kernels take whole tensors, which begin at aligned addresses, and find views in them.
  ValueId whole(ValueId v) const { return p_.views[v].base != kNoValue ? p_.views[v].base : v; }
  sym::Expr offset_of(ValueId v) const { return p_.views[v].base != kNoValue ? p_.views[v].offset : sym::Expr(0); }
  int32_t param(ValueId v, bool written) {
    v = whole(v);
    const auto known = std::find(built_.params.begin(), built_.params.end(), v);
    if (known != built_.params.end()) return static_cast<int32_t>(known - built_.params.begin());
    built_.params.push_back(v);
    const TensorType& t = p_.memory[v];
    sym::Expr numel = 1;
    for (size_t d = 0; d < t.rank(); ++d) numel += (t.sizes[d] - 1) * t.strides[d];
    built_.kernel.params.push_back({.dtype = t.dtype, .numel = numel, .read = !written, .written = written});
    return static_cast<int32_t>(built_.params.size()) - 1;
  }
  // Strides are 0 along dims that are repeated.
  FlexOperand operand(ValueId v, bool written) {
    FlexOperand o{.slot = param(v, written), .strides = strides_of(v), .offset = offset_of(v)};
    for (size_t d = 0; d < o.strides.size(); ++d)
      if (p_.graph.type(v).sizes[d].is_const(1)) o.strides[d] = 0;
    return o;
  }

  void scores() {
    const RefList left = ops::as_values(node_.args[0]), right = ops::as_values(node_.args[1]);
    const auto& scales = std::get<std::vector<double>>(node_.args[2]);
    const TensorType& q = p_.graph.type(left[0].id);
    batch_ = q.sizes[0];
    heads_ = q.sizes[1];
    queries_ = q.sizes[2];
    keys_ = p_.graph.type(right[0].id).sizes[2];
    for (size_t i = 0; i < left.size(); ++i) {
      attention_.scores.push_back({.left = operand(left[i].id, false),
                                   .right = operand(right[i].id, false),
                                   .width = p_.graph.type(left[i].id).sizes[3].value(),
                                   .scale = scales[i]});
      built_.kernel.scratch.push_back({DType::kF32, keys_});
    }
  }

  void loops() {
    const sym::Expr extents[] = {batch_, heads_, queries_};
    for (int i = 0; i < 3; ++i) built_.kernel.outer.push_back({loop_var('i', i, extents[i]), extents[i]});
    key_ = loop_var('j', 0, keys_);
    for (const Loop& l : built_.kernel.outer) at_.push_back(l.extent.is_const(1) ? sym::Expr(0) : l.var);
    at_.push_back(keys_.is_const(1) ? sym::Expr(0) : key_);
  }

  void blocks() {
    const RefList lists = ops::as_values(node_.args[5]);
    if (lists.empty()) return;
    const std::vector<int64_t> block = ops::as_ints(node_.args[6]);
    attention_.query_block = block[0];
    attention_.key_block = block[1];
    const auto of = [&](const Ref& counts, const Ref& indices) {
      return FlexAttention::Blocks{.counts = operand(counts.id, false),
                                   .indices = operand(indices.id, false),
                                   .rows = p_.graph.type(counts.id).sizes[2],
                                   .most = p_.graph.type(indices.id).sizes[3]};
    };
    attention_.partial = of(lists[0], lists[1]);
    if (lists[2].id != kNoValue) attention_.full = of(lists[2], lists[3]);
  }

  void result(size_t i, FlexOperand& to) {
    const ValueId v = node_.outs[i];
    if (v == kNoValue || (i > 0 && !p_.facts[v].used)) return;
    to = operand(v, true);
  }

  // ---- the function
  std::optional<Id> fetch(Emitter& e, ValueId v, const Index& at) override {
    for (size_t i = 0; i < function_.inputs.size(); ++i) {
      if (function_.inputs[i].value != v) continue;
      const size_t scores = attention_.scores.size();
      if (i >= scores) {
        const ValueId outside = captured_[i - scores].id;
        return e.load(param(outside, false), p_.graph.type(outside).dtype,
                      offset_of(outside) + flatten(at, strides_of(outside)));
      }
      // Emitters have the scores of one row of queries at hand.
      FLASHOVER_CHECK(at == at_) << "a score is read elsewhere";
      return e.add({.op = Op::k_load_scratch, .dtype = DType::kF32, .slot = static_cast<int32_t>(i), .index = at_[3]});
    }
    return std::nullopt;
  }

  // Output 0: the score. 1: the mask.
  void stage(size_t output) {
    Kernel& k = built_.kernel;
    Stage& s = k.stages.emplace_back();
    s.loops.push_back({key_, keys_});
    Emitter e(function_, producers_, *this, s.body, k.errors);
    Id value = e.read(function_.outputs[output].value, at_);
    if (output == 1) {
      const Id score = e.add({.op = Op::k_load_scratch, .dtype = DType::kF32, .slot = 0, .index = at_[3]});
      value = e.op(Op::k_where, value, score, e.constant(DType::kF32, -std::numeric_limits<double>::infinity()));
    }
    e.add(
        {.op = Op::k_store_scratch, .args = {e.convert(value, DType::kF32), kNone, kNone}, .slot = 0, .index = at_[3]});
  }

  // ---- what stands beside it
  std::vector<sym::Expr> sizes() const {
    const Kernel& k = built_.kernel;
    std::vector<sym::Expr> vars;
    const auto collect = [&](sym::Expr e) { sym::collect_vars(e, vars); };
    for (const Param& p : k.params) collect(p.numel);
    for (const Loop& l : k.outer) collect(l.extent);
    collect(keys_);
    for (const FlexOperand* o : operands()) {
      for (sym::Expr s : o->strides) collect(s);
      collect(o->offset);
    }
    for (const FlexAttention::Blocks* b : {&attention_.partial, &attention_.full}) collect(b->rows), collect(b->most);
    for (const Stage& s : k.stages)
      for (const Instr& in : s.body)
        for (sym::Expr e : {in.index, in.lo, in.hi}) collect(e);
    std::erase_if(vars, [](sym::Expr v) { return !sym::size_symbol_index(v); });
    std::ranges::sort(vars, {}, [](sym::Expr v) { return *sym::size_symbol_index(v); });
    return vars;
  }
  std::vector<const FlexOperand*> operands() const {
    const FlexAttention& a = attention_;
    std::vector<const FlexOperand*> out = {&a.values,      &a.partial.counts, &a.partial.indices,
                                           &a.full.counts, &a.full.indices,   &a.out,
                                           &a.log_sum,     &a.largest};
    for (const FlexAttention::Score& s : a.scores) out.insert(out.end(), {&s.left, &s.right});
    return out;
  }

  std::string label() const {
    const auto& locations = p_.graph.facts.locations;
    const bool located = node_.location >= 0 && static_cast<size_t>(node_.location) < locations.size();
    static const char* const kNames[] = {"flex_attention", "flex_attention_rows", "flex_attention_columns"};
    return kNames[static_cast<int>(attention_.result)] +
           (located ? " " + graph::without_origin(locations[static_cast<size_t>(node_.location)]) : std::string());
  }

  // Of one query.
  int64_t cost() const {
    int64_t each = 10 + attention_.value_width / 8;
    for (const FlexAttention::Score& s : attention_.scores) each += s.width / 8;
    for (const Stage& s : built_.kernel.stages)
      for (const Instr& in : s.body) each += info(in.op).cost;
    return each * std::max<int64_t>(1, keys_.hint());
  }

  const LoopProgram& p_;
  const graph::Node& node_;
  const Graph function_;
  const Producers producers_;
  const RefList captured_;
  Built built_;
  FlexAttention attention_;
  sym::Expr batch_ = 1, heads_ = 1, queries_ = 1, keys_ = 1, key_ = 0;
  Index at_;
};

}  // namespace

Built build_attention(const LoopProgram& program, const graph::Node& node) {
  return AttentionBuilder(program, node).run();
}

}  // namespace flashover::loops

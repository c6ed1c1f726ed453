// Whether what was recorded for sizes of 2 and more is so for sizes of 1, too.
//
// Type rules take a size that is a symbol for none of 1 (sym::PresumeScope): there strides are free, and eager lays
// tensors out in other ways. Behind the trace the rules are asked again with ones in the place of symbols, from the
// inputs on. Where all results have the types that the graph says for these sizes, calls with them are served; else a
// guard leaves them out, with the line of the operator that gives something else.
#include <algorithm>
#include <optional>

#include "base/check.h"
#include "ops/names.h"
#include "torch/convert.h"
#include "torch/size_node.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using sym::Expr;

constexpr size_t kMostSymbols = 4;  // that are tried: each set of them is a walk over the graph

using Ones = std::vector<Expr>;  // symbols that are 1

bool mentions(Expr e, const Ones& ones) {
  if (e.is_const()) return false;
  if (e.kind() == sym::Kind::kVar) return std::ranges::find(ones, e) != ones.end();
  return std::ranges::any_of(e.operands(), [&](Expr o) { return mentions(o, ones); });
}
bool mentions(const Sizes& list, const Ones& ones) {
  return std::ranges::any_of(list, [&](Expr e) { return mentions(e, ones); });
}
bool mentions(const TensorType& t, const Ones& ones) {
  return mentions(t.sizes, ones) || mentions(t.strides, ones) || mentions(t.offset, ones);
}

Expr with_ones(Expr e, const Ones& ones) {
  if (!mentions(e, ones)) return e;
  return sym::substitute(e, [&](Expr v) -> std::optional<Expr> {
    return std::ranges::find(ones, v) != ones.end() ? std::optional(Expr(1)) : std::nullopt;
  });
}
Sizes with_ones(Sizes list, const Ones& ones) {
  for (Expr& e : list) e = with_ones(e, ones);
  return list;
}
TensorType with_ones(TensorType t, const Ones& ones) {
  t.sizes = with_ones(std::move(t.sizes), ones);
  t.strides = with_ones(std::move(t.strides), ones);
  t.offset = with_ones(t.offset, ones);
  return t;
}

bool viewed(const TensorType& t, const Sizes& sizes) {
  static const ops::OpRow* const view = ops::find(op::view);
  const auto type_of = [](const void* type, ValueId) -> const TensorType& {
    return *static_cast<const TensorType*>(type);
  };
  const std::vector<Arg> args = {Ref{0}, sizes};
  std::vector<TensorType> out;
  return ops::infer(view->infer, {args, type_of, &t}, out);
}

bool same_types(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.opaque == b.opaque && same_sizes(a.sizes, b.sizes) &&
         same_sizes(a.strides, b.strides) && sym::known_eq(a.offset, b.offset);
}

// The same elements in the same places; strides over one element may be others.
bool same_places(const TensorType& a, const TensorType& b) {
  if (a.dtype != b.dtype || a.opaque != b.opaque || !same_sizes(a.sizes, b.sizes) || !sym::known_eq(a.offset, b.offset))
    return false;
  for (size_t d = 0; d < a.strides.size(); ++d)
    if (!a.sizes[d].is_const(1) && !sym::known_eq(a.strides[d], b.strides[d])) return false;
  return true;
}

}  // namespace

class OneReplay {
 public:
  OneReplay(const Recorder& recorder, Ones ones)
      : recorder_(recorder),
        graph_(recorder.graph_),
        ones_(std::move(ones)),
        types_(graph_.values.size()),
        changed_(graph_.values.size()) {}

  // kNone: all is as recorded. Else the first node whose result is not; kResult: of no node.
  static constexpr int64_t kNone = -1, kResult = -2;
  int64_t first_difference() {
    for (const graph::Input& in : graph_.inputs)
      if (!take(in.value, recorded(in.value))) return kResult;
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (!visit(i)) return static_cast<int64_t>(i);
    for (const graph::Output& o : graph_.outputs)
      if (!same_types(types_[static_cast<size_t>(o.value)], with_ones(o.type, ones_))) return maker_of(o.value);
    return kNone;
  }

 private:
  TensorType recorded(ValueId v) const { return with_ones(graph_.values[static_cast<size_t>(v)].type, ones_); }

  // False: a size may be 1 that no rule takes for that.
  bool take(ValueId v, TensorType type) {
    for (Expr e : type.sizes) {
      const sym::PresumeScope presume;
      if (e.is_const() || sym::has_data_size(e)) continue;  // (of data: nothing was presumed)
      if (!sym::known_le(Expr(sym::kLeastPresumed), e)) return false;
    }
    const auto at = static_cast<size_t>(v);
    changed_[at] = mentions(graph_.values[at].type, ones_) || !(type.strides == graph_.values[at].type.strides);
    types_[at] = std::move(type);
    return true;
  }

  bool visit(size_t at) {
    const graph::Node& n = graph_.nodes[at];
    const auto rule = recorder_.ruled_.find(at);
    bool same = std::ranges::none_of(n.outs, [&](ValueId v) {
      return v != kNoValue && mentions(graph_.values[static_cast<size_t>(v)].type, ones_);
    });
    std::vector<Arg> args = n.args;
    for (Arg& a : args) {
      graph::for_each_ref(a, [&](ValueId v) { same = same && !changed_[static_cast<size_t>(v)]; });
      if (auto* e = std::get_if<Expr>(&a); e && mentions(*e, ones_)) *e = with_ones(*e, ones_), same = false;
      if (auto* list = std::get_if<Sizes>(&a); list && mentions(*list, ones_))
        *list = with_ones(std::move(*list), ones_), same = false;
    }
    if (same || rule == recorder_.ruled_.end() || looks_at_memory(n)) return as_recorded(n);
    const auto type_of = [](const void* types, ValueId v) -> const TensorType& {
      return (*static_cast<const std::vector<TensorType>*>(types))[static_cast<size_t>(v)];
    };
    const ops::InferContext context{args, type_of, &types_, aten::from_aten(c10::get_default_dtype_as_scalartype())};
    std::vector<TensorType> types;
    if (!Recorder::apply_rule(*rule->second, context, types) || types.size() != n.outs.size()) return false;
    if (const auto copy = n.outs.empty() ? recorder_.copies_.end() : recorder_.copies_.find(n.outs[0]);
        copy != recorder_.copies_.end() &&
        !as_view(n, copy->second.first, with_ones(copy->second.second, ones_), types[0]))
      return false;
    for (size_t i = 0; i < types.size(); ++i) {
      if (n.outs[i] == kNoValue) continue;
      if (!same_places(types[i], recorded(n.outs[i])) || !take(n.outs[i], std::move(types[i]))) return false;
    }
    return true;
  }

  // A copy that eager makes none of where it can view the original: `type` is that one's then. False: the program may
  // notice, since it writes or hands out that memory.
  bool as_view(const graph::Node& copy, ValueId result, const Sizes& sizes, TensorType& type) {
    const ValueId of = std::get<Ref>(copy.args[0]).id;
    const TensorType& original = types_[static_cast<size_t>(of)];
    if (!viewed(original, sizes)) return true;
    const auto memory = [&](ValueId v) { return graph_.values[static_cast<size_t>(v)].storage; };
    const auto touched = [&](ValueId v) { return memory(v) == memory(of) || memory(v) == memory(result); };
    bool noticed =
        std::ranges::any_of(graph_.outputs, [&](const graph::Output& o) { return memory(o.value) == memory(result); });
    for (const graph::Node& n : graph_.nodes)
      for (size_t i = 0; i < n.args.size() && i < 32; ++i)
        if (n.op->mutates >> i & 1) graph::for_each_ref(n.args[i], [&](ValueId v) { noticed = noticed || touched(v); });
    type.strides = original.strides;
    return !noticed;
  }

  // Elements are told by where they lie, not by their indices.
  static bool looks_at_memory(const graph::Node& n) { return n.op->name.find("as_strided") != std::string::npos; }

  // What no rule says was asked of the sizes and strides as they were recorded.
  bool as_recorded(const graph::Node& n) {
    bool same = true;
    for (const Arg& a : n.args)
      graph::for_each_ref(a, [&](ValueId v) {
        same = same && (!changed_[static_cast<size_t>(v)] || same_types(types_[static_cast<size_t>(v)], recorded(v)));
      });
    for (ValueId v : n.outs) same = same && (v == kNoValue || take(v, recorded(v)));
    return same;
  }

  int64_t maker_of(ValueId v) const {
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (std::ranges::find(graph_.nodes[i].outs, v) != graph_.nodes[i].outs.end()) return static_cast<int64_t>(i);
    return kResult;
  }

  const Recorder& recorder_;
  const graph::Graph& graph_;
  const Ones ones_;
  std::vector<TensorType> types_;  // by value
  std::vector<char> changed_;      // what is not as for other sizes
};

namespace {

// Sets of symbols, small ones first.
std::vector<unsigned> sets_of(size_t symbols) {
  std::vector<unsigned> sets;
  for (unsigned s = 1; s < 1u << symbols; ++s) sets.push_back(s);
  std::ranges::stable_sort(sets, {}, [](unsigned s) { return std::popcount(s); });
  return sets;
}

// The guards with ones in the place of symbols; nullopt: these cannot be 1 together.
std::optional<std::vector<sym::SizeGuard>> facts_with(const std::vector<sym::SizeGuard>& guards, const Ones& ones) {
  std::vector<sym::SizeGuard> facts;
  for (const sym::SizeGuard& g : guards) {
    const sym::SizeGuard now{g.relation, with_ones(g.a, ones), with_ones(g.b, ones)};
    if (!now.a.is_const() || !now.b.is_const())
      facts.push_back(now);
    else if (!sym::satisfied(now.relation, now.a.value(), now.b.value()))
      return std::nullopt;
  }
  return facts;
}

}  // namespace

c10::SymInt Recorder::symint(Expr e) const { return aten::to_symint(sizes_, e); }

ValueId Recorder::value_of(const at::Tensor& t) const {
  const TraceImpl* impl = trace_impl(t);
  return impl ? impl->value : kNoValue;
}

std::optional<Sizes> Recorder::reshaped(const at::Tensor& t, c10::SymIntArrayRef shape) const {
  const sym::AskScope ask(sizes_.get());
  Sizes sizes;
  std::optional<size_t> hole;
  Expr rest = 1;
  for (const c10::SymInt& s : shape) {
    const auto e = aten::expr_of(s);
    if (!e || (e->is_const(-1) && hole)) return std::nullopt;
    if (e->is_const(-1))
      hole = sizes.size();
    else
      rest = rest * *e;
    sizes.push_back(*e);
  }
  const Expr all = type_of(t).numel();
  // (What is asked of sizes that follow from data becomes a check of each call.)
  if (sym::has_data_size(all) || sym::has_data_size(rest)) return std::nullopt;
  if (!sym::known_lt(0, rest)) return std::nullopt;
  if (hole) sizes[*hole] = sym::floordiv(all, rest);
  if (!sym::known_eq(hole ? sizes[*hole] * rest : rest, all)) return std::nullopt;
  return sizes;
}

bool Recorder::can_view(const at::Tensor& t, const Sizes& sizes) const {
  const sym::AskScope ask(sizes_.get());
  return viewed(type_of(t), sizes);
}

// As OneReplay's; nullopt: these are never 1 together.
std::optional<int64_t> Recorder::first_difference(const std::vector<sym::Expr>& ones) const {
  try {
    const auto facts = facts_with(sizes_->facts(), ones);
    if (!facts) return std::nullopt;
    const sym::AssumeScope assume(*facts);
    return OneReplay(*this, ones).first_difference();
  } catch (const InternalError&) {  // some expression divides by what is 0 then
    return OneReplay::kResult;
  }
}

void Recorder::admit_sizes_of_one() {
  if (sizes_->empty()) return;
  Ones symbols;
  for (size_t k = 0; k < sizes_->count(); ++k) {
    const Expr s = sym::size_symbol(static_cast<int>(k));
    if (!(sizes_->canonical(s) == s)) continue;
    if (symbols.size() < kMostSymbols)
      symbols.push_back(s);
    else
      sizes_->require({sym::Relation::kLessEqual, Expr(sym::kLeastPresumed), s}, "");
  }
  std::vector<unsigned> refused;
  for (unsigned set : sets_of(symbols.size())) {
    if (std::ranges::any_of(refused, [&](unsigned r) { return (r & set) == r; })) continue;
    Ones ones;
    Expr largest = 0;
    for (size_t i = 0; i < symbols.size(); ++i)
      if (set >> i & 1) {
        ones.push_back(symbols[i]);
        largest = sym::max(largest, symbols[i]);
      }
    const std::optional<int64_t> found = first_difference(ones);
    if (!found) continue;
    const int64_t node = *found;
    if (node == OneReplay::kNone) continue;
    refused.push_back(set);
    const int32_t location = node >= 0 ? graph_.nodes[static_cast<size_t>(node)].location : -1;
    sizes_->require({sym::Relation::kLessEqual, Expr(sym::kLeastPresumed), largest},
                    location < 0 ? "" : graph_.facts.locations[static_cast<size_t>(location)].text);
  }
  graph_.facts.sizes = sizes_->facts();
}

}  // namespace flashover::trace

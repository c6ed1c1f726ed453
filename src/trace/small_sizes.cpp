// Whether what was recorded for sizes of 2 and more is so for sizes of 0 and 1, too.
//
// Type rules take a size that is a symbol for neither (sym::PresumeScope): there strides are free, eager lays tensors
// out in other ways, and operators raise that need elements. Behind the trace the rules are asked again with zeros and
// ones in the place of symbols, from the inputs on. Where all results have the types that the graph says for these
// sizes, calls with them are served; else a guard leaves them out, with the line of the operator that gives something
// else. So it is with what operators make one element of (the last levels of a pyramid, of a small image): it is
// recorded as for more (Environment::opens).
#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "graph/written.h"
#include "ops/names.h"
#include "sym/quotient.h"
#include "torch/convert.h"
#include "torch/size_node.h"
#include "trace/contiguous_call.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using sym::Expr;

constexpr size_t kMostSymbols = 4;  // that are tried: each choice of them is a walk over the graph
constexpr size_t kMostMixed = 2;    // of so many also some as zeros and others as ones
constexpr size_t kMostChoices = 256;

// Symbols with what they are: a number, or one of a few.
using Small = std::vector<std::pair<Expr, Expr>>;

std::optional<Expr> number_in(Expr symbol, const Small& small) {
  for (const auto& [known, number] : small)
    if (known == symbol) return number;
  return std::nullopt;
}

bool mentions(Expr e, const Small& small) {
  if (e.is_const()) return false;
  if (e.kind() == sym::Kind::kVar) return number_in(e, small).has_value();
  return std::ranges::any_of(e.operands(), [&](Expr o) { return mentions(o, small); });
}
bool mentions(const Sizes& list, const Small& small) {
  return std::ranges::any_of(list, [&](Expr e) { return mentions(e, small); });
}
bool mentions(const TensorType& t, const Small& small) {
  return mentions(t.sizes, small) || mentions(t.strides, small) || mentions(t.offset, small);
}

Expr with(Expr e, const Small& small) {
  if (!mentions(e, small)) return e;
  return sym::substitute(e, [&](Expr v) { return number_in(v, small); });
}
Sizes with(Sizes list, const Small& small) {
  for (Expr& e : list) e = with(e, small);
  return list;
}
bool is_empty(const TensorType& t) {
  return std::ranges::any_of(t.sizes, [](Expr e) { return e.is_const(0); });
}
TensorType with(TensorType t, const Small& small) {
  const TensorType as_recorded = t;
  t.sizes = with(std::move(t.sizes), small);
  t.strides = with(is_empty(t) ? strides_where_empty(as_recorded) : std::move(t.strides), small);
  t.offset = with(t.offset, small);
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

bool same_elements(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.opaque == b.opaque && same_sizes(a.sizes, b.sizes);
}

// The same elements in the same places; strides over one element may be others.
bool same_places(const TensorType& a, const TensorType& b) {
  if (a.dtype != b.dtype || a.opaque != b.opaque || !same_sizes(a.sizes, b.sizes)) return false;
  if (is_empty(a)) return true;
  if (!sym::known_eq(a.offset, b.offset)) return false;
  for (size_t d = 0; d < a.strides.size(); ++d)
    if (!a.sizes[d].is_const(1) && !sym::known_eq(a.strides[d], b.strides[d])) return false;
  return true;
}

}  // namespace

void Recorder::note_rule(const OpFacts& facts) {
  if (!sizes_->empty()) ruled_.emplace(graph_.nodes.size() - 1, &facts);
}

class SmallReplay {
 public:
  SmallReplay(const Recorder& recorder, Small small)
      : recorder_(recorder),
        graph_(recorder.graph_),
        small_(std::move(small)),
        types_(graph_.values.size()),
        changed_(graph_.values.size()),
        elsewhere_(graph_.values.size()) {}

  // kNone: all is as recorded. Else the first node whose result is not; kResult: of no node.
  static constexpr int64_t kNone = -1, kResult = -2;
  int64_t first_difference() {
    for (const graph::Input& in : graph_.inputs)
      if (!take(in.value, recorded(in.value))) return kResult;
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (!visit(i)) return static_cast<int64_t>(i);
    for (const graph::Output& o : graph_.outputs)
      if (!same_types(types_[static_cast<size_t>(o.value)], with(o.type, small_))) return maker_of(o.value);
    return kNone;
  }

 private:
  TensorType recorded(ValueId v) const { return with(graph_.values[static_cast<size_t>(v)].type, small_); }

  // False: a size may be 0 or 1 that no rule takes for that.
  bool take(ValueId v, TensorType type) {
    for (Expr e : type.sizes) {
      if (e.is_const() || sym::has_data_size(e)) continue;  // (of data: nothing was presumed)
      if (!sym::known_le(Expr(sym::kLeastPresumed), e)) return false;
    }
    const auto at = static_cast<size_t>(v);
    changed_[at] = mentions(graph_.values[at].type, small_) || !(type.strides == graph_.values[at].type.strides);
    types_[at] = std::move(type);
    return true;
  }

  bool visit(size_t at) {
    const graph::Node& n = graph_.nodes[at];
    const auto rule = recorder_.ruled_.find(at);
    bool same = std::ranges::none_of(n.outs, [&](ValueId v) {
      return v != kNoValue && mentions(graph_.values[static_cast<size_t>(v)].type, small_);
    });
    std::vector<Arg> args = n.args;
    for (Arg& a : args) {
      graph::for_each_ref(a, [&](ValueId v) { same = same && !changed_[static_cast<size_t>(v)]; });
      if (auto* e = std::get_if<Expr>(&a); e && mentions(*e, small_)) *e = with(*e, small_), same = false;
      if (auto* list = std::get_if<Sizes>(&a); list && mentions(*list, small_))
        *list = with(std::move(*list), small_), same = false;
    }
    if (same || rule == recorder_.ruled_.end() || looks_at_memory(n))
      return (same || !meets_none(n) || is_served_empty(n)) && as_recorded(n);
    std::vector<TensorType> types;
    if (!ask(*rule->second, args, types_, types) || types.size() != n.outs.size()) return false;
    const auto copy = n.outs.empty() ? recorder_.copies_.end() : recorder_.copies_.find(n.outs[0]);
    const bool copies = copy != recorder_.copies_.end();
    if (copies && !as_view(copy->second, types[0])) return false;
    const bool may_move = copies || views_elsewhere(n);
    for (size_t i = 0; i < types.size(); ++i) {
      if (n.outs[i] == kNoValue) continue;
      if (!same_places(types[i], recorded(n.outs[i]))) {
        if (!(may_move || recorder_.is_inner(n.outs[i])) || !same_elements(types[i], recorded(n.outs[i])) ||
            !keeps(n, *rule->second, args))
          return false;
        elsewhere_[static_cast<size_t>(n.outs[i])] = may_move;
      }
      if (!take(n.outs[i], std::move(types[i]))) return false;
    }
    return true;
  }

  static bool ask(const OpFacts& facts, const std::vector<Arg>& args, const std::vector<TensorType>& of,
                  std::vector<TensorType>& out) {
    const auto type_of = [](const void* types, ValueId v) -> const TensorType& {
      return (*static_cast<const std::vector<TensorType>*>(types))[static_cast<size_t>(v)];
    };
    const ops::InferContext context{args, type_of, &of, aten::from_aten(c10::get_default_dtype_as_scalartype())};
    return Recorder::apply_rule(facts, context, out);
  }

  // Eager may lay a tensor out in another way than is recorded. One that only later operators read lies as recorded,
  // where the operator makes that of operands which do. (The program's results are compared at the end.)
  bool keeps(const graph::Node& n, const OpFacts& rule, const std::vector<Arg>& args) {
    recorded_.resize(types_.size());
    for (const Arg& a : args)
      graph::for_each_ref(a, [&](ValueId v) { recorded_[static_cast<size_t>(v)] = recorded(v); });
    std::vector<TensorType> out;
    if (!ask(rule, args, recorded_, out) || out.size() != n.outs.size()) return false;
    for (size_t i = 0; i < out.size(); ++i)
      if (n.outs[i] != kNoValue && !same_places(out[i], recorded(n.outs[i]))) return false;
    return true;
  }

  // A copy that eager makes none of where it can view the original: `type` is that one's then. False: the program may
  // notice, since it writes or hands out that memory.
  bool as_view(const Recorder::Copy& copy, TensorType& type) {
    const TensorType& original = types_[static_cast<size_t>(copy.original)];
    const bool copied = copy.as_is ? !is_contiguous(original) : !viewed(original, with(copy.sizes, small_));
    if (copied) return true;
    type.strides = original.strides;
    return is_empty(type) || !recorder_.is_noticed(copy);  // (nothing is in an empty one's memory)
  }

  // Of a copy that eager makes none of: the graph looks at the copy.
  bool views_elsewhere(const graph::Node& n) const {
    const Ref* of = n.op->kind == ops::OpKind::kView && !n.args.empty() ? std::get_if<Ref>(&n.args[0]) : nullptr;
    return of && of->id != kNoValue && elsewhere_[static_cast<size_t>(of->id)] != 0;
  }

  // Elements are told by where they lie, not by their indices.
  static bool looks_at_memory(const graph::Node& n) { return n.op->name.find("as_strided") != std::string::npos; }

  bool meets_none(const graph::Node& n) const {
    bool none = false;
    for (const Arg& a : n.args)
      graph::for_each_ref(a, [&](ValueId v) { none = none || is_empty(types_[static_cast<size_t>(v)]); });
    return none;
  }
  // Without a rule, but what is called does of no elements what it does of some.
  bool is_served_empty(const graph::Node& n) const {
    if (op::is_any_of(n.op->name, {op::clone, op::detach, op::alias, op::nonzero, op::bincount})) return true;
    const Ref* x = n.args.empty() ? nullptr : std::get_if<Ref>(&n.args[0]);
    return x && x->id != kNoValue && types_[static_cast<size_t>(x->id)].device.type == DeviceType::kCPU &&
           op::is_any_of(n.op->name, {op::convolution, op::convolution_backward});
  }

  // What no rule says was asked of the sizes and strides as they were recorded. Attention looks at where elements lie
  // (a mask that is expanded to a batch of one has another stride there, over one element).
  bool as_recorded(const graph::Node& n) {
    const auto alike = n.op->name == op::scaled_dot_product_attention ? same_places : same_types;
    bool same = true;
    for (const Arg& a : n.args)
      graph::for_each_ref(a, [&](ValueId v) {
        same = same && (!changed_[static_cast<size_t>(v)] || alike(types_[static_cast<size_t>(v)], recorded(v)));
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
  const Small small_;
  std::vector<TensorType> types_;     // by value
  std::vector<char> changed_;         // what is not as for other sizes
  std::vector<char> elsewhere_;       // what lies where a copy was not made, and in the graph where it was
  std::vector<TensorType> recorded_;  // by value, of those that keeps() met; empty: of none
};

namespace {

// What a symbol is where it is small: these are alternatives to what was recorded.
struct Alternative {
  enum class Kind : uint8_t { kZero, kOne, kRange } kind = Kind::kZero;
  int64_t least = 0, most = 0;
  Expr stands_for(Expr symbol) const {
    if (least == most) return Expr(least);
    const std::string name = std::string(symbol.name()) + "-" + std::to_string(least) + "<" + std::to_string(most);
    return Expr(least) + sym::var(name, {0, most - least}, 0);
  }
};
struct Candidate {
  Expr symbol;
  std::vector<Alternative> alternatives;
};

// By candidate, which of its alternatives it is: one more than its index, or 0: none.
struct Choice {
  std::vector<uint8_t> of;
  size_t count() const { return of.size() - static_cast<size_t>(std::ranges::count(of, uint8_t{0})); }
  bool within(const Choice& other) const {
    for (size_t i = 0; i < of.size(); ++i)
      if (of[i] != 0 && of[i] != other.of[i]) return false;
    return true;
  }
};
using Candidates = std::vector<Candidate>;

bool has_zero(const Candidate& c) {
  return std::ranges::any_of(c.alternatives, [](const Alternative& a) { return a.kind == Alternative::Kind::kZero; });
}
bool all_may_be_mixed(const Candidates& candidates) {
  return static_cast<size_t>(std::ranges::count_if(candidates, has_zero)) <= kMostMixed;
}

const Alternative* chosen(const Candidates& candidates, const Choice& c, size_t i) {
  return c.of[i] == 0 ? nullptr : &candidates[i].alternatives[c.of[i] - 1u];
}
bool any_of_kind(const Candidates& candidates, const Choice& c, Alternative::Kind kind) {
  for (size_t i = 0; i < c.of.size(); ++i)
    if (const Alternative* a = chosen(candidates, c, i); a && a->kind == kind) return true;
  return false;
}
bool is_mixed(const Candidates& candidates, const Choice& c) {
  return any_of_kind(candidates, c, Alternative::Kind::kZero) && any_of_kind(candidates, c, Alternative::Kind::kOne);
}

// Small ones first.
std::vector<Choice> choices_of(const Candidates& candidates) {
  const bool mixed = all_may_be_mixed(candidates);
  std::vector<Choice> out;
  for (Choice c{std::vector<uint8_t>(candidates.size())};;) {
    size_t i = 0;
    while (i < c.of.size() && ++c.of[i] > candidates[i].alternatives.size()) c.of[i++] = 0;
    if (i == c.of.size()) break;
    if (mixed || !is_mixed(candidates, c)) out.push_back(c);
  }
  std::ranges::stable_sort(out, {}, &Choice::count);
  return out;
}

Small small_of(const Choice& c, const Candidates& candidates) {
  Small out;
  for (size_t i = 0; i < candidates.size(); ++i)
    if (const Alternative* a = chosen(candidates, c, i))
      out.emplace_back(candidates[i].symbol, a->stands_for(candidates[i].symbol));
  return out;
}

// 0 where it is 1, else more.
Expr distance_from_one(Expr size) { return sym::max(size - 1, 1 - size); }

// It does not hold where the symbols are as chosen.
sym::SizeGuard all_but(const Choice& c, const Candidates& candidates) {
  using Kind = Alternative::Kind;
  const bool zeros = any_of_kind(candidates, c, Kind::kZero), ranges = any_of_kind(candidates, c, Kind::kRange);
  const bool ones = any_of_kind(candidates, c, Kind::kOne);
  if (ranges && c.count() == 1)
    for (size_t i = 0; i < candidates.size(); ++i)
      if (const Alternative* a = chosen(candidates, c, i))
        return {sym::Relation::kLessEqual, Expr(a->most + 1), candidates[i].symbol};
  const bool by_one = ones && !zeros && !ranges;  // 2 or more, all of them
  std::optional<Expr> largest;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Alternative* a = chosen(candidates, c, i);
    if (!a) continue;
    const Expr symbol = candidates[i].symbol;
    const Expr beside = a->kind == Kind::kRange            ? symbol - Expr(a->most)
                        : a->kind == Kind::kOne && !by_one ? distance_from_one(symbol)
                                                           : symbol;
    largest = largest ? sym::max(*largest, beside) : beside;
  }
  return {sym::Relation::kLessEqual, Expr(by_one ? sym::kLeastPresumed : 1), *largest};
}

// No zero beside a one, among symbols that may be either.
std::optional<sym::SizeGuard> unmixed(const std::vector<Choice>& refused, const Candidates& candidates) {
  const auto may_be = [&](size_t i, Alternative::Kind kind) {
    if (!has_zero(candidates[i])) return false;
    const auto is_alone = [&](const Choice& c) {
      const Alternative* a = chosen(candidates, c, i);
      return c.count() == 1 && a && a->kind == kind;
    };
    return std::ranges::none_of(refused, is_alone);
  };
  std::optional<Expr> least, nearest;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Expr symbol = candidates[i].symbol;
    if (may_be(i, Alternative::Kind::kZero)) least = least ? sym::min(*least, symbol) : symbol;
    if (may_be(i, Alternative::Kind::kOne)) {
      const Expr far = distance_from_one(symbol);
      nearest = nearest ? sym::min(*nearest, far) : far;
    }
  }
  if (!least || !nearest) return std::nullopt;
  return sym::SizeGuard{sym::Relation::kLessEqual, Expr(1), sym::max(*least, *nearest)};
}

// Numbers from 2 on, up to where what operators made of the symbol is as it was recorded.
std::vector<Alternative> ranges_of(Expr symbol, const sym::Environment& sizes) {
  std::vector<Alternative> out;
  const auto known = sizes.steps().find(*sym::size_symbol_index(symbol));
  if (known == sizes.steps().end()) return out;
  int64_t least = std::max(sym::kLeastPresumed, sizes.least(symbol));
  for (int64_t next : known->second) {
    if (next > least) out.push_back({Alternative::Kind::kRange, least, next - 1});
    least = std::max(least, next);
  }
  return out;
}

sym::SizeGuard more_than_one(Expr e) { return {sym::Relation::kLessEqual, Expr(sym::kLeastPresumed), e}; }

// What may be small: of the first symbols zeros and ones, of all what operators made of them.
Candidates candidates_of(sym::Environment& sizes) {
  Candidates out;
  size_t tried = 0;
  for (size_t k = 0; k < sizes.count(); ++k) {
    const Expr s = sym::size_symbol(static_cast<int>(k));
    if (!(sizes.canonical(s) == s)) continue;
    Candidate c{s, ranges_of(s, sizes)};
    if (++tried <= kMostSymbols)
      c.alternatives.insert(c.alternatives.begin(),
                            {{Alternative::Kind::kZero, 0, 0}, {Alternative::Kind::kOne, 1, 1}});
    else
      sizes.require(more_than_one(s), "");
    if (!c.alternatives.empty()) out.push_back(std::move(c));
  }
  return out;
}

bool is_never(const sym::SizeGuard& g) {
  switch (g.relation) {
    case sym::Relation::kEqual:
      return sym::proven_ne(g.a, g.b);
    case sym::Relation::kNotEqual:
      return sym::proven_eq(g.a, g.b);
    case sym::Relation::kLess:
      return sym::proven_le(g.b, g.a);
    case sym::Relation::kLessEqual:
      return sym::proven_lt(g.b, g.a);
  }
  return false;
}

// The guards with numbers in the place of symbols; nullopt: these cannot be so together.
std::optional<std::vector<sym::SizeGuard>> facts_with(const std::vector<sym::SizeGuard>& guards, const Small& small) {
  std::vector<sym::SizeGuard> facts;
  for (const sym::SizeGuard& g : guards) {
    const sym::SizeGuard now{g.relation, with(g.a, small), with(g.b, small)};
    const bool is_known = now.a.is_const() && now.b.is_const();
    if (is_known ? !sym::satisfied(now.relation, now.a.value(), now.b.value()) : is_never(now)) return std::nullopt;
    if (!is_known) facts.push_back(now);
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
  if (hole && !sym::known_lt(0, rest)) return std::nullopt;
  if (hole) sizes[*hole] = sym::known_quotient(all, rest);
  if (!sym::known_eq(hole ? sizes[*hole] * rest : rest, all)) return std::nullopt;
  return sizes;
}

bool Recorder::can_view(const at::Tensor& t, const Sizes& sizes) const {
  const sym::AskScope ask(sizes_.get());
  return viewed(type_of(t), sizes);
}

Recorder::Contiguous Recorder::contiguous(const at::Tensor& t) const {
  const TensorType type = type_of(t);
  {
    const sym::PresumeScope presume;
    if (is_contiguous(type)) return Contiguous::kItself;
  }
  if (std::ranges::none_of(type.sizes, sym::has_data_size) && std::ranges::none_of(type.strides, sym::has_data_size)) {
    TensorType now = type;
    for (Expr& e : now.sizes) e = sizes_->now(e);
    for (Expr& e : now.strides) e = sizes_->now(e);
    if (!is_contiguous(now)) return Contiguous::kCopyNow;
  }
  const sym::AskScope ask(sizes_.get());
  return is_contiguous(type) ? Contiguous::kItself : Contiguous::kCopy;
}

// The memory of that value, and what is one with it in calls where eager makes none of the other copies.
std::set<int32_t> Recorder::possibly_one_memory(ValueId of, const Copy& but) const {
  const auto memory = [&](ValueId v) { return graph_.values[static_cast<size_t>(v)].storage; };
  std::set<int32_t> out = {memory(of)};
  for (size_t before = 0; before != out.size();) {
    before = out.size();
    for (const auto& [value, other] : copies_) {
      if (&other == &but) continue;
      const int32_t a = memory(other.original), b = memory(other.result);
      if (out.contains(a) || out.contains(b)) out.insert({a, b});
    }
  }
  return out;
}

// The program may tell a copy from its original: one of them is written, or both outlive the call.
bool Recorder::is_noticed(const Copy& copy) const {
  if (compares_tensors_) return true;
  const auto memory = [&](ValueId v) { return graph_.values[static_cast<size_t>(v)].storage; };
  const std::set<int32_t> a = possibly_one_memory(copy.original, copy), b = possibly_one_memory(copy.result, copy);
  const auto outlives = [&](const std::set<int32_t>& of) {
    const auto is = [&](const auto& v) { return of.contains(memory(v.value)); };
    return std::ranges::any_of(graph_.outputs, is) || std::ranges::any_of(graph_.inputs, is);
  };
  if (outlives(a) && outlives(b)) return true;
  bool written = false;
  for (const graph::Node& n : graph_.nodes)
    graph::for_each_written(n, [&](ValueId v) { written = written || a.contains(memory(v)) || b.contains(memory(v)); });
  return written;
}

// Of calls in which eager makes none, those are left out where the program notices it. (The stride of a dimension that
// always has one element is the original's then; it may be seen of a result.)
void Recorder::ask_of_copies() const {
  if (std::ranges::all_of(copies_, [](const auto& c) { return c.second.asked; })) return;
  for (const graph::Node& n : graph_.nodes) {  // (in this order: what is asked becomes guards)
    const auto found = n.outs.empty() ? copies_.end() : copies_.find(n.outs[0]);
    if (found == copies_.end() || found->second.asked) continue;
    const TensorType& type = graph_.values[static_cast<size_t>(found->second.original)].type;
    if (!is_noticed(found->second) && std::ranges::none_of(type.sizes, [](Expr e) { return e.is_const(1); })) continue;
    const sym::AskScope ask(sizes_.get());
    (void)is_contiguous(type);
  }
}

void tensors_are_compared() {
  if (auto* recorder = static_cast<Recorder*>(current())) recorder->note_comparison();
}

// As SmallReplay's; nullopt: the symbols are never so together.
std::optional<int64_t> Recorder::first_difference(const std::vector<std::pair<Expr, Expr>>& small) const {
  try {
    auto facts = facts_with(sizes_->facts(), small);
    if (!facts) return std::nullopt;
    for (Expr e : sizes_->opened())
      if (!mentions(e, small)) facts->push_back(more_than_one(e));
    const sym::AssumeScope assume(*facts, sizes_->steps());
    const sym::PresumeScope presume;  // the other symbols are larger
    return SmallReplay(*this, small).first_difference();
  } catch (const InternalError&) {  // some expression divides by what is 0 then
    return SmallReplay::kResult;
  }
}

void Recorder::admit_small_sizes() {
  if (sizes_->empty()) return;
  Candidates candidates = candidates_of(*sizes_);
  size_t choices = 1;
  for (const Candidate& c : candidates) choices *= 1 + c.alternatives.size();
  const auto stands = [&](Expr e) { return sizes_->canonical(e) == e; };
  if (choices > kMostChoices || !std::ranges::all_of(sizes_->opened(), stands)) {
    // Too many to be looked at, or their symbols stand for something else by now.
    for (Expr e : sizes_->opened()) sizes_->require(more_than_one(e), "");
    for (Candidate& c : candidates)
      std::erase_if(c.alternatives, [](const Alternative& a) { return a.kind == Alternative::Kind::kRange; });
  }
  std::vector<Choice> refused;
  for (const Choice& choice : choices_of(candidates)) {
    if (std::ranges::any_of(refused, [&](const Choice& r) { return r.within(choice); })) continue;
    const std::optional<int64_t> node = first_difference(small_of(choice, candidates));
    if (node == SmallReplay::kNone) continue;
    refused.push_back(choice);
    if (!node) continue;
    const int32_t location = *node >= 0 ? graph_.nodes[static_cast<size_t>(*node)].location : -1;
    sizes_->require(all_but(choice, candidates),
                    location < 0 ? "" : graph_.facts.locations[static_cast<size_t>(location)].text);
  }
  if (!all_may_be_mixed(candidates))
    if (const auto guard = unmixed(refused, candidates)) sizes_->require(*guard, "");
  graph_.facts.sizes = sizes_->facts();
}

}  // namespace flashover::trace

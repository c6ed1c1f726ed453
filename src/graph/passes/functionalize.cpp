// Keeps for each storage its current value, and for each view how it is cut out of it.
#include "graph/passes/functionalize.h"

#include <algorithm>
#include <ranges>
#include <unordered_map>

#include "base/check.h"
#include "graph/analysis/view_steps.h"
#include "graph/decompose/rules.h"
#include "graph/rewrite/rewriter.h"
#include "graph/written.h"
#include "ops/args.h"
#include "ops/last_element.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Operators that copy and change nothing but, perhaps, strides. Conversions in _to_copy are checked.
constexpr std::string_view kCopies[] = {op::clone,      op::_to_copy,    op::contiguous, op::lift_fresh_copy,
                                        op::alias_copy, op::detach_copy, op::_lazy_clone};
// Checked while tracing, with the very types that the guards promise.
constexpr std::string_view kStaticChecks[] = {op::_assert_tensor_metadata, op::sym_constrain_range,
                                              op::sym_constrain_range_for_size};
// The schema hides what these write: running statistics, in training. The twin returns them as two more results.
struct HiddenWriter {
  std::string_view op;
  const char* twin;
  size_t training;  // argument
  size_t first_written, written;
};
constexpr HiddenWriter kHiddenWriters[] = {{op::native_batch_norm, op::_native_batch_norm_legit_functional, 5, 3, 2}};

template <size_t N>
bool contains(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// The elements' addresses, from the base's first element.
struct Span {
  sym::Expr first, last;
};
Span span_of(const TensorType& t, sym::Expr origin) { return {t.offset - origin, ops::last_element(t) - origin}; }
bool is_empty(const TensorType& t) {
  return std::any_of(t.sizes.begin(), t.sizes.end(), [](sym::Expr n) { return n.is_const(0); });
}

void mark(const TensorType& t, size_t dim, int64_t at, std::vector<bool>& used, bool& hit, bool set) {
  if (dim == t.rank()) {
    if (set)
      used[at] = true;
    else
      hit |= used[at];
    return;
  }
  for (int64_t i = 0, n = t.sizes[dim].value(); i < n && !hit; ++i)
    mark(t, dim + 1, at + i * t.strides[dim].value(), used, hit, set);
}
// Provably no common element (two types on one storage).
bool disjoint(const TensorType& a, const TensorType& b) {
  if (is_empty(a) || is_empty(b)) return true;
  const Span sa = span_of(a, 0), sb = span_of(b, 0);
  if (sym::known_lt(sa.last, sb.first) || sym::known_lt(sb.last, sa.first)) return true;
  constexpr int64_t kMaxElements = 1 << 22;
  for (const TensorType* t : {&a, &b}) {
    if (!t->offset.is_const()) return false;
    for (size_t d = 0; d < t->rank(); ++d)
      if (!t->sizes[d].is_const() || !t->strides[d].is_const()) return false;
  }
  const int64_t first_a = sa.first.value(), first_b = sb.first.value();
  const int64_t origin = std::min(first_a, first_b), end = std::max(sa.last.value(), sb.last.value()) + 1;
  if (end - origin > kMaxElements) return false;
  std::vector<bool> used(end - origin);
  bool hit = false;
  mark(a, 0, first_a - origin, used, hit, true);
  mark(b, 0, first_b - origin, used, hit, false);
  return !hit;
}

class Functionalizer {
 public:
  explicit Functionalizer(const Graph& in, const std::vector<ValueId>& apart = {})
      : in_(in), out_(in.facts), b_(out_), tensors_(in.values.size()), apart_(in.values.size()) {
    for (ValueId v : apart) apart_[written(v)] = true;
  }

  Graph run(std::vector<ValueId>* apart = nullptr) {
    add_inputs();
    for (const Node& n : in_.nodes) {
      b_.set_location(n.location);
      visit(n);
    }
    b_.set_location(-1);
    for (const Unit& u : units_)
      if (u.input >= 0 && u.version > 0 && in_.inputs[u.input].kind != InputKind::kConstant)
        out_.mutations.push_back({u.input, get(u.root)});
    for (const Output& o : in_.outputs) add_output(o);
    if (apart != nullptr)
      for (ValueId& v : *apart) v = get(v);
    return std::move(out_);
  }

 private:
  // One memory: what its root holds now. Inputs on one storage are units of their own, unless one of them holds all the
  // others; then they are views of it.
  struct Unit {
    ValueId root = kNoValue;  // traced
    int version = 0;
    int32_t input = -1;
    int32_t storage = -1;
  };
  struct Tensor {  // a traced value
    int32_t unit = -1;
    ValueId parent = kNoValue;
    ViewSteps steps;
    ValueId current = kNoValue;  // functional value, valid at `version` of the unit
    int version = -1;
  };

  const TensorType& traced(ValueId v) const { return in_.type(v); }

  // What an operator gives back that writes in place is no view but the tensor itself.
  ValueId written(ValueId v) const {
    for (const Node& n : std::views::reverse(in_.nodes)) {
      if (std::ranges::find(n.outs, v) == n.outs.end()) continue;
      for_each_written(n, [&](ValueId w) {
        const TensorType &a = traced(w), &b = traced(v);
        const bool same = a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset;
        if (same && in_.values[w].storage == in_.values[v].storage) v = w;
      });
    }
    return v;
  }

  void add_inputs() {
    std::vector<ValueId> added;
    for (const Input& i : in_.inputs) {
      added.push_back(out_.add_input(traced(i.value), i.kind, i.name));
      out_.inputs.back().requires_grad = i.requires_grad;
    }
    const std::vector<int32_t> holders = holders_of_inputs();
    for (size_t i = 0; i < added.size(); ++i) {
      if (holders[i] >= 0) continue;
      new_root(in_.inputs[i].value, added[i]);
      units_.back().input = static_cast<int32_t>(i);
    }
    for (size_t i = 0; i < added.size(); ++i) {
      if (holders[i] < 0) continue;
      const ValueId holder = in_.inputs[holders[i]].value, v = in_.inputs[i].value;
      new_view(v, holder, *view_steps_by_geometry(traced(holder), traced(v)));
    }
  }

  // Of memory that is written and that several inputs share: the input that all of it can be read from, for each of the
  // others; else -1. (What autograd makes of them is another matter: none of them may require gradients.)
  std::vector<int32_t> holders_of_inputs() const {
    std::unordered_map<int32_t, std::vector<int32_t>> sharing;
    for (size_t i = 0; i < in_.inputs.size(); ++i)
      if (const int32_t storage = in_.values[in_.inputs[i].value].storage; storage >= 0)
        sharing[storage].push_back(static_cast<int32_t>(i));
    std::erase_if(sharing, [](const auto& s) { return s.second.size() < 2; });
    std::vector<int32_t> holders(in_.inputs.size(), -1);
    if (sharing.empty()) return holders;
    std::unordered_map<int32_t, bool> written;
    for (const Node& n : in_.nodes)
      for (size_t a = 0; a < n.args.size(); ++a) {
        if (!(n.op->mutates >> a & 1)) continue;
        if (const auto* r = std::get_if<Ref>(&n.args[a]); r && r->id != kNoValue)
          written[in_.values[r->id].storage] = true;
        if (const auto* l = std::get_if<RefList>(&n.args[a]))
          for (const Ref& r : *l)
            if (r.id != kNoValue) written[in_.values[r.id].storage] = true;
      }
    for (const auto& [storage, inputs] : sharing) {
      if (!written[storage]) continue;
      for (int32_t holder : inputs) {
        const bool holds = std::all_of(inputs.begin(), inputs.end(), [&](int32_t i) {
          const TensorType &whole = traced(in_.inputs[holder].value), &part = traced(in_.inputs[i].value);
          return !in_.inputs[i].requires_grad && in_.inputs[i].kind != InputKind::kConstant && !is_empty(part) &&
                 whole.dtype == part.dtype && whole.device == part.device && !whole.opaque && !part.opaque &&
                 is_writable_layout(whole) && (i == holder || view_steps_by_geometry(whole, part));
        });
        if (!holds) continue;
        for (int32_t i : inputs)
          if (i != holder) holders[i] = holder;
        break;
      }
    }
    return holders;
  }

  void new_root(ValueId v, ValueId functional) {
    const auto unit = static_cast<int32_t>(units_.size());
    units_.push_back({.root = v, .storage = in_.values[v].storage});
    if (units_.back().storage >= 0) ++units_on_storage_[units_.back().storage];
    tensors_[v] = {.unit = unit, .current = kept_apart(v, functional), .version = 0};
  }
  void new_view(ValueId v, ValueId parent, ViewSteps steps) {
    tensors_[v] = {.unit = tensors_[parent].unit, .parent = parent, .steps = std::move(steps)};
  }

  // The functional value that holds the traced tensor's contents now.
  ValueId get(ValueId v) {
    Tensor& t = tensors_[v];
    FLASHOVER_CHECK(t.unit >= 0) << "%" << v << " is used before it is defined";
    const int version = units_[t.unit].version;
    if (t.version == version) return t.current;
    FLASHOVER_CHECK(t.parent != kNoValue) << "a root is always current";
    const ValueId value = kept_apart(v, replay(b_, t.steps, get(t.parent)));
    remember(v, value);
    return value;
  }
  ValueId kept_apart(ValueId v, ValueId value) {
    if (!apart_[v]) return value;
    TensorType t = plain(traced(v));
    if (!is_writable_layout(t)) t.strides = contiguous_strides(t.sizes);
    return b_.emit(Prim::copy, {Ref{value}}, std::move(t));
  }
  // ... in eager's strides, which operators may depend on.
  ValueId read(ValueId v) {
    const ValueId value = get(v);
    if (traced(v).opaque || same_strides(out_.type(value), traced(v)) || !is_writable_layout(traced(v))) return value;
    TensorType t = plain(traced(v));
    const ValueId copy = b_.emit(Prim::copy, {Ref{value}}, std::move(t));
    remember(v, copy);
    return copy;
  }
  void remember(ValueId v, ValueId value) {
    tensors_[v].current = value;
    tensors_[v].version = units_[tensors_[v].unit].version;
  }
  static TensorType plain(TensorType t) {
    t.offset = 0;
    return t;
  }

  void write(ValueId v, ValueId value) {
    const int32_t unit = tensors_[v].unit;
    Unit& u = units_[unit];
    if (u.storage >= 0 && units_on_storage_[u.storage] > 1)
      for (const Unit& other : units_) {
        const TensorType &mine = traced(u.root), &its = traced(other.root);
        if (&other != &u && other.storage == u.storage && (mine.dtype != its.dtype || !disjoint(mine, its)))
          throw Declined("aliased inputs: a written tensor shares its memory with another input");
      }
    value = fit(value, traced(v));
    std::vector<std::pair<ValueId, ValueId>> fresh;  // tensors whose new contents are known on the way to the root
    for (;;) {
      fresh.emplace_back(v, value);
      const Tensor& t = tensors_[v];
      if (t.parent == kNoValue) break;
      value = write_back(b_, t.steps, get(t.parent), value);
      v = t.parent;
    }
    ++u.version;
    for (const auto& [tensor, contents] : fresh) remember(tensor, kept_apart(tensor, contents));
  }
  // An in-place operator computes in its own dtype and stores into the target's.
  ValueId fit(ValueId value, const TensorType& target) {
    return b_.expand(b_.convert(value, target.dtype), target.sizes);
  }

  std::vector<ValueId> written_by(const Node& n) const {
    std::vector<ValueId> out;
    for_each_written(n, [&](ValueId v) { out.push_back(v); });
    return out;
  }

  // The argument that a result shares memory with; kNoValue: fresh memory.
  ValueId alias_of(const Node& n, ValueId out) const {
    const int32_t storage = in_.values[out].storage;
    if (storage < 0) return kNoValue;
    ValueId found = kNoValue;
    for (const Arg& a : n.args)
      for_each_ref(a, [&](ValueId v) {
        if (found == kNoValue && in_.values[v].storage == storage) found = v;
      });
    if (found == kNoValue && units_on_storage_.count(storage))
      throw Declined("aliased results: " + n.op->name + " returns memory that is not an argument's");
    return found;
  }

  void visit(const Node& n) {
    const std::string& name = n.op->name;
    if (contains(kStaticChecks, name)) return;
    if (op::is_any_of(name, {op::set__source_Tensor})) return visit_set(n);
    if (op::is_any_of(name, {op::resize_, op::resize_as_})) return visit_resize(n);
    if (!n.op->declared && op::looks_in_place(name)) throw Declined("unknown operator: " + name + " (no schema facts)");
    const std::vector<ValueId> written = is_metadata_in_place(name) ? std::vector<ValueId>{} : written_by(n);
    if (!written.empty()) return visit_writer(n, written);
    if (contains(kCopies, name) && visit_copy(n)) return;
    for (const HiddenWriter& h : kHiddenWriters)
      if (name == h.op && ops::as_bool(n.args[h.training]) && !is_none(n.args[h.first_written]))
        return visit_hidden(n, h);

    bool any_fresh = n.outs.empty();
    for (ValueId v : n.outs) any_fresh |= v != kNoValue && alias_of(n, v) == kNoValue;
    std::vector<ValueId> results(n.outs.size(), kNoValue);
    if (any_fresh) {
      if (visit_view_copy(n)) return;
      results = emit(n.op, n.args, n.outs);
    }
    for (size_t i = 0; i < n.outs.size(); ++i)
      if (n.outs[i] != kNoValue) define(n, i, results[i]);
  }

  // A result becomes a view of the argument it aliases, or a root.
  void define(const Node& n, size_t index, ValueId functional) {
    const ValueId out = n.outs[index];
    const ValueId base = alias_of(n, out);
    if (base == kNoValue) return new_root(out, functional);
    define_view(n, index, base);
  }
  void define_view(const Node& n, size_t index, ValueId base) {
    const ValueId out = n.outs[index];
    if (auto steps = view_steps(in_, n, index, traced(base), traced(out)))
      return new_view(out, base, std::move(*steps));
    // as_strided and the like may look outside their argument: describe them from the root.
    const ValueId root = units_[tensors_[base].unit].root;
    for (ValueId v = base; v != root; v = tensors_[v].parent)
      if (!is_geometric(tensors_[v].steps)) throw Declined("view: " + n.op->name + " of a reinterpreted tensor");
    auto steps = view_steps_by_geometry(traced(root), traced(out));
    if (!steps)
      throw Declined("view: " + n.op->name + " gives " + str(traced(out)) + ", which cannot be cut out of " +
                     str(traced(root)));
    new_view(out, root, std::move(*steps));
  }

  std::vector<Arg> read_args(const std::vector<Arg>& args) {
    std::vector<Arg> out = args;
    for (Arg& a : out) {
      if (auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) r->id = read(r->id);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = read(r.id);
    }
    return out;
  }
  std::vector<ValueId> append(const ops::OpRow* op, std::vector<Arg> args,
                              const std::vector<const TensorType*>& types) {
    Node node{.op = op, .args = std::move(args), .location = b_.location()};
    for (const TensorType* t : types) node.outs.push_back(t ? out_.add_value(plain(*t)) : kNoValue);
    out_.nodes.push_back(node);
    return node.outs;
  }
  std::vector<ValueId> emit(const ops::OpRow* op, const std::vector<Arg>& args, const std::vector<ValueId>& outs) {
    std::vector<const TensorType*> types;
    types.reserve(outs.size());
    for (ValueId v : outs) types.push_back(v == kNoValue ? nullptr : &traced(v));
    return append(op, read_args(args), types);
  }

  void visit_set(const Node& n) {
    const ValueId self = ops::as_value(n.args[0]);
    if (units_[tensors_[self].unit].input >= 0) throw Declined("set_: rebinds the memory of an input");
    for (size_t i = 0; i < n.outs.size(); ++i) {
      const ValueId source = alias_of(n, n.outs[i]);
      if (source == kNoValue || source == self) throw Declined("set_: from a bare storage");
      const ValueId root = units_[tensors_[source].unit].root;
      auto steps = view_steps_by_geometry(traced(source), traced(n.outs[i]));
      if (steps) {
        new_view(n.outs[i], source, std::move(*steps));
      } else {
        steps = view_steps_by_geometry(traced(root), traced(n.outs[i]));
        if (!steps) throw Declined("set_: geometry");
        new_view(n.outs[i], root, std::move(*steps));
      }
    }
  }
  void visit_resize(const Node& n) {
    const ValueId self = ops::as_value(n.args[0]);
    for (ValueId out : n.outs) {
      if (out == kNoValue) continue;
      const TensorType &from = traced(self), &to = traced(out);
      if (in_.values[self].storage != in_.values[out].storage || !same_sizes(from.sizes, to.sizes) ||
          !same_strides(from, to))
        throw Declined("resize_: changes the size of a tensor");
      new_view(out, self, {});
    }
  }

  bool visit_copy(const Node& n) {
    if (n.outs.size() != 1 || !std::holds_alternative<Ref>(n.args[0])) return false;
    const ValueId x = ops::as_value(n.args[0]);
    const TensorType &from = traced(x), &to = traced(n.outs[0]);
    if (alias_of(n, n.outs[0]) != kNoValue) return false;  // contiguous() of a contiguous tensor: a view
    if (from.dtype != to.dtype || !(from.device == to.device) || from.opaque || to.opaque) return false;
    ValueId value = get(x);
    if (!same_strides(out_.type(value), to) && is_writable_layout(to))
      value = b_.emit(Prim::copy, {Ref{value}}, plain(to));
    new_root(n.outs[0], value);
    return true;
  }

  // permute_copy, _unsafe_view and the like on fresh memory: the view's cut, then the copy is a matter of layout.
  bool visit_view_copy(const Node& n) {
    if (!is_view_name(n.op->name) || n.args.empty() || !std::holds_alternative<Ref>(n.args[0])) return false;
    const ValueId x = ops::as_value(n.args[0]);
    std::vector<ViewSteps> all;
    for (size_t i = 0; i < n.outs.size(); ++i) {
      auto steps = view_steps(in_, n, i, traced(x), traced(n.outs[i]));
      // A view of what has no memory (the conjugate of a number): nothing else stands for it.
      const bool view = n.op->name.find("copy") == std::string::npos;
      if (!steps || (!view && (!is_geometric(*steps) || traced(x).dtype != traced(n.outs[i]).dtype))) return false;
      all.push_back(std::move(*steps));
    }
    for (size_t i = 0; i < n.outs.size(); ++i) {
      ValueId value = replay(b_, all[i], get(x));
      if (!same_strides(out_.type(value), traced(n.outs[i])) && is_writable_layout(traced(n.outs[i])))
        value = b_.emit(Prim::copy, {Ref{value}}, plain(traced(n.outs[i])));
      new_root(n.outs[i], value);
    }
    return true;
  }

  void visit_hidden(const Node& n, const HiddenWriter& h) {
    std::vector<const TensorType*> types;
    for (ValueId v : n.outs) types.push_back(v == kNoValue ? nullptr : &traced(v));
    std::vector<ValueId> written;
    for (size_t i = 0; i < h.written; ++i) {
      written.push_back(ops::as_value(n.args[h.first_written + i]));
      types.push_back(&traced(written.back()));
    }
    const std::vector<ValueId> results = append(ops::find(h.twin), read_args(n.args), types);
    for (size_t i = 0; i < n.outs.size(); ++i)
      if (n.outs[i] != kNoValue) new_root(n.outs[i], results[i]);
    for (size_t i = 0; i < written.size(); ++i) write(written[i], results[n.outs.size() + i]);
  }

  void visit_writer(const Node& n, const std::vector<ValueId>& written) {
    for (size_t i = 0; i < written.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (tensors_[written[i]].unit == tensors_[written[j]].unit && !disjoint(traced(written[i]), traced(written[j])))
          throw Declined("overlapping writes: " + n.op->name + " writes two tensors that share memory");
    std::vector<ValueId> fresh;
    for (ValueId v : n.outs)
      if (v != kNoValue && alias_of(n, v) == kNoValue) fresh.push_back(v);

    if (visit_grown_out(n, written, fresh)) return;
    std::vector<ValueId> results = fill_or_copy(n);  // fresh results, then contents of what is written
    if (results.empty()) results = call_twin(n, written, fresh);
    if (results.empty()) results = call_on_clones(n, written, fresh);
    for (size_t i = 0; i < fresh.size(); ++i) new_root(fresh[i], results[i]);
    for (size_t i = 0; i < written.size(); ++i) write(written[i], results[fresh.size() + i]);
    for (size_t i = 0; i < n.outs.size(); ++i) {
      const ValueId out = n.outs[i];
      if (out == kNoValue || tensors_[out].unit >= 0) continue;
      // Returned: the written argument of the same geometry, else some view of it.
      ValueId base = kNoValue;
      for (ValueId w : written)
        if (base == kNoValue && in_.values[w].storage == in_.values[out].storage &&
            same_sizes(traced(w).sizes, traced(out).sizes) && traced(w).strides == traced(out).strides &&
            traced(w).dtype == traced(out).dtype && sym::known_eq(traced(w).offset, traced(out).offset))
          base = w;
      if (base != kNoValue)
        new_view(out, base, {});
      else
        define_view(n, i, alias_of(n, out));
    }
  }

  // f(..., out=empty tensor): the empty tensor grows to the result's size; it is a new root on the old storage.
  bool visit_grown_out(const Node& n, const std::vector<ValueId>& written, const std::vector<ValueId>& fresh) {
    if (!n.op->drops_mutated || !n.op->functional || !fresh.empty() || n.outs.size() != written.size()) return false;
    for (size_t i = 0; i < written.size(); ++i) {
      const TensorType &before = traced(written[i]), &after = traced(n.outs[i]);
      const Tensor& t = tensors_[written[i]];
      if (!is_empty(before) || is_empty(after) || t.parent != kNoValue || units_[t.unit].input >= 0) return false;
      if (before.dtype != after.dtype) return false;
    }
    std::vector<Arg> args;
    for (size_t i = 0; i < n.args.size(); ++i)
      if (!(n.op->mutates >> i & 1)) args.push_back(n.args[i]);
    args = read_args(args);
    std::vector<TensorType> types;
    const ops::OpRow* twin = n.op->functional;
    if (!twin->infer || !ops::infer(twin->infer, infer_context(out_, args), types) || types.size() != written.size())
      return false;
    for (size_t i = 0; i < types.size(); ++i)
      if (types[i].dtype != traced(n.outs[i]).dtype || !same_sizes(types[i].sizes, traced(n.outs[i]).sizes))
        return false;
    std::vector<const TensorType*> result_types;
    result_types.reserve(types.size());
    for (const TensorType& t : types) result_types.push_back(&t);
    const std::vector<ValueId> results = append(twin, std::move(args), result_types);
    for (size_t i = 0; i < written.size(); ++i) {
      const int32_t storage = in_.values[n.outs[i]].storage;
      new_root(n.outs[i], results[i]);
      if (storage >= 0) --units_on_storage_[storage];
    }
    return true;
  }

  std::vector<ValueId> fill_or_copy(const Node& n) {
    const std::string& name = n.op->name;
    if (!op::is_aten(name) || n.args.empty() || !std::holds_alternative<Ref>(n.args[0])) return {};
    const TensorType& self = traced(ops::as_value(n.args[0]));
    if (name == op::zero_) return {b_.full(self.sizes, zero_of(self.dtype), self.dtype, self.device)};
    if (name == op::fill__Scalar) {
      if (auto scalar = rules::scalar_in(n.args[1], self.dtype))
        return {b_.full(self.sizes, *scalar, self.dtype, self.device)};
      return {};
    }
    if (name == op::copy_ || name == op::fill__Tensor) {
      const ValueId source = ops::as_value(n.args[1]);
      const TensorType& t = traced(source);
      if (!(t.device == self.device) || (info(t.dtype).complex && !info(self.dtype).complex) || t.opaque || self.opaque)
        return {};
      return {fit(get(source), self)};
    }
    return {};
  }
  static Arg zero_of(DType d) {
    if (is_floating(d)) return 0.0;
    if (d == DType::kBool) return false;
    if (info(d).complex) return std::complex<double>(0, 0);
    return sym::Expr(0);
  }
  std::vector<ValueId> call_twin(const Node& n, const std::vector<ValueId>& written,
                                 const std::vector<ValueId>& fresh) {
    const ops::OpRow* twin = n.op->functional;
    if (!twin || !twin->infer) return {};
    // Random numbers are drawn in an order that depends on the strides.
    if (n.op->nondeterministic &&
        std::any_of(written.begin(), written.end(), [&](ValueId v) { return !is_contiguous(traced(v)); }))
      return {};
    std::vector<Arg> args = n.args;
    if (n.op->drops_mutated) {
      args.clear();
      for (size_t i = 0; i < n.args.size(); ++i)
        if (!(n.op->mutates >> i & 1)) args.push_back(n.args[i]);
    }
    args = read_args(args);
    std::vector<TensorType> types;
    if (!ops::infer(twin->infer, infer_context(out_, args), types) || types.size() != fresh.size() + written.size())
      return {};
    for (size_t i = 0; i < written.size(); ++i) {
      const TensorType &result = types[fresh.size() + i], &target = traced(written[i]);
      if (result.opaque || target.opaque || !same_sizes(result.sizes, target.sizes)) return {};
      if (info(result.dtype).complex && !info(target.dtype).complex) return {};
      // sum and cumsum take the dtype that they compute in from the tensor they write.
      if (n.op->drops_mutated && n.op->kind != ops::OpKind::kPointwise && result.dtype != target.dtype) return {};
    }
    std::vector<const TensorType*> result_types;
    result_types.reserve(types.size());
    for (const TensorType& t : types) result_types.push_back(&t);
    return append(twin, std::move(args), result_types);
  }

  std::vector<ValueId> call_on_clones(const Node& n, const std::vector<ValueId>& written,
                                      const std::vector<ValueId>& fresh) {
    std::vector<const TensorType*> types;
    for (ValueId v : n.outs) types.push_back(v != kNoValue && alias_of(n, v) == kNoValue ? &traced(v) : nullptr);
    for (ValueId v : written) types.push_back(&traced(v));
    const std::vector<ValueId> all = append(ops::find("functional." + n.op->name), read_args(n.args), types);
    std::vector<ValueId> results;
    for (ValueId v : all)
      if (v != kNoValue) results.push_back(v);
    FLASHOVER_CHECK(results.size() == fresh.size() + written.size());
    return results;
  }

  void add_output(const Output& o) {
    const Tensor& t = tensors_[o.value];
    const Unit& u = units_[t.unit];
    bool geometric = true;
    for (ValueId v = o.value; v != kNoValue; v = tensors_[v].parent) geometric &= is_geometric(tensors_[v].steps);

    Output out{.type = traced(o.value)};
    if (u.input >= 0 && in_.inputs[u.input].kind != InputKind::kConstant) {
      if (!geometric) throw Declined("output: a reinterpreted view of an input");
      out.kind = Output::Kind::kInputAlias;
      out.base = u.input;
      out.type.offset = out.type.offset - traced(u.root).offset;
      out_.outputs.push_back(std::move(out));
      return;
    }
    const size_t self = out_.outputs.size();
    const auto [owner, whole] = owner_of(self);
    if (owner != self) {
      if (!geometric || traced(in_.outputs[owner].value).dtype != out.type.dtype)
        throw Declined("output: a reinterpreted view of another output");
      out.kind = Output::Kind::kOutputAlias;
      out.base = static_cast<int32_t>(owner);
      out.type.offset = is_empty(out.type) ? sym::Expr(0) : out.type.offset - traced(in_.outputs[owner].value).offset;
      out_.outputs.push_back(std::move(out));
      return;
    }
    if (whole || repeats(out.type)) {
      const TensorType& root = traced(u.root);
      if (!geometric || root.dtype != out.type.dtype || root.opaque || !is_writable_layout(root) ||
          !root.offset.is_const(0))
        throw Declined("output: a reinterpreted view that shares memory");
      out.kind = Output::Kind::kSlice;
      out.value = get(u.root);
      out.layout = root.strides;
      out_.outputs.push_back(std::move(out));
      return;
    }
    out.value = without_repetition(get(o.value), out.type);
    set_memory(out, traced(u.root));
    out_.outputs.push_back(std::move(out));
  }

  // A result that owns its memory has the strides and offset of eager, and the elements around it.
  static void set_memory(Output& out, const TensorType& root) {
    const Span part = span_of(out.type, 0), all = span_of(root, 0);
    if (is_empty(out.type) || root.opaque || sym::known_lt(part.first, 0)) {
      out.type.offset = 0;
      return;
    }
    const sym::Expr bytes = (all.last + 1) * info(root.dtype).bytes, itemsize = info(out.type.dtype).bytes;
    const sym::Expr memory = root.dtype == out.type.dtype ? all.last + 1 : sym::ceildiv(bytes, itemsize);
    if (!sym::known_le(memory, part.last + 1)) out.memory = sym::max(memory, part.last + 1);
  }

  // Elements at one address, other than by stride 0.
  bool repeats(TensorType t) const {
    for (size_t d = 0; d < t.rank(); ++d)
      if (t.strides[d].is_const(0) && !t.sizes[d].is_const(0)) t.sizes[d] = 1;
    return !is_empty(t) && !is_writable_layout(t);
  }

  // The elements of result `inner` are elements of result `outer`, which has no gaps.
  bool covers(size_t outer, size_t inner) const {
    const TensorType &whole = traced(in_.outputs[outer].value), &part = traced(in_.outputs[inner].value);
    if (whole.dtype != part.dtype) return false;
    if (is_empty(part) ||
        (whole.sizes == part.sizes && whole.strides == part.strides && sym::known_eq(whole.offset, part.offset)))
      return true;
    const Span span = span_of(part, whole.offset);
    return ops::is_dense(whole.sizes, whole.strides) && sym::known_le(0, span.first) &&
           sym::known_lt(span.last, whole.numel());
  }
  // Results that share memory have one owner: one that covers the others (where views do, what they are views of), else
  // the first. `whole`: none covers them, so the owner's memory must hold everything.
  struct Owner {
    size_t index;
    bool whole;
  };
  Owner owner_of(size_t i) {
    const int32_t unit = tensors_[in_.outputs[i].value].unit;
    if (const auto it = owners_.find(unit); it != owners_.end()) return it->second;
    std::vector<size_t> sharing;
    for (size_t j = 0; j < in_.outputs.size(); ++j)
      if (tensors_[in_.outputs[j].value].unit == unit) sharing.push_back(j);
    Owner owner{sharing.front(), true};
    for (size_t j : sharing)
      if ((owner.whole || depth_of(j) < depth_of(owner.index)) &&
          std::all_of(sharing.begin(), sharing.end(), [&](size_t k) { return covers(j, k); }))
        owner = {j, false};
    return owners_[unit] = owner;
  }
  // How many views lead to a result.
  int depth_of(size_t output) const {
    int depth = 0;
    for (ValueId v = in_.outputs[output].value; tensors_[v].parent != kNoValue; v = tensors_[v].parent) ++depth;
    return depth;
  }

  // Dims that eager repeats with stride 0 are size 1 in the value.
  ValueId without_repetition(ValueId value, const TensorType& t) {
    Sizes starts(t.rank(), 0), ends = b_.sizes(value), steps(t.rank(), 1);
    for (size_t d = 0; d < t.rank(); ++d)
      if (t.strides[d].is_const(0) && !t.sizes[d].is_const(0)) ends[d] = 1;
    return b_.slice(value, std::move(starts), std::move(ends), std::move(steps));
  }

  const Graph& in_;
  Graph out_;
  Builder b_;
  std::vector<Tensor> tensors_;
  std::vector<bool> apart_;  // by traced value: nothing else stands for it
  std::vector<Unit> units_;
  std::unordered_map<int32_t, int> units_on_storage_;
  std::unordered_map<int32_t, Owner> owners_;  // by unit
};

}  // namespace

Graph functionalize(const Graph& traced) { return Functionalizer(traced).run(); }
Graph functionalize(const Graph& traced, std::vector<ValueId>& apart) {
  return Functionalizer(traced, apart).run(&apart);
}

}  // namespace flashover::graph

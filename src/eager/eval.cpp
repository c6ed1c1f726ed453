// Calls ATen node by node, and gives results the strides that the graph says.
#include "eager/eval.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/unexpected_size.h"
#include "torch/convert.h"

namespace flashover::aten {
namespace {

at::Tensor with_geometry(const at::Tensor& t, const graph::Output& o) {
  const std::vector<int64_t> sizes = to_ints(o.type.sizes), strides = to_ints(o.type.strides);
  if (o.kind == graph::Output::Kind::kSlice) {
    const at::Tensor whole = at::empty_strided(t.sizes(), to_ints(o.layout), t.options());
    whole.copy_(t);
    return at::as_strided(whole, sizes, strides, o.type.offset.value());
  }
  // Repeated dims (stride 0) have one element in memory.
  std::vector<int64_t> written = sizes;
  at::Tensor source = t;
  int64_t span = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    span += (sizes[d] - 1) * strides[d];
    if (strides[d] != 0 || sizes[d] == 0) continue;
    written[d] = 1;
    source = source.narrow(static_cast<int64_t>(d), 0, 1);
  }
  if (t.numel() == 0) return at::empty_strided(sizes, strides, t.options());
  const int64_t offset = o.type.offset.value();
  const at::Tensor memory = at::empty_strided({std::max(span + offset, o.memory.value())}, {1}, t.options());
  at::as_strided(memory, written, strides, offset).copy_(source);
  return at::as_strided(memory, sizes, strides, offset);
}

// `t` in the strides that its type says; what repeats elements, or has no strides to speak of, as it is.
at::Tensor in_strides_of(const TensorType& type, const at::Tensor& t) {
  if (type.opaque || !t.defined() || t.dim() != static_cast<int64_t>(type.rank())) return t;
  const std::vector<int64_t> strides = to_ints(type.strides);
  bool same = true, repeats = false;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) <= 1) continue;
    same &= t.stride(d) == strides[static_cast<size_t>(d)];
    repeats |= strides[static_cast<size_t>(d)] == 0;
  }
  if (same || repeats || t.numel() == 0) return t;
  return at::empty_strided(t.sizes(), strides, t.options()).copy_(t);
}

at::Tensor preserved_clone(const at::Tensor& t) {
  at::Tensor out = at::empty_strided(t.sizes(), t.strides(), t.options());
  out.copy_(t);
  return out;
}

bool has_symbols(const graph::Graph& g) {
  return std::ranges::any_of(g.values, [](const graph::Value& v) {
    return std::ranges::any_of(v.type.sizes, [](sym::Expr e) { return !e.is_const(); });
  });
}

// Sizes that are symbols become numbers in the whole graph, once the value that has them is there.
class SizesFound {
 public:
  explicit SizesFound(graph::Graph& g) : g_(g) {}

  void look(ValueId v, const at::Tensor& t) {
    if (!t.defined() || t.dim() != static_cast<int64_t>(g_.type(v).rank())) return;
    for (size_t d = 0; d < g_.type(v).rank(); ++d)
      if (const sym::Expr size = g_.type(v).sizes[d]; size.kind() == sym::Kind::kVar)
        found_.emplace_back(size, t.size(static_cast<int64_t>(d)));
  }

  // What was found since the last time.
  void put() {
    if (found_.empty()) return;
    const auto number_of = [&](sym::Expr v) -> std::optional<sym::Expr> {
      const auto at = std::ranges::find(found_, v, &std::pair<sym::Expr, int64_t>::first);
      return at == found_.end() ? std::nullopt : std::optional<sym::Expr>(at->second);
    };
    const auto in = [&](sym::Expr& e) {
      if (!e.is_const()) e = sym::substitute(e, number_of);
    };
    const auto in_all = [&](Sizes& list) {
      for (sym::Expr& e : list) in(e);
    };
    const auto in_type = [&](TensorType& type) {
      in_all(type.sizes);
      in_all(type.strides);
      in(type.offset);
    };
    for (graph::Value& v : g_.values) in_type(v.type);
    for (graph::Node& n : g_.nodes)
      for (Arg& a : n.args) {
        if (auto* e = std::get_if<sym::Expr>(&a)) in(*e);
        if (auto* list = std::get_if<Sizes>(&a)) in_all(*list);
      }
    for (graph::Output& o : g_.outputs) {
      in_type(o.type);
      in(o.memory);
      in_all(o.layout);
    }
    found_.clear();
  }

 private:
  graph::Graph& g_;
  std::vector<std::pair<sym::Expr, int64_t>> found_;
};

class Evaluator {
 public:
  Evaluator(const graph::Graph& g, std::vector<std::string>* mismatches, HistoryCuts* cuts = nullptr)
      : own_(has_symbols(g) ? std::optional(g) : std::nullopt),
        g_(own_ ? *own_ : g),
        mismatches_(mismatches),
        cuts_(cuts),
        env_(g.values.size()) {
    if (own_) sizes_.emplace(*own_);
    traced_ = g.mutations.empty();
    for (const graph::Output& o : g.outputs) traced_ &= o.kind == graph::Output::Kind::kValue && o.memory.is_const(0);
    bool any_storage = g.values.empty();
    for (const graph::Value& v : g.values) any_storage |= v.storage >= 0;
    traced_ &= any_storage;
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    FLASHOVER_CHECK(inputs.size() == g_.inputs.size())
        << "the graph takes " << g_.inputs.size() << " inputs, not " << inputs.size();
    for (size_t i = 0; i < inputs.size(); ++i) {
      env_[g_.inputs[i].value] = inputs[i];
      if (sizes_) sizes_->look(g_.inputs[i].value, inputs[i]);
    }
    if (sizes_) sizes_->put();
    for (const graph::Node& n : g_.nodes) node(n);
    for (const auto& [v, t] : cut_off_) env_[v] = t;
    return traced_ ? traced_outputs() : functional_outputs(inputs);
  }

 private:
  at::Tensor get(ValueId v) const {
    FLASHOVER_CHECK(env_[v]) << "value %" << v << " is read before it is made";
    return *env_[v];
  }

  void node(const graph::Node& n) {
    const auto tensor_of = [this](ValueId v) { return get(v); };
    std::vector<at::Tensor> results;
    if (n.op->is_prim()) {
      results = eval_prim(n, g_, tensor_of);
    } else if (n.op->on_clones) {
      results = on_clones(n);
    } else {
      const Operator* op = find_operator(n.op->name);
      if (!op) throw Declined("no operator " + n.op->name);
      // Strides of prims are advice here; of what operators take they are a promise.
      results = call(*op, n.args, [&](ValueId v) { return traced_ ? get(v) : in_strides_of(g_.type(v), get(v)); });
    }
    FLASHOVER_CHECK(results.size() == n.outs.size())
        << n.op->name << " gave " << results.size() << " results for " << n.outs.size() << " values";
    for (size_t i = 0; i < results.size(); ++i) {
      if (n.outs[i] == kNoValue) continue;
      env_[n.outs[i]] = results[i];
      if (n.op->data_sized) check_found(n, n.outs[i], results[i]);
      if (sizes_) sizes_->look(n.outs[i], results[i]);
      if (mismatches_ && results[i].defined()) compare(n, n.outs[i], results[i]);
      if (cuts_) cut(n.outs[i]);
    }
    if (sizes_) sizes_->put();
  }

  void cut(ValueId v) {
    const auto at = std::ranges::find(cuts_->values, v);
    if (at == cuts_->values.end() || !env_[v]->requires_grad()) return;
    cut_off_.emplace_back(v, *env_[v]);
    env_[v] = env_[v]->detach().requires_grad_();
    cuts_->leaves[static_cast<size_t>(at - cuts_->values.begin())] = *env_[v];
  }

  // Where the program said which number it is (torch._check), that stands in the place of the size's symbol.
  void check_found(const graph::Node& n, ValueId v, const at::Tensor& t) const {
    const Sizes& sizes = g_.type(v).sizes;
    bool same = !t.defined() || t.dim() == static_cast<int64_t>(sizes.size());
    for (size_t d = 0; same && t.defined() && d < sizes.size(); ++d)
      same = !sizes[d].is_const() || sizes[d].is_const(t.size(static_cast<int64_t>(d)));
    if (!same)
      throw UnexpectedSize(n.op->name + " found " + str(type_of(t)) + " where compiled code needs " + str(g_.type(v)));
  }

  void compare(const graph::Node& n, ValueId v, const at::Tensor& t) {
    // Strides of prims are advice outside the traced form, and a library's own layout has none.
    if (g_.type(v).opaque || (n.op->is_prim() && !traced_)) return;
    TensorType said = g_.type(v), is = type_of(t);
    said.wrapped_number = is.wrapped_number = false;
    if (!traced_) is.offset = said.offset = 0;
    if (str(said) != str(is))
      mismatches_->push_back("%" + std::to_string(v) + " = " + n.op->name + ": said " + str(said) + ", is " + str(is));
  }

  // functional.<name>: the writing operator on clones of what it writes.
  std::vector<at::Tensor> on_clones(const graph::Node& n) {
    const Operator* op = find_operator(n.op->on_clones->name);
    if (!op) throw Declined("no operator " + n.op->on_clones->name);
    std::vector<at::Tensor> clones;
    std::vector<Arg> args = n.args;
    std::vector<at::Tensor> stand_ins;
    const auto base = static_cast<ValueId>(g_.values.size());
    const auto replace = [&](Ref& r) {
      if (r.id == kNoValue) return;
      clones.push_back(preserved_clone(get(r.id)));
      r.id = base + static_cast<ValueId>(clones.size() - 1);
    };
    for (size_t i = 0; i < args.size(); ++i) {
      if (!op->args[i].written) continue;
      if (auto* r = std::get_if<Ref>(&args[i])) replace(*r);
      if (auto* l = std::get_if<RefList>(&args[i]))
        for (Ref& r : *l) replace(r);
    }
    std::vector<at::Tensor> results = call(*op, args, [&](ValueId v) { return v >= base ? clones[v - base] : get(v); });
    results.insert(results.end(), clones.begin(), clones.end());
    return results;
  }

  std::vector<at::Tensor> traced_outputs() const {
    std::vector<at::Tensor> out;
    for (const graph::Output& o : g_.outputs) out.push_back(get(o.value));
    return out;
  }

  std::vector<at::Tensor> functional_outputs(const std::vector<at::Tensor>& inputs) const {
    std::vector<at::Tensor> values(g_.outputs.size()), contents;
    for (size_t i = 0; i < values.size(); ++i)
      if (g_.outputs[i].owns_memory()) values[i] = get(g_.outputs[i].value);
    for (const graph::Mutation& m : g_.mutations) contents.push_back(get(m.value));
    return finish_functional(g_, inputs, values, contents);
  }

  std::optional<graph::Graph> own_;  // where sizes in it are found while it runs
  std::optional<SizesFound> sizes_;
  const graph::Graph& g_;
  std::vector<std::string>* mismatches_;
  HistoryCuts* cuts_;
  std::vector<std::pair<ValueId, at::Tensor>> cut_off_;  // what outputs see
  bool traced_ = false;
  std::vector<std::optional<at::Tensor>> env_;
};

}  // namespace

std::vector<at::Tensor> finish_functional(const graph::Graph& g, const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& values,
                                          const std::vector<at::Tensor>& written) {
  // Values never change: what is written back is taken aside first, and a result may share memory with nothing.
  std::vector<at::Tensor> contents;
  for (const at::Tensor& t : written) contents.push_back(preserved_clone(t));
  std::vector<at::Tensor> out(g.outputs.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const graph::Output& o = g.outputs[i];
    if (!o.owns_memory()) continue;
    const at::Tensor& t = values[i];
    if (o.type.opaque) {  // a library's own: from here to the backward
      out[i] = t;
      continue;
    }
    bool shared = o.kind == graph::Output::Kind::kSlice || !o.memory.is_const(0) || !o.type.offset.is_const(0) ||
                  t.strides() != at::IntArrayRef(to_ints(o.type.strides)) ||
                  t.sizes() != at::IntArrayRef(to_ints(o.type.sizes));
    for (const at::Tensor& other : inputs) shared |= other.defined() && other.is_alias_of(t);
    for (size_t k = 0; k < i; ++k) shared |= out[k].defined() && out[k].is_alias_of(t);
    out[i] = shared ? with_geometry(t, o) : t;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const graph::Output& o = g.outputs[i];
    if (o.owns_memory()) continue;
    const at::Tensor& base = o.kind == graph::Output::Kind::kInputAlias ? inputs[o.base] : out[o.base];
    out[i] = at::as_strided(base, to_ints(o.type.sizes), to_ints(o.type.strides),
                            base.storage_offset() + o.type.offset.value());
  }
  for (size_t i = 0; i < contents.size(); ++i) inputs[g.mutations[i].input].copy_(contents[i]);
  return out;
}

std::vector<at::Tensor> eval_graph(const graph::Graph& g, const std::vector<at::Tensor>& inputs,
                                   std::vector<std::string>* mismatches) {
  at::AutoDispatchBelowAutograd below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return Evaluator(g, mismatches).run(inputs);
}

std::vector<at::Tensor> eval_under_autograd(const graph::Graph& g, const std::vector<at::Tensor>& inputs,
                                            HistoryCuts* cuts) {
  c10::AutoGradMode followed(true);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (cuts) cuts->leaves.resize(cuts->values.size());
  return Evaluator(g, nullptr, cuts).run(inputs);
}

}  // namespace flashover::aten

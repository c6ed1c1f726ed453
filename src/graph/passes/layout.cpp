#include "graph/passes/layout.h"

#include <map>

#include "base/check.h"
#include "graph/passes/dce.h"
#include "graph/passes/rewriter.h"
#include "ops/args.h"

namespace flashover::graph {
namespace {

class Relaxer {
 public:
  explicit Relaxer(Graph in) : in_(std::move(in)), wanted_(in_.values.size()), source_(in_.values.size(), kNoValue) {
    for (size_t i = 0; i < in_.values.size(); ++i) wanted_[i] = in_.values[i].type;
  }

  Graph run() {
    out_.values = std::move(in_.values);
    out_.inputs = std::move(in_.inputs);
    out_.locations = std::move(in_.locations);
    for (Node& n : in_.nodes) {
      if (n.op->name == "prim.copy") {
        source_[n.outs[0]] = behind_copies(ops::as_value(n.args[0]));
        continue;
      }
      if (n.op->is_prim)
        visit_prim(n);
      else
        visit_extern(n);
      out_.nodes.push_back(std::move(n));
    }
    // What leaves the graph states its strides itself.
    for (Output& o : in_.outputs)
      if (o.value != kNoValue) o.value = behind_copies(o.value);
    for (Mutation& m : in_.mutations) m.value = behind_copies(m.value);
    out_.outputs = std::move(in_.outputs);
    out_.mutations = std::move(in_.mutations);
    return dce(std::move(out_));
  }

 private:
  ValueId behind_copies(ValueId v) const { return source_[v] == kNoValue ? v : source_[v]; }

  template <typename F>
  void replace_refs(Node& n, F&& f) {
    for (Arg& a : n.args) {
      if (auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) r->id = f(r->id);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = f(r.id);
    }
  }

  void visit_prim(Node& n) {
    replace_refs(n, [&](ValueId v) { return behind_copies(v); });
    std::vector<TensorType> types;
    FLASHOVER_CHECK(n.op->infer(infer_context(out_, n.args), types)) << n.op->name;
    for (size_t i = 0; i < n.outs.size(); ++i)
      if (n.outs[i] != kNoValue) out_.values[n.outs[i]].type.strides = types[i].strides;
  }

  // Externs get what eager would have passed, or what a rewrite asked for with a copy: their results' strides depend on
  // it.
  void visit_extern(Node& n) {
    replace_refs(n, [&](ValueId v) {
      const TensorType wanted = wanted_[v];
      const ValueId x = behind_copies(v);
      if (wanted.opaque || same_strides(out_.type(x), wanted) || !is_writable_layout(wanted)) return x;
      std::string key;
      for (sym::Expr s : wanted.strides) key += s.str() + ',';
      auto [it, fresh] = copies_.try_emplace({x, key}, kNoValue);
      if (fresh) {
        Builder b(out_, n.location);
        it->second = b.emit("prim.copy", {Ref{x}}, plain(wanted));
      }
      return it->second;
    });
  }
  static TensorType plain(TensorType t) {
    t.offset = 0;
    return t;
  }

  Graph in_, out_;
  std::vector<TensorType> wanted_;  // as the rewrites left it
  std::vector<ValueId> source_;     // of a copy: what it copies
  std::map<std::pair<ValueId, std::string>, ValueId> copies_;
};

}  // namespace

Graph relax_layout(Graph g) { return Relaxer(std::move(g)).run(); }

}  // namespace flashover::graph

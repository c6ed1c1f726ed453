// Structure, types and input kinds. Values are numbered by first appearance, so that renumbering does not change the
// hash.
#include "graph/graph.h"
#include "ops/text.h"

namespace flashover::graph {
namespace {

class GraphHasher {
 public:
  explicit GraphHasher(const Graph& g) : g_(g), number_(g.values.size(), 0) {}

  Hash128 run() {
    h_.number(g_.facts.exact).number(g_.facts.sizes.size());
    for (const sym::SizeGuard& s : g_.facts.sizes) h_.text(sym::str(s));
    h_.number(g_.inputs.size());
    for (const Input& i : g_.inputs) {
      h_.number(static_cast<uint64_t>(i.kind)).number(i.requires_grad);
      define(i.value);
    }
    h_.number(g_.nodes.size());
    for (const Node& n : g_.nodes) {
      h_.text(n.op->name).number(n.frozen).number(n.args.size());
      for (const Arg& a : n.args) arg(a);
      h_.number(n.outs.size());
      for (ValueId v : n.outs) define(v);
    }
    h_.number(g_.mutations.size());
    for (const Mutation& m : g_.mutations) {
      h_.number(static_cast<uint64_t>(m.input));
      use(m.value);
    }
    h_.number(g_.outputs.size());
    for (const Output& o : g_.outputs) {
      h_.number(static_cast<uint64_t>(o.kind)).number(static_cast<uint64_t>(static_cast<int64_t>(o.base)));
      use(o.value);
      h_.text(str(o.type)).text(o.memory.str()).text(str(Arg(o.layout)));
    }
    return h_.finish();
  }

 private:
  void define(ValueId v) {
    if (v == kNoValue) {
      h_.number(0);
      return;
    }
    number_[v] = ++next_;
    h_.number(number_[v])
        .text(str(g_.values[v].type))
        .number(static_cast<uint64_t>(static_cast<int64_t>(g_.values[v].storage)));
  }
  void use(ValueId v) { h_.number(v == kNoValue ? 0 : number_[v]); }
  void arg(const Arg& a) {
    if (const auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue) {
      h_.number(1);
      use(r->id);
    } else if (const auto* l = std::get_if<RefList>(&a)) {
      h_.number(2).number(l->size());
      for (const Ref& r : *l) use(r.id);
    } else {
      h_.number(3).text(str(a));
    }
  }

  const Graph& g_;
  Hasher h_;
  std::vector<uint64_t> number_;
  uint64_t next_ = 0;
};

}  // namespace

Hash128 hash(const Graph& g) { return GraphHasher(g).run(); }

}  // namespace flashover::graph

// One walk over the readers.
#include "graph/analysis/uninitialized.h"

#include "ops/names.h"

namespace flashover::graph {

std::vector<bool> only_written(const Graph& g) {
  std::vector<bool> out(g.values.size());
  for (const Node& n : g.nodes) {
    const bool empty = op::is_any_of(n.op->name, {op::empty_memory_format, op::empty_strided, op::empty_permuted,
                                                  op::empty_like, op::new_empty, op::new_empty_strided});
    if (empty && n.outs.size() == 1 && n.outs[0] != kNoValue && !g.type(n.outs[0]).opaque) out[n.outs[0]] = true;
  }
  for (const Node& n : g.nodes)
    for (size_t i = 0; i < n.args.size(); ++i) {
      const bool writes = n.op->on_clones && i < 32 && (n.op->on_clones->mutates >> i & 1);
      if (!writes) for_each_ref(n.args[i], [&](ValueId v) { out[v] = false; });
    }
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) out[o.value] = false;
  for (const Mutation& m : g.mutations) out[m.value] = false;
  return out;
}

}  // namespace flashover::graph

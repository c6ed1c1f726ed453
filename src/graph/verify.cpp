// What a legal graph is, as sentences. The structure (everything defined once, before its use) is checked first; the
// sentences then speak about one node each.
#include "base/check.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "ops/text.h"

namespace flashover::graph {
namespace {

[[noreturn]] void broken(const Graph& g, const Node* node, const std::string& sentence) {
  throw InternalError("graph verify: " + sentence + (node ? "\n  in: " + print(*node, g) : std::string()));
}

bool legal_type(const TensorType& t) {
  if (t.opaque) return t.strides.empty();
  if (t.strides.size() != t.sizes.size() || t.dtype == DType::kUndefined) return false;
  for (sym::Expr n : t.sizes)
    if (n.is_const() && n.value() < 0) return false;
  return true;
}

void check_structure(const Graph& g, Form form) {
  std::vector<bool> defined(g.values.size());
  auto define = [&](ValueId v, const Node* node) {
    if (v == kNoValue) return;
    if (v < 0 || static_cast<size_t>(v) >= g.values.size()) broken(g, node, "a result is a value of the graph");
    if (defined[v]) broken(g, node, "%" + std::to_string(v) + " is defined once");
    defined[v] = true;
    if (!legal_type(g.type(v))) broken(g, node, "%" + std::to_string(v) + " has a legal type: " + str(g.type(v)));
    if (form != Form::kTraced && g.values[v].storage >= 0) broken(g, node, "storages are a matter of the traced form");
  };
  auto use = [&](ValueId v, const Node* node, const char* where) {
    if (v < 0 || static_cast<size_t>(v) >= g.values.size() || !defined[v])
      broken(g, node, "%" + std::to_string(v) + " is defined before " + where);
  };
  for (const Input& i : g.inputs) define(i.value, nullptr);
  for (const Node& n : g.nodes) {
    if (!n.op) broken(g, nullptr, "every node has an operator");
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { use(v, &n, "its use"); });
    for (ValueId v : n.outs) define(v, &n);
  }
  for (const Mutation& m : g.mutations) {
    if (form == Form::kTraced) broken(g, nullptr, "mutations are recorded by functionalize");
    use(m.value, nullptr, "a mutation takes it");
    if (m.input < 0 || static_cast<size_t>(m.input) >= g.inputs.size()) broken(g, nullptr, "a mutation names an input");
    const TensorType &to = g.type(g.inputs[m.input].value), &from = g.type(m.value);
    if (to.dtype != from.dtype || !same_sizes(to.sizes, from.sizes))
      broken(g, nullptr, "a mutation keeps the input's type: " + str(to) + " <- " + str(from));
  }
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    const Output& o = g.outputs[i];
    const std::string which = "output " + std::to_string(i);
    switch (o.kind) {
      case Output::Kind::kValue: {
        use(o.value, nullptr, "an output takes it");
        const TensorType& t = g.type(o.value);
        if (t.dtype != o.type.dtype || t.rank() != o.type.rank())
          broken(g, nullptr, which + " has its value's dtype and rank");
        for (size_t d = 0; d < t.rank(); ++d)
          if (!sym::known_eq(t.sizes[d], o.type.sizes[d]) && !(t.sizes[d].is_const(1) && o.type.strides[d].is_const(0)))
            broken(g, nullptr,
                   which + " has its value's sizes (1 where it repeats): " + str(t) + " and " + str(o.type));
        break;
      }
      case Output::Kind::kSlice:
        use(o.value, nullptr, "an output takes it");
        if (g.type(o.value).dtype != o.type.dtype || g.type(o.value).rank() != o.layout.size())
          broken(g, nullptr, which + " has its value's dtype and strides for it");
        break;
      case Output::Kind::kInputAlias:
        if (o.base < 0 || static_cast<size_t>(o.base) >= g.inputs.size()) broken(g, nullptr, which + " names an input");
        break;
      case Output::Kind::kOutputAlias:
        if (o.base < 0 || static_cast<size_t>(o.base) >= g.outputs.size() || !g.outputs[o.base].owns_memory())
          broken(g, nullptr, which + " names an output that owns its memory");
        break;
    }
  }
}

struct Sentence {
  const char* text;
  bool (*holds)(const Graph&, const Node&);
};

bool prim_types_agree(const Graph& g, const Node& n) {
  if (!n.op->is_prim()) return true;
  std::vector<TensorType> types;
  if (!n.op->infer || !ops::infer(n.op->infer, infer_context(g, n.args), types) || types.size() != n.outs.size())
    return false;
  for (size_t i = 0; i < types.size(); ++i) {
    if (n.outs[i] == kNoValue) continue;
    const TensorType& t = g.type(n.outs[i]);
    // A number that the rule leaves on the CPU may have been assigned to the device (passes/assign_devices.h).
    const bool assigned = t.sizes.empty() && types[i].device.type == DeviceType::kCPU;
    if (t.dtype != types[i].dtype || !same_sizes(t.sizes, types[i].sizes) || !(assigned || t.device == types[i].device))
      return false;
  }
  return true;
}
bool opaque_into_extern_only(const Graph& g, const Node& n) {
  bool opaque = false;
  for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { opaque |= g.type(v).opaque; });
  return !opaque || !n.op->is_prim();
}
bool writes_nothing(const Graph&, const Node& n) { return n.op->mutates == 0; }
// (Prims know no complex numbers: passes/lower_complex.h.)
bool no_aten_view(const Graph& g, const Node& n) {
  return !n.op->is_aten_view || (n.outs[0] != kNoValue && info(g.type(n.outs[0]).dtype).complex);
}
bool frozen_from_frozen(const Graph&, const Node& n) {
  return !n.frozen || !(n.op->effectful || n.op->nondeterministic);
}

bool location_of_graph(const Graph& g, const Node& n) {
  return n.location < 0 || static_cast<size_t>(n.location) < g.facts.locations.size();
}

constexpr Sentence kAny[] = {
    {"a node's location is one of the graph's", location_of_graph},
    {"a prim's results have the types that its rule says", prim_types_agree},
    {"an opaque tensor goes into extern operators only", opaque_into_extern_only},
    {"what is frozen has no effects", frozen_from_frozen},
};
constexpr Sentence kNotTraced[] = {
    {"an operator of the functional form writes no argument", writes_nothing},
    {"views are prims in the functional form", no_aten_view},
};

}  // namespace

void verify(const Graph& g, Form form) {
  check_structure(g, form);
  auto check = [&](const Sentence& s, const Node& n) {
    bool holds = false;
    try {
      holds = s.holds(g, n);
    } catch (const InternalError& e) {
      broken(g, &n, std::string(s.text) + " (" + e.what() + ")");
    }
    if (!holds) broken(g, &n, s.text);
  };
  for (const Node& n : g.nodes) {
    for (const Sentence& s : kAny) check(s, n);
    if (form != Form::kTraced)
      for (const Sentence& s : kNotTraced) check(s, n);
  }
}

}  // namespace flashover::graph

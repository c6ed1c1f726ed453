// print and parse. One line per input and node:
//   %2 : f32[2,3] = aten.add.Tensor(%0, %1, 1)  # model.py:12
//   %3 : f32[2] s0, _ = ...       s0: storage of the traced form; _ a result that does not exist
#include "ops/text.h"
#include "base/check.h"
#include "graph/checkpoint.h"
#include "graph/graph.h"

namespace flashover::graph {
namespace {

constexpr const char* kInputKinds[] = {"user", "param", "buffer", "constant", "tangent"};

std::string result(const Graph& g, ValueId v) {
  if (v == kNoValue) return "_";
  std::string out = '%' + std::to_string(v) + " : " + str(g.values[v].type);
  if (g.values[v].storage >= 0) out += " s" + std::to_string(g.values[v].storage);
  return out;
}

bool same_type(const TensorType& a, const TensorType& b) {
  return a.dtype == b.dtype && a.device == b.device && a.sizes == b.sizes && a.strides == b.strides &&
         a.offset == b.offset && a.opaque == b.opaque && a.wrapped_number == b.wrapped_number;
}

std::string result(const Graph& g, const Output& o) {
  std::string out = o.value == kNoValue ? "_" : '%' + std::to_string(o.value);
  if (o.kind == Output::Kind::kInputAlias) out += " of input " + std::to_string(o.base);
  if (o.kind == Output::Kind::kOutputAlias) out += " of output " + std::to_string(o.base);
  if (o.kind == Output::Kind::kSlice) out += " slice " + str(Arg(o.layout));
  if (!o.memory.is_const(0)) out += " in " + o.memory.str();
  if (o.value == kNoValue || !same_type(o.type, g.type(o.value))) out += " : " + str(o.type);
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Graph run() {
    in_.skip_blank_lines();
    in_.expect("graph");
    g_.facts.exact = in_.accept_word("exact");
    in_.expect("{");
    for (in_.skip_blank_lines(); !in_.accept("}"); in_.skip_blank_lines()) line();
    in_.skip_blank_lines();
    if (!in_.at_end()) in_.fail("text after the graph");
    return std::move(g_);
  }

 private:
  // where s0 <= 4*s1
  void fact() {
    static constexpr std::pair<std::string_view, sym::Relation> kSigns[] = {{"==", sym::Relation::kEqual},
                                                                            {"!=", sym::Relation::kNotEqual},
                                                                            {"<=", sym::Relation::kLessEqual},
                                                                            {"<", sym::Relation::kLess}};
    const sym::Expr a = in_.expr("=!<");
    for (const auto& [sign, relation] : kSigns)
      if (in_.accept(sign)) {
        g_.facts.sizes.push_back({relation, a, in_.expr("\n")});
        return;
      }
    in_.fail("==, !=, < or <= expected");
  }
  void line() {
    if (in_.accept_word("return")) return outputs();
    if (in_.accept_word("where")) return fact();
    if (in_.accept_word("mutate")) {
      const int64_t input = in_.integer();
      in_.expect("=");
      g_.mutations.push_back({static_cast<int32_t>(input), defined(in_.value())});
      return;
    }
    Node node;
    node.frozen = in_.accept_word("frozen");
    if (starts_results()) {
      do node.outs.push_back(one_result());
      while (in_.accept(","));
      in_.expect("=");
      if (in_.accept_word("input")) return input(node.outs);
    }
    node.op = ops::find(in_.word());
    in_.expect("(");
    if (!in_.accept(")")) {
      do {
        node.args.push_back(in_.arg());
        for_each_ref(node.args.back(), [&](ValueId v) { defined(v); });
      } while (in_.accept(","));
      in_.expect(")");
    }
    for (ValueId v : node.outs)
      if (v != kNoValue) defined_[v] = true;
    if (in_.accept("#")) {
      in_.skip_spaces();
      node.location = location(in_.rest_of_line());
    }
    g_.nodes.push_back(std::move(node));
  }

  bool starts_results() const {
    Cursor probe = in_;
    return probe.accept("%") || probe.accept_word("_");
  }

  ValueId one_result() {
    if (in_.accept_word("_")) return kNoValue;
    in_.expect("%");
    const int64_t number = in_.integer();
    if (number < 0 || number > 10'000'000) in_.fail("bad value number");
    const auto v = static_cast<ValueId>(number);
    in_.expect(":");
    if (static_cast<size_t>(v) >= g_.values.size()) {
      g_.values.resize(v + 1);
      defined_.resize(v + 1);
    }
    if (defined_[v]) in_.fail("%" + std::to_string(v) + " is defined twice");
    in_.skip_spaces();
    g_.values[v].type = in_.type();
    if (in_.accept("s")) g_.values[v].storage = static_cast<int32_t>(in_.integer());
    return v;
  }

  ValueId defined(ValueId v) {
    if (v < 0 || static_cast<size_t>(v) >= defined_.size() || !defined_[v])
      in_.fail("%" + std::to_string(v) + " is not defined yet");
    return v;
  }

  void input(const std::vector<ValueId>& outs) {
    if (outs.size() != 1 || outs[0] == kNoValue) in_.fail("an input has one value");
    Input i{.value = outs[0]};
    const std::string_view kind = in_.word();
    bool found = false;
    for (size_t k = 0; k < std::size(kInputKinds); ++k)
      if (kind == kInputKinds[k]) {
        i.kind = static_cast<InputKind>(k);
        found = true;
      }
    if (!found) in_.fail("unknown input kind " + std::string(kind));
    i.requires_grad = in_.accept_word("grad");
    in_.skip_spaces();
    if (in_.peek() == '"') i.name = in_.string();
    defined_[outs[0]] = true;
    g_.inputs.push_back(std::move(i));
  }

  void outputs() {
    in_.skip_spaces();
    if (in_.at_line_end() || in_.peek() == '#') return;
    do {
      Output o;
      if (!in_.accept("_")) o.value = defined(in_.value());
      if (in_.accept_word("of")) {
        const bool of_input = in_.accept_word("input");
        if (!of_input && !in_.accept_word("output")) in_.fail("of input N or of output N");
        o.kind = of_input ? Output::Kind::kInputAlias : Output::Kind::kOutputAlias;
        o.base = static_cast<int32_t>(in_.integer());
      } else if (in_.accept_word("slice")) {
        o.kind = Output::Kind::kSlice;
        const Arg layout = in_.arg();
        if (!std::holds_alternative<Sizes>(layout)) in_.fail("a list of strides expected");
        o.layout = std::get<Sizes>(layout);
      } else if (in_.accept_word("in")) {
        o.memory = in_.expr(",:\n#");
      }
      if (in_.accept(":")) {
        in_.skip_spaces();
        o.type = in_.type();
      } else if (o.value != kNoValue) {
        o.type = g_.type(o.value);
      } else {
        in_.fail("an output without a value needs a type");
      }
      g_.outputs.push_back(std::move(o));
    } while (in_.accept(","));
  }

  int32_t location(std::string_view text) {
    while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
    Location location = parse_location(text);
    for (size_t i = 0; i < g_.facts.locations.size(); ++i)
      if (g_.facts.locations[i] == location) return static_cast<int32_t>(i);
    g_.facts.locations.push_back(std::move(location));
    return static_cast<int32_t>(g_.facts.locations.size() - 1);
  }

  Cursor in_;
  Graph g_{kNewProgram};
  std::vector<bool> defined_;
};

}  // namespace

std::string print(const Node& n, const Graph& g) {
  std::string out = n.frozen ? "frozen " : "";
  for (size_t i = 0; i < n.outs.size(); ++i) out += (i ? ", " : "") + result(g, n.outs[i]);
  if (!n.outs.empty()) out += " = ";
  out += (n.op ? n.op->name : "?") + "(";
  for (size_t i = 0; i < n.args.size(); ++i) out += (i ? ", " : "") + str(n.args[i]);
  out += ')';
  if (n.location >= 0 && static_cast<size_t>(n.location) < g.facts.locations.size()) {
    out += "  # ";
    for (char c : str(g.facts.locations[n.location])) out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string print(const Graph& g) {
  std::string out = g.facts.exact ? "graph exact {\n" : "graph {\n";
  for (const sym::SizeGuard& s : g.facts.sizes) out += "  where " + sym::str(s) + '\n';
  for (const Input& i : g.inputs) {
    out += "  " + result(g, i.value) + " = input " + kInputKinds[static_cast<size_t>(i.kind)];
    if (i.requires_grad) out += " grad";
    if (!i.name.empty()) out += ' ' + quoted(i.name);
    out += '\n';
  }
  for (const Node& n : g.nodes) out += "  " + print(n, g) + '\n';
  for (const Mutation& m : g.mutations)
    out += "  mutate " + std::to_string(m.input) + " = %" + std::to_string(m.value) + '\n';
  out += "  return";
  for (size_t i = 0; i < g.outputs.size(); ++i) out += (i ? ", " : " ") + result(g, g.outputs[i]);
  return out + "\n}\n";
}

Graph parse(std::string_view text) { return Parser(text).run(); }

}  // namespace flashover::graph

// Hands a graph and its inputs to Python, which writes the program.
#include "entry/dump_repro.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/check.h"
#include "entry/log.h"
#include "entry/python_graph.h"
#include "frame/fetched_error.h"
#include "graph/analysis/symbolic.h"
#include "torch/convert.h"

namespace flashover::entry {
namespace {

void append(PyObject* list, PyObject* steal) {
  const Reference item(steal);
  if (PyList_Append(list, item.p) != 0) throw python_error();
}

// Sizes that are symbols as the numbers that they are in this call. Those that follow from data stay.
graph::Graph with_numbers(graph::Graph g, const std::vector<at::Tensor>& examples) {
  std::map<std::string, int64_t> sizes_of_call;
  size_t next = 0;
  for (const graph::Input& in : g.inputs) {
    if (in.kind == graph::InputKind::kTangent) continue;
    const at::Tensor& example = examples.at(next++);
    const Sizes sizes = g.type(in.value).sizes;
    for (size_t d = 0; d < sizes.size(); ++d)
      if (sizes[d].kind() == sym::Kind::kVar)
        sizes_of_call.emplace(sizes[d].name(), example.size(static_cast<int64_t>(d)));
  }
  const sym::Bindings numbers = [&](sym::Expr variable) -> std::optional<sym::Expr> {
    const auto at = sizes_of_call.find(std::string(variable.name()));
    return at == sizes_of_call.end() ? std::nullopt : std::optional(sym::Expr(at->second));
  };
  const auto number = [&](sym::Expr& e) { e = sym::substitute(e, numbers); };
  const auto all = [&](Sizes& list) { std::ranges::for_each(list, number); };
  for (auto& v : g.values) {
    all(v.type.sizes);
    all(v.type.strides);
    number(v.type.offset);
  }
  for (graph::Node& n : g.nodes)
    for (Arg& a : n.args) {
      if (auto* e = std::get_if<sym::Expr>(&a)) number(*e);
      if (auto* list = std::get_if<Sizes>(&a)) all(*list);
    }
  return g;
}

PyObject* repro_inputs(const graph::Graph& g, const std::vector<at::Tensor>& examples) {
  Reference list(PyList_New(0));
  size_t next = 0;
  for (const graph::Input& in : g.inputs) {
    const TensorType& t = g.type(in.value);
    const bool tangent = in.kind == graph::InputKind::kTangent;
    const auto options = at::TensorOptions().dtype(aten::to_aten(t.dtype)).device(aten::to_aten(t.device));
    append(list.p, THPVariable_Wrap(tangent ? at::ones(aten::to_ints(t.sizes), options) : examples.at(next++)));
  }
  return list.release();
}

PyObject* options_as_dict(const OptionValues& options) {
  Reference dict(PyDict_New());
  for (const auto& [name, value] : options) {
    const Reference text(PyUnicode_FromString(value.c_str()));
    if (PyDict_SetItemString(dict.p, name.c_str(), text.p) != 0) throw python_error();
  }
  return dict.release();
}

}  // namespace

void dump_repro(int number, const std::string& name, const graph::Graph& g, const std::vector<at::Tensor>& examples,
                const OptionValues& options) {
  frame::FetchedError pending;
  try {
    const bool symbols =
        std::ranges::any_of(g.inputs, [&](const graph::Input& in) { return graph::is_symbolic(g.type(in.value)); });
    const graph::Graph shown = symbols ? with_numbers(g, examples) : g;
    const Reference description(to_python(shown)), tensors(repro_inputs(shown, examples)),
        given(options_as_dict(options));
    const Reference module(PyImport_ImportModule("flashover._dump"));
    const Reference done(PyObject_CallMethod(module.p, "write_repro", "isOOOO", number, name.c_str(), description.p,
                                             tensors.p, given.p, symbols ? Py_True : Py_False));
  } catch (python_error&) {
    PyErr_Clear();
    log_line("FLASHOVER_DUMP: no program for graph " + std::to_string(number) + " of " + name);
  } catch (const Declined&) {  // its sizes follow from data
  } catch (const std::exception& e) {
    log_line("FLASHOVER_DUMP: no program for graph " + std::to_string(number) + " of " + name + ": " + e.what());
  }
  pending.restore();
}

}  // namespace flashover::entry

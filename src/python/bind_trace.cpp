// Traces a callable without the frame interpreter: for tests and experiments. Inputs are named tensors; everything the
// callable touches beyond them is lifted as it is met.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include "base/check.h"
#include "eager/eval.h"
#include "graph/analysis/devices.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "python/bind.h"
#include "run/probe.h"
#include "trace/recorder.h"
#include "trace/tensor.h"
#include "trace/trace.h"

namespace py = pybind11;

namespace flashover {
namespace {

const target::Providers& this_machine() {
  static const target::Providers known = run::probe();
  return known;
}

struct Traced {
  graph::Graph graph{graph::kNewProgram};
  std::vector<py::object> inputs;  // the tensors, in order of the graph's inputs without the constants
  std::vector<py::object> constants;
  trace::Stats stats;
  std::vector<std::string> size_guards;

  std::vector<std::string> mismatches;  // of the last run

  py::list run(const std::vector<py::object>& given) {
    std::vector<at::Tensor> all;
    size_t next = 0, next_constant = 0;
    for (const graph::Input& in : graph.inputs) {
      const bool constant = in.kind == graph::InputKind::kConstant;
      if (!constant && next >= given.size()) throw UserError("too few inputs");
      all.push_back(THPVariable_Unpack((constant ? constants[next_constant++] : given[next++]).ptr()));
    }
    std::vector<at::Tensor> outputs;
    mismatches.clear();
    {
      py::gil_scoped_release nogil;
      outputs = aten::eval_graph(graph, all, &mismatches);
    }
    py::list out;
    for (const at::Tensor& t : outputs) out.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(t)));
    return out;
  }
};

graph::InputKind kind_of(const std::string& name) {
  if (name == "user") return graph::InputKind::kUser;
  if (name == "param") return graph::InputKind::kParameter;
  if (name == "buffer") return graph::InputKind::kBuffer;
  throw UserError("input kind must be user, param or buffer, not " + name);
}

using NamedInput = std::tuple<std::string, std::string, py::object>;  // name, kind, tensor

// fn() returns a list of tensors. symbolic: by input name, the dimensions whose sizes are symbols.
Traced trace_function(const py::function& fn, const std::vector<NamedInput>& inputs, bool lift_unknown,
                      const std::map<std::string, std::vector<size_t>>& symbolic) {
  Traced traced;
  auto session = trace::begin();
  const auto add = [&](PyObject* tensor, graph::InputKind kind, const std::string& name) {
    if (session->is_input(tensor)) return;
    const auto dims = symbolic.find(name);
    std::vector<trace::SymbolicSize> sizes;
    if (dims != symbolic.end())
      for (size_t d : dims->second) sizes.push_back({d, {}});
    session->add_input(tensor, kind, name, sizes);
    traced.inputs.push_back(py::reinterpret_borrow<py::object>(tensor));
  };
  if (lift_unknown)
    session->unknown_tensor = [&](PyObject* tensor) {
      add(tensor, graph::InputKind::kUser, "unknown" + std::to_string(traced.inputs.size()));
      return true;
    };
  for (const auto& [name, kind, tensor] : inputs) add(tensor.ptr(), kind_of(kind), name);
  py::list results;
  try {
    results = fn().cast<py::list>();
  } catch (py::error_already_set& e) {
    if (!session->declined()) throw;
    throw Declined(session->decline_reason());
  }
  if (session->declined()) throw Declined(session->decline_reason());
  std::vector<PyObject*> outputs, constants;
  for (const py::handle& h : results) outputs.push_back(h.ptr());
  traced.stats = session->stats();
  traced.graph = session->end(outputs, constants);
  for (const sym::SizeGuard& g : session->sizes().guards()) traced.size_guards.push_back(str(g));
  for (PyObject* c : constants) traced.constants.push_back(py::reinterpret_steal<py::object>(c));
  return traced;
}

}  // namespace

void bind_trace(py::module_& m) {
  m.attr("Decline") = py::reinterpret_borrow<py::object>(trace::decline_class());
  py::class_<Traced>(m, "Traced")
      .def_property_readonly("text", [](const Traced& t) { return graph::print(t.graph); })
      .def_readonly("inputs", &Traced::inputs)
      .def_readonly("constants", &Traced::constants)
      .def_readonly("mismatches", &Traced::mismatches)
      .def_readonly("size_guards", &Traced::size_guards)
      .def_property_readonly("ops", [](const Traced& t) { return t.stats.ops; })
      .def_property_readonly("own_rules", [](const Traced& t) { return t.stats.own_rules; })
      .def_property_readonly("cpp_meta", [](const Traced& t) { return t.stats.cpp_meta; })
      .def_property_readonly("python_meta_ops", [](const Traced& t) { return t.stats.python_meta_ops; })
      .def_property_readonly("output_types",
                             [](const Traced& t) {
                               std::vector<std::string> out;
                               for (const graph::Output& o : t.graph.outputs) out.push_back(str(o.type));
                               return out;
                             })
      .def("verify", [](const Traced& t) { graph::verify(t.graph, graph::Form::kTraced); })
      .def(
          "apply",
          [](const Traced& t, const std::vector<std::string>& names) {
            Traced out = t;
            for (const std::string& name : names) {
              const Device device = graph::device_of(out.graph);
              out.graph = graph::run_pass(name, std::move(out.graph), {this_machine(), device});
            }
            return out;
          },
          "The same with passes applied to its graph, verified after each; with the libraries of this machine")
      .def("run", &Traced::run, "Replays the graph on tensors for Traced.inputs");
  m.def("cuda_stand_in", [](const py::object& like) {
    torch::utils::set_requires_device_init(at::kCUDA, false);  // factories of the traced program must not look for one
    return py::reinterpret_steal<py::object>(
        THPVariable_Wrap(trace::cuda_stand_in(*THPVariable_Unpack(like.ptr()).unsafeGetTensorImpl())));
  });
  m.def("stand_ins_train", &trace::stand_ins_train);
  m.def("new_data_size", [](int64_t least, std::optional<int64_t> most) {
    auto* recorder = static_cast<trace::Recorder*>(trace::current());
    if (recorder == nullptr) throw Declined("a size from data outside of a trace");
    return py::cast(recorder->new_data_size(least, most));
  });
  m.def("is_trace_tensor", [](const py::object& o) {
    return THPVariable_Check(o.ptr()) && THPVariable_Unpack(o.ptr()).key_set().has(c10::DispatchKey::Fake);
  });
  m.def("trace_function", &trace_function, py::arg("fn"), py::arg("inputs"), py::arg("lift_unknown") = true,
        py::arg("symbolic") = std::map<std::string, std::vector<size_t>>());
}

}  // namespace flashover

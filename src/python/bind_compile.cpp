// The pipeline behind the frame stage, from a graph's text: for tests, tools and the curious.
#include <ATen/Parallel.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "compile/compile.h"
#include "graph/analysis/devices.h"
#include "graph/analysis/flops.h"
#include "graph/eager_memory.h"
#include "graph/passes.h"
#include "planner/stages.h"
#include "python/bind.h"
#include "run/run.h"
#include "target/machine.h"

namespace py = pybind11;

namespace flashover {
namespace {

struct CompiledText {
  std::shared_ptr<run::Executable> executable;
  compile::Report report;

  py::list run(const std::vector<py::object>& given) const {
    std::vector<at::Tensor> inputs, outputs;
    for (const py::object& t : given) inputs.push_back(THPVariable_Unpack(t.ptr()));
    {
      py::gil_scoped_release nogil;
      executable->run(inputs.data(), inputs.size(), outputs);
    }
    py::list out;
    for (const at::Tensor& t : outputs) out.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(t)));
    return out;
  }
};

CompiledText compile_text(const std::string& text, const std::map<std::string, std::string>& options, bool texts) {
  CompiledText out;
  out.report.want_texts = texts;
  compile::CompileTarget env;
  env.threads = at::get_num_threads();
  env.providers.onednn_bf16 = true;
  plan::Plan plan = compile::compile(graph::parse(text), {options}, env, out.report);
  out.executable = run::load(std::move(plan));
  compile::loaded(out.report, {options});
  return out;
}

// Everything but loading: a plan for a GPU that need not be there. Where something is to be measured, what comes last
// wins.
py::dict plan_text_for_gpu(const std::string& text, const std::map<std::string, std::string>& options, bool texts) {
  compile::Report report;
  report.want_texts = texts;
  compile::CompileTarget env;
  env.threads = at::get_num_threads();
  env.gpu = kernel::triton::Gpu{};
  if (compile::Options{options}.flag("max_autotune"))
    env.measure = [](std::span<const plan::Plan> plans) {
      std::vector<double> seconds;
      for (const plan::Plan& p : plans) {
        plan::verify(p);
        seconds.push_back(1.0 / static_cast<double>(1 + seconds.size()));
      }
      return seconds;
    };
  plan::Plan plan;
  {
    py::gil_scoped_release nogil;
    plan = compile::compile(graph::parse(text), {options}, env, report);
    compile::loaded(report, {options});  // by nobody: there need not be such a GPU
  }
  plan::verify(plan);
  py::dict out;
  out["plan"] = plan::print(plan);
  out["kernels"] = report.kernels;
  out["extern_calls"] = report.extern_calls;
  out["texts"] = report.texts;
  std::map<std::string, double> stages;
  for (const auto& s : report.stages) stages[s.name] += s.seconds;
  out["stages"] = stages;
  return out;
}

// One pass over graphs, as on the machine that the words say (target/machine.h), or one stage behind them
// (planner/stages.h).
std::string run_pass(const std::string& name, const std::string& text, const std::string& machine,
                     const std::string& options) {
  if (!graph::find_pass(name)) return planner::run_stage(name, text, planner::parse_options(options));
  graph::Graph g = graph::parse(text);
  const target::Providers providers = target::parse_machine(machine);
  const Device device = graph::device_of(g);
  return graph::print(graph::run_pass(name, std::move(g), {providers, device}));
}

}  // namespace

void bind_compile(py::module_& m) {
  py::class_<CompiledText>(m, "CompiledText")
      .def("run", &CompiledText::run)
      .def_property_readonly("kernels", [](const CompiledText& c) { return c.report.kernels; })
      .def_property_readonly("extern_calls", [](const CompiledText& c) { return c.report.extern_calls; })
      .def_property_readonly("texts", [](const CompiledText& c) { return c.report.texts; })
      .def_property_readonly("kernel_sources", [](const CompiledText& c) { return c.report.kernel_sources; })
      .def_property_readonly("stages", [](const CompiledText& c) {
        std::vector<std::pair<std::string, double>> out;
        for (const auto& s : c.report.stages) out.emplace_back(s.name, s.seconds);
        return out;
      });
  m.def("compile_text", &compile_text, py::arg("graph"), py::arg("options") = std::map<std::string, std::string>{},
        py::arg("texts") = false);
  m.def("plan_for_gpu", &plan_text_for_gpu, py::arg("graph"), py::arg("options") = std::map<std::string, std::string>{},
        py::arg("texts") = false);
  m.def("run_pass", &run_pass, py::arg("name"), py::arg("text"), py::arg("machine") = "", py::arg("options") = "",
        "One pass or stage alone, from text to text");
  m.def("stages", &planner::stage_names, "The stages behind the passes, in order (planner/stages.h)");
  m.def("_set_size_hint", &sym::set_size_hint_for_test, "What size symbols are taken for; before the first of them");
  m.def("flops", [](const std::string& text) { return graph::flops(graph::parse(text)); });
  m.def("eager_bytes", [](const std::string& text) { return graph::eager_memory(graph::parse(text)).bytes; });
  m.def(
      "passes",
      [] {
        static constexpr const char* kForms[] = {"traced", "functional", "core"};
        py::list out;
        for (const graph::Pass& p : graph::passes()) {
          std::vector<std::string> pipelines;
          for (graph::Pipeline way : graph::kPipelines)
            if (p.pipelines.contains(way)) pipelines.emplace_back(str(way));
          py::dict row;
          row["name"] = p.name;
          row["input"] = kForms[static_cast<size_t>(p.input)];
          row["output"] = kForms[static_cast<size_t>(p.output)];
          row["pipelines"] = pipelines;
          row["after"] = py::str(p.after).attr("split")();
          row["why"] = p.why;
          out.append(row);
        }
        return out;
      },
      "The rows of graph/passes.h, in order");
}

}  // namespace flashover

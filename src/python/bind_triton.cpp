// Triton kernels without a GPU: for tests and tools. A graph's text becomes a plan, its kernels' sources and cubins.
#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include "base/check.h"
#include "compile/compile.h"
#include "compile/products.h"
#include "kernel/triton/toolchain.h"
#include "planner/find_products.h"
#include "python/bind.h"
#include "sym/environment.h"

namespace py = pybind11;

namespace flashover {
namespace {

using kernel::triton::Gpu;
using kernel::triton::TritonSource;

// The same program with every tensor on the device.
void move(graph::Graph& g, Device device) {
  for (graph::Value& v : g.values) v.type.device = device;
  for (graph::Output& o : g.outputs) o.type.device = device;
  for (graph::Node& n : g.nodes)
    for (Arg& a : n.args)
      if (auto* d = std::get_if<Device>(&a)) *d = device;
}

// A number, or the text of an expression.
py::object describe(sym::Expr e) {
  return e.is_const() ? py::object(py::int_(e.value())) : py::object(py::str(e.str()));
}
py::list describe(std::span<const sym::Expr> sizes) {
  py::list out;
  for (sym::Expr e : sizes) out.append(describe(e));
  return out;
}
py::dict describe(const TensorType& t) {
  py::dict d;
  d["dtype"] = info(t.dtype).name;
  d["sizes"] = describe(t.sizes);
  d["strides"] = describe(t.strides);
  d["offset"] = describe(t.offset);
  return d;
}
py::dict describe(const plan::Step& s) {
  static constexpr const char* kKinds[] = {"launch", "call", "copy", "release"};
  py::dict d;
  d["kind"] = kKinds[static_cast<int>(s.kind)];
  d["kernel"] = s.kernel;
  d["op"] = s.op;
  d["out"] = s.out_variant;
  d["reads"] = s.reads;
  d["writes"] = s.writes;
  py::list args;
  for (const Arg& a : s.args) args.append(to_python(a));
  d["args"] = args;
  d["sizes"] = describe(s.sizes);
  return d;
}
py::dict describe(const TritonSource& s) {
  py::dict d;
  d["name"] = s.name;
  d["text"] = s.text;
  d["signature"] = s.signature;
  d["warps"] = s.warps;
  d["stages"] = s.stages;
  d["asserts"] = s.asserts;
  d["contracts"] = s.contracts;
  d["grid"] = describe(s.launch.grid);
  return d;
}

// tile: m, n, k of every product that can take along the kernel behind it; empty: none does.
// way: which of several ways to do so, -1: the last.
py::dict program(const std::string& text, bool to_device, int processors, const std::vector<int>& tile,
                 bool deterministic, int way, int64_t random_threads) {
  graph::Graph g = graph::parse(text);
  if (to_device) move(g, {DeviceType::kCUDA, 0});
  const sym::AssumeScope assume(g.facts.sizes);  // as in the pipeline
  compile::CompileTarget env;
  env.gpu = Gpu{90, processors};
  env.providers.deterministic = deterministic;
  env.providers.random_threads = random_threads;
  compile::Report report;
  std::vector<loops::Product> products;
  const auto fuse = [&](plan::Plan& p, const std::vector<loops::Kernel>& kernels) {
    // What would be measured must be whole plans.
    for (const std::vector<planner::Candidate>& ways : planner::find_products(p, kernels))
      for (const planner::Candidate& c : ways) {
        const auto check = [&](std::vector<plan::Step> steps) {
          std::vector<plan::Kernel> made;
          for (plan::Step& step : steps) {
            if (step.kind != plan::StepKind::kLaunch) continue;
            const size_t number = static_cast<size_t>(step.kernel);
            const TritonSource source = number < kernels.size() ? kernel::triton::emit(kernels[number], *env.gpu)
                                                                : kernel::triton::emit(c.product, *env.gpu);
            step.kernel = static_cast<int32_t>(made.size());
            made.push_back({.symbol = source.name, .binary = 0, .cuda = source.launch});
          }
          p.target = kernel::triton::str(*env.gpu);
          plan::verify(compile::sub_plan_of(p, std::move(steps), std::move(made), {{{}, "cubin"}}));
        };
        std::vector<plan::Step> apart;
        for (size_t s = 0; s < p.steps.size(); ++s)
          if (s == c.call || s == c.launch || s == c.before[0] || s == c.before[1]) apart.push_back(p.steps[s]);
        check(std::move(apart));
        check({planner::fused_step(p, c, static_cast<int32_t>(kernels.size()))});
      }
    products = compile::fuse_all_products(p, kernels, {tile[0], tile[1], tile[2]}, way);
  };
  planner::Schedule s = tile.empty() ? compile::lower(std::move(g), {}, env, report)
                                     : compile::lower(std::move(g), {}, env, report, fuse);
  py::dict out;
  py::list tensors, frozen, steps, outputs, kernels, loops;
  static constexpr const char* kStorageKinds[] = {"input", "arena", "output", "frozen", "extern", "view"};
  for (const plan::Tensor& t : s.plan.tensors) {
    py::dict d = describe(t.type);
    d["storage"] = kStorageKinds[static_cast<int>(t.storage)];
    d["index"] = t.index;
    d["arena"] = describe(t.storage == plan::StorageKind::kArena ? t.arena_offset : sym::Expr(0));
    tensors.append(d);
  }
  for (const plan::Step& step : s.plan.frozen_steps) frozen.append(describe(step));
  for (const plan::Step& step : s.plan.steps) steps.append(describe(step));
  for (const plan::OutputRef& o : s.plan.outputs) {
    py::dict d = describe(o.type);
    d["tensor"] = o.tensor;
    d["alias_input"] = o.alias_input;
    d["alias_output"] = o.alias_output;
    outputs.append(d);
  }
  for (const loops::Kernel& k : s.kernels) {
    kernels.append(describe(kernel::triton::emit(k, *env.gpu)));
    loops.append(loops::print(k));
  }
  for (const loops::Product& p : products) kernels.append(describe(kernel::triton::emit(p, *env.gpu)));
  out["arena_bytes"] = describe(s.plan.arena_bytes);
  out["tensors"] = tensors;
  out["frozen_steps"] = frozen;
  out["steps"] = steps;
  out["outputs"] = outputs;
  out["kernels"] = kernels;
  out["loops"] = loops;
  return out;
}

py::list build_cubins(const std::vector<py::dict>& given) {
  std::vector<TritonSource> sources;
  for (const py::dict& d : given) {
    TritonSource s;
    s.name = d["name"].cast<std::string>();
    s.text = d["text"].cast<std::string>();
    s.signature = d["signature"].cast<std::vector<std::string>>();
    s.warps = d["warps"].cast<int>();
    if (d.contains("stages")) s.stages = d["stages"].cast<int>();
    s.asserts = d["asserts"].cast<bool>();
    if (d.contains("contracts")) s.contracts = d["contracts"].cast<bool>();
    sources.push_back(std::move(s));
  }
  std::vector<kernel::triton::Cubin> cubins;
  {
    py::gil_scoped_release nogil;
    cubins = kernel::triton::build(sources, Gpu{});
  }
  py::list out;
  for (const kernel::triton::Cubin& c : cubins) {
    py::dict d;
    d["bytes"] = py::bytes(c.bytes);
    d["shared"] = c.shared;
    d["scratch"] = c.scratch;
    d["warps"] = c.warps;
    d["error"] = c.error;
    out.append(d);
  }
  return out;
}

}  // namespace

void bind_triton(py::module_& m) {
  m.def("set_triton_command", [](const std::string& python, const std::string& script, const std::string& version) {
    kernel::triton::set_command({python, script, version});
  });
  m.def("triton_program", &program, py::arg("graph"), py::arg("to_device") = true, py::arg("processors") = 132,
        py::arg("tile") = std::vector<int>{}, py::arg("deterministic") = false, py::arg("way") = -1,
        py::arg("random_threads") = 0);
  m.def("triton_emit",
        [](const std::string& kernel) { return describe(kernel::triton::emit(loops::parse(kernel), Gpu{})); });
  m.def("triton_build", &build_cubins);
  m.def("triton_server_pid", &kernel::triton::server_pid);
}

}  // namespace flashover

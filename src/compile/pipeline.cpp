// From a traced graph to a plan: every stage and pass, in order, with the reason for its place.
#include "base/check.h"
#include "base/options.h"
#include "compile/compile.h"
#include "compile/pass_runner.h"
#include "compile/reuse.h"
#include "graph/passes/complex.h"
#include "graph/passes/convolution.h"
#include "graph/passes/cse.h"
#include "graph/passes/dce.h"
#include "graph/passes/cuda_library.h"
#include "graph/passes/decompose.h"
#include "graph/passes/devices.h"
#include "graph/passes/fold.h"
#include "graph/passes/functionalize.h"
#include "graph/passes/layout.h"
#include "graph/passes/linear.h"
#include "graph/passes/split_frozen.h"
#include "kernel/kernel.h"
#include "loops/schedule/schedule.h"

namespace flashover::compile {
namespace {

using graph::Form;
using graph::Graph;

// Graph passes: what eager recorded becomes a pure program of prims and extern calls.
Graph run_graph_passes(Graph g, const Environment& env, PassRunner& passes) {
  // First of all: everything after relies on values that never change.
  passes.run("functionalize", Form::kFunctional, g, [](const Graph& t) { return graph::functionalize(t); });
  passes.run("dce", Form::kFunctional, g, graph::dce);
  // Python re-makes masks, positions and casts layer by layer: merge them before patterns count uses.
  passes.run("cse", Form::kFunctional, g, graph::cse);
  passes.run("bring_operands", Form::kFunctional, g, graph::bring_operands);
  // Patterns look at whole operators (batch_norm, gelu), so they stand before decompose.
  passes.run("fold_batch_norm", Form::kFunctional, g, graph::fold_batch_norm);
  passes.run("convolution", Form::kFunctional, g, graph::convolution, env.providers);
  passes.run("linear", Form::kFunctional, g, graph::linear, env.providers);
  passes.run("cuda_library", Form::kFunctional, g, graph::cuda_library, env.providers);
  passes.run("decompose", Form::kCore, g, graph::decompose);
  // What remains of complex numbers is ATen's.
  passes.run("complex", Form::kCore, g, graph::complex_externs);
  // Masks, scalars and view chains are prims now: what follows from the program alone is computed, what changes nothing goes.
  passes.run("fold", Form::kCore, g, graph::fold, graph::FoldOptions{env.providers.strict_numerics});
  // Decompositions of neighbours share work (casts, reciprocal counts).
  passes.run("cse_core", Form::kCore, g, graph::cse);
  passes.run("pass_numbers", Form::kCore, g, graph::pass_numbers);
  passes.run("relax_layout", Form::kCore, g, graph::relax_layout);
  passes.run("dce_core", Form::kCore, g, graph::dce);
  // Last: what is frozen depends on what the other passes left.
  passes.run("split_frozen", Form::kCore, g, graph::split_frozen);
  return g;
}

// Prims between a number on the CPU and tensors on the device run on the device; the rules of single prims do not say so.
void place(Graph& g, Device device) {
  if (device.type == DeviceType::kCPU) return;
  std::vector<bool> there(g.values.size());
  for (size_t v = 0; v < g.values.size(); ++v) there[v] = g.values[v].type.device == device;
  for (const graph::Node& n : g.nodes) {
    if (!n.op->is_prim) continue;
    bool any = false;
    for (const Arg& a : n.args) graph::for_each_ref(a, [&](ValueId v) { any |= there[static_cast<size_t>(v)]; });
    if (!any) continue;
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      there[static_cast<size_t>(v)] = true;
      g.values[static_cast<size_t>(v)].type.device = device;
    }
  }
}

loops::Schedule lower(Graph traced, const Environment& env, PassRunner& passes) {
  const Device device = device_of(traced);
  if (device.type != DeviceType::kCPU && !env.gpu) throw Declined("no kernels for CUDA devices on this machine");
  Graph core = run_graph_passes(std::move(traced), env, passes);
  place(core, device);
  loops::ScheduleOptions options{.threads = env.threads, .want_text = passes.wants_text()};
  if (device.type != DeviceType::kCPU) {
    options.processors = env.gpu->processors;
    options.device = device;
  }
  return passes.stage("schedule", [&] { return loops::schedule(core, options); });
}

int64_t count_calls(const plan::Plan& p) {
  int64_t calls = 0;
  for (const plan::Step& s : p.steps) calls += s.kind == plan::StepKind::kCall;
  return calls;
}

void fill(Report& report, const plan::Plan& plan) {
  report.kernels = static_cast<int64_t>(plan.kernels.size());
  report.extern_calls = count_calls(plan);
  report.slab_bytes = plan.slab_bytes.as_const().value_or(0);
}

}  // namespace

Device device_of(const Graph& traced) {
  Device device;
  for (const graph::Value& v : traced.values) {
    if (v.type.device.type != DeviceType::kCUDA || v.type.device == device) continue;
    if (device.type == DeviceType::kCUDA) throw Declined("a graph on two CUDA devices");
    device = v.type.device;
  }
  return device;
}

loops::Schedule lower(Graph traced, const Options& options, const Environment& env, Report& report) {
  PassRunner passes(options, report);
  return lower(std::move(traced), env, passes);
}

plan::Plan compile(Graph traced, const Options& options, const Environment& env, Report& report) {
  PassRunner passes(options, report);
  if (passes.wants_text()) passes.text("traced", graph::print(traced));

  // Whoever wants to see the stages gets them run. (The kernels may still come from the cache.)
  const auto directory = options.values.find("cache_dir");
  Cache& cache = Cache::at(directory == options.values.end() ? "" : directory->second);
  const bool use_plans = options.flag("cache", true) && !passes.wants_text();
  const Hash128 key = passes.stage("key", [&] { return plan_key(traced, options, env); });
  if (use_plans) {
    if (auto plan = passes.stage("cache", [&] { return find_plan(cache, key); })) {
      report.cache_hit = true;
      fill(report, *plan);
      return std::move(*plan);
    }
  }

  loops::Schedule schedule = lower(std::move(traced), env, passes);
  const bool gpu = schedule.plan.device.type == DeviceType::kCUDA, cached = options.flag("cache", true);
  if (passes.wants_text()) {
    std::string text = schedule.text;
    for (const loops::Kernel& k : schedule.kernels) text += "\n" + loops::print(k);
    passes.text("loops", std::move(text));
  }

  kernel::Compiled built = passes.stage("kernels", [&] {
    if (gpu)
      return compile_kernels(schedule.kernels, *env.gpu, cached ? &cache : nullptr, report.kernels_reused,
                             passes.wants_text() ? &report.kernel_sources : nullptr);
    const kernel::CompileOptions how{.compiler = option(options.values, "compiler")};
    return cached ? compile_kernels(schedule.kernels, cache, how, report.kernels_reused)
                  : kernel::compile(schedule.kernels, {.compile = how});
  });
  plan::Plan plan = std::move(schedule.plan);
  plan.kernels = std::move(built.kernels);
  plan.binaries = std::move(built.binaries);
  plan.target = gpu ? kernel::triton::str(*env.gpu) : kernel::str(kernel::host_target());
  if (options.flag("verify", false)) plan::verify(plan);
  if (passes.wants_text()) passes.text("plan", plan::print(plan));

  if (cached) keep_plan(cache, key, plan);
  report.cache_note = cache.take_warning();
  fill(report, plan);
  return plan;
}

}  // namespace flashover::compile

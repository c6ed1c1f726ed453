// From a traced graph to a plan: every stage and pass, in order, with the reason for its place.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/options.h"
#include "compile/autotune.h"
#include "compile/choices.h"
#include "compile/compile.h"
#include "compile/edit_plan.h"
#include "compile/pass_runner.h"
#include "compile/products.h"
#include "compile/reuse.h"
#include "graph/analysis/devices.h"
#include "graph/analysis/numerics.h"
#include "graph/analysis/symbolic.h"
#include "graph/eager_memory.h"
#include "graph/origin.h"
#include "graph/passes.h"
#include "kernel/kernel.h"
#include "planner/planner.h"

namespace flashover::compile {
namespace {

using graph::Form;
using graph::Graph;
using graph::Pipeline;

// The rows of that pipeline, in order (graph/passes.h says why each stands where it stands).
void run(Pipeline pipeline, Graph& g, Device device, const CompileTarget& env, PassRunner& passes) {
  for (const graph::Pass& pass : graph::passes())
    if (pass.pipelines.contains(pipeline)) passes.run(pass, g, {env.providers, device, nullptr});
}

// What eager recorded becomes a pure program of prims and extern calls.
Graph to_core(Graph g, Device device, const CompileTarget& env, PassRunner& passes, graph::Joint* joint = nullptr) {
  g = graph::with_origins(std::move(g));
  std::optional<graph::OriginTable> origins;
  for (const graph::Pass& pass : graph::passes()) {
    if (!pass.pipelines.contains(Pipeline::kProgram)) continue;
    passes.run(pass, g, {env.providers, device, joint});
    if (passes.wants_text() && !origins && pass.output == Form::kFunctional) origins = graph::origin_numerics(g);
  }
  if (origins) passes.text("numerics", graph::print(graph::certify_numerics(g, *origins, env.providers)));
  return g;
}

// A core graph of one device.
using FuseProducts = decltype(planner::Options::fuse_products);
struct MemoryPlan {
  graph::EagerMemory limit;   // what eager takes, 0: unknown
  bool late_outputs = false;  // no CUDA graph is recorded
  bool training = false;
};
planner::Schedule to_loops(Graph core, Device device, const CompileTarget& env, PassRunner& passes, MemoryPlan memory,
                           FuseProducts fuse_products = {}) {
  run(Pipeline::kSchedule, core, device, env, passes);
  planner::Options options{.loops = {.threads = env.threads},
                           .exact = core.facts.exact || env.providers.batch_invariant,
                           .own_operators = env.providers.own_f32,
                           .device = device,
                           .want_text = passes.wants_text()};
  if (env.providers.batch_invariant) {
    options.loops.order_by_dims = true;
    options.loops.split_numel = INT64_MAX;  // few rows are cut as many are: not at all
  }
  if (device.type != DeviceType::kCPU) {
    options.loops.processors = env.gpu->processors;
    options.memory_limit = memory.limit.bytes;
    options.working_limit = memory.limit.working;
    options.late_outputs = memory.late_outputs;
    options.fuse_products = std::move(fuse_products);
  } else if (memory.training) {
    // The arena would lie in memory beside all that is kept for the backward and beside the gradients.
    options.apart = int64_t{128} << 10;
  }
  // Tests under AddressSanitizer: each temporary and result in a block of its own, whose ends are watched.
  if (device.type == DeviceType::kCPU && std::getenv("FLASHOVER_DEBUG_MEMORY")) options.apart = 1;
  return passes.stage("schedule", [&] { return planner::schedule(core, options); });
}

Device checked_device(const Graph& traced, const CompileTarget& env) {
  const Device device = graph::device_of(traced);
  if (device.type != DeviceType::kCPU && !env.gpu) throw Declined("no kernels for CUDA devices on this machine");
  return device;
}

int64_t count_calls(const plan::Plan& p) {
  int64_t calls = 0;
  for (const plan::Step& s : p.steps) calls += s.kind == plan::StepKind::kCall && !plan::takes_memory(s);
  return calls;
}

// A plan whose kernels are not built yet.
struct Draft {
  planner::Schedule schedule;
  std::vector<loops::Product> products;
  std::string suffix;  // of its texts
  bool on_gpu() const { return schedule.plan.device.type == DeviceType::kCUDA; }
};

// `side`: "", or "forward" and "backward" in texts.
Draft draft(Graph core, Device device, const Options& options, const CompileTarget& env, PassRunner& passes,
            Cache& cache, const std::string& side, graph::EagerMemory memory_limit = {}) {
  Draft d;
  d.suffix = side.empty() ? "" : "_" + side;
  std::string notes;
  FuseProducts fuse_products;
  if (env.measure && !env.providers.strict_numerics)
    fuse_products = [&](plan::Plan& p, const std::vector<loops::Kernel>& kernels) {
      p.target = kernel::triton::str(*env.gpu);
      d.products =
          choose_products(p, kernels, env, options.flag("cache") ? &cache : nullptr, choices_of(options, env), notes);
    };
  else if (device.type == DeviceType::kCUDA && !env.providers.strict_numerics)
    fuse_products = [&](plan::Plan& p, const std::vector<loops::Kernel>& kernels) {
      d.products = fuse_unpacked(p, kernels, env.gpu->processors);
    };
  d.schedule = to_loops(std::move(core), device, env, passes,
                        {memory_limit, !options.flag("cuda_graphs"), !side.empty()}, std::move(fuse_products));
  if (passes.wants_text()) {
    std::string text = d.schedule.text;
    for (const loops::Kernel& k : d.schedule.kernels) text += "\n" + loops::print(k);
    passes.text("loops" + d.suffix, std::move(text));
    if (!notes.empty()) passes.text("products" + d.suffix, notes);
  }
  return d;
}

kernel::Compiled build_for_cpu(std::span<const loops::Kernel> kernels, const Options& options, Cache& cache,
                               Report& report) {
  const auto seconds = static_cast<double>(std::max<int64_t>(1, int_option(options.values, "compile_timeout")));
  const kernel::CompileOptions how{.timeout_seconds = seconds, .compiler = option(options.values, "compiler")};
  if (!options.flag("cache")) return kernel::compile(kernels, {.compile = how});
  return compile_kernels(kernels, cache, how, report);
}

kernel::Compiled build(const Draft& d, const Options& options, const CompileTarget& env, Cache& cache, Report& report,
                       std::vector<std::pair<std::string, std::string>>* sources) {
  if (d.on_gpu())
    return compile_kernels(d.schedule.kernels, *env.gpu, options.flag("cache") ? &cache : nullptr,
                           report.kernels_reused, sources, d.products);
  if (sources) {
    const kernel::Target target = kernel::host_target();
    for (const loops::Kernel& k : d.schedule.kernels) {
      const kernel::Emitted e = kernel::emit(k, target);
      sources->emplace_back(e.symbol, "// " + k.label + "\n" + e.body + e.entry);
    }
  }
  return build_for_cpu(d.schedule.kernels, options, cache, report);
}

// `count` of the kernels, with the binaries that they are in.
kernel::Compiled slice_of_build(const kernel::Compiled& all, size_t first, size_t count) {
  kernel::Compiled out;
  std::vector<int32_t> number(all.binaries.size(), -1);
  for (size_t i = first; i < first + count; ++i) {
    out.kernels.push_back(all.kernels[i]);
    const auto binary = static_cast<size_t>(all.kernels[i].binary);
    if (number[binary] < 0) {
      number[binary] = static_cast<int32_t>(out.binaries.size());
      out.binaries.push_back(all.binaries[binary]);
    }
    out.kernels.back().binary = number[binary];
  }
  return out;
}

// The kernels of both drafts in one batch: what one leaves of the cores the other takes.
std::pair<kernel::Compiled, kernel::Compiled> build_together(const Draft& one, const Draft& two, const Options& options,
                                                             Cache& cache, Report& report) {
  std::vector<loops::Kernel> all = one.schedule.kernels;
  all.insert(all.end(), two.schedule.kernels.begin(), two.schedule.kernels.end());
  const kernel::Compiled built = build_for_cpu(all, options, cache, report);
  const size_t first = one.schedule.kernels.size();
  return {slice_of_build(built, 0, first), slice_of_build(built, first, all.size() - first)};
}

plan::Plan finish(Draft d, kernel::Compiled built, const Options& options, const CompileTarget& env, PassRunner& passes,
                  Report& report) {
  plan::Plan plan = std::move(d.schedule.plan);
  plan.kernels = std::move(built.kernels);
  plan.binaries = std::move(built.binaries);
  plan.target =
      plan.device.type == DeviceType::kCUDA ? kernel::triton::str(*env.gpu) : kernel::str(kernel::host_target());
  if (options.flag("verify")) plan::verify(plan);
  plan = edited(std::move(plan));  // tests only
  if (passes.wants_text()) passes.text("plan" + d.suffix, plan::print(plan));
  add_to_report(report, plan);
  return plan;
}

plan::Plan to_plan(Graph core, Device device, const Options& options, const CompileTarget& env, PassRunner& passes,
                   Cache& cache, Report& report, const std::string& side, graph::EagerMemory memory_limit = {}) {
  Draft d = draft(std::move(core), device, options, env, passes, cache, side, memory_limit);
  kernel::Compiled built = passes.stage("kernels", [&] {
    return build(d, options, env, cache, report, passes.wants_text() ? &report.kernel_sources : nullptr);
  });
  return finish(std::move(d), std::move(built), options, env, passes, report);
}

bool has_symbols(const Graph& traced) {
  return std::ranges::any_of(traced.inputs,
                             [&](const graph::Input& i) { return graph::is_symbolic(traced.type(i.value)); });
}

// Unknown where it depends on sizes that are symbols.
graph::EagerMemory eager_memory(const Graph& traced, Device device) {
  return device.type == DeviceType::kCPU || has_symbols(traced) ? graph::EagerMemory{} : graph::eager_memory(traced);
}

Cache& cache_of(const Options& options) {
  const auto directory = options.values.find("cache_dir");
  return Cache::at(directory == options.values.end() ? "" : directory->second);
}

// A plan's key knows nothing of what a file chooses.
bool may_keep_plans(const Options& options, const CompileTarget& env) {
  return options.flag("cache") && !(env.measure && choices_of(options, env)) && !edits_plans();
}

}  // namespace

ChoicesFile* choices_of(const Options& options, const CompileTarget& environment) {
  const std::string path = option(options.values, "choices_file");
  if (path.empty()) return nullptr;  // before the machine is asked: every compile comes by
  std::string by = environment.versions + " on " + machine_identity() +
                   (environment.gpu ? " " + kernel::triton::str(*environment.gpu) : "");
  std::ranges::replace(by, '\n', ' ');
  return ChoicesFile::at(path, by);
}

void add_to_report(Report& report, const plan::Plan& plan) {
  report.kernels += static_cast<int64_t>(plan.kernels.size());
  report.extern_calls += count_calls(plan);
  report.arena_bytes = std::max(report.arena_bytes, plan.arena_bytes.as_const().value_or(0));
}

planner::Schedule lower(Graph traced, const Options& options, const CompileTarget& env, Report& report,
                        FuseProducts fuse_products) {
  const sym::AssumeScope assume(traced.facts.sizes);
  PassRunner passes(options, report);
  const Device device = checked_device(traced, env);
  const MemoryPlan memory{eager_memory(traced, device), !options.flag("cuda_graphs")};
  return to_loops(to_core(std::move(traced), device, env, passes), device, env, passes, memory,
                  std::move(fuse_products));
}

plan::Plan compile(Graph traced, const Options& options, const CompileTarget& env, Report& report) {
  const sym::AssumeScope assume(traced.facts.sizes);
  PassRunner passes(options, report);
  if (passes.wants_text()) passes.text("traced", graph::print(traced));

  // A caller that asks for the texts of the stages gets the stages run. (The kernels may still come from the cache.)
  Cache& cache = cache_of(options);
  const bool use_plans = may_keep_plans(options, env) && !passes.wants_text() && !report.rebuild;
  const Hash128 key = passes.stage("key", [&] { return plan_key(traced, options, env, cache); });
  if (use_plans) {
    if (auto plan = passes.stage("cache", [&] { return find_plan(cache, key); })) {
      report.cache_hit = true;
      add_to_report(report, *plan);
      return std::move(*plan);
    }
  }
  const Device device = checked_device(traced, env);
  const bool choose =
      device.type == DeviceType::kCPU && env.measure && !has_symbols(traced);  // (those have no run to measure)
  const graph::EagerMemory eager = eager_memory(traced, device);
  plan::Plan plan = choose ? fastest_plan(
                                 [&](const CompileTarget& other, PassRunner& runner, Report& made) {
                                   return to_plan(to_core(traced, device, other, runner), device, options, other,
                                                  runner, cache, made, "");
                                 },
                                 graph::hash(traced), options, env, passes, report)
                           : to_plan(to_core(std::move(traced), device, env, passes), device, options, env, passes,
                                     cache, report, "", eager);
  if (may_keep_plans(options, env)) keep_plan(cache, key, plan, option(options.values, "compiler"), report);
  report.cache_note = cache.take_warning();
  return plan;
}

Training compile_training(Graph traced, const graph::Joint& facts, const Options& options, const CompileTarget& env,
                          Report& report) {
  const sym::AssumeScope assume(traced.facts.sizes);
  PassRunner passes(options, report);
  report.training = true;
  // Trained parameters change with every step: nothing is packed or kept for them.
  for (graph::Input& i : traced.inputs)
    if (i.requires_grad && i.kind != graph::InputKind::kConstant) i.kind = graph::InputKind::kUser;
  if (passes.wants_text()) passes.text("traced", graph::print(traced));

  Cache& cache = cache_of(options);
  const bool use_plans = may_keep_plans(options, env) && !passes.wants_text() && !report.rebuild;
  const Hash128 key = passes.stage("key", [&] { return training_key(plan_key(traced, options, env, cache), facts); });
  if (use_plans) {
    if (auto found = passes.stage("cache", [&] { return find_training(cache, key); })) {
      report.cache_hit = true;
      report.saved_bytes = found->signature.saved_bytes;
      add_to_report(report, found->backward);
      report.backward_kernels = report.kernels;
      add_to_report(report, found->forward);
      return std::move(*found);
    }
  }
  // Forward and backward are one program until here: what they share is computed once, and patterns see both.
  const Device device = checked_device(traced, env);
  graph::Joint joint = facts;
  const Graph core = to_core(std::move(traced), device, env, passes, &joint);
  Training out;
  graph::Partition halves = passes.stage("partition", [&] {
    const auto budget = static_cast<double>(int_option(options.values, "memory_budget"));
    return graph::partition(core, joint, {.memory_budget = budget / 100});
  });
  Graph forward = std::move(halves.forward), backward = std::move(halves.backward);
  out.signature = std::move(halves);
  passes.show("forward", Form::kCore, forward);
  passes.show("backward", Form::kCore, backward);
  report.saved_bytes = out.signature.saved_bytes;
  if (out.signature.tangents() > 1 && !facts.zeros) out.backward_graph = graph::print(backward);
  // Behind the text: what is left when tangents do not come is summed by itself.
  run(Pipeline::kBackward, backward, device, env, passes);
  Draft back = draft(std::move(backward), device, options, env, passes, cache, "backward");
  Draft front = draft(std::move(forward), device, options, env, passes, cache, "forward");
  // (The backward's could be built behind the first forward, which wants the same cores: nothing is gained before the
  // backward has run, and its failures would come too late to stay eager.)
  auto* sources = passes.wants_text() ? &report.kernel_sources : nullptr;
  kernel::Compiled built, built_back;
  if (back.on_gpu() || sources) {
    built_back = passes.stage("kernels", [&] { return build(back, options, env, cache, report, sources); });
    built = passes.stage("kernels", [&] { return build(front, options, env, cache, report, sources); });
  } else {
    std::tie(built, built_back) =
        passes.stage("kernels", [&] { return build_together(front, back, options, cache, report); });
  }
  out.backward = finish(std::move(back), std::move(built_back), options, env, passes, report);
  report.backward_kernels = report.kernels;
  out.forward = finish(std::move(front), std::move(built), options, env, passes, report);
  if (may_keep_plans(options, env)) keep_training(cache, key, out, option(options.values, "compiler"), report);
  report.cache_note = cache.take_warning();
  return out;
}

void loaded(Report& report, const Options& options) {
  for (const auto& keep : std::exchange(report.keep, {})) keep();
  if (std::string note = cache_of(options).take_warning(); !note.empty()) report.cache_note = std::move(note);
}

plan::Plan compile_backward(Graph core, const Options& options, const CompileTarget& env, Report& report) {
  const sym::AssumeScope assume(core.facts.sizes);
  PassRunner passes(options, report);
  const Device device = checked_device(core, env);
  run(Pipeline::kFewTangents, core, device, env, passes);
  run(Pipeline::kBackward, core, device, env, passes);
  return to_plan(std::move(core), device, options, env, passes, cache_of(options), report, "backward");
}

}  // namespace flashover::compile

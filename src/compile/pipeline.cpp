// From a traced graph to a plan: every stage and pass, in order, with the reason for its place.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"
#include "base/options.h"
#include "compile/compile.h"
#include "compile/pass_runner.h"
#include "compile/products.h"
#include "compile/reuse.h"
#include "graph/eager_memory.h"
#include "graph/origin.h"
#include "graph/partition/late_reads.h"
#include "graph/passes/add_rows.h"
#include "graph/passes/attention.h"
#include "graph/passes/complex.h"
#include "graph/passes/convolution.h"
#include "graph/passes/cse.h"
#include "graph/passes/cuda_library.h"
#include "graph/passes/dce.h"
#include "graph/passes/decompose.h"
#include "graph/passes/devices.h"
#include "graph/passes/exact.h"
#include "graph/passes/fold.h"
#include "graph/passes/functionalize.h"
#include "graph/passes/gelu.h"
#include "graph/passes/layout.h"
#include "graph/passes/linear.h"
#include "graph/passes/random.h"
#include "graph/passes/split_frozen.h"
#include "graph/passes/sum_products.h"
#include "kernel/kernel.h"
#include "loops/schedule/schedule.h"

namespace flashover::compile {
namespace {

using graph::Form;
using graph::Graph;

// What eager recorded becomes a pure program of prims and extern calls.
Graph to_core(Graph g, const Environment& env, PassRunner& passes, graph::Joint* joint = nullptr) {
  g = graph::with_origins(std::move(g));
  // First of all: everything after relies on values that never change.
  passes.run("functionalize", Form::kFunctional, g, [](const Graph& t) { return graph::functionalize(t); });
  passes.run("dce", Form::kFunctional, g, graph::dce);
  // Before the two are merged.
  if (joint)
    passes.run("late_reads", Form::kFunctional, g, [&](Graph t) { return graph::late_reads(std::move(t), *joint); });
  // Python re-makes masks, positions and casts layer by layer: merge them before patterns count uses.
  passes.run("cse", Form::kFunctional, g, graph::cse);
  passes.run("bring_operands", Form::kFunctional, g, graph::bring_operands);
  // Patterns look at whole operators (batch_norm, gelu), so they stand before decompose.
  passes.run("fold_batch_norm", Form::kFunctional, g, graph::fold_batch_norm);
  passes.run("fuse_attention", Form::kFunctional, g, graph::fuse_attention, env.providers);
  passes.run("written_gelu", Form::kFunctional, g, graph::written_gelu, env.providers);
  passes.run("convolution", Form::kFunctional, g, graph::convolution, env.providers);
  passes.run("linear", Form::kFunctional, g, graph::linear, env.providers);
  passes.run("cuda_library", Form::kFunctional, g, graph::cuda_library, env.providers);
  passes.run("decompose", Form::kCore, g, graph::decompose, env.providers);
  // What remains of complex numbers is ATen's.
  passes.run("complex", Form::kCore, g, graph::complex_externs);
  // Random operators that no pattern has taken.
  passes.run("own_random", Form::kCore, g, graph::own_random, env.providers);
  // Masks, scalars and view chains are prims now: what follows from the program alone is computed, what changes nothing
  // goes.
  passes.run("fold", Form::kCore, g, graph::fold, graph::FoldOptions{env.providers.strict_numerics});
  // Masks that say nothing are gone.
  passes.run("own_attention", Form::kCore, g, graph::own_attention, env.providers);
  // Decompositions of neighbours share work (casts, reciprocal counts).
  passes.run("cse_core", Form::kCore, g, graph::cse);
  passes.run("pass_numbers", Form::kCore, g, graph::pass_numbers);
  passes.run("relax_layout", Form::kCore, g, graph::relax_layout);
  passes.run("dce_core", Form::kCore, g, graph::dce);
  // Before the graph is cut: both halves have the same functions.
  passes.run("exact_functions", Form::kCore, g, graph::exact_functions);
  return g;
}

// Gradients of what is used again and again are sums.
void sum_up(Graph& backward, const Environment& env, PassRunner& passes) {
  if (env.providers.strict_numerics) return;
  passes.run("add_rows", Form::kCore, backward, graph::add_rows, env.providers);
  passes.run("sum_products", Form::kCore, backward, graph::sum_products, env.providers);
}

// Prims between a number on the CPU and tensors on the device run on the device, and so do those between numbers that
// only prims read; the rules of single prims do not say so.
void place(Graph& g, Device device) {
  if (device.type == DeviceType::kCPU) return;
  std::vector<bool> leaves(g.values.size());  // operators see it, or the caller
  for (const graph::Node& n : g.nodes)
    if (!n.op->is_prim)
      for (const Arg& a : n.args) graph::for_each_ref(a, [&](ValueId v) { leaves[static_cast<size_t>(v)] = true; });
  for (const graph::Output& o : g.outputs)
    if (o.value != kNoValue) leaves[static_cast<size_t>(o.value)] = true;
  for (const graph::Mutation& m : g.mutations) leaves[static_cast<size_t>(m.value)] = true;
  std::vector<bool> there(g.values.size());
  for (size_t v = 0; v < g.values.size(); ++v) there[v] = g.values[v].type.device == device;
  for (const graph::Node& n : g.nodes) {
    if (!n.op->is_prim) continue;
    bool any = std::none_of(n.outs.begin(), n.outs.end(), [&](ValueId v) {
      return v != kNoValue && (leaves[static_cast<size_t>(v)] || !g.type(v).sizes.empty());
    });
    for (const Arg& a : n.args) graph::for_each_ref(a, [&](ValueId v) { any |= there[static_cast<size_t>(v)]; });
    if (!any) continue;
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      there[static_cast<size_t>(v)] = true;
      g.values[static_cast<size_t>(v)].type.device = device;
    }
  }
}

// A core graph of one device.
using FuseProducts = decltype(loops::ScheduleOptions::fuse_products);
struct MemoryPlan {
  graph::EagerMemory limit;   // what eager takes, 0: unknown
  bool late_outputs = false;  // no CUDA graph is recorded
  bool training = false;
};
loops::Schedule to_loops(Graph core, Device device, const Environment& env, PassRunner& passes, MemoryPlan memory,
                         FuseProducts fuse_products = {}) {
  // Last of the graph passes: what is frozen depends on what the other passes left.
  passes.run("split_frozen", Form::kCore, core, graph::split_frozen);
  place(core, device);
  loops::ScheduleOptions options{.threads = env.threads, .exact = core.facts.exact, .want_text = passes.wants_text()};
  if (device.type != DeviceType::kCPU) {
    options.processors = env.gpu->processors;
    options.device = device;
    options.memory_limit = memory.limit.bytes;
    options.working_limit = memory.limit.working;
    options.late_outputs = memory.late_outputs;
    options.fuse_products = std::move(fuse_products);
  } else if (memory.training) {
    // The slab would lie in memory beside all that is kept for the backward and beside the gradients.
    options.apart = int64_t{128} << 10;
  }
  // Tests under AddressSanitizer: each temporary and result in a block of its own, whose ends are watched.
  if (device.type == DeviceType::kCPU && std::getenv("FLASHOVER_DEBUG_MEMORY")) options.apart = 1;
  return passes.stage("schedule", [&] { return loops::schedule(core, options); });
}

Device checked_device(const Graph& traced, const Environment& env) {
  const Device device = device_of(traced);
  if (device.type != DeviceType::kCPU && !env.gpu) throw Declined("no kernels for CUDA devices on this machine");
  return device;
}

int64_t count_calls(const plan::Plan& p) {
  int64_t calls = 0;
  for (const plan::Step& s : p.steps) calls += s.kind == plan::StepKind::kCall && !plan::takes_memory(s);
  return calls;
}

void fill(Report& report, const plan::Plan& plan) {
  report.kernels += static_cast<int64_t>(plan.kernels.size());
  report.extern_calls += count_calls(plan);
  report.slab_bytes = std::max(report.slab_bytes, plan.slab_bytes.as_const().value_or(0));
}

// Operators of our own that take ATen's arguments and fall back on it (run/cpu/operators.cpp). Exchanged in the plan:
// to all passes they are ATen's.
void exchange_operators(plan::Plan& p) {
  static constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
      {"aten.bernoulli.p", "flashover.bernoulli.default"},
      {"aten.embedding_dense_backward.default", "flashover.embedding_dense_backward.default"},
      {"aten._embedding_bag_backward.default", "flashover._embedding_bag_backward.default"},
  };
  for (plan::Step& s : p.steps)
    for (const auto& [aten, own] : kOwn)
      if (s.kind == plan::StepKind::kCall && s.op == aten && !s.out_variant) s.op = own;
}

// A plan whose kernels are not built yet.
struct Draft {
  loops::Schedule schedule;
  std::vector<loops::Product> products;
  std::string suffix;  // of its texts
  bool on_gpu() const { return schedule.plan.device.type == DeviceType::kCUDA; }
};

// `side`: "", or "forward" and "backward" in texts.
Draft draft(Graph core, Device device, const Options& options, const Environment& env, PassRunner& passes, Cache& cache,
            const std::string& side, graph::EagerMemory memory_limit = {}) {
  Draft d;
  d.suffix = side.empty() ? "" : "_" + side;
  std::string notes;
  FuseProducts fuse_products;
  if (env.measure && !env.providers.strict_numerics)
    fuse_products = [&](plan::Plan& p, const std::vector<loops::Kernel>& kernels) {
      p.target = kernel::triton::str(*env.gpu);
      d.products = choose_products(p, kernels, env, options.flag("cache", true) ? &cache : nullptr, notes);
    };
  d.schedule = to_loops(std::move(core), device, env, passes,
                        {memory_limit, !options.flag("cuda_graphs", false), !side.empty()}, std::move(fuse_products));
  if (device.type == DeviceType::kCPU && env.providers.own_f32) exchange_operators(d.schedule.plan);
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
  if (!options.flag("cache", true)) return kernel::compile(kernels, {.compile = how});
  return compile_kernels(kernels, cache, how, report);
}

kernel::Compiled build(const Draft& d, const Options& options, const Environment& env, Cache& cache, Report& report,
                       std::vector<std::pair<std::string, std::string>>* sources) {
  if (d.on_gpu())
    return compile_kernels(d.schedule.kernels, *env.gpu, options.flag("cache", true) ? &cache : nullptr,
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
kernel::Compiled part_of_build(const kernel::Compiled& all, size_t first, size_t count) {
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
  return {part_of_build(built, 0, first), part_of_build(built, first, all.size() - first)};
}

plan::Plan finish(Draft d, kernel::Compiled built, const Options& options, const Environment& env, PassRunner& passes,
                  Report& report) {
  plan::Plan plan = std::move(d.schedule.plan);
  plan.kernels = std::move(built.kernels);
  plan.binaries = std::move(built.binaries);
  plan.target =
      plan.device.type == DeviceType::kCUDA ? kernel::triton::str(*env.gpu) : kernel::str(kernel::host_target());
  if (options.flag("verify", false)) plan::verify(plan);
  if (passes.wants_text()) passes.text("plan" + d.suffix, plan::print(plan));
  fill(report, plan);
  return plan;
}

plan::Plan to_plan(Graph core, Device device, const Options& options, const Environment& env, PassRunner& passes,
                   Cache& cache, Report& report, const std::string& side, graph::EagerMemory memory_limit = {}) {
  Draft d = draft(std::move(core), device, options, env, passes, cache, side, memory_limit);
  kernel::Compiled built = passes.stage("kernels", [&] {
    return build(d, options, env, cache, report, passes.wants_text() ? &report.kernel_sources : nullptr);
  });
  return finish(std::move(d), std::move(built), options, env, passes, report);
}

// mode="max-autotune" on a CPU: the same program by each way of choosing libraries that makes another plan; the
// fastest.
plan::Plan fastest_plan(const Graph& traced, Device device, const Options& options, const Environment& env,
                        PassRunner& passes, Cache& cache, Report& report) {
  const graph::Providers& base = env.providers;
  std::vector<graph::Providers> ways{base};
  const auto way = [&](auto&& change) {
    graph::Providers p = base;
    change(p);
    if (std::none_of(ways.begin(), ways.end(), [&](const graph::Providers& w) { return describe(w) == describe(p); }))
      ways.push_back(p);
  };
  if (base.own_bf16) way([](graph::Providers& p) { p.own_bf16 = false; });
  const auto library = [&](auto&& change) {  // for every f32 linear
    way([&](graph::Providers& p) {
      p.own_bf16 = false;
      change(p);
    });
  };
  if (base.onednn) library([](graph::Providers& p) { p.onednn_f32_ratio = 2; });
  if (base.mkl) library([](graph::Providers& p) { p.onednn_f32_ratio = 1, p.mkl_packed_rows = 2; });
  library([](graph::Providers& p) { p.onednn_f32_ratio = 1, p.mkl_packed_rows = INT64_MAX; });
  if (base.onednn) way([](graph::Providers& p) { p.onednn = p.onednn_bf16 = p.onednn_f16 = false; });
  std::vector<plan::Plan> plans;
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const graph::Providers& w : ways) {
    Environment other = env;
    other.providers = w;
    Report made{.rebuild = report.rebuild};
    try {
      PassRunner quiet(options, plans.empty() ? report : made);
      PassRunner& runner = plans.empty() ? passes : quiet;
      plan::Plan p = to_plan(to_core(traced, other, runner), device, options, other, runner, cache,
                             plans.empty() ? report : made, "");
      if (!seen.insert(plan::print(p)).second) continue;
      for (auto& keep : std::exchange(made.keep, {})) report.keep.push_back(std::move(keep));
      plans.push_back(std::move(p));
      names.push_back(describe(w));
      // Operators of the program's own may do anything: they are not called for a measurement.
      const auto foreign = [](const plan::Step& step) {
        if (step.kind != plan::StepKind::kCall) return false;
        const std::string_view space = std::string_view(step.op).substr(0, step.op.find('.'));
        static constexpr std::string_view kKnown[] = {"aten", "mkldnn", "mkl", "prim", "prims", "flashover"};
        return std::find(std::begin(kKnown), std::end(kKnown), space) == std::end(kKnown);
      };
      const plan::Plan& last = plans.back();
      if (std::any_of(last.steps.begin(), last.steps.end(), foreign) ||
          std::any_of(last.frozen_steps.begin(), last.frozen_steps.end(), foreign))
        return std::move(plans.front());
    } catch (const Declined&) {
      if (plans.empty()) throw;  // the ordinary way
    }
  }
  if (plans.size() == 1) return std::move(plans[0]);
  const std::vector<double> seconds = passes.stage("measure", [&] { return env.measure(plans); });
  size_t best = 0;
  std::string notes;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (seconds[i] < seconds[best] * (best == 0 ? 0.97 : 1)) best = i;
    notes += names[i] + ": " + fixed_decimal(seconds[i] * 1e6, 6) + " us\n";
  }
  if (passes.wants_text()) passes.text("libraries", notes + "chosen: " + std::to_string(best) + "\n");
  if (best > 0) {
    report.kernels = report.extern_calls = report.slab_bytes = 0;
    fill(report, plans[best]);
  }
  return std::move(plans[best]);
}

graph::EagerMemory eager_memory(const Graph& traced, Device device) {
  return device.type == DeviceType::kCPU ? graph::EagerMemory{} : graph::eager_memory(traced);
}

Cache& cache_of(const Options& options) {
  const auto directory = options.values.find("cache_dir");
  return Cache::at(directory == options.values.end() ? "" : directory->second);
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

loops::Schedule lower(Graph traced, const Options& options, const Environment& env, Report& report,
                      FuseProducts fuse_products) {
  PassRunner passes(options, report);
  const Device device = checked_device(traced, env);
  const MemoryPlan memory{eager_memory(traced, device), !options.flag("cuda_graphs", false)};
  return to_loops(to_core(std::move(traced), env, passes), device, env, passes, memory, std::move(fuse_products));
}

plan::Plan compile(Graph traced, const Options& options, const Environment& env, Report& report) {
  PassRunner passes(options, report);
  if (passes.wants_text()) passes.text("traced", graph::print(traced));

  // Whoever wants to see the stages gets them run. (The kernels may still come from the cache.)
  Cache& cache = cache_of(options);
  const bool use_plans = options.flag("cache", true) && !passes.wants_text() && !report.rebuild;
  const Hash128 key = passes.stage("key", [&] { return plan_key(traced, options, env, cache); });
  if (use_plans) {
    if (auto plan = passes.stage("cache", [&] { return find_plan(cache, key); })) {
      report.cache_hit = true;
      fill(report, *plan);
      return std::move(*plan);
    }
  }
  const Device device = checked_device(traced, env);
  const bool choose = device.type == DeviceType::kCPU && env.measure;
  const graph::EagerMemory eager = eager_memory(traced, device);
  plan::Plan plan =
      choose ? fastest_plan(traced, device, options, env, passes, cache, report)
             : to_plan(to_core(std::move(traced), env, passes), device, options, env, passes, cache, report, "", eager);
  if (options.flag("cache", true)) keep_plan(cache, key, plan, option(options.values, "compiler"), report);
  report.cache_note = cache.take_warning();
  return plan;
}

Training compile_training(Graph traced, const graph::Joint& facts, const Options& options, const Environment& env,
                          Report& report) {
  PassRunner passes(options, report);
  report.training = true;
  // Trained parameters change with every step: nothing is packed or kept for them.
  for (graph::Input& i : traced.inputs)
    if (i.requires_grad && i.kind != graph::InputKind::kConstant) i.kind = graph::InputKind::kUser;
  if (passes.wants_text()) passes.text("traced", graph::print(traced));

  Cache& cache = cache_of(options);
  const bool use_plans = options.flag("cache", true) && !passes.wants_text() && !report.rebuild;
  const Hash128 key = passes.stage("key", [&] { return training_key(plan_key(traced, options, env, cache), facts); });
  if (use_plans) {
    if (auto found = passes.stage("cache", [&] { return find_training(cache, key); })) {
      report.cache_hit = true;
      report.saved_bytes = found->meeting.saved_bytes;
      fill(report, found->backward);
      report.backward_kernels = report.kernels;
      fill(report, found->forward);
      return std::move(*found);
    }
  }
  // Forward and backward are one program until here: what they share is computed once, and patterns see both.
  const Device device = checked_device(traced, env);
  graph::Joint joint = facts;
  const Graph core = to_core(std::move(traced), env, passes, &joint);
  Training out;
  passes.stage("partition", [&] {
    out.meeting = graph::partition(
        core, joint, {.memory_budget = static_cast<double>(int_option(options.values, "memory_budget")) / 100});
    return 0;
  });
  Graph forward = std::move(out.meeting.forward), backward = std::move(out.meeting.backward);
  passes.show("forward", Form::kCore, forward);
  passes.show("backward", Form::kCore, backward);
  report.saved_bytes = out.meeting.saved_bytes;
  if (out.meeting.tangents() > 1 && !facts.zeros) out.backward_graph = graph::print(backward);
  // Behind the text: what is left when tangents do not come is summed by itself.
  sum_up(backward, env, passes);
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
  if (options.flag("cache", true)) keep_training(cache, key, out, option(options.values, "compiler"), report);
  report.cache_note = cache.take_warning();
  return out;
}

void loaded(Report& report, const Options& options) {
  for (const auto& keep : std::exchange(report.keep, {})) keep();
  if (std::string note = cache_of(options).take_warning(); !note.empty()) report.cache_note = std::move(note);
}

plan::Plan compile_backward(Graph core, const Options& options, const Environment& env, Report& report) {
  PassRunner passes(options, report);
  passes.run("fold", Form::kCore, core, [](const Graph& g) { return graph::fold(g); });
  passes.run("dce_core", Form::kCore, core, graph::dce);
  sum_up(core, env, passes);
  const Device device = checked_device(core, env);
  return to_plan(std::move(core), device, options, env, passes, cache_of(options), report, "backward");
}

}  // namespace flashover::compile

// See autotune.h: which library computes what is decided by a stopwatch.
#include "compile/autotune.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"
#include "compile/choices.h"

namespace flashover::compile {
namespace {

// Each way of choosing libraries that differs from the machine's own by one choice, the machine's own first.
std::vector<target::Providers> ways_to_choose(const target::Providers& base) {
  std::vector<target::Providers> ways{base};
  const auto way = [&](auto&& change) {
    target::Providers p = base;
    change(p);
    if (std::none_of(ways.begin(), ways.end(), [&](const target::Providers& w) { return describe(w) == describe(p); }))
      ways.push_back(p);
  };
  if (base.own_bf16) {
    way([](target::Providers& p) { p.split_f32 = !p.split_f32; });
    way([](target::Providers& p) { p.own_bf16 = p.split_f32 = false; });
  }
  if (base.panels) way([](target::Providers& p) { p.own_bf16 = p.split_f32 = false, p.quick_panels = true; });
  const auto library = [&](auto&& change) {  // for every f32 linear
    way([&](target::Providers& p) {
      p.own_bf16 = p.split_f32 = p.panels = false;
      change(p);
    });
  };
  if (base.onednn) library([](target::Providers& p) { p.onednn_f32_ratio = 2; });
  if (base.mkl) library([](target::Providers& p) { p.onednn_f32_ratio = 1, p.mkl_packed_rows = 2; });
  library([](target::Providers& p) { p.onednn_f32_ratio = 1, p.mkl_packed_rows = INT64_MAX; });
  if (base.onednn) way([](target::Providers& p) { p.onednn = p.onednn_bf16 = p.onednn_f16 = false; });
  return ways;
}

// Operators of the program's own may do anything: they are not called for a measurement.
bool is_foreign(const plan::Step& step) {
  if (step.kind != plan::StepKind::kCall) return false;
  const std::string_view space = std::string_view(step.op).substr(0, step.op.find('.'));
  static constexpr std::string_view kKnown[] = {"aten", "mkldnn", "mkl", "prim", "prims", "flashover"};
  return std::find(std::begin(kKnown), std::end(kKnown), space) == std::end(kKnown);
}

constexpr const char* kLibraries = "libraries";

// The plan that the file has chosen; nothing where it has not, or it has one that there is no more.
std::optional<plan::Plan> chosen_plan(const MakePlan& make, ChoicesFile* choices, const Hash128& key,
                                      const CompileTarget& env, PassRunner& passes, Report& report) {
  const auto chosen = choices ? choices->find(kLibraries, key) : std::nullopt;
  if (!chosen) return std::nullopt;
  for (const target::Providers& w : ways_to_choose(env.providers)) {
    if (describe(w) != *chosen) continue;
    CompileTarget other = env;
    other.providers = w;
    if (passes.wants_text()) passes.text("libraries", "chosen by the file: " + *chosen + "\n");
    return make(other, passes, report);
  }
  choices->say_unknown(kLibraries, *chosen);
  return std::nullopt;
}

}  // namespace

plan::Plan fastest_plan(const MakePlan& make, const Hash128& key, const Options& options, const CompileTarget& env,
                        PassRunner& passes, Report& report) {
  ChoicesFile* const choices = choices_of(options, env);
  if (auto chosen = chosen_plan(make, choices, key, env, passes, report)) return std::move(*chosen);
  std::vector<plan::Plan> plans;
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const target::Providers& w : ways_to_choose(env.providers)) {
    CompileTarget other = env;
    other.providers = w;
    Report made{.rebuild = report.rebuild};
    try {
      PassRunner quiet(options, plans.empty() ? report : made);
      PassRunner& runner = plans.empty() ? passes : quiet;
      plan::Plan p = make(other, runner, plans.empty() ? report : made);
      if (!seen.insert(plan::print(p)).second) continue;
      for (auto& keep : std::exchange(made.keep, {})) report.keep.push_back(std::move(keep));
      plans.push_back(std::move(p));
      names.push_back(describe(w));
      const plan::Plan& last = plans.back();
      if (std::any_of(last.steps.begin(), last.steps.end(), is_foreign) ||
          std::any_of(last.frozen_steps.begin(), last.frozen_steps.end(), is_foreign))
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
  if (choices) choices->keep(kLibraries, key, names[best]);
  if (best > 0) {
    report.kernels = report.extern_calls = report.arena_bytes = 0;
    add_to_report(report, plans[best]);
  }
  return std::move(plans[best]);
}

}  // namespace flashover::compile

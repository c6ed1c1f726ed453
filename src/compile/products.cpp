// Finds the candidates in a plan, builds all their kernels at once, measures them, and keeps the choice on disk.
#include "compile/products.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "base/check.h"
#include "base/decimal.h"
#include "compile/choices.h"
#include "compile/reuse.h"
#include "kernel/triton/toolchain.h"
#include "planner/find_products.h"

namespace flashover::compile {
namespace {

namespace triton = kernel::triton;
using loops::Product;
using loops::ProductTile;
using plan::Plan;
using plan::Step;
using plan::StorageKind;
using plan::TensorId;
using planner::Candidate;

constexpr double kWorth = 0.97;        // of the library's time: below, the choice is not noise
constexpr int64_t kUnpackedRows = 32;  // from there on sums cost more than what the library reads
constexpr int64_t kUnpackedInner = 128;

using Ways = std::vector<Candidate>;

// One kind of product in a plan: the same code wherever it occurs.
struct Kind {
  struct Option {
    size_t way;
    ProductTile tile;
  };
  const Ways* ways = nullptr;  // where it occurs first
  Hash128 key;
  std::vector<Option> options;
  int64_t choice = -1;  // the library
  bool measured = false;
};

std::string text_of(const Ways& ways) {
  std::string out;
  for (const Candidate& c : ways) out += loops::text(c.product);
  return out;
}

Hash128 key_of(const Ways& ways, const CompileTarget& env) {
  Hasher h;
  h.text("product 2")
      .text(text_of(ways))
      .text(triton::str(*env.gpu))
      .number(static_cast<uint64_t>(env.gpu->processors));
  h.text(triton::command().version).text(env.versions).text(program_identity());
  return h.finish();
}

// The steps that any of the ways takes along, in order.
std::vector<size_t> steps_of(const Ways& ways) {
  std::set<size_t> all;
  for (const Candidate& c : ways)
    for (size_t s : {c.call, c.launch, c.before[0], c.before[1]})
      if (s != planner::kNoStep) all.insert(s);
  return {all.begin(), all.end()};
}
bool takes(const Candidate& c, size_t step) {
  return step == c.call || step == c.launch || step == c.before[0] || step == c.before[1];
}

std::string tile_text(const ProductTile& t) {
  return std::to_string(t.m) + "x" + std::to_string(t.n) + "x" + std::to_string(t.k) + " " + std::to_string(t.warps) +
         " warps " + std::to_string(t.stages) + " stages";
}
std::string us(double seconds) { return std::isfinite(seconds) ? fixed_decimal(seconds * 1e6, 1) + " us" : "-"; }

// ---- in a file of choices: "library", or which way with which tile

constexpr const char* kProduct = "product";

Hash128 choice_key(const Kind& kind) {
  Hasher h;
  h.text(text_of(*kind.ways));
  return h.finish();
}
std::string choice_text(const Kind& kind, int64_t choice) {
  if (choice < 0) return "library";
  const Kind::Option& o = kind.options[static_cast<size_t>(choice)];
  return std::to_string(o.way) + ": " + tile_text(o.tile);
}
// -1 where the file has none; the kind is measured then.
int64_t chosen_by(ChoicesFile& choices, Kind& kind, std::vector<Kind*>& unmeasured) {
  const auto chosen = choices.find(kProduct, choice_key(kind));
  for (int64_t i = -1; chosen && i < static_cast<int64_t>(kind.options.size()); ++i)
    if (choice_text(kind, i) == *chosen) return i;
  if (chosen) choices.say_unknown(kProduct, *chosen);
  if (!kind.options.empty()) unmeasured.push_back(&kind);
  return -1;
}

// Measures kinds that the cache does not know.
void measure(const Plan& plan, const std::vector<loops::Kernel>& kernels, std::vector<Kind*>& kinds,
             const CompileTarget& env, Cache* cache, std::string& notes) {
  // Everything is compiled at once.
  std::vector<triton::TritonSource> sources;
  for (Kind* kind : kinds)
    for (const Kind::Option& o : kind->options) {
      Product p = (*kind->ways)[o.way].product;
      p.tile = o.tile;
      sources.push_back(triton::emit(p, *env.gpu));
    }
  const std::vector<triton::Cubin> cubins = triton::build(sources, *env.gpu);
  size_t next = 0;
  for (Kind* kind : kinds) {
    // The library's way: its call, with the kernels around it.
    const std::vector<size_t> all = steps_of(*kind->ways);
    std::vector<loops::Kernel> around;
    std::map<size_t, int32_t> number;
    for (size_t s : all)
      if (plan.steps[s].kind == plan::StepKind::kLaunch) {
        number[s] = static_cast<int32_t>(around.size());
        around.push_back(kernels[static_cast<size_t>(plan.steps[s].kernel)]);
      }
    int64_t reused = 0;
    const kernel::Compiled own = compile_kernels(around, *env.gpu, cache, reused, nullptr);
    const auto apart = [&](const Candidate* fused, const triton::TritonSource* source, const triton::Cubin* cubin) {
      std::vector<plan::Kernel> made = own.kernels;
      std::vector<plan::Binary> binaries = own.binaries;
      std::vector<Step> steps;
      for (size_t s : all) {
        if (fused && s == (fused->launch == planner::kNoStep ? fused->call : fused->launch)) {
          plan::Kernel k{.symbol = source->name, .binary = static_cast<int32_t>(binaries.size())};
          k.cuda = source->launch;
          k.cuda.shared = cubin->shared;
          k.cuda.scratch = cubin->scratch;
          k.cuda.threads = 32 * cubin->warps;
          binaries.push_back({triton::key(*source), cubin->bytes});
          steps.push_back(planner::fused_step(plan, *fused, static_cast<int32_t>(made.size())));
          made.push_back(std::move(k));
        } else if (!fused || !takes(*fused, s)) {
          steps.push_back(plan.steps[s]);
          if (auto it = number.find(s); it != number.end()) steps.back().kernel = it->second;
        }
      }
      return sub_plan_of(plan, std::move(steps), std::move(made), std::move(binaries));
    };
    std::vector<Plan> ways;
    ways.push_back(apart(nullptr, nullptr, nullptr));
    std::vector<int64_t> option_of{-1};
    for (size_t o = 0; o < kind->options.size(); ++o, ++next) {
      if (cubins[next].bytes.empty()) continue;  // more shared memory or registers than there are
      ways.push_back(apart(&(*kind->ways)[kind->options[o].way], &sources[next], &cubins[next]));
      option_of.push_back(static_cast<int64_t>(o));
    }
    const std::vector<double> seconds = env.measure(ways);
    size_t best = 0;
    for (size_t w = 1; w < seconds.size(); ++w)
      if (seconds[w] < (best ? seconds[best] : seconds[0] * kWorth)) best = w;
    // Where the library could not be measured nothing is known, and nothing is kept.
    if (!std::isfinite(seconds[0])) {
      notes += "not measured: ";
    } else {
      kind->choice = option_of[best];
      kind->measured = true;
      if (cache) cache->put("product", kind->key, std::to_string(kind->choice));
    }
    const auto fastest = std::min_element(seconds.begin() + 1, seconds.end());
    const Product& p = kind->ways->front().product;
    if (p.batch > 1) notes += std::to_string(p.batch) + "x";
    notes +=
        std::to_string(p.m) + "x" + std::to_string(p.k) + "x" + std::to_string(p.n) + " " + info(p.dtype).name + ", ";
    const auto name = [](const std::string& label) { return label.substr(0, label.find(' ')); };  // without location
    for (size_t s : all) notes += (s == all.front() ? "" : " + ") + name(plan.steps[s].label);
    notes += ": library " + us(seconds[0]);
    if (fastest != seconds.end()) {
      const Kind::Option& o =
          kind->options[static_cast<size_t>(option_of[static_cast<size_t>(fastest - seconds.begin())])];
      notes += ", one kernel " + us(*fastest) + " (" + name(planner::fused_step(plan, (*kind->ways)[o.way], 0).label) +
               ", " + tile_text(o.tile) + ")";
    }
    notes += kind->choice < 0 ? ": library\n" : ": one kernel\n";
  }
}

// Puts one kernel in the place of several steps; a kernel between two products goes with the first. chosen_of: null
// where the library stays.
std::vector<Product> fuse(Plan& plan, size_t kernels, const std::vector<Ways>& found,
                          const std::function<const Kind::Option*(const Ways&)>& chosen_of) {
  std::vector<Product> chosen;
  std::map<std::string, int32_t> number;
  std::vector<bool> gone(plan.steps.size()), used(plan.steps.size());
  std::map<size_t, Step> replaced;
  for (const Ways& ways : found) {
    const Kind::Option* option = chosen_of(ways);
    if (!option) continue;
    const Candidate& c = ways[option->way];
    const std::vector<size_t> steps = steps_of({c});
    if (std::any_of(steps.begin(), steps.end(), [&](size_t s) { return used[s]; })) continue;
    auto [it, fresh] = number.try_emplace(loops::text(c.product), static_cast<int32_t>(kernels + chosen.size()));
    if (fresh) {
      chosen.push_back(c.product);
      chosen.back().tile = option->tile;
    }
    for (size_t s : steps) used[s] = gone[s] = true;
    const size_t at = c.launch == planner::kNoStep ? c.call : c.launch;
    gone[at] = false;
    replaced.emplace(at, planner::fused_step(plan, c, it->second));
    planner::own_result(plan, c);
  }
  for (auto& [at, step] : replaced) plan.steps[at] = std::move(step);
  size_t to = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (gone[i]) continue;
    if (to != i) plan.steps[to] = std::move(plan.steps[i]);
    ++to;
  }
  plan.steps.resize(to);
  return chosen;
}

// Is operand b made of as many elements of 8 bits by the kernel before it? (Two numbers of 4 bits in a byte take more
// instructions than reading them again: docs/benchmarks/decode.md.)
bool unpacks(const Plan& plan, const Candidate& c) {
  if (c.before[1] == planner::kNoStep) return false;
  const auto type = [&](TensorId t) -> const TensorType& { return plan.tensors[static_cast<size_t>(t)].type; };
  const auto bytes = [&](TensorId t) {
    const std::optional<int64_t> span = plan::span(type(t)).as_const();
    return span ? *span * info(type(t).dtype).bytes : INT64_MAX / 8;
  };
  const Step& before = plan.steps[c.before[1]];
  const TensorId made = before.writes[0];
  int64_t read = 0;
  bool widens = false;
  for (TensorId t : before.reads) {
    read += bytes(t);
    widens |= info(type(t).dtype).bytes == 1 && plan::span(type(t)) == plan::span(type(made));
  }
  return widens && 4 * read <= 3 * bytes(made);
}

// Columns of the widest tile that still gives nearly every processor a program: measured, docs/benchmarks/decode.md.
ProductTile tile_of_few_rows(const Product& p, int processors) {
  ProductTile t{.m = 16, .n = 64, .k = 128, .warps = 4, .stages = 4};
  while (t.m < p.m) t.m *= 2;
  while (t.n > 16 && 10 * ((p.n + t.n - 1) / t.n) < 9 * static_cast<int64_t>(processors)) t.n /= 2;
  if (t.n < 64 && t.m == 16) t.k = 256;  // (more would not fit the shared memory of an sm_86)
  return t;
}

}  // namespace

std::vector<Product> fuse_unpacked(Plan& plan, const std::vector<loops::Kernel>& kernels, int processors) {
  const auto is_packed = [](const plan::Tensor& t) {
    return info(t.type.dtype).bytes == 1 && t.type.dtype != DType::kBool;
  };
  if (std::ranges::none_of(plan.tensors, is_packed)) return {};  // (to find products takes time)
  std::vector<Ways> found;
  std::map<const Ways*, Kind::Option> chosen;
  for (Ways& ways : planner::find_products(plan, kernels)) {
    std::erase_if(ways, [&](const Candidate& c) {
      const Product& p = c.product;
      return p.batch != 1 || p.m > kUnpackedRows || p.k < kUnpackedInner || !unpacks(plan, c);
    });
    if (ways.empty()) continue;
    // Operand a is read by every column of programs, which must not compute it again.
    Candidate& c = ways.back();
    c.before[0] = planner::kNoStep;
    c.product.prologue[0] = {};
    found.push_back(std::move(ways));
  }
  for (const Ways& ways : found)
    chosen.emplace(&ways, Kind::Option{ways.size() - 1, tile_of_few_rows(ways.back().product, processors)});
  return fuse(plan, kernels.size(), found, [&](const Ways& ways) { return &chosen.at(&ways); });
}

Plan sub_plan_of(const Plan& whole, std::vector<Step> steps, std::vector<plan::Kernel> kernels,
                 std::vector<plan::Binary> binaries) {
  Plan out;
  out.device = whole.device;
  out.target = whole.target;
  out.kernels = std::move(kernels);
  out.binaries = std::move(binaries);
  std::map<TensorId, TensorId> copies;
  const auto root = [&](TensorId t) { return plan::root(whole, t); };
  // What a library call returns brings its own memory; what kernels write is a result of the part, read again or not.
  std::set<TensorId> written, returned, read;
  for (const Step& s : steps) {
    plan::for_each_write(s, [&](TensorId t) { written.insert(root(t)); });
    if (s.kind == plan::StepKind::kCall && !s.out_variant)
      for (TensorId t : s.writes)
        if (t >= 0) returned.insert(root(t));
    plan::for_each_read(s, [&](TensorId t) { read.insert(root(t)); });
  }
  const auto add = [&](plan::Tensor t) {
    out.tensors.push_back(std::move(t));
    return static_cast<TensorId>(out.tensors.size()) - 1;
  };
  const auto bring = [&](auto& self, TensorId t, bool writes) -> TensorId {
    if (auto it = copies.find(t); it != copies.end()) return it->second;
    plan::Tensor copy = whole.tensors[static_cast<size_t>(t)];
    if (copy.storage == StorageKind::kView) {
      copy.index = self(self, copy.index, writes);
    } else if (writes && written.count(t)) {
      const bool own = returned.count(t) != 0;
      copy.storage = own ? StorageKind::kExtern : StorageKind::kOutput;
      if (!own) copy.index = static_cast<int32_t>(out.outputs.size());
      if (!own || !read.count(t)) {
        plan::OutputRef ref;
        ref.tensor = static_cast<TensorId>(out.tensors.size());
        ref.type = copy.type;
        out.outputs.push_back(std::move(ref));
      }
    } else {
      copy.storage = StorageKind::kInput;
      copy.index = static_cast<int32_t>(out.inputs.size());
      out.inputs.push_back({copy.type, 0, false});
    }
    return copies[t] = add(std::move(copy));
  };
  for (Step& s : steps) {
    const auto move = [&](TensorId& t, bool writes) {
      if (t >= 0) t = bring(bring, t, writes);
    };
    for (Arg& a : s.args) {
      if (auto* r = std::get_if<Ref>(&a)) {
        if (r->id != kNoValue) r->id = bring(bring, r->id, false);
      } else if (auto* l = std::get_if<RefList>(&a)) {
        for (Ref& r : *l)
          if (r.id != kNoValue) r.id = bring(bring, r.id, false);
      }
    }
    for (TensorId& t : s.reads) move(t, false);
    for (TensorId& t : s.writes) move(t, true);
  }
  out.steps = std::move(steps);
  return out;
}

std::vector<Product> choose_products(Plan& plan, const std::vector<loops::Kernel>& kernels, const CompileTarget& env,
                                     Cache* cache, ChoicesFile* choices, std::string& notes) {
  if (!env.measure) return {};
  const std::vector<Ways> found = planner::find_products(plan, kernels);
  std::map<std::string, Kind> kinds;
  std::vector<Kind*> unmeasured;
  for (const Ways& ways : found) {
    auto [it, fresh] = kinds.try_emplace(text_of(ways));
    Kind& kind = it->second;
    if (!fresh) continue;
    kind.ways = &ways;
    kind.key = key_of(ways, env);
    for (size_t w = 0; w < ways.size(); ++w)
      for (const ProductTile& t : triton::tiles_for(ways[w].product)) kind.options.push_back({w, t});
    // Tests: that tile of the last way, unmeasured. Not into the cache, whose keys know nothing of it.
    if (const char* forced = std::getenv("FLASHOVER_PRODUCT_TILE"); forced && !cache) {
      const auto tiles = static_cast<int64_t>(triton::tiles_for(ways.back().product).size());
      const int64_t tile = std::clamp<int64_t>(parse_number<int64_t>(forced).value_or(-1), -1, tiles - 1);
      if (tile >= 0) kind.choice = static_cast<int64_t>(kind.options.size()) - tiles + tile;
      continue;
    }
    if (choices) {
      kind.choice = chosen_by(*choices, kind, unmeasured);
      continue;
    }
    if (const auto cached = cache ? cache->get("product", kind.key) : std::nullopt) {
      const int64_t choice = parse_number<int64_t>(*cached).value_or(-2);
      if (choice >= -1 && choice < static_cast<int64_t>(kind.options.size())) {
        kind.choice = choice;
        continue;
      }
    }
    if (!kind.options.empty()) unmeasured.push_back(&kind);
  }
  if (!unmeasured.empty()) {
    // To find out must not cost the program its result.
    try {
      measure(plan, kernels, unmeasured, env, cache, notes);
    } catch (const Declined& d) {
      notes += "not measured: " + d.reason + "\n";
    }
  }
  if (choices)
    for (const Kind* kind : unmeasured)
      if (kind->measured) choices->keep(kProduct, choice_key(*kind), choice_text(*kind, kind->choice));
  return fuse(plan, kernels.size(), found, [&](const Ways& ways) -> const Kind::Option* {
    const Kind& kind = kinds.at(text_of(ways));
    return kind.choice < 0 ? nullptr : &kind.options[static_cast<size_t>(kind.choice)];
  });
}

std::vector<Product> fuse_all_products(Plan& plan, const std::vector<loops::Kernel>& kernels, const ProductTile& tile,
                                       int way) {
  const std::vector<Ways> found = planner::find_products(plan, kernels);
  std::vector<Kind::Option> options;
  options.reserve(found.size());
  return fuse(plan, kernels.size(), found, [&](const Ways& ways) {
    const size_t count = ways.size();
    options.push_back({way < 0 ? count - 1 : std::min(static_cast<size_t>(way), count - 1), tile});
    return &options.back();
  });
}

}  // namespace flashover::compile

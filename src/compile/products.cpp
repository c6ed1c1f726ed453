#include "compile/products.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "base/check.h"
#include "compile/reuse.h"
#include "kernel/triton/toolchain.h"

namespace flashover::compile {
namespace {

namespace triton = kernel::triton;
using loops::Candidate;
using loops::Product;
using loops::ProductTile;
using plan::Home;
using plan::Plan;
using plan::Step;
using plan::TensorId;

constexpr double kWorth = 0.97;  // of the library's time: below, the choice is not noise

// One kind of product in a plan: the same code wherever it occurs.
struct Kind {
  Product product;
  const Candidate* first = nullptr;
  Hash128 key;
  std::vector<ProductTile> tiles;
  int64_t choice = -1;  // the library
};

Hash128 key_of(const Product& p, const Environment& env) {
  Hasher h;
  h.text("product 1")
      .text(loops::text(p))
      .text(triton::str(*env.gpu))
      .number(static_cast<uint64_t>(env.gpu->processors));
  h.text(triton::command().version).text(env.versions).text(program_identity());
  return h.finish();
}

std::string tile_text(const ProductTile& t) {
  return std::to_string(t.m) + "x" + std::to_string(t.n) + "x" + std::to_string(t.k) + " " + std::to_string(t.warps) +
         " warps " + std::to_string(t.stages) + " stages";
}
std::string us(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  return std::isfinite(seconds) ? text : "-";
}

// Measures kinds that the cache does not know.
void measure(const Plan& plan, const std::vector<loops::Kernel>& kernels, std::vector<Kind*>& kinds,
             const Environment& env, Cache* cache, std::string& notes) {
  // Everything is compiled at once.
  std::vector<triton::Source> sources;
  for (Kind* kind : kinds)
    for (const ProductTile& t : kind->tiles) {
      Product p = kind->product;
      p.tile = t;
      sources.push_back(triton::emit(p, *env.gpu));
    }
  const std::vector<triton::Cubin> cubins = triton::build(sources, *env.gpu);
  size_t next = 0;
  for (Kind* kind : kinds) {
    // The library's way: its call, then the epilogue's own kernel.
    const Step &call = plan.steps[kind->first->call], &launch = plan.steps[kind->first->launch];
    int64_t reused = 0;
    kernel::Compiled own =
        compile_kernels({&kernels[static_cast<size_t>(launch.kernel)], 1}, *env.gpu, cache, reused, nullptr);
    Step alone = launch;
    alone.kernel = 0;
    std::vector<Plan> ways;
    ways.push_back(part_of(plan, {call, alone}, std::move(own.kernels), std::move(own.binaries)));
    std::vector<int64_t> tile_of{-1};
    for (size_t t = 0; t < kind->tiles.size(); ++t, ++next) {
      const triton::Cubin& c = cubins[next];
      if (c.bytes.empty()) continue;  // more shared memory or registers than there are
      plan::Kernel k{.symbol = sources[next].name, .binary = 0};
      k.cuda = sources[next].launch;
      k.cuda.shared = c.shared;
      k.cuda.scratch = c.scratch;
      k.cuda.threads = 32 * c.warps;
      ways.push_back(part_of(plan, {loops::fused_step(plan, *kind->first, 0)}, {std::move(k)},
                             {{triton::key(sources[next]), c.bytes}}));
      tile_of.push_back(static_cast<int64_t>(t));
    }
    const std::vector<double> seconds = env.measure(ways);
    size_t best = 0;
    for (size_t w = 1; w < seconds.size(); ++w)
      if (seconds[w] < (best ? seconds[best] : seconds[0] * kWorth)) best = w;
    // Where the library could not be measured nothing is known, and nothing is kept.
    if (!std::isfinite(seconds[0])) {
      notes += "not measured: ";
    } else {
      kind->choice = tile_of[best];
      if (cache) cache->put("product", kind->key, std::to_string(kind->choice));
    }
    const auto fastest = std::min_element(seconds.begin() + 1, seconds.end());
    const Product& p = kind->product;
    notes += std::to_string(p.m) + "x" + std::to_string(p.k) + "x" + std::to_string(p.n) + " " + info(p.dtype).name +
             " + " + launch.label + ": library " + us(seconds[0]);
    if (fastest != seconds.end())
      notes += ", one kernel " + us(*fastest) + " (" +
               tile_text(kind->tiles[static_cast<size_t>(tile_of[static_cast<size_t>(fastest - seconds.begin())])]) +
               ")";
    notes += kind->choice < 0 ? ": library\n" : ": one kernel\n";
  }
}

// Puts one kernel in the place of two steps; a kernel behind two products goes with the first. tile_of: null where the
// library stays.
std::vector<Product> fuse(Plan& plan, size_t kernels, const std::vector<Candidate>& found,
                          const std::function<const ProductTile*(const std::string&)>& tile_of) {
  std::vector<Product> chosen;
  std::map<std::string, int32_t> number;
  std::vector<bool> gone(plan.steps.size());
  std::map<size_t, Step> replaced;
  for (const Candidate& c : found) {
    const std::string text = loops::text(c.product);
    const ProductTile* tile = tile_of(text);
    if (!tile || replaced.count(c.launch)) continue;
    auto [it, fresh] = number.try_emplace(text, static_cast<int32_t>(kernels + chosen.size()));
    if (fresh) {
      chosen.push_back(c.product);
      chosen.back().tile = *tile;
    }
    replaced.emplace(c.launch, loops::fused_step(plan, c, it->second));
    gone[c.call] = true;
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

}  // namespace

Plan part_of(const Plan& whole, std::vector<Step> steps, std::vector<plan::Kernel> kernels,
             std::vector<plan::Binary> binaries) {
  Plan out;
  out.device = whole.device;
  out.target = whole.target;
  out.kernels = std::move(kernels);
  out.binaries = std::move(binaries);
  std::map<TensorId, TensorId> known;
  const auto root = [&](TensorId t) { return plan::root(whole, t); };
  // Only what is read again within the part and nowhere else is a temporary; everything else that is made is a result.
  std::set<TensorId> written, read;
  for (const Step& s : steps) {
    plan::for_each_write(s, [&](TensorId t) { written.insert(root(t)); });
    plan::for_each_read(s, [&](TensorId t) { read.insert(root(t)); });
  }
  const auto add = [&](plan::Tensor t) {
    out.tensors.push_back(std::move(t));
    return static_cast<TensorId>(out.tensors.size()) - 1;
  };
  const auto bring = [&](auto& self, TensorId t, bool writes) -> TensorId {
    if (auto it = known.find(t); it != known.end()) return it->second;
    plan::Tensor copy = whole.tensors[static_cast<size_t>(t)];
    if (copy.home == Home::kView) {
      copy.index = self(self, copy.index, writes);
    } else if (writes && written.count(t)) {
      if (read.count(t)) {
        copy.home = Home::kExtern;  // of a library call, read by the kernel behind it
      } else {
        copy.home = Home::kOutput;
        copy.index = static_cast<int32_t>(out.outputs.size());
        plan::OutputRef ref;
        ref.tensor = static_cast<TensorId>(out.tensors.size());
        ref.type = copy.type;
        out.outputs.push_back(std::move(ref));
      }
    } else {
      copy.home = Home::kInput;
      copy.index = static_cast<int32_t>(out.inputs.size());
      out.inputs.push_back({copy.type, 0, false});
    }
    return known[t] = add(std::move(copy));
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

std::vector<Product> choose_products(Plan& plan, const std::vector<loops::Kernel>& kernels, const Environment& env,
                                     Cache* cache, std::string& notes) {
  const std::vector<Candidate> found = loops::find_products(plan, kernels);
  if (found.empty() || !env.measure) return {};
  std::map<std::string, Kind> kinds;
  std::vector<Kind*> unknown;
  for (const Candidate& c : found) {
    auto [it, fresh] = kinds.try_emplace(loops::text(c.product));
    Kind& kind = it->second;
    if (!fresh) continue;
    kind.product = c.product;
    kind.first = &c;
    kind.key = key_of(c.product, env);
    kind.tiles = triton::tiles_for(c.product);
    // Tests: that one, unmeasured. Not into the cache, whose keys know nothing of it.
    if (const char* forced = std::getenv("FLASHOVER_PRODUCT_TILE"); forced && !cache) {
      kind.choice = std::clamp<int64_t>(std::atoll(forced), -1, static_cast<int64_t>(kind.tiles.size()) - 1);
      continue;
    }
    if (const auto known = cache ? cache->get("product", kind.key) : std::nullopt) {
      const int64_t choice = std::atoll(known->c_str());
      if (choice >= -1 && choice < static_cast<int64_t>(kind.tiles.size())) {
        kind.choice = choice;
        continue;
      }
    }
    if (!kind.tiles.empty()) unknown.push_back(&kind);
  }
  if (!unknown.empty()) {
    // To find out must not cost the program its result.
    try {
      measure(plan, kernels, unknown, env, cache, notes);
    } catch (const Declined& d) {
      notes += "not measured: " + d.reason + "\n";
    }
  }
  return fuse(plan, kernels.size(), found, [&](const std::string& text) -> const ProductTile* {
    const Kind& kind = kinds.at(text);
    return kind.choice < 0 ? nullptr : &kind.tiles[static_cast<size_t>(kind.choice)];
  });
}

std::vector<Product> fuse_all_products(Plan& plan, const std::vector<loops::Kernel>& kernels, const ProductTile& tile) {
  return fuse(plan, kernels.size(), loops::find_products(plan, kernels), [&](const std::string&) { return &tile; });
}

}  // namespace flashover::compile

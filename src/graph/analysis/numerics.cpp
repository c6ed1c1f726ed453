// Nodes of the core graph are judged by what they are and by what operator of the program they come from.
#include "graph/analysis/numerics.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_set>

#include "graph/decompose/eagers_bits.h"
#include "graph/origin.h"
#include "ops/floats.h"

namespace flashover::graph {
namespace {

// ATen's operators that compute each row alone, in one order, on a CPU.
constexpr std::string_view kOwnRows[] = {"adaptive_max_pool2d",
                                         "adaptive_max_pool3d",
                                         "_adaptive_avg_pool2d",
                                         "_adaptive_avg_pool3d",
                                         "argsort",
                                         "avg_pool2d",
                                         "avg_pool3d",
                                         "bucketize",
                                         "col2im",
                                         "cummax",
                                         "cummin",
                                         "cumprod",
                                         "cumsum",
                                         "fractional_max_pool2d",
                                         "grid_sampler_2d",
                                         "grid_sampler_3d",
                                         "im2col",
                                         "kthvalue",
                                         "log_sigmoid_forward",
                                         "logcumsumexp",
                                         "max_pool2d_with_indices",
                                         "max_pool3d_with_indices",
                                         "median",
                                         "mode",
                                         "nanmedian",
                                         "reflection_pad1d",
                                         "reflection_pad2d",
                                         "reflection_pad3d",
                                         "replication_pad1d",
                                         "replication_pad2d",
                                         "replication_pad3d",
                                         "searchsorted",
                                         "sort",
                                         "topk",
                                         "upsample_bicubic2d",
                                         "upsample_bilinear2d",
                                         "upsample_linear1d",
                                         "upsample_nearest1d",
                                         "upsample_nearest2d",
                                         "upsample_nearest3d",
                                         "upsample_trilinear3d"};

constexpr const char *kOtherOrder = "its sum has another order",
                     *kOtherFunctions = "its functions are other approximations, or are rounded otherwise",
                     *kUnrounded = "16-bit results stay f32 inside of a kernel";

bool is_eagers(std::string_view op) { return op.starts_with("aten.") || op.starts_with("torchvision."); }
bool on_gpu(const Graph& g, const Node& n) {
  return std::any_of(n.outs.begin(), n.outs.end(),
                     [&](ValueId v) { return v != kNoValue && g.type(v).device.type == DeviceType::kCUDA; });
}
bool has_floats(const Graph& g, const Node& n) {
  return std::any_of(n.outs.begin(), n.outs.end(), [&](ValueId v) {
    return v != kNoValue && (is_floating(g.type(v).dtype) || info(g.type(v).dtype).complex);
  });
}
bool sums_up(const Node& n) {
  switch (n.op->prim) {
    case Prim::sum:
    case Prim::prod:
    case Prim::var:
    case Prim::cumsum:
    case Prim::cumprod:
    case Prim::avg_pool:
      return true;
    default:
      return false;
  }
}

// Why the node's bits are not eager's; empty: they are.
std::string beside_eagers(const Graph& g, const Node& n, const OriginNumerics& origin,
                          const target::Providers& providers) {
  if (!n.op->is_prim()) {
    // (Its statistics are cuDNN's in eager.)
    if (on_gpu(g, n) && n.op->name.find("batch_norm") != std::string_view::npos)
      return "torch's own kernel, where eager may take cuDNN's";
    return is_eagers(n.op->name) || !has_floats(g, n) ? "" : "computed by " + std::string(n.op->name);
  }
  if (!origin.exact) return sums_up(n) ? kOtherOrder : kOtherFunctions;
  return origin.reduced && !providers.strict_numerics ? kUnrounded : "";
}
// Of several reasons the one with the least number is said.
int rank_of(std::string_view reason) {
  return reason == kUnrounded ? 3 : reason == kOtherFunctions ? 2 : reason == kOtherOrder ? 1 : 0;
}

// Why a row's bits may hang on how many there are; empty: they do not.
std::string beside_its_own(const Graph& g, const Node& n) {
  const bool gpu = on_gpu(g, n);
  if (!has_floats(g, n)) return "";
  if (n.op->is_prim()) return gpu && sums_up(n) ? "on a GPU sums are cut by how many rows there are" : "";
  if (has_eagers_bits(g, n)) return "";
  if (n.op->name.starts_with("flashover.") && !gpu) return "";
  static const std::unordered_set<std::string_view> own(std::begin(kOwnRows), std::end(kOwnRows));
  if (!gpu && n.op->name.starts_with("aten.") && own.contains(short_name(n.op->name))) return "";
  return "the library may choose by how many rows there are";
}

}  // namespace

OriginTable origin_numerics(const Graph& functional) {
  OriginTable table;
  for (const Node& n : functional.nodes) {
    if (n.location < 0) continue;
    const int32_t number = origin_of(functional.facts.locations[static_cast<size_t>(n.location)]).number;
    if (number < 0) continue;
    OriginNumerics& o = table[number];
    o.exact = o.exact && has_eagers_bits(functional, n);
    for (const ValueId v : n.outs) o.reduced = o.reduced || (v != kNoValue && is_reduced(functional.type(v).dtype));
  }
  return table;
}

NumericsCertificate certify_numerics(const Graph& core, const OriginTable& origins,
                                     const target::Providers& providers) {
  NumericsCertificate c;
  const bool rows = providers.batch_invariant;
  c.promise = rows ? "a row's bits in any batch" : providers.eagers_bits ? "eager's bits" : "none";
  std::set<int32_t> kept;
  std::map<int32_t, GivenUp> found;
  for (const Node& n : core.nodes) {
    if (n.location < 0 || n.op->kind == ops::OpKind::kView) continue;
    const Location& where = core.facts.locations[static_cast<size_t>(n.location)];
    const Origin origin = origin_of(where);
    if (origin.number < 0) continue;
    const auto known = origins.find(origin.number);
    const OriginNumerics facts = known == origins.end() ? OriginNumerics{false, false} : known->second;
    std::string reason = rows ? beside_its_own(core, n) : beside_eagers(core, n, facts, providers);
    if (reason.empty()) {
      kept.insert(origin.number);
      continue;
    }
    const auto [at, first] = found.try_emplace(origin.number, GivenUp{origin.name, without_origin(where), reason});
    if (!first && rank_of(reason) < rank_of(at->second.reason)) at->second.reason = std::move(reason);
  }
  for (const int32_t number : kept) c.kept += !found.contains(number);
  for (auto& [number, g] : found) {  // those of one line as one
    const auto same = std::ranges::find_if(
        c.given_up, [&](const GivenUp& o) { return o.op == g.op && o.where == g.where && o.reason == g.reason; });
    if (same != c.given_up.end())
      ++same->count;
    else
      c.given_up.push_back(std::move(g));
  }
  return c;
}

std::string print(const NumericsCertificate& c) {
  std::string out = c.promise + "\t" + std::to_string(c.kept) + "\n";
  for (const GivenUp& g : c.given_up)
    out += g.op + "\t" + std::to_string(g.count) + "\t" + g.reason + "\t" + g.where + "\n";
  return out;
}

}  // namespace flashover::graph

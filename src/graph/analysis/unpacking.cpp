// Walks from a tensor back to what it is computed from, element by element, and counts bytes.
#include "graph/analysis/unpacking.h"

#include <algorithm>
#include <optional>
#include <ranges>

namespace flashover::graph {
namespace {

constexpr size_t kMostSources = 8;
constexpr size_t kMostSteps = 64;
constexpr int64_t kLeastUnpacked = int64_t{1} << 16;  // fewer may be kept

std::optional<int64_t> constant_elements(const TensorType& t) {
  int64_t elements = 1;
  for (const sym::Expr size : t.sizes) {
    if (!size.is_const()) return std::nullopt;
    elements *= size.value();
  }
  return elements;
}

bool is_of_8_bits(const TensorType& t) { return info(t.dtype).bytes == 1 && t.dtype != DType::kBool; }

// The tensors that v is unpacked from.
class Sources {
 public:
  explicit Sources(const Definitions& d) : d_(d) {}
  bool find(ValueId v) {
    if (std::ranges::find(seen_, v) != seen_.end()) return true;
    if (seen_.size() >= kMostSteps) return false;
    seen_.push_back(v);
    const Node* n = d_.node(v);
    if (!n || !is_unpacking(*n)) {
      found_.push_back(v);
      return found_.size() <= kMostSources;
    }
    const Node node = *n;  // (looking for others may move it)
    bool all = true;
    for (const Arg& a : node.args) for_each_ref(a, [&](ValueId from) { all = all && find(from); });
    return all;
  }
  // Most of the bytes are 8-bit elements; nullopt: they are not, or not known.
  std::optional<int64_t> bytes() {
    int64_t total = 0, packed = 0;
    for (ValueId v : found_) {
      const TensorType& t = d_.type(v);
      const auto elements = constant_elements(t);
      if (!elements) return std::nullopt;
      const int64_t size = *elements * info(t.dtype).bytes;
      total += size;
      if (is_of_8_bits(t)) packed += size;
    }
    return 2 * packed > total ? std::optional(total) : std::nullopt;
  }
  bool any_has(int64_t elements) const {
    return std::ranges::any_of(
        found_, [&](ValueId v) { return is_of_8_bits(d_.type(v)) && constant_elements(d_.type(v)) == elements; });
  }

 private:
  const Definitions& d_;
  std::vector<ValueId> seen_, found_;
};

}  // namespace

bool is_unpacking(const Node& n) {
  using ops::OpKind;
  if (n.op->once() || n.outs.size() != 1) return false;
  const OpKind kind = n.op->kind;
  return kind == OpKind::kPointwise || kind == OpKind::kView || kind == OpKind::kIndex || kind == OpKind::kFactory;
}

bool is_unpacked(const Definitions& d, ValueId v) {
  const auto elements = constant_elements(d.type(v));
  Sources sources(d);
  if (!elements || !sources.find(v)) return false;
  const auto bytes = sources.bytes();
  return bytes && 4 * *bytes <= 3 * *elements * info(d.type(v).dtype).bytes;
}

bool is_widened(const Definitions& d, ValueId v) {
  const auto elements = constant_elements(d.type(v));
  Sources sources(d);
  return elements && sources.find(v) && sources.any_has(*elements) && is_unpacked(d, v);
}

bool is_large(const TensorType& t) { return constant_elements(t).value_or(0) >= kLeastUnpacked; }

std::vector<bool> unpacked_in_each_call(const Graph& g, const std::vector<bool>& frozen) {
  std::vector<const Node*> producer(g.values.size());
  for (const Node& n : g.nodes)
    for (ValueId v : n.outs)
      if (v != kNoValue) producer[v] = &n;
  const Definitions definitions{[&](ValueId v) { return producer[v]; },
                                [&](ValueId v) -> const TensorType& { return g.type(v); }};
  std::vector<bool> read_frozen(g.values.size()), unpacks_further(g.values.size()), out(g.values.size());
  for (const Node& n : g.nodes | std::views::reverse) {
    const auto is_frozen = [&](ValueId v) { return v == kNoValue || frozen[v]; };
    if (n.outs.empty() || !std::ranges::all_of(n.outs, is_frozen)) continue;
    const ValueId v = n.outs[0];
    const bool again = is_unpacking(n) && !read_frozen[v] &&
                       (unpacks_further[v] || (is_large(g.type(v)) && is_unpacked(definitions, v)));
    if (again) out[v] = true;
    std::vector<bool>& readers = again ? unpacks_further : read_frozen;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId from) { readers[from] = true; });
  }
  return out;
}

}  // namespace flashover::graph

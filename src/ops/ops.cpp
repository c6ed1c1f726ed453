// The one table of operators: rows of aten, prims, and what is met at run time.
#include "ops/ops.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "base/check.h"
#include "ops/aten/infer.h"
#include "ops/refusals.h"
#include "sym/environment.h"

namespace flashover::ops {
namespace {

struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};

// Which operators have an effect beside their results, the one rule for all stages. What torch's own operators do is in
// their schemas (writes) and tags (random numbers), but for a few. Any other may do whatever its author wrote: log,
// count, talk to other processes. Eager calls it in each run, so it is called in each run.
constexpr std::string_view kChecks[] = {"aten._linalg_check_errors.default",
                                        "aten._assert_async.default",
                                        "aten._assert_async.msg",
                                        "aten._validate_compressed_sparse_indices.default",
                                        op::check_sizes,
                                        op::computed};
constexpr std::string_view kActing[] = {"aten._print.default"};
// Each call finds the sizes of their results anew; what follows is planned for sizes that are not known before.
constexpr std::string_view kDataSized[] = {
    op::_unique2, op::bincount,     op::nonzero,           op::repeat_interleave_Tensor,
    op::nms,      op::size_of_data, op::unique_consecutive};
constexpr std::string_view kGenerated[] = {op::flex_fused, op::flex_fused_rows, op::flex_fused_columns};
constexpr std::string_view kComputing[] = {"aten",        "prim",
                                           "prims",       "mkldnn",
                                           "mkl",         "onednn",
                                           "quantized",   "quantized_decomposed",
                                           "_quantized",  "sparse",
                                           "rngprims",    "profiler",
                                           "flashover",   "flashover_python",
                                           "torchvision", "torchaudio"};

template <size_t N>
bool contains(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}
bool may_act(std::string_view name) {
  return contains(kActing, name) || contains(kChecks, name) || !contains(kComputing, name.substr(0, name.find('.')));
}

// torch's own function returns its argument. In a graph it is a tensor of its own: who reads it has waited.
bool waited(const InferContext& in, std::vector<TensorType>& outs) {
  outs = {in.type(size_t{0})};
  outs[0].offset = 0;
  return true;
}

// What these begin is not begun by asking for the type of the result.
bool all_reduced(const InferContext& in, std::vector<TensorType>& outs) {
  const TensorType& t = in.type(size_t{0});
  outs = {aten::fresh(t, t.dtype, t.sizes)};
  return true;
}
bool all_gathered(const InferContext& in, std::vector<TensorType>& outs) {
  const TensorType& t = in.type(size_t{0});
  const std::optional<int64_t> processes = aten::integer(in.args[1]);
  if (!processes || t.rank() == 0) return false;
  Sizes sizes = t.sizes;
  sizes[0] *= *processes;
  outs = {aten::fresh(t, t.dtype, std::move(sizes))};
  return true;
}

class Table {
 public:
  Table() {
    std::vector<Row> rows;
    register_prims(rows);
    register_aten(rows);
    register_flex(rows);
    register_recurrent(rows);
    rows.push_back({.name = "_c10d_functional.wait_tensor.default", .infer = waited});
    rows.push_back({.name = "_c10d_functional.all_reduce.default", .infer = all_reduced});
    rows.push_back({.name = "_c10d_functional.all_gather_into_tensor.default", .infer = all_gathered});
    for (const Row& row : rows) {
      OpRow& op = create(row.name);
      FLASHOVER_CHECK(!op.declared) << "two table rows for " << row.name;
      op.kind = row.kind;
      op.infer = row.infer;
      op.mutates = row.mutates;
      op.drops_mutated = row.drops_mutated;
      op.nondeterministic = row.nondeterministic || row.kind == OpKind::kRandom;
      op.is_aten_view = row.is_aten_view;
      op.cost = row.cost;
      op.approximated = row.approximated;
      op.moves = row.moves;
      op.prim = row.prim;
      if (op.is_prim()) prims_[static_cast<size_t>(row.prim)] = &op;
      op.declared = true;
    }
    for (const Row& row : rows)
      if (row.functional) create(row.name).functional = &create(row.functional);
  }

  const OpRow* existing(std::string_view name) {
    std::shared_lock lock(mutex_);
    auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : it->second.get();
  }

  const OpRow* find(OpName name) {
    if (name.prim() != Prim::none) return prims_[static_cast<size_t>(name.prim())];
    if (const OpRow* op = existing(name.text())) return op;
    std::unique_lock lock(mutex_);
    return &create(name.text());
  }

  const OpRow* find(std::string_view name, const SchemaFacts& facts) {
    {
      std::shared_lock lock(mutex_);
      auto it = by_name_.find(name);
      if (it != by_name_.end() && it->second->declared) return it->second.get();
    }
    std::unique_lock lock(mutex_);
    OpRow& op = create(name);
    if (op.declared) return &op;
    op.mutates = facts.mutates;
    op.drops_mutated = facts.drops_mutated;
    op.is_aten_view = facts.is_aten_view;
    op.nondeterministic = facts.nondeterministic;
    op.effectful = op.effectful && !facts.pure;
    if (!facts.functional.empty()) op.functional = &create(facts.functional);
    op.declared = true;
    return &op;
  }

  void forget(std::string_view name) {
    std::unique_lock lock(mutex_);
    for (const std::string& key : {std::string(name), "functional." + std::string(name)})
      if (auto known = by_name_.find(key);
          known != by_name_.end() && known->second->kind == OpKind::kExtern && !known->second->infer) {
        forgotten_.push_back(std::move(known->second));
        by_name_.erase(known);
      }
  }

  void note_data_sized(std::string_view name) {
    std::unique_lock lock(mutex_);
    for (const std::string& key : {std::string(name), "functional." + std::string(name)})
      if (auto known = by_name_.find(key); known != by_name_.end()) known->second->data_sized = true;
  }

  std::vector<const OpRow*> all() {
    std::shared_lock lock(mutex_);
    std::vector<const OpRow*> out;
    for (const auto& [name, op] : by_name_) out.push_back(op.get());
    std::sort(out.begin(), out.end(), [](const OpRow* a, const OpRow* b) { return a->name < b->name; });
    return out;
  }

 private:
  OpRow& create(std::string_view name) {
    auto it = by_name_.find(name);
    if (it == by_name_.end()) {
      auto op = std::make_unique<OpRow>();
      op->name = std::string(name);
      op->effectful = may_act(name);
      op->check = contains(kChecks, name);
      op->data_sized = contains(kDataSized, name);
      op->generated = contains(kGenerated, name);
      if (constexpr std::string_view kPrefix = "functional."; name.starts_with(kPrefix)) {
        const OpRow& original = create(name.substr(kPrefix.size()));
        op->on_clones = &original;
        op->effectful = original.effectful;
        op->nondeterministic = original.nondeterministic;
      }
      it = by_name_.emplace(op->name, std::move(op)).first;
    }
    return *it->second;
  }

  std::shared_mutex mutex_;
  std::array<const OpRow*, kPrims> prims_{};  // filled once, by the constructor
  std::unordered_map<std::string, std::unique_ptr<OpRow>, NameHash, std::equal_to<>> by_name_;
  std::vector<std::unique_ptr<OpRow>> forgotten_;  // graphs may still hold them
};

// Never destroyed: operators live as long as the process.
Table& table() {
  static Table* table = new Table;
  return *table;
}

}  // namespace

const OpRow* find(OpName name) { return table().find(name); }
const OpRow* find(std::string_view name, const SchemaFacts& facts) { return table().find(name, facts); }
void forget(std::string_view name) { table().forget(name); }
void note_data_sized(std::string_view name) { table().note_data_sized(name); }
const OpRow* find_existing(std::string_view name) { return table().existing(name); }
std::vector<const OpRow*> all() { return table().all(); }

bool infer(InferRule rule, const InferContext& in, std::vector<TensorType>& outs) {
  const sym::PresumeScope presume;
  return rule(in, outs);
}

}  // namespace flashover::ops

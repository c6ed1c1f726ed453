// What the recorder needs to know of an operator, from its schema, tags and kernels.
#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "ops/names.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

// Answers about metadata.
constexpr std::array<std::string_view, 7> kQueries = {op::is_same_size,
                                                      op::_has_compatible_shallow_copy_type,
                                                      op::_has_same_storage_numel,
                                                      op::result_type_Tensor,
                                                      op::is_set_to,
                                                      op::is_pinned,
                                                      op::_is_zerotensor};

// Views that flip a bit that no rule sees.
constexpr std::array<std::string_view, 2> kBitViews = {op::_conj, op::_neg_view};

constexpr c10::DispatchKey kAutograd[] = {c10::DispatchKey::Autograd, c10::DispatchKey::AutogradCPU,
                                          c10::DispatchKey::AutogradCUDA};

bool contains(auto& list, std::string_view name) { return std::find(list.begin(), list.end(), name) != list.end(); }

bool has_tag(const c10::OperatorHandle& op, at::Tag tag) {
  const auto& tags = op.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

bool same_arguments(const aten::Operator& a, const aten::Operator& b) {
  return a.args.size() == b.args.size() &&
         std::equal(a.args.begin(), a.args.end(), b.args.begin(),
                    [](auto& x, auto& y) { return x.kind == y.kind && x.optional == y.optional; });
}

// aten.add_.Tensor -> aten.add.Tensor when that takes the same arguments and writes none.
std::string functional_twin(const aten::Operator& op) {
  const size_t dot = op.name.rfind('.');
  if (dot == std::string::npos || dot == 0 || op.name[dot - 1] != '_' || op.name[dot - 2] == '_') return "";
  const std::string twin_name = op.name.substr(0, dot - 1) + op.name.substr(dot);
  const aten::Operator* twin = aten::find_operator(twin_name);
  if (!twin || twin->any_written || !same_arguments(op, *twin)) return "";
  const auto written = std::count_if(op.args.begin(), op.args.end(), [](auto& a) { return a.written; });
  if (written != 1 || op.returns.size() != 1 || twin->returns.size() != 1) return "";
  return twin_name;
}

// Which of the kernels that facts depend on there are, a bit each.
uint32_t kernels_of(const c10::OperatorHandle& op) {
  using enum c10::DispatchKey;
  static constexpr c10::DispatchKey kKeys[] = {CPU,
                                               CUDA,
                                               Meta,
                                               Autograd,
                                               AutogradCPU,
                                               AutogradCUDA,
                                               CompositeImplicitAutograd,
                                               CompositeExplicitAutograd,
                                               CompositeExplicitAutogradNonFunctional};
  uint32_t out = 0;
  for (const c10::DispatchKey key : kKeys) out = out << 1 | static_cast<uint32_t>(op.hasKernelForDispatchKey(key));
  return out;
}

OpFacts make_facts(const c10::OperatorHandle& handle) {
  OpFacts f{.qualified = handle.operator_name(), .schema = aten::digest(handle)};
  const aten::Operator& schema = f.schema;
  ops::SchemaFacts facts;
  for (size_t i = 0; i < schema.args.size(); ++i) {
    const auto& a = schema.args[i];
    if (a.written) {
      if (i >= 32) continue;  // no operator does; refused below
      facts.mutates |= 1u << i;
      f.written_arg = static_cast<int>(i);
    }
    if (a.kind == aten::ArgKind::kDevice) f.device_arg = static_cast<int>(i);
    if (a.kind == aten::ArgKind::kDType && handle.schema().arguments()[i].name() == "dtype")
      f.dtype_arg = static_cast<int>(i);
  }
  for (const auto& r : schema.returns) {
    f.has_tensor_return |= r.kind == aten::ArgKind::kTensor || r.kind == aten::ArgKind::kTensorList;
    facts.is_aten_view |= r.alias == 0 && !r.written;
  }
  facts.nondeterministic = has_tag(handle, at::Tag::nondeterministic_seeded);
  facts.pure = has_tag(handle, at::Tag::pointwise) || has_tag(handle, at::Tag::core);
  if (schema.any_written) facts.functional = functional_twin(schema);
  f.op = ops::find(schema.name, facts);
  FLASHOVER_CHECK(f.op->mutates == facts.mutates) << "the table row of " << schema.name << " contradicts its schema";
  f.special = special_of(schema.name);
  if (!f.special) f.special = fourier_of(schema.name);
  if (!f.special) f.special = convolution_of(schema.name);
  f.uninitialized = is_uninitialized(schema.name);
  f.is_query = contains(kQueries, schema.name);
  // Masks, the only indices whose number of results is data, have become positions before (special.cpp).
  f.reads_data = f.op->data_sized ||
                 ((has_tag(handle, at::Tag::data_dependent_output) || has_tag(handle, at::Tag::dynamic_output_shape)) &&
                  schema.name != op::index_Tensor);
  f.may_ask_meta = schema.name == op::repeat_interleave_Tensor;
  f.composite = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  f.only_writes = schema.any_written && schema.returns.empty() && !f.composite && !f.reads_data &&
                  !op::is_aten(schema.name) && !schema.name.starts_with("prims.");
  f.autograd_inside = !op::is_aten(schema.name) && !schema.name.starts_with("prims.") && !f.composite &&
                      std::none_of(std::begin(kAutograd), std::end(kAutograd),
                                   [&](auto k) { return handle.hasKernelForDispatchKey(k); });
  f.per_tensor = schema.name.starts_with("aten._foreach_") &&
                 handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  const bool single_in_place = f.written_arg >= 0 && schema.returns.size() == 1 && schema.returns[0].written &&
                               schema.returns[0].alias == f.written_arg && std::popcount(f.op->mutates) == 1;
  if (!f.op->infer && single_in_place && f.op->functional && !f.op->drops_mutated)
    f.in_place_rule = f.op->functional->infer;
  const bool list_written = std::any_of(schema.returns.begin(), schema.returns.end(),
                                        [](auto& r) { return r.written && r.kind != aten::ArgKind::kTensor; });
  f.may_rule = (f.op->infer && !list_written) || f.in_place_rule;
  if (contains(kBitViews, schema.name)) f.may_rule = false;
  f.cpp_meta = find_cpp_meta(handle, f.python_meta, f.shadowed);
  return f;
}

}  // namespace

OpFacts& facts_of(const c10::OperatorHandle& op) {
  struct Known {
    std::unique_ptr<OpFacts> facts;
    uint64_t removed;  // aten::removed_operators() then
    uint32_t kernels;
  };
  thread_local std::unordered_map<c10::OperatorHandle, Known> known;
  thread_local std::vector<std::unique_ptr<OpFacts>> outdated;  // a call under way may still read them
  Known& k = known[op];
  // Of a program's own operator: kernels come and go, and another may lie where it was.
  const bool may_change = !k.facts || !op::is_aten(k.facts->schema.name);
  const uint64_t removed = may_change ? aten::removed_operators() : 0;
  const uint32_t kernels = may_change ? kernels_of(op) : 0;
  if (!k.facts || k.facts->qualified != op.operator_name() ||
      (may_change && (k.removed != removed || k.kernels != kernels))) {
    if (k.facts) outdated.push_back(std::move(k.facts));
    k = {std::make_unique<OpFacts>(make_facts(op)), removed, kernels};
  }
  return *k.facts;
}

}  // namespace flashover::trace

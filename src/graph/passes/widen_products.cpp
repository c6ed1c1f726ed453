// One rule for all operators: 16-bit operands in, f32 within, 16-bit results out.
#include "graph/passes/widen_products.h"

#include <unordered_set>

#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

struct WideningState {
  const target::Providers& providers;
  std::unordered_set<ValueId> copied{};  // weights that are kept in f32 beside what they were
  int64_t room;                          // bytes that are left for such copies

  bool is_slow(const TensorType& t) const {
    return t.device.type == DeviceType::kCPU &&
           ((t.dtype == DType::kBF16 && providers.slow_bf16) || (t.dtype == DType::kF16 && providers.slow_f16));
  }
};

// Conversions stand before views, so that a weight has one however its readers turn it, and what is repeated is
// converted once.
ValueId widened(Rewriter& r, ValueId v) {
  const Node* view = r.def(v);
  if (!view || !moves_elements_only(*view)) return r.b.convert(v, DType::kF32);
  std::vector<Arg> args = view->args;
  const OpName op = view->op->name;
  args[0] = Ref{widened(r, ops::as_value(args[0]))};
  return r.b.emit(op, std::move(args));
}

// Whether the copy of `v`, if it is a weight that is converted once for all calls, finds room.
bool finds_room(Rewriter& r, ValueId v, WideningState& state) {
  if (!r.is_frozen(v)) return true;
  const Node* view = r.def(v);
  while (view && moves_elements_only(*view)) view = r.def(v = ops::as_value(view->args[0]));
  TensorType type = r.b.type(v);
  if (state.copied.contains(v) || skip_narrowing(r, v) != v || !all_const(type.sizes)) return true;
  type.dtype = DType::kF32;
  if (!take_room(type, state.room)) return false;
  state.copied.insert(v);
  return true;
}

bool widen(Rewriter& r, const Node& n, Values& results, const void* user) {
  auto& state = *static_cast<WideningState*>(const_cast<void*>(user));
  std::vector<Arg> args = n.args;
  std::vector<ValueId*> slow;
  for (Arg& a : args)
    if (auto* ref = std::get_if<Ref>(&a); ref && ref->id != kNoValue && state.is_slow(r.b.type(ref->id)))
      slow.push_back(&ref->id);
  if (slow.empty()) return false;
  for (const ValueId* v : slow)
    if (!finds_room(r, *v, state)) return false;
  for (ValueId* v : slow) *v = widened(r, *v);
  std::vector<TensorType> types;
  for (const ValueId v : n.outs) {
    types.push_back(v == kNoValue ? TensorType{} : r.b.type(v));
    if (is_reduced(types.back().dtype)) types.back().dtype = DType::kF32;
  }
  results = r.b.emit_all(n.op->name, std::move(args), std::move(types));
  std::vector<ValueId>& outs = r.out.nodes.back().outs;
  for (size_t i = 0; i < n.outs.size(); ++i)
    if (n.outs[i] == kNoValue) outs[i] = results[i] = kNoValue;
  for (size_t i = 0; i < n.outs.size(); ++i)
    if (results[i] != kNoValue) results[i] = r.b.convert(results[i], r.b.dtype(n.outs[i]));
  return true;
}

// Few rows times a matrix whose columns lie as the rows do: the libraries take dot products of 16-bit rows at the speed
// of memory, which f32 would take twice of.
bool only_reads_memory(const TensorType& a, const TensorType& b) {
  constexpr int64_t kFewRows = 4;
  return a.sizes[0].hint() <= kFewRows && a.strides[1].is_const(1) && b.strides[0].is_const(1);
}
template <size_t first>  // of the two matrices
bool widen_matrices(Rewriter& r, const Node& n, Values& results, const void* user) {
  const ValueId a = ops::as_value(n.args[first]), b = ops::as_value(n.args[first + 1]);
  return !only_reads_memory(r.b.type(a), r.b.type(b)) && widen(r, n, results, user);
}

constexpr const char* kInF32 = "on 16-bit floats -> in f32";
constexpr RewriteRule kWiden[] = {{op::mm, kInF32, widen_matrices<0>},
                                  {op::addmm, kInF32, widen_matrices<1>},
                                  {op::bmm, kInF32, widen},
                                  {op::baddbmm, kInF32, widen},
                                  {op::convolution, kInF32, widen},
                                  {op::convolution_backward, kInF32, widen},
                                  {op::_scaled_dot_product_flash_attention_for_cpu, kInF32, widen},
                                  {op::_scaled_dot_product_flash_attention_for_cpu_backward, kInF32, widen}};

}  // namespace

Graph widen_products(Graph g, const target::Providers& providers) {
  if (providers.strict_numerics || (!providers.slow_bf16 && !providers.slow_f16)) return g;
  WideningState state{.providers = providers, .room = providers.pack_budget};
  return rewrite(std::move(g), kWiden, &state);
}

}  // namespace flashover::graph

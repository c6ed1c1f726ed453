// Convolutions and their gradients: the layout of the results is the backend's choice, which looks at the device, the
// strides of the operands and the machine. ATen is asked, with tensors that have them all.
#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <span>

#include "ops/names.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using Ints = std::vector<int64_t>;

c10::SymIntArrayRef sym_ints(const Ints& v) { return c10::fromIntArrayRefSlow(v); }

// Of a result in that format.
Sizes strides_in(at::MemoryFormat format, const Sizes& sizes) {
  if (format == at::MemoryFormat::Contiguous) return contiguous_strides(sizes);
  Sizes strides(sizes.size());
  sym::Expr step = 1;
  const auto next = [&](size_t d) {
    strides[d] = step;
    step *= sizes[d];
  };
  next(1);
  for (size_t d = sizes.size(); d-- > 2;) next(d);
  next(0);
  return strides;
}

// What both directions are given, with lists of one entry a spatial dimension.
struct Geometry {
  Ints stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
};

std::optional<Geometry> geometry_of(const std::vector<Arg>& args, size_t first, size_t spatial) {
  const auto list = [&](size_t i) {
    Ints v = aten::to_ints(std::get<Sizes>(args[first + i]));
    if (v.size() == 1) v.resize(spatial, v[0]);
    return v;
  };
  Geometry g{list(0),
             list(1),
             list(2),
             list(4),
             std::get<bool>(args[first + 3]),
             std::get<sym::Expr>(args[first + 5]).value()};
  for (const Ints* l : {&g.stride, &g.padding, &g.dilation, &g.output_padding})
    if (l->size() != spatial) return std::nullopt;
  for (size_t d = 0; d < spatial; ++d)
    if (g.stride[d] <= 0 || g.padding[d] < 0 || g.dilation[d] <= 0) return std::nullopt;
  if (g.groups <= 0) return std::nullopt;
  return g;
}

// The sizes of the result; nullopt where ATen words an error.
std::optional<Sizes> convolved(const Sizes& x, const Sizes& w, const Geometry& g) {
  if (!sym::known_eq(x[1], g.transposed ? w[0] : w[1] * sym::Expr(g.groups))) return std::nullopt;
  Sizes sizes = {x[0], g.transposed ? w[1] * sym::Expr(g.groups) : w[0]};
  for (size_t d = 0; d < g.stride.size(); ++d) {
    const sym::Expr reach = (w[d + 2] - 1) * g.dilation[d] + 1, padded = x[d + 2] + 2 * g.padding[d];
    if (!g.transposed && !sym::known_le(reach, padded)) return std::nullopt;
    sizes.push_back(g.transposed ? (x[d + 2] - 1) * g.stride[d] - 2 * g.padding[d] + reach + g.output_padding[d]
                                 : sym::floordiv(padded - reach, g.stride[d]) + 1);
    if (!sym::known_le(1, sizes.back())) return std::nullopt;
  }
  return sizes;
}

// With sizes that are symbols the backend is the one for the sizes of this call. That matters for its format only where
// an operand lies channels last; which it does is asked of the symbols. Then, on the CPU in f32, few elements go from
// oneDNN to kernels that write other formats.
void settle_format(const at::Tensor& input, const at::Tensor& weight, const Sizes& sizes, const Geometry& g) {
  const auto plain = [](const at::Tensor& t) { return t.suggest_memory_format() == at::MemoryFormat::Contiguous; };
  const bool plain_input = plain(input), plain_weight = plain(weight);
  if ((plain_input && plain_weight) || !input.is_cpu() || input.scalar_type() != at::kFloat) return;
  constexpr int64_t kFewElements = 20480, kFewImages = 16;
  if (sizes.size() == 5 && at::get_num_threads() == 1) (void)sym::known_le(kFewImages, sizes[0]);
  const auto shape = std::span(sizes).first(std::min<size_t>(sizes.size(), 4));
  const auto each = sym::product(shape.subspan(1)).as_const();
  if (each && *each > kFewElements) return;  // of one image already
  if (g.groups == 1 && !sym::known_lt(1, sizes[0])) (void)sym::known_lt(kFewElements, sym::product(shape));
}

at::Tensor now(const TraceImpl& impl) { return tagged_companion(impl, CompanionSizes::kNow); }

bool convolution(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  const auto& operands = recorder.operands();
  TraceImpl *x = operands.at(0).impl, *w = operands.at(1).impl;
  if (!x || !w) return false;
  const auto rank = static_cast<size_t>(x->dim());
  if (rank < 3 || rank > 5 || w->dim() != x->dim() || x->dtype() != w->dtype() || x->has_no_elements() ||
      w->has_no_elements())
    return false;
  const auto geometry = geometry_of(args, 3, rank - 2);
  if (!geometry) return false;
  const sym::AskScope ask(recorder.sizes().empty() ? nullptr : &recorder.sizes());
  const TensorType input_type = recorder.graph().type(x->value), weight_type = recorder.graph().type(w->value);
  auto sizes = convolved(input_type.sizes, weight_type.sizes, *geometry);
  if (!sizes) return false;

  // (In one dimension the strides of the weight are asked for as those of two.)
  at::Tensor input = now(*x), weight = rank == 3 ? tagged_companion(*w) : now(*w), bias;
  const bool has_bias = !is_none(args[2]);
  if (has_bias) {
    if (!operands.at(2).impl) return false;
    bias = now(*operands[2].impl);
    const TensorType& bias_type = recorder.graph().type(operands[2].value);
    if (bias_type.rank() != 1 || !sym::known_eq(bias_type.sizes[0], (*sizes)[1]) || bias.dtype() != input.dtype())
      return false;
  }
  const bool symbolic = x->is_symbolic() || w->is_symbolic();
  if (symbolic && rank != 3)
    settle_format(operands[0].tensor_of_trace(), operands[1].tensor_of_trace(), input_type.sizes, *geometry);
  at::MemoryFormat format;
  {
    BelowEverything plain;
    Geometry planar = *geometry;
    if (rank == 3) {  // runs as a 2-d convolution of a contiguous input
      weight = plane_of(weight);
      if (symbolic) settle_format(input, weight, input_type.sizes, *geometry);
      input = plane_of(contiguous_companion(*x));
      for (Ints* list : {&planar.stride, &planar.dilation}) list->insert(list->begin(), 1);
      for (Ints* list : {&planar.padding, &planar.output_padding}) list->insert(list->begin(), 0);
    }
    const auto backend = at::native::select_conv_backend(
        input, weight, has_bias ? std::optional<at::Tensor>(bias) : std::nullopt, sym_ints(planar.stride),
        sym_ints(planar.padding), sym_ints(planar.dilation), planar.transposed, sym_ints(planar.output_padding),
        planar.groups, at::OptionalSymIntArrayRef());
    if (backend == at::native::ConvBackend::Overrideable) return false;
    format = at::native::_determine_backend_memory_format(input, weight, backend);
  }
  TensorType type;
  type.dtype = aten::from_aten(c10::typeMetaToScalarType(x->dtype()));
  type.device = aten::from_aten(x->device());
  if (rank == 3) sizes->insert(sizes->begin() + 2, 1);
  type.strides = strides_in(format, *sizes);
  if (rank == 3) {
    sizes->erase(sizes->begin() + 2);
    type.strides.erase(type.strides.begin() + 2);
  }
  type.sizes = std::move(*sizes);
  ++recorder.counters().ops;
  ++recorder.counters().own_rules;
  std::vector<TensorType> outs = {std::move(type)};
  const ValueId value = recorder.add_node(facts.op, std::move(args), std::move(outs)).outs[0];
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(recorder.fresh(value));
  return true;
}

// Its gradients, in two dimensions on the CPU: both have the format that the forward's backend works in.
bool convolution_backward(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  const auto& operands = recorder.operands();
  TraceImpl *g = operands.at(0).impl, *x = operands.at(1).impl, *w = operands.at(2).impl;
  if (!g || !x || !w || std::get<bool>(args[7])) return false;
  const auto* bias_sizes = std::get_if<Sizes>(&args[3]);
  const auto* mask = std::get_if<std::vector<bool>>(&args[10]);
  if (x->dim() != 4 || w->dim() != 4 || g->dim() != 4 || x->dtype() != w->dtype() || x->dtype() != g->dtype() ||
      !x->device().is_cpu() || x->has_no_elements() || w->has_no_elements() || g->has_no_elements() || !mask ||
      mask->size() != 3)
    return false;
  const auto geometry = geometry_of(args, 4, 2);
  if (!geometry) return false;
  const sym::AskScope ask(recorder.sizes().empty() ? nullptr : &recorder.sizes());
  const at::Tensor input = now(*x), weight = now(*w);
  const bool symbolic = x->is_symbolic() || w->is_symbolic();
  if (symbolic)
    settle_format(operands[1].tensor_of_trace(), operands[2].tensor_of_trace(), recorder.graph().type(x->value).sizes,
                  *geometry);
  at::MemoryFormat format;
  bool library = false;
  {
    BelowEverything plain;
    const auto backend = at::native::select_conv_backend(input, weight, std::nullopt, sym_ints(geometry->stride),
                                                         sym_ints(geometry->padding), sym_ints(geometry->dilation),
                                                         false, sym_ints(geometry->output_padding), geometry->groups,
                                                         at::OptionalSymIntArrayRef());
    library = backend == at::native::ConvBackend::Mkldnn;
    if (!library && backend != at::native::ConvBackend::Slow2d) return false;
    format = at::native::_determine_backend_memory_format(input, weight, backend);
  }
  const auto type_of = [&](const TraceImpl& like, bool as_it_is) {
    TensorType type = recorder.graph().type(like.value);
    type.offset = 0;
    type.wrapped_number = false;
    if (!as_it_is) type.strides = strides_in(format, type.sizes);
    return type;
  };
  std::vector<TensorType> outs(3);
  if ((*mask)[0]) outs[0] = type_of(*x, false);
  if ((*mask)[1]) outs[1] = type_of(*w, !library && operands[2].tensor_of_trace().is_contiguous(format));
  if ((*mask)[2]) {
    if (!bias_sizes || bias_sizes->size() != 1) return false;
    outs[2] = type_of(*g, false);
    outs[2].sizes = *bias_sizes;
    outs[2].strides = {sym::Expr(1)};
  }
  ++recorder.counters().ops;
  ++recorder.counters().own_rules;
  const graph::Node& node = recorder.add_node(facts.op, std::move(args), std::move(outs));
  torch::jit::drop(stack, stack.size() - base);
  for (ValueId v : std::vector<ValueId>(node.outs.begin(), node.outs.end()))
    stack.emplace_back(v == kNoValue ? at::Tensor() : recorder.fresh(v));
  return true;
}

}  // namespace

Special convolution_of(std::string_view name) {
  return name == op::convolution ? convolution : name == op::convolution_backward ? convolution_backward : nullptr;
}

}  // namespace flashover::trace

// Turns a step's arguments into IValues once, so that a call only puts its tensors in place.
#include "run/call.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include "base/check.h"
#include "base/pages.h"
#include "ops/names.h"
#include "plan/lifetimes.h"
#include "run/cuda/driver.h"
#include "run/untracked_writers.h"

namespace flashover::run {

namespace {
c10::Device device_of_tensor(Device d) {
  if (d.type == DeviceType::kCPU) return c10::Device(c10::kCPU);
  if (d.type != DeviceType::kCUDA || d.index < 0)
    throw Declined("plan: a tensor on a device that is neither the CPU nor cuda:n");
  return aten::to_aten(d);
}
}  // namespace

Shape::Shape(const TensorType& t, const int64_t* numbers)
    : dtype(aten::to_aten(t.dtype)),
      device(device_of_tensor(t.device)),
      sizes(numbers, t.sizes.size()),
      strides(numbers + t.sizes.size(), t.strides.size()),
      opaque(t.opaque) {}

bool Shape::fits(const at::Tensor& t) const {
  // What a library packs has sizes of its own (mkl's weights are one long row).
  // Seeds and offsets of attention operators live on the CPU or the device, as they see fit; only operators read them.
  const bool seed = (dtype == at::kLong || dtype == at::kUInt64) && t.numel() <= 2;
  return t.scalar_type() == dtype && (t.device() == device || seed) && (opaque || t.sizes() == sizes);
}

bool Shape::same_strides(const at::Tensor& t) const {
  const auto theirs = t.strides();
  for (size_t i = 0; i < strides.size(); ++i)
    if (theirs[i] != strides[i] && sizes[i] > 1) return t.numel() == 0;
  return true;
}

at::Tensor Shape::empty() const {
  if (device.is_cpu()) {
    at::Tensor t(at::detail::empty_strided_cpu(sizes, strides, dtype));
    prefer_huge_pages(t.unsafeGetTensorImpl()->unsafe_storage().mutable_data(), t.storage().nbytes());
    return t;
  }
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, cuda::allocator(),
                                                      c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype));
}

at::Tensor view_of(const at::Tensor& base, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t elements) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                   c10::scalarTypeToTypeMeta(dtype));
  const int64_t bytes = base.storage_offset() * static_cast<int64_t>(base.element_size());
  impl->set_storage_offset(bytes / static_cast<int64_t>(c10::elementSize(dtype)) + elements);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

namespace {

// Numbers may arrive as any kind that Python would have let through.
Arg coerced(const Arg& a, aten::ArgKind kind) {
  using aten::ArgKind;
  const auto* e = std::get_if<sym::Expr>(&a);
  const auto* b = std::get_if<bool>(&a);
  const auto* s = std::get_if<Sizes>(&a);
  switch (kind) {
    case ArgKind::kFloat:
      if (e) return static_cast<double>(e->value());
      if (b) return static_cast<double>(*b);
      break;
    case ArgKind::kInt:
      if (b) return sym::Expr(static_cast<int64_t>(*b));
      break;
    case ArgKind::kBool:
      if (e) return e->value() != 0;
      break;
    case ArgKind::kIntList:
      if (e) return Sizes{*e};
      if (auto* l = std::get_if<RefList>(&a); l && l->empty()) return Sizes{};
      break;
    case ArgKind::kFloatList:
      if (s) {
        std::vector<double> out;
        for (sym::Expr x : *s) out.push_back(static_cast<double>(x.value()));
        return out;
      }
      break;
    case ArgKind::kTensorList:
      if (s && s->empty()) return RefList{};
      if (auto* r = std::get_if<Ref>(&a)) return RefList{*r};
      break;
    default:
      break;
  }
  return a;
}

}  // namespace

ExternCall prepare(const plan::Step& s) {
  ExternCall call;
  constexpr std::string_view kOnClones = "functional.";
  call.on_clones = s.op.starts_with(kOnClones);
  call.op = aten::find_operator(call.on_clones ? s.op.substr(kOnClones.size()) : s.op);
  if (!call.op) throw Declined("plan: torch has no operator " + s.op);
  call.data_sized = ops::find(s.op)->data_sized;
  call.out_variant = s.out_variant;
  call.writes = s.writes;
  call.begins = plan::begins_collective(call.op->name);
  call.may_keep = !op::is_aten(call.op->name) && may_write_untold(call.op->name);
  const size_t given = s.args.size() + (s.out_variant ? s.writes.size() : 0);
  if (given != call.op->args.size())
    throw Declined("plan: " + s.op + " takes " + std::to_string(call.op->args.size()) + " arguments, not " +
                   std::to_string(given));
  for (size_t i = 0; i < given; ++i) {
    const aten::ArgSpec& spec = call.op->args[i];
    ExternCall::Argument argument;
    if (i >= s.args.size()) {
      argument.kind = ExternCall::Argument::Kind::kTensor;
      argument.tensor = s.writes[i - s.args.size()];
    } else {
      const Arg arg = coerced(s.args[i], spec.kind);
      if (auto* r = std::get_if<Ref>(&arg); r && r->id != kNoValue) {
        argument.kind = spec.kind == aten::ArgKind::kScalar ? ExternCall::Argument::Kind::kScalar
                                                            : ExternCall::Argument::Kind::kTensor;
        argument.tensor = r->id;
      } else if (auto* l = std::get_if<RefList>(&arg)) {
        argument.kind =
            spec.list_of_optional ? ExternCall::Argument::Kind::kOptionalList : ExternCall::Argument::Kind::kList;
        for (Ref x : *l) argument.list.push_back(x.id);
      } else if (is_none(arg)) {
        // Absent, for an operator that takes no None there: an undefined tensor.
        if (spec.kind == aten::ArgKind::kTensor && !spec.optional) argument.constant = at::Tensor();
      } else {
        try {
          argument.constant = aten::to_ivalue(arg, spec, {});
        } catch (const std::bad_variant_access&) {
          throw Declined("plan: argument " + std::to_string(i) + " of " + s.op + " has the wrong kind");
        }
      }
      const bool tensor = spec.kind == aten::ArgKind::kTensor, list = spec.kind == aten::ArgKind::kTensorList;
      if ((argument.kind == ExternCall::Argument::Kind::kTensor && !tensor) ||
          ((argument.kind == ExternCall::Argument::Kind::kList ||
            argument.kind == ExternCall::Argument::Kind::kOptionalList) &&
           !list))
        throw Declined("plan: argument " + std::to_string(i) + " of " + s.op + " has the wrong kind");
    }
    argument.clone = call.on_clones && spec.written;
    call.arguments.push_back(std::move(argument));
  }
  return call;
}

}  // namespace flashover::run

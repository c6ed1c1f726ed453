// Puts tensors in place among the arguments, calls, and checks what came back.

// gcc 12 takes the destructor of a number's IValue, all inlined, for one of an object of no size.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#include <atomic>
#pragma GCC diagnostic pop
#endif

#include "run/extern_call.h"

#include <ATen/ops/copy.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "base/unexpected_size.h"
#include "run/cuda/driver.h"
#include "run/tensor_memory.h"

namespace flashover::run {

using plan::StorageKind;
using plan::TensorId;

namespace {

using Clones = c10::SmallVector<at::Tensor, 4>;

void push_arguments(const ExternCall& c, Run& run, torch::jit::Stack& stack, Clones& clones) {
  const auto given = [&](const ExternCall::Argument& argument, TensorId t) {
    if (!argument.clone) return tensor_of(run, t);
    const at::Tensor original = tensor_of(run, t);
    const Shape& shape = run.program.shapes[t];
    clones.push_back(shape.opaque ? original.clone() : shape.empty());
    if (!shape.opaque) clones.back().copy_(original);
    return clones.back();
  };
  for (const ExternCall::Argument& argument : c.arguments) {
    switch (argument.kind) {
      case ExternCall::Argument::Kind::kConstant:
        stack.emplace_back(argument.constant);
        break;
      case ExternCall::Argument::Kind::kTensor:
        stack.emplace_back(given(argument, argument.tensor));
        break;
      case ExternCall::Argument::Kind::kScalar:
        stack.emplace_back(tensor_of(run, argument.tensor).item());
        break;
      case ExternCall::Argument::Kind::kList: {
        c10::List<at::Tensor> list;
        list.reserve(argument.list.size());
        for (TensorId t : argument.list) list.push_back(t < 0 ? at::Tensor() : given(argument, t));
        stack.emplace_back(std::move(list));
        break;
      }
      case ExternCall::Argument::Kind::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(argument.list.size());
        for (TensorId t : argument.list) list.push_back(t < 0 ? std::optional<at::Tensor>() : given(argument, t));
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

// Seeds of attention lie on the device where a graph is recorded, on the CPU elsewhere: as numbers of one call.
void check_recordable(const ExternCall& c, const torch::jit::Stack& stack) {
  if (draws_nothing(c)) return;
  for (const c10::IValue& v : stack)
    TORCH_CHECK(!v.isTensor() || !v.toTensor().defined() || !v.toTensor().is_cpu(), c.op->name,
                " has a seed on the CPU");
}

// What a collective has begun to fill, filled.
void wait_for(const at::Tensor& t) {
  static const aten::Operator* const wait = aten::find_operator("_c10d_functional.wait_tensor.default");
  if (!wait) throw Mismatch("torch has no operator that waits for collectives");
  torch::jit::Stack stack{t};
  wait->handle.callBoxed(stack);
}

// Result number i of an operator.
void store_result(const ExternCall& c, size_t i, at::Tensor value, Run& run) {
  const Program& p = run.program;
  if (i >= c.writes.size()) throw Mismatch(c.op->name + " returned too many tensors");
  const TensorId t = c.writes[i];
  if (t < 0) return;
  const Shape& shape = p.shapes[t];
  if (c.begins && p.converts && value.defined()) wait_for(value);
  if (p.converts && value.defined() && value.scalar_type() != shape.dtype && !shape.opaque)
    value = value.to(shape.dtype);
  // The trace took its size for another one: an error of this call.
  if (c.data_sized && value.defined() && value.scalar_type() == shape.dtype && !shape.fits(value))
    throw UnexpectedSize(c.op->name + " found " + str(aten::type_of(value)) + " where compiled code needs " +
                         str(p.plan.tensors[t].type));
  if (!value.defined() || !shape.fits(value))
    throw Mismatch("result " + std::to_string(i) + " of " + c.op->name + " is " +
                   (value.defined() ? str(aten::type_of(value)) : "nothing") + ", not " + str(p.plan.tensors[t].type));
  const StorageKind storage = p.plan.tensors[t].storage;
  if (storage != StorageKind::kExtern && storage != StorageKind::kFrozen) {
    at::Tensor target = tensor_of(run, t);
    if (c.begins) wait_for(value);
    if (!value.is_same(target)) target.copy_(value);
    return;
  }
  at::Tensor& old = storage == StorageKind::kFrozen ? (*run.frozen)[t] : run.frame.tensors[t];
  if (!shape.opaque) {
    // The plan counts on memory that nothing else sees, with the strides that kernels were built for.
    const bool strides = shape.same_strides(value);
    // (A collective's result is also held by what fills it.)
    if (!(old.defined() && value.is_same(old)) &&
        (!strides || (!c.begins && !is_unique(value)) || value._is_zerotensor())) {
      if (c.begins) wait_for(value);
      at::Tensor own = shape.empty();
      own.copy_(value);
      value = std::move(own);
    }
    patch_late(p, run.frame, t, value);
  }
  old = std::move(value);
}

// A custom operator that keeps an arena tensor gets the memory's contents for itself; the plan makes new wrappers.
void take_back(TensorId t, Run& run) {
  const Program& p = run.program;
  if (t < 0 || p.root_tensor(t).storage != StorageKind::kArena) return;
  const TensorId r = p.roots[t];
  at::Tensor& whole = run.frame.tensors[r];
  if (!whole.defined()) return;
  size_t own = 0;
  bool kept = false;
  for (size_t i = 0; i < p.plan.tensors.size(); ++i)
    if (p.roots[i] == r && run.frame.tensors[i].defined()) {
      ++own;
      kept |= run.frame.tensors[i].use_count() != 1;
    }
  auto* storage = whole.storage().unsafeGetStorageImpl();
  if (!kept && whole.storage().use_count() == own) return;
  c10::DataPtr copy = (p.device < 0 ? c10::GetCPUAllocator() : cuda::allocator())->allocate(storage->nbytes());
  if (p.device < 0) {
    std::memcpy(copy.get(), storage->data_ptr().get(), storage->nbytes());
  } else {
    cuda::check(cuda::driver()->copy(reinterpret_cast<cuda::DevicePointer>(copy.get()),
                                     reinterpret_cast<cuda::DevicePointer>(storage->data_ptr().get()),
                                     storage->nbytes(), run.stream),
                "cuMemcpyDtoDAsync");
  }
  storage->set_data_ptr_noswap(std::move(copy));
  for (size_t i = 0; i < p.plan.tensors.size(); ++i)
    if (p.roots[i] == r) run.frame.tensors[i].reset();
}

void store_results(const ExternCall& c, Run& run, torch::jit::Stack& stack, Clones& clones) {
  size_t next = 0;
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      store_result(c, next++, std::move(value).toTensor(), run);
    } else if (value.isTensorList()) {
      for (at::Tensor& t : value.toTensorVector()) store_result(c, next++, std::move(t), run);
    }
  }
  for (at::Tensor& t : clones) store_result(c, next++, std::move(t), run);
  stack.clear();
  if (next != c.writes.size())
    throw Mismatch(c.op->name + " returned " + std::to_string(next) + " tensors, not " +
                   std::to_string(c.writes.size()));
}

}  // namespace

void call_operator(const ExternCall& c, Run& run) {
  // A nested call of this frame cannot happen (a nested run borrows another frame), so the stack is ours.
  torch::jit::Stack& stack = run.frame.stack;
  stack.clear();
  Clones clones;
  push_arguments(c, run, stack, clones);
  if (run.nodes) [[unlikely]]
    check_recordable(c, stack);
  aten::handle_of(*c.op).callBoxed(stack);
  if (run.nodes) [[unlikely]]
    check_recordable(c, stack);
  if (c.out_variant) {
    stack.clear();
    for (size_t i = 0; i < c.writes.size(); ++i)
      if (!run.program.shapes[c.writes[i]].fits(tensor_of(run, c.writes[i])))
        throw Mismatch(c.op->name + " resized its output");
  } else {
    store_results(c, run, stack, clones);
  }
  if (!c.may_keep) return;
  for (const ExternCall::Argument& argument : c.arguments) {
    take_back(argument.tensor, run);
    for (TensorId t : argument.list) take_back(t, run);
  }
}

bool draws_nothing(const ExternCall& c) {
  const auto& schema = c.op->handle.schema().arguments();
  for (size_t i = 0; i < c.arguments.size() && i < schema.size(); ++i)
    if (schema[i].name() == "dropout_p" && c.arguments[i].kind == ExternCall::Argument::Kind::kConstant &&
        c.arguments[i].constant.isDouble())
      return c.arguments[i].constant.toDouble() == 0;
  return false;
}

}  // namespace flashover::run

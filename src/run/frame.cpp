// Fills parameters once, and pointers where memory moved.
#include "run/frame.h"

#include <c10/core/InferenceMode.h>

#include "run/tensor_memory.h"

namespace flashover::run {

using plan::StorageKind;
using plan::TensorId;

std::unique_ptr<CallFrame> make_frame(const Program& p) {
  auto frame = std::make_unique<CallFrame>();
  frame->table.resize(p.table_size);
  frame->tensors.resize(p.plan.tensors.size());
  frame->values.resize(p.host_values.size());
  frame->stretches.resize(p.stretches.size());
  static void* none = nullptr;
  // The driver takes pointers to void; it only reads what they point to.
  const auto constant_at = [](const auto& number) { return const_cast<void*>(static_cast<const void*>(&number)); };
  for (const LaunchParam& param : p.params) {
    switch (param.kind) {
      case plan::ParamKind::kPointer:
        frame->params.push_back(&frame->table[param.index]);
        break;
      case plan::ParamKind::kI32:
        frame->params.push_back(constant_at(p.launch_sizes32[param.index]));
        break;
      case plan::ParamKind::kI64:
        frame->params.push_back(constant_at(p.numbers[param.index]));
        break;
      case plan::ParamKind::kGlobalScratch:
        frame->params.push_back(&frame->scratch);
        break;
      case plan::ParamKind::kProfileScratch:
        frame->params.push_back(&none);
        break;
      case plan::ParamKind::kValue32:
      case plan::ParamKind::kValue64:
        frame->params.push_back(&frame->values[param.index]);
        break;
    }
  }
  return frame;
}

FramePool::~FramePool() {
  for (auto& slot : slots_) delete slot.exchange(nullptr);
}

static c10::DataPtr arena_pointer(const Program& p, char* base, TensorId t) {
  return {base + p.arena_offsets[t], p.shapes[t].device};
}

at::Tensor& arena_tensor(const Program& p, CallFrame& frame, TensorId t) {
  at::Tensor& wrapper = frame.tensors[t];
  if (wrapper.defined()) return wrapper;
  const plan::Tensor& entry = p.plan.tensors[t];
  const Shape& shape = p.shapes[t];
  // Wrappers outlive the call and its mode.
  c10::InferenceMode normal(false);
  if (entry.storage == StorageKind::kView) {
    wrapper = view_of(arena_tensor(p, frame, p.roots[t]), shape.dtype, shape.sizes, shape.strides,
                      p.offsets[t] / static_cast<int64_t>(c10::elementSize(shape.dtype)));
    return wrapper;
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(p.tensor_bytes[t]),
                       arena_pointer(p, frame.arena_base, t), nullptr, /*resizable=*/false);
  const auto key = p.device < 0 ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                   c10::scalarTypeToTypeMeta(shape.dtype));
  impl->set_sizes_and_strides(shape.sizes, shape.strides);
  if (entry.type.wrapped_number) impl->set_wrapped_number(true);
  wrapper = at::Tensor(std::move(impl));
  return wrapper;
}

void rebase_arena(const Program& p, CallFrame& frame, char* base) {
  frame.arena_base = base;
  for (const Patch& patch : p.arena_patches) frame.table[patch.slot] = base + patch.bytes;
  for (size_t i = 0; i < p.plan.tensors.size(); ++i)
    if (p.plan.tensors[i].storage == StorageKind::kArena && frame.tensors[i].defined())
      frame.tensors[i].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
          arena_pointer(p, base, static_cast<TensorId>(i)));
}

void patch_late(const Program& p, CallFrame& frame, TensorId t, const at::Tensor& value) {
  if (p.late_patches.empty() || p.late_patches[t].empty()) return;
  char* base = data_of(value.unsafeGetTensorImpl());
  for (const Patch& patch : p.late_patches[t]) frame.table[patch.slot] = base + patch.bytes;
}

}  // namespace flashover::run

// Runs the frozen steps as a call of their own, into memory that outlives it.
#include "run/frozen_tensors.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "run/cuda/aligned_inputs.h"
#include "run/cuda/record.h"
#include "run/cuda/stream.h"
#include "run/dispatch_level.h"
#include "run/walk.h"

namespace flashover::run {

using plan::TensorId;

namespace {

// What is kept lies in one block: torch's allocator loses up to a tenth where many tensors share its segments.
void pack_into_block(const Program& p, std::vector<at::Tensor>& tensors) {
  const auto bytes = static_cast<size_t>(p.frozen.block_bytes);
  c10::DataPtr memory;
  try {
    memory = cuda::allocator()->allocate(bytes);
  } catch (const c10::OutOfMemoryError&) {
    return;  // one by one there may be room
  }
  const c10::Storage block(c10::Storage::use_byte_size_t(), bytes, std::move(memory), nullptr, /*resizable=*/false);
  for (const auto& [t, at] : p.frozen.block_offsets) {
    const Shape& shape = p.shapes[t];
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(block), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                     c10::scalarTypeToTypeMeta(shape.dtype));
    impl->set_storage_offset(at / static_cast<int64_t>(impl->itemsize()));
    impl->set_sizes_and_strides(shape.sizes, shape.strides);
    tensors[t] = at::Tensor(std::move(impl));
  }
}

// What is left to do where some tensors are there already.
struct Missing {
  std::vector<Instruction> instructions;
  std::vector<bool> tensors;  // by TensorId: made by them
};

// Nothing where a step would write over a tensor that is there, which then is to be made anew like all others.
std::optional<Missing> find_missing(const Program& p, const std::vector<at::Tensor>& there) {
  Missing m;
  m.tensors.resize(p.plan.tensors.size());
  for (TensorId t : p.frozen.kept) m.tensors[t] = !there[t].defined();
  for (size_t i = p.frozen_instructions.size(); i-- > 0;) {
    const plan::Step& step = *p.frozen_instructions[i].step;
    bool needed = false, written_over = false;
    const auto look = [&](TensorId t) {
      needed |= m.tensors[p.roots[t]];
      written_over |= there[p.roots[t]].defined();
    };
    plan::for_each_write(step, look);
    if (step.kind == plan::StepKind::kRelease) plan::for_each_read(step, look), written_over = false;
    if (!needed) continue;
    if (written_over) return std::nullopt;
    // Its other results, too: a kernel writes them whether or not anything needs them.
    plan::for_each_write(step, [&](TensorId t) { m.tensors[p.roots[t]] = true; });
    plan::for_each_read(step, [&](TensorId t) { m.tensors[p.roots[t]] = !there[p.roots[t]].defined(); });
    m.instructions.push_back(p.frozen_instructions[i]);
  }
  std::reverse(m.instructions.begin(), m.instructions.end());
  return m;
}

void compute(const Program& p, CallFrame& frame, c10::TensorImpl* const* inputs, cuda::Stream stream, Frozen& made) {
  c10::InferenceMode normal(false);
  c10::impl::ExcludeDispatchKeyGuard below(kBelowAutograd);
  std::vector<at::Tensor> tensors = std::move(made.tensors);  // those that were supplied
  frame.patched_for = nullptr;                                // the tensors it was patched for may be gone
  std::optional<Missing> missing;
  if (!tensors.empty()) missing = find_missing(p, tensors);
  if (!missing) tensors.assign(p.plan.tensors.size(), at::Tensor());
  if (p.frozen.block_bytes > 0 && !missing) pack_into_block(p, tensors);
  for (TensorId t : p.frozen.kept)  // those that were supplied: kernels may read them
    if (tensors[t].defined() && !p.shapes[t].opaque) patch_late(p, frame, t, tensors[t]);
  for (TensorId t : p.frozen.allocated) {
    if (missing && !missing->tensors[t]) continue;
    if (!tensors[t].defined()) tensors[t] = p.shapes[t].empty();
    if (p.plan.tensors[t].type.wrapped_number) tensors[t].unsafeGetTensorImpl()->set_wrapped_number(true);
    patch_late(p, frame, t, tensors[t]);
  }
  std::optional<cuda::AlignedInputs> aligned;
  if (p.device >= 0) aligned.emplace(p, inputs, p.frozen_input_patches);
  Run run{.program = p,
          .frame = frame,
          .inputs = aligned ? aligned->inputs() : inputs,
          .outputs = nullptr,
          .stream = stream,
          .frozen = &tensors};
  patch_inputs(frame, run.inputs, p.frozen_input_patches);
  walk(missing ? missing->instructions : p.frozen_instructions, run);
  std::vector<at::Tensor> kept(p.plan.tensors.size());
  for (TensorId t : p.frozen.kept) kept[t] = std::move(tensors[t]);
  made.tensors = std::move(kept);
  if (p.device >= 0) {
    made.ready = std::make_shared<cuda::ReadyPoint>(p.device);
    made.passing = cuda::is_capturing(stream);  // the program records a graph: computed only when that is replayed
  }
}

}  // namespace

void sync_frozen(const Program& p, FrozenCache& part, CallFrame& frame, c10::TensorImpl* const* inputs,
                 cuda::Stream stream) {
  part.sync(frame.frozen, inputs, [&](Frozen& made) { compute(p, frame, inputs, stream, made); });
  if (p.device >= 0) frame.frozen->ready->enter(stream, frame.frozen->tensors);
  if (frame.frozen.get() == frame.patched_for) return;
  // An older one stayed alive until here, so no address comes twice.
  for (TensorId t : p.frozen.kept)
    if (!p.shapes[t].opaque) patch_late(p, frame, t, frame.frozen->tensors[t]);
  frame.patched_for = frame.frozen.get();
}

}  // namespace flashover::run

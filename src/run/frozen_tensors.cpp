// Runs the frozen steps as a call of their own, into memory that outlives it.
#include "run/frozen_tensors.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "plan/lifetimes.h"
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

// Each tensor's memory is there from the first step that touches it to the last, and for good if it is kept: weights with
// norms in them are as large as the weights, and would lie beside their packed copies.
void walk_frozen(const std::vector<Instruction>& instructions, const std::vector<TensorId>& allocated, Run& run) {
  const Program& p = run.program;
  const std::vector<plan::Step>& steps = p.plan.frozen_steps;
  const std::vector<plan::Lifetime> lives = plan::frozen_lifetimes(p.plan);
  std::vector<bool> kept(lives.size());
  for (TensorId t : p.frozen.kept) kept[p.roots[t]] = true;
  std::vector<std::vector<TensorId>> made(steps.size()), dropped(steps.size());
  for (TensorId t : allocated) made[static_cast<size_t>(lives[t].first)].push_back(t);
  for (size_t t = 0; t < lives.size(); ++t)
    if (const plan::Lifetime& l = lives[p.roots[t]]; l.last >= 0 && !kept[p.roots[t]])
      dropped[static_cast<size_t>(l.last)].push_back(static_cast<TensorId>(t));
  std::vector<at::Tensor>& tensors = *run.frozen;
  for (const Instruction& in : instructions) {
    const auto at = static_cast<size_t>(in.step - steps.data());
    for (TensorId t : made[at]) {
      if (!tensors[t].defined()) tensors[t] = p.shapes[t].empty();
      if (p.plan.tensors[t].type.wrapped_number) tensors[t].unsafeGetTensorImpl()->set_wrapped_number(true);
      patch_late(p, run.frame, t, tensors[t]);
    }
    walk({in}, run);
    for (TensorId t : dropped[at]) tensors[t] = at::Tensor();
  }
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
  std::vector<TensorId> allocated;
  std::copy_if(p.frozen.allocated.begin(), p.frozen.allocated.end(), std::back_inserter(allocated),
               [&](TensorId t) { return !missing || missing->tensors[t]; });
  std::optional<cuda::AlignedInputs> aligned;
  if (p.device >= 0) aligned.emplace(p, inputs, p.frozen_input_patches);
  Run run{.program = p,
          .frame = frame,
          .inputs = aligned ? aligned->inputs() : inputs,
          .outputs = nullptr,
          .stream = stream,
          .frozen = &tensors};
  patch_inputs(frame, run.inputs, p.frozen_input_patches);
  walk_frozen(missing ? missing->instructions : p.frozen_instructions, allocated, run);
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

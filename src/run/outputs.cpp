// Results that are copies, parts or views of what the steps made.
#include "run/outputs.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/copy.h>
#include <c10/core/GradMode.h>

#include "run/tensor_memory.h"

namespace flashover::run {

void finish_output(Run& run, size_t i, bool adopt) {
  const plan::TensorId t = run.program.plan.outputs[i].tensor;
  const Shape& shape = run.program.shapes[t];
  if (adopt && shape.same_strides(run.frame.tensors[t])) {
    at::Tensor& out = (*run.outputs)[i] = std::move(run.frame.tensors[t]);
    // Of dimensions of size 1 too: the user sees them, and later operators choose layouts by them.
    if (!shape.opaque && out.strides() != shape.strides && is_unique(out))
      out.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
    return;
  }
  at::Tensor out = shape.empty();
  out.copy_(tensor_of(run, t));
  (*run.outputs)[i] = std::move(out);
}

void narrow_outputs(const Program& p, std::vector<at::Tensor>& outputs) {
  for (size_t i = 0; i < p.narrowed.size(); ++i) {
    if (!p.narrowed[i]) continue;
    // The memory is the output's own: nothing else sees this tensor object.
    c10::TensorImpl* impl = outputs[i].unsafeGetTensorImpl();
    impl->set_storage_offset(impl->storage_offset() + p.output_offsets[i]);
    impl->set_sizes_and_strides(p.output_shapes[i].sizes, p.output_shapes[i].strides);
  }
}

void make_aliases(const Program& p, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) {
  for (size_t i : p.alias_outputs) {
    const plan::OutputRef& o = p.plan.outputs[i];
    at::Tensor base = o.alias_input >= 0 ? borrow(inputs[o.alias_input]) : outputs[o.alias_output];
    // Plans compute no gradients; what the program detached is not followed.
    if (base.requires_grad() && c10::GradMode::is_enabled()) base = base.detach();
    outputs[i] = at::as_strided(base, p.output_shapes[i].sizes, p.output_shapes[i].strides,
                                base.storage_offset() + p.output_offsets[i]);
  }
}

}  // namespace flashover::run

// Numbers that change, on their way from Python objects to inputs of a graph.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/narrow.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "entry/entry.h"
#include "torch/convert.h"
#include "trace/number.h"

namespace flashover::entry {
namespace {

constexpr size_t kBytes = 8;  // f64 or i64

void write(void* at, PyObject* number) {
  if (PyFloat_CheckExact(number))
    *static_cast<double*>(at) = PyFloat_AS_DOUBLE(number);
  else
    *static_cast<int64_t*>(at) = PyLong_AsLongLong(number);  // (small: frame::evaluate)
}

}  // namespace

PyObject* read_item(PyObject* object, DType dtype) {
  if (!THPVariable_Check(object)) return nullptr;
  const at::Tensor& t = THPVariable_Unpack(object);
  return t.scalar_type() == aten::to_aten(dtype) ? trace::only_number(t) : nullptr;
}

at::Tensor narrowed_input(const Entry& e, size_t index, PyObject* const* objects) {
  const frame::NarrowedInput& p = e.capture.narrowed_inputs[index];
  at::AutoGradMode mode(p.grad);
  at::Tensor out = THPVariable_Unpack(objects[p.base]);
  for (const frame::NarrowedInput::Narrow& n : p.narrows)
    out = out.narrow(n.dim, PyLong_AsLongLong(objects[e.required + static_cast<size_t>(n.start)]), n.length);
  return out;
}

std::shared_ptr<NumberTensors> number_tensors(Entry& e, PyObject* const* objects) {
  const std::vector<int32_t>& steps = e.capture.numbers.inputs;
  const auto number = [&](size_t i) { return objects[e.required + static_cast<size_t>(steps[i])]; };
  const std::vector<int32_t>& size_steps = e.capture.numbers.sizes;
  const auto resize = [&](const at::Tensor& t, size_t i) {
    PyObject* size = objects[e.required + static_cast<size_t>(size_steps[i])];
    t.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef{PyLong_AsLongLong(size)}, c10::IntArrayRef{0});
  };
  if (e.spare && e.spare.use_count() == 1) {
    for (size_t i = 0; i < steps.size(); ++i) write(e.spare->tensors[i].mutable_data_ptr(), number(i));
    for (size_t i = 0; i < size_steps.size(); ++i) resize(e.spare->sizes[i], i);
    return e.spare;
  }
  c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor all = at::empty({static_cast<int64_t>(steps.size())}, at::kDouble);
  auto* data = static_cast<char*>(all.mutable_data_ptr());
  for (size_t i = 0; i < steps.size(); ++i) write(data + i * kBytes, number(i));
  auto out = std::make_shared<NumberTensors>();
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto dtype = PyFloat_CheckExact(number(i)) ? at::kDouble : at::kLong;
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(all.storage()), all.key_set(),
                                                     c10::scalarTypeToTypeMeta(dtype));
    impl->set_storage_offset(static_cast<int64_t>(i));
    impl->set_sizes_and_strides(c10::IntArrayRef{}, c10::IntArrayRef{});
    impl->set_wrapped_number(true);
    out->tensors.emplace_back(std::move(impl));
  }
  for (size_t i = 0; i < size_steps.size(); ++i) resize(out->sizes.emplace_back(at::zeros({1}, at::kLong)), i);
  // Not where they may be kept for a backward. (Kernels on a device take their values along.)
  if (e.ours && !e.capture.joint.present) e.spare = out;
  return out;
}

}  // namespace flashover::entry

// The backward of tensors of a class with __torch_dispatch__: autograd sees them whole, the graph what is in them.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

bool is_of_python(const at::Tensor& t) { return t.key_set().has(c10::DispatchKey::Python); }

// What gradients are of; other parts (offsets, whole numbers of quantized weights) are what they are.
bool has_gradients(const at::Tensor& t) {
  return at::isFloatingType(t.scalar_type()) || at::isComplexType(t.scalar_type());
}

PyObject* checked(PyObject* made, const char* what) {
  if (made != nullptr && PyErr_Occurred() == nullptr) return made;
  PyErr_Clear();
  throw Declined(std::string("training: a tensor subclass ") + what);
}

}  // namespace

std::vector<at::Tensor> Recorder::parts_of(const at::Tensor& wrapper) {
  PyObject* object = THPVariable_Wrap(wrapper);
  kept_.push_back(object);
  PyObject* parts = checked(wrapper_classes.parts(object), "cannot be taken apart");
  kept_.push_back(parts);
  std::vector<at::Tensor> out;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts, i);
    const TraceImpl* impl = THPVariable_Check(part) ? trace_impl(THPVariable_Unpack(part)) : nullptr;
    if (!impl || impl->liveness.get() != liveness_.get())
      throw Declined("training: a tensor subclass holds a tensor that the trace did not make");
    out.push_back(THPVariable_Unpack(part));
  }
  return out;
}

// Autograd follows views of wrappers, and writes through them, by the wrappers; the parts that leave the graph are
// tensors of their own.
void Recorder::check_wrapped(const std::vector<WrappedResult>& wrapped, const std::vector<at::Tensor>& outputs) const {
  for (const WrappedResult& w : wrapped) {
    const at::Tensor& t = THPVariable_Unpack(w.wrapper);
    if (t.is_leaf()) throw Declined("training: a result is a new leaf that requires grad");
    if (t.retains_grad()) throw Declined("training: retain_grad on a result");
    for (int32_t i : w.outputs) {
      if (i < 0) continue;
      if (outputs[static_cast<size_t>(i)].requires_grad())
        throw Declined("training: a tensor subclass in the result is made of tensors that require grad");
      const int32_t memory = trace_impl(outputs[static_cast<size_t>(i)])->storage_id;
      const auto lies_there = [&](const InputRecord& in) { return in.impl->storage_id == memory; };
      if (std::ranges::any_of(inputs_, lies_there))
        throw Declined("training: a tensor subclass in the result is a view of an input");
      for (size_t k = 0; k < outputs.size(); ++k)
        if (k != static_cast<size_t>(i) && trace_impl(outputs[k])->storage_id == memory)
          throw Declined("training: a tensor subclass in the result shares memory with another one");
    }
  }
}

void Recorder::add_wrapped_tangents(graph::Joint& joint, WrappedResult& result,
                                    const std::vector<at::Tensor>& outputs) {
  const std::vector<at::Tensor> parts = parts_of(THPVariable_Unpack(result.wrapper));
  FLASHOVER_CHECK(parts.size() == result.outputs.size()) << "a wrapper's parts changed";
  PyObject* given = PyTuple_New(static_cast<Py_ssize_t>(parts.size()));
  kept_.push_back(given);
  for (size_t p = 0; p < parts.size(); ++p) {
    const int32_t output = result.outputs[p];
    at::Tensor part = parts[p];
    if (output >= 0 && has_gradients(part)) {
      graph::Joint::Result& r = joint.results[static_cast<size_t>(output)];
      int32_t number = -1;
      part = add_tangent(outputs[static_cast<size_t>(output)], number);
      r.requires_grad = true;
      r.tangent = static_cast<int32_t>(joint.tangents.size());
      joint.tangents.push_back(number);
    } else {
      if (has_gradients(part) && output < 0 && part.numel() > 0)
        throw Declined("training: a tensor subclass in the result holds an input");
      if (!THPVariable_Unpack(result.wrapper).is_nested())
        throw Declined("training: a tensor subclass in the result holds what has no gradients");
      result.outputs[p] = -1;
    }
    PyTuple_SET_ITEM(given, static_cast<Py_ssize_t>(p), THPVariable_Wrap(part));
  }
  result.tangent = checked(wrapper_classes.like(result.wrapper, given), "cannot be made of gradients");
  kept_.push_back(result.tangent);
  if (THPVariable_Unpack(result.tangent).requires_grad())
    throw Declined("training: a tensor subclass made of gradients is not like the result");
}

// What arrived at an input. Its parts leave the graph through inputs of the same types, which nothing reads.
void Recorder::take_gradient(graph::Joint& joint, PyObject* of, int32_t input, const at::Tensor& gradient) {
  const auto check = [&](const at::Tensor& t) {
    const TraceImpl* impl = trace_impl(t);
    if (!impl || impl->liveness.get() != liveness_.get())
      throw Declined("training: a gradient that the trace did not make");
    if (t.is_conj() || t.is_neg()) throw Declined("training: a gradient is a lazily conjugated view");
  };
  if (input >= 0 && !is_of_python(gradient)) {
    check(gradient);
    joint.gradients.push_back(input);
    gradients_.push_back(gradient);
    return;
  }
  WrappedGradient w;
  w.of = of;
  w.gradient = THPVariable_Wrap(gradient);
  kept_.push_back(w.gradient);
  for (const at::Tensor& part : is_of_python(gradient) ? parts_of(gradient) : std::vector<at::Tensor>{gradient}) {
    check(part);
    if (!has_gradients(part) || trace_impl(part)->input >= 0) {
      if (trace_impl(part)->input < 0)
        throw Declined("training: a gradient of a tensor subclass holds what has no gradients");
      w.inputs.push_back(-1);
      continue;
    }
    TensorType type = type_of(part);
    type.offset = 0;
    type.wrapped_number = false;
    for (sym::Expr& stride : type.strides) stride = 0;
    const auto number = static_cast<int32_t>(graph_.inputs.size());
    graph_.add_input(std::move(type), graph::InputKind::kUser, "a gradient", new_storage(make_storage(8)));
    w.inputs.push_back(number);
    joint.gradients.push_back(number);
    gradients_.push_back(part);
  }
  wrapped_gradients_.push_back(std::move(w));
}

// The parts of one gradient come together, or it is undefined as a whole.
void Recorder::share_dependences(graph::Joint& joint) const {
  for (const WrappedGradient& w : wrapped_gradients_) {
    std::set<int32_t> all;
    std::vector<size_t> places;
    for (size_t i = 0; i < joint.gradients.size(); ++i)
      if (std::ranges::find(w.inputs, joint.gradients[i]) != w.inputs.end()) places.push_back(i);
    for (size_t i : places) all.insert(joint.depends[i].begin(), joint.depends[i].end());
    for (size_t i : places) joint.depends[i].assign(all.begin(), all.end());
  }
}

}  // namespace flashover::trace

// Results of classes with __torch_dispatch__ are made of plain tensors in each call; those that require grad get an
// autograd node that takes gradients apart, and inputs one that puts them together (python/flashover/_subclasses.py).
#include "frame/internals.h"
#include "frame/interpret/interpreter.h"
#include "frame/reconstruction.h"

namespace flashover::frame {

using Kind = ReconstructionStep::Kind;

// Python code of ours and of the class, which is no part of the program.
Ref Reconstructor::call_wrappers(const char* function, PyObject* args) {
  PyObject* f = of_module("flashover._subclasses", function);
  ++in_.uninterpreted;
  Ref made = Ref::steal(f != nullptr && args != nullptr ? PyObject_CallObject(f, args) : nullptr);
  --in_.uninterpreted;
  kept_.push_back(made);
  PyErr_Clear();
  return made;
}

int32_t Reconstructor::make_wrapper(PyObject* o) {
  const Ref asks = tensor_attribute(o, "requires_grad");
  if (asks.get() == Py_True) make_parts(o);
  Ref args = Ref::steal(PyTuple_Pack(1, o));
  const Ref parts = call_wrappers("parts", args.get());
  if (!parts || !PyTuple_Check(parts.get()))
    throw Declined(std::string("a tensor of a subclass in the result: ") + Py_TYPE(o)->tp_name);
  return make_of_parts(o, parts.get());
}

// Its parts leave the graph as tensors that lead into the backward. What the program gets to see of them does not.
void Reconstructor::make_parts(PyObject* wrapper) {
  Ref args = Ref::steal(PyTuple_Pack(1, wrapper));
  const Ref leaves = call_wrappers("leaves", args.get());
  if (!leaves || !PyTuple_Check(leaves.get()))
    throw Declined(std::string("a tensor of a subclass in the result: ") + Py_TYPE(wrapper)->tp_name);
  trace::WrappedResult result;
  result.wrapper = wrapper;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves.get()); ++i) {
    PyObject* leaf = PyTuple_GET_ITEM(leaves.get(), i);
    result.outputs.push_back(-1);
    if (in_.recorder.is_old(leaf)) continue;
    if (registers_.contains(leaf))
      throw Declined("training: a tensor that a tensor subclass is made of is a result of its own");
    const int32_t made = make(leaf);
    const ReconstructionStep& s = capture_.reconstruction[static_cast<size_t>(made)];
    if (s.kind != Kind::kGraphOutput) continue;
    result.outputs.back() = s.index;
    led_parts_[leaf] = made;
    registers_[leaf] = step(Kind::kReduced, of_module("flashover._subclasses", "without_history"), {made}, 1);
  }
  capture_.calls = true;
  wrapped_.push_back(std::move(result));
}

namespace {

Ref numbers(const std::vector<int32_t>& list) {
  Ref out = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(list.size())));
  for (size_t i = 0; out && i < list.size(); ++i)
    PyTuple_SET_ITEM(out.get(), static_cast<Py_ssize_t>(i), PyLong_FromLong(list[i]));
  return out;
}

}  // namespace

void Reconstructor::lead_wrapped(const std::vector<trace::WrappedGradient>& gradients) {
  const auto form = [&](PyObject* tensor, const std::vector<int32_t>& which) {
    std::vector<int32_t> order;
    int32_t next = 0;
    for (int32_t w : which) order.push_back(w < 0 ? -1 : next++);
    const Ref list = numbers(order);
    Ref args = Ref::steal(list ? PyTuple_Pack(2, tensor, list.get()) : nullptr);
    const Ref made = call_wrappers("form", args.get());
    if (!made) throw Declined("training: a gradient of a tensor subclass cannot be described");
    return make(made.get());
  };
  for (const trace::WrappedResult& w : wrapped_) {
    std::vector<int32_t> items{registers_.at(w.wrapper), form(w.tangent, w.outputs)};
    for (int32_t output : w.outputs)
      if (output >= 0) items.push_back(led_parts_.at(outputs_[static_cast<size_t>(output)]));
    const auto count = static_cast<int32_t>(items.size());
    step(Kind::kReduced, of_module("flashover._subclasses", "lead"), std::move(items), count);
  }
  for (const trace::WrappedGradient& g : gradients) {
    const auto box = static_cast<int32_t>(outputs_.size() + capture_.wrapped_gradients.size());
    const int32_t made = form(g.gradient, g.inputs);
    step(Kind::kReduced, of_module("flashover._subclasses", "fill"), {step(Kind::kGraphOutput, nullptr, {}, box), made},
         2);
    WrappedInput in;
    in.of = require(in_.recorder.source_of(g.of));
    for (int32_t input : g.inputs)
      if (input >= 0) in.inputs.push_back(input);
    if (in.inputs.empty()) throw Declined("training: a gradient of a tensor subclass without parts");
    capture_.wrapped_gradients.push_back(std::move(in));
    capture_.calls = true;
  }
}

}  // namespace flashover::frame

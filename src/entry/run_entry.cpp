// One call of an entry: inputs without references of their own where that is safe, the plan without the GIL, outputs
// handed to the reconstruction. What fails before it wrote anything asks for a repeat in eager.
#include "entry/run_entry.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/boundary.h"
#include "base/unexpected_size.h"
#include "compat/python_lock.h"
#include "entry/versions.h"
#include "entry/wrapped_inputs.h"
#include "guards/arrays.h"
#include "guards/objects.h"
#include "run/run.h"

namespace flashover::entry {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// An operator did not keep what its meta function promised: such calls are eager from now on. False: an error is set.
bool retire(const EntryPtr& e, const Settings& settings, const run::Mismatch& m) {
  const std::string text = "flashover: " + settings.name + ": " + m.what();
  if (!m.clean || settings.fullgraph) {
    PyErr_SetString(PyExc_RuntimeError, (text + (m.clean ? "" : "; inputs may have been written already")).c_str());
    return false;
  }
  e->kind = Entry::Kind::kEager;
  e->cause = EagerCause::kSaid;
  e->reason = m.what();
  return PyErr_WarnEx(PyExc_RuntimeWarning, (text + "; such calls run eager").c_str(), 1) == 0;
}

// What the program made inside of inference_mode is such a tensor outside, too.
void make_inference(at::Tensor& t) {
  if (t.is_inference() || t.requires_grad() || !t.has_storage()) return;
  c10::InferenceMode mode;
  at::Tensor made = at::empty({0}, t.options());
  made.set_(t.storage(), t.storage_offset(), t.sizes(), t.strides());
  t = std::move(made);
}

// The inputs of a graph, some of them without a reference of their own: their Python objects are held meanwhile.
class Inputs {
 public:
  Inputs(const Entry& e, PyObject* const* objects, const NumberTensors* numbers) : e_(e) {
    tensors_.reserve(e.inputs.size());
    for (size_t i = 0; i < e.inputs.size(); ++i) {
      const int32_t in = e.inputs[i];
      if (e.borrowed[i])
        tensors_.emplace_back(
            Pointer::reclaim((in < 0 ? e.constants[-1 - in] : THPVariable_Unpack(objects[in])).unsafeGetTensorImpl()));
      else
        tensors_.push_back(graph_input(e, in, objects, numbers));
    }
  }
  void finish(PyObject* const* objects) {
    if (!e_.capture.wrapped_gradients.empty()) make_wrapped_inputs(e_, objects, tensors_.data(), &forms);
  }
  Inputs(const Inputs&) = delete;
  ~Inputs() {
    for (PyObject* o : forms) Py_DECREF(o);
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (e_.borrowed[i]) static_cast<void>(tensors_[i].unsafeReleaseTensorImpl());
  }
  const at::Tensor* data() const { return tensors_.data(); }
  size_t size() const { return tensors_.size(); }
  std::vector<PyObject*> forms;  // make_wrapped_inputs()'s

 private:
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  const Entry& e_;
  c10::SmallVector<at::Tensor, 16> tensors_;
};

}  // namespace

PyObject* run_entry(const EntryPtr& e, const Settings& settings, PyObject** objects,
                    std::vector<frame::FrameState>& frames, Repeat& repeat) {
  const std::shared_ptr<NumberTensors> numbers =
      e->capture.numbers.inputs.empty() && e->capture.numbers.sizes.empty() ? nullptr : number_tensors(*e, objects);
  Inputs inputs(*e, objects, numbers.get());
  const size_t held = e->required + e->capture.numbers.steps.size();
  for (size_t i = 0; i < held; i++) Py_INCREF(objects[i]);
  guards::let_go_of_arrays();
  std::vector<at::Tensor> outputs;
  PyObject* result = nullptr;
  bool ran = false;
  run::failure_was_undone() = false;
  frame::number_of_data_failed() = false;
  const auto undone = [&] { return !ran && (e->repeatable || run::failure_was_undone()); };
  // Other threads may change dicts while the graph runs, and finalizers while the result is made: dicts that are made
  // for a result are always as many.
  const bool quiet = e->timed && e->capture.effects.empty() && e->capture.frames.empty();
  const uint64_t before = quiet ? guards::dict_clock() : 0;
  uint64_t after = 0;
  try {
    torch::PyWarningHandler warnings;
    try {
      inputs.finish(objects);
      at::RecordFunction range(at::RecordScope::USER_SCOPE);
      if (range.isActive()) [[unlikely]]
        range.before("flashover: " + settings.name);
      if (!e->runner) {
        // Only Python before the break.
      } else if (e->runner->needs_gil()) {
        e->runner->run(inputs.data(), inputs.size(), outputs);
      } else {
        PyThreadState* saved = PyEval_SaveThread();
        try {
          e->runner->run(inputs.data(), inputs.size(), outputs);
        } catch (abi::__forced_unwind&) {
          wait_for_the_end();
        } catch (...) {
          compat::take_lock_again(saved);
          throw;
        }
        compat::take_lock_again(saved);
      }
    } catch (...) {
      warnings.set_in_exception();
      throw;
    }
    ran = true;
    if (quiet) after = guards::dict_clock();
    give_own_counters(e->capture.own_counters, inputs.data(), outputs);
    for (int32_t i : e->capture.inference_outputs) make_inference(outputs[static_cast<size_t>(i)]);
    c10::SmallVector<PyObject*, 8> wrapped;
    for (at::Tensor& t : outputs) wrapped.push_back(THPVariable_Wrap(std::move(t)));
    for (PyObject* form : inputs.forms) wrapped.push_back(Py_NewRef(form));
    for (const auto& [wrapper, steps] : e->capture.written_wrappers)
      for (uint32_t i = 0; i < steps; ++i) THPVariable_Unpack(objects[wrapper]).unsafeGetTensorImpl()->bump_version();
    if (e->capture.frames.empty()) {
      result = frame::rebuild(e->capture, objects, wrapped.data());
    } else {
      frame::rebuild_frames(e->capture, objects, wrapped.data(), frames);
    }
    for (PyObject* o : wrapped) Py_XDECREF(o);
    if (!result && frame::number_of_data_failed() && e->repeatable) {
      PyErr_Clear();
      repeat = {true, EagerCause::kRaises, "what was compiled raised for what a tensor holds"};
    }
  } catch (abi::__forced_unwind&) {
    wait_for_the_end();
  } catch (python_error& error) {
    error.restore();
    // Sizes that follow from data are otherwise than a backend's graph takes them; or the program itself raises.
    if (!ran && !e->ours && e->repeatable && e->capture.data_sizes && PyErr_ExceptionMatches(PyExc_Exception)) {
      PyErr_Clear();
      repeat = {true, EagerCause::kRaises, "what a backend made raised for sizes that follow from data"};
    }
  } catch (const run::Mismatch& m) {
    repeat = {retire(e, settings, m), EagerCause::kSaid, e->reason};
  } catch (const UnexpectedSize& error) {
    if (undone())
      repeat = {true, EagerCause::kRaises, "what was compiled raised: " + first_line(error.what()), true, error.fact};
    else
      tell_of_exception();
  } catch (const std::exception& error) {
    if (undone())
      repeat = {true, EagerCause::kRaises, "what was compiled raised: " + first_line(error.what())};
    else
      tell_of_exception();
  } catch (...) {
    if (undone())
      repeat = {true, EagerCause::kRaises, "what was compiled raised"};
    else
      tell_of_exception();
  }
  for (size_t i = 0; i < held; i++) Py_DECREF(objects[i]);
  if (e->guards) e->guards->let_go();
  if (quiet) {
    const uint64_t end = guards::dict_clock(), ticks = end - after;
    e->clock = result && after == before + guards::kDictTick && ticks == e->result_ticks ? end : 0;
    if (result) e->result_ticks = std::min(ticks, e->result_ticks);
  }
  return result;
}

}  // namespace flashover::entry

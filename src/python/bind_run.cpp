// Plans from Python, for the tests; and the hooks that tell run/writes.h who got hold of a tensor's memory.
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/boundary.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "compat/python_lock.h"
#include "frame/signals.h"
#include "python/bind.h"
#include "run/arena.h"
#include "run/cuda/costs.h"
#include "run/cuda/record.h"
#include "run/frozen.h"
#include "run/run.h"
#include "run/writes.h"
#include "target/features.h"

namespace flashover {
namespace py = pybind11;
namespace {

// ---- escape hooks: the C functions behind `data`, numpy(), ... are wrapped in place, once ----
// Callers that only look: they compare addresses or read through them, and keep none when they return. (Checkpoints are
// written between calls of compiled code: comparing all weights in each call from then on would cost a fifth of it.)
constexpr const char* kReaders[] = {"/safetensors/torch.py",
                                    "/huggingface_hub/serialization/",
                                    "/torch/serialization.py",
                                    "/torch/onnx/_internal/",
                                    "/torch/_dynamo/",
                                    "/transformers/modeling_utils.py",
                                    "/transformers/pytorch_utils.py"};
// torch.compile's launchers ask for the address of everything they pass to kernels; what those write gets a new
// version.
constexpr const char* kLaunchers[] = {"/torch/_inductor/"};

// Whether one of the innermost `depth` frames of Python is of a file that one of `parts` is in.
bool asked_by(std::span<const char* const> parts, int depth) {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool found = false;
  for (int i = 0; frame && i < depth && !found; ++i) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    found = file && std::ranges::any_of(parts, [&](const char* part) { return std::strstr(file, part) != nullptr; });
    if (!file) PyErr_Clear();
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}
void mark_escaped(PyObject* tensor, run::Alias alias) {
  if (!tensor || !THPVariable_Check(tensor)) return;
  const at::Tensor& t = THPVariable_Unpack(tensor);
  if (alias == run::Alias::kAddress && (asked_by(kReaders, 1) || (t.is_cuda() && asked_by(kLaunchers, 4)))) return;
  // An array of what requires a gradient is made from a detached copy, which owns the storage as long as it lives.
  if (alias == run::Alias::kHandle && t.requires_grad()) alias = run::Alias::kOwner;
  run::mark_escaped(t.unsafeGetTensorImpl(), alias);
}

getter data_getter;
setter data_setter;
PyObject* get_data(PyObject* self, void* closure) {
  PyObject* result = data_getter(self, closure);
  if (result) mark_escaped(self, run::Alias::kOwner);
  return result;
}
// The tensor that was assigned shares its memory but not its version counter.
int set_data(PyObject* self, PyObject* value, void* closure) {
  const int status = data_setter(self, value, closure);
  if (status == 0) mark_escaped(self, run::Alias::kOwner);
  return status;
}

// Where a hooked function is found, and so where its tensors are.
enum class Of : uint8_t {
  kTensor,     // a method of TensorBase
  kModule,     // a function of torch._C that takes the tensor
  kAutograd,   // a function of torch._C._autograd that takes the tensor, or a tuple of them
  kCudaGraph,  // a method of torch's CUDA graph: who knows what it writes
};
struct Hook {
  const char* name;
  run::Alias alias;
  Of of;
};
constexpr Hook kHooks[] = {
    {"untyped_storage", run::Alias::kOwner, Of::kTensor},
    {"set_", run::Alias::kOwner, Of::kTensor},
    {"numpy", run::Alias::kHandle, Of::kTensor},
    {"data_ptr", run::Alias::kAddress, Of::kTensor},
    {"_to_dlpack", run::Alias::kHandle, Of::kModule},
    {"_to_dlpack_versioned", run::Alias::kHandle, Of::kModule},
    {"_unsafe_set_version_counter", run::Alias::kOwner, Of::kAutograd},
    {"replay", run::Alias::kOwner, Of::kCudaGraph},
};
PyCFunction originals[std::size(kHooks)];
thread_local bool replays_own_graph = false;  // of a plan, which tells by itself

PyObject* tensor_of(const Hook& hook, PyObject* self, PyObject* args, PyObject* keywords) {
  if (hook.of == Of::kTensor) return self;
  if (args && PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 0) return PyTuple_GET_ITEM(args, 0);
  if (keywords && PyDict_Check(keywords)) {  // whatever it is called
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(keywords, &at, &key, &value))
      if (THPVariable_Check(value)) return value;
  }
  return args;  // METH_O
}
// `tensors`: one, or several in a tuple or a list.
void report(const Hook& hook, PyObject* tensors) {
  if (hook.of == Of::kCudaGraph) {
    if (!replays_own_graph) run::wrote_anything();
    return;
  }
  if (tensors && (PyTuple_Check(tensors) || PyList_Check(tensors))) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(tensors); ++i)
      mark_escaped(PySequence_Fast_GET_ITEM(tensors, i), hook.alias);
  } else {
    mark_escaped(tensors, hook.alias);
  }
}
template <size_t I>
PyObject* plain(PyObject* self, PyObject* args) {
  PyObject* result = originals[I](self, args);
  if (result) report(kHooks[I], tensor_of(kHooks[I], self, args, nullptr));
  return result;
}
// pybind11's functions since its version 3 (torch 2.15): values of keywords follow the positional ones.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
template <size_t I>
PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t positional, PyObject* names) {
  PyObject* result = reinterpret_cast<FastCall>(reinterpret_cast<void*>(originals[I]))(self, args, positional, names);
  if (!result) return nullptr;
  const Py_ssize_t count = positional + (names ? PyTuple_GET_SIZE(names) : 0);
  const auto holds_tensors = [](PyObject* o) { return THPVariable_Check(o) || PyTuple_Check(o) || PyList_Check(o); };
  PyObject* const* found = std::find_if(args, args + count, holds_tensors);
  report(kHooks[I], kHooks[I].of == Of::kTensor ? self : found != args + count ? *found : nullptr);
  return result;
}
template <size_t I>
PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* keywords) {
  PyObject* result =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(originals[I]))(self, args, keywords);
  if (result) report(kHooks[I], tensor_of(kHooks[I], self, args, keywords));
  return result;
}

PyMethodDef* method_of(const Hook& hook, PyObject* torch_c, PyTypeObject* base) {
  if (hook.of != Of::kTensor) {
    PyObject* holder = PyModule_GetDict(torch_c);
    if (hook.of == Of::kAutograd) {
      PyObject* autograd = PyDict_GetItemString(holder, "_autograd");
      holder = autograd && PyModule_Check(autograd) ? PyModule_GetDict(autograd) : nullptr;
    } else if (hook.of == Of::kCudaGraph) {
      PyObject* graph = PyDict_GetItemString(holder, "_CUDAGraph");
      holder = graph && PyType_Check(graph) ? reinterpret_cast<PyTypeObject*>(graph)->tp_dict : nullptr;
    }
    PyObject* function = holder ? PyDict_GetItemString(holder, hook.name) : nullptr;
    if (function && PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
    return function && PyCFunction_CheckExact(function) ? reinterpret_cast<PyCFunctionObject*>(function)->m_ml
                                                        : nullptr;
  }
  PyObject* descriptor = PyDict_GetItemString(base->tp_dict, hook.name);
  return descriptor && Py_TYPE(descriptor) == &PyMethodDescr_Type
             ? reinterpret_cast<PyMethodDescrObject*>(descriptor)->d_method
             : nullptr;
}
template <size_t I>
bool install(PyObject* torch_c, PyTypeObject* base) {
  PyMethodDef* method = method_of(kHooks[I], torch_c, base);
  // Builds of torch without CUDA have no graphs.
  if (!method) return kHooks[I].of == Of::kCudaGraph && !PyDict_GetItemString(PyModule_GetDict(torch_c), "_CUDAGraph");
  const int convention = method->ml_flags & (METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O | METH_FASTCALL);
  originals[I] = method->ml_meth;
  if (convention == (METH_VARARGS | METH_KEYWORDS)) {
    method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(at_boundary<with_keywords<I>>));
  } else if (convention == (METH_FASTCALL | METH_KEYWORDS)) {
    method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(at_boundary<fast<I>>));
  } else if (convention == METH_NOARGS || convention == METH_VARARGS || convention == METH_O) {
    method->ml_meth = at_boundary<plain<I>>;
  } else {
    return false;
  }
  return true;
}
template <size_t... I>
bool install_all(PyObject* torch_c, PyTypeObject* base, std::index_sequence<I...>) {
  return (static_cast<int>(install<I>(torch_c, base)) & ...) != 0;
}

// In inference mode, operators on lists of CUDA tensors move no versions: torch's autograd kernels do that for them,
// and are left out there.
constexpr size_t kMostListOperators = 128;
std::array<PyCFunctionWithKeywords, kMostListOperators> list_operators;
template <size_t I>
PyObject* list_operator(PyObject* self, PyObject* args, PyObject* keywords) {
  PyObject* result = list_operators[I](self, args, keywords);
  if (!result || !c10::InferenceMode::is_enabled()) return result;
  PyObject* written = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0)
                      : keywords                 ? PyDict_GetItemString(keywords, "self")
                                                 : nullptr;
  if (!written || !(PyList_Check(written) || PyTuple_Check(written))) return result;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(written); ++i)
    mark_escaped(PySequence_Fast_GET_ITEM(written, i), run::Alias::kOwner);
  return result;
}
template <size_t... I>
bool install_list_operators(PyObject* torch_c, std::index_sequence<I...>) {
  constexpr std::array<PyCFunctionWithKeywords, kMostListOperators> kInstead{at_boundary<list_operator<I>>...};
  const py::object functions = py::reinterpret_borrow<py::object>(torch_c).attr("_VariableFunctions");
  size_t next = 0;
  for (const py::handle name : py::reinterpret_steal<py::list>(PyObject_Dir(functions.ptr()))) {
    const auto text = name.cast<std::string>();
    if (!text.starts_with("_foreach_") || !text.ends_with('_')) continue;
    const py::object function = functions.attr(name);
    if (!PyCFunction_CheckExact(function.ptr()) || next == kMostListOperators) return false;
    PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
    if ((method->ml_flags & (METH_VARARGS | METH_KEYWORDS)) != (METH_VARARGS | METH_KEYWORDS)) return false;
    list_operators[next] = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(method->ml_meth));
    method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(kInstead[next++]));
  }
  return next > 0;
}

void install_hooks() {
  py::module_ torch_c = py::module_::import("torch._C");
  const py::object base_object = torch_c.attr("TensorBase");
  auto* base = reinterpret_cast<PyTypeObject*>(base_object.ptr());
  bool all = install_all(torch_c.ptr(), base, std::make_index_sequence<std::size(kHooks)>());
  all &= install_list_operators(torch_c.ptr(), std::make_index_sequence<kMostListOperators>());
  PyObject* data = PyDict_GetItemString(base->tp_dict, "data");
  if (data && Py_TYPE(data) == &PyGetSetDescr_Type) {
    PyGetSetDef* entry = reinterpret_cast<PyGetSetDescrObject*>(data)->d_getset;
    data_getter = std::exchange(entry->get, at_boundary<get_data>);
    data_setter = std::exchange(entry->set, at_boundary<set_data>);
  } else {
    all = false;
  }
  if (!all) run::escapes_tracked = false;
}

// ---- plans ----
struct PyPlan {
  std::shared_ptr<run::Executable> executable;
  py::list call(const py::args& args) {
    std::vector<at::Tensor> inputs, outputs;
    for (py::handle a : args) {
      if (!THPVariable_Check(a.ptr())) throw py::type_error("a plan takes tensors");
      inputs.push_back(THPVariable_Unpack(a.ptr()));
    }
    {
      py::gil_scoped_release release;
      executable->run(inputs.data(), inputs.size(), outputs);
    }
    py::list out;
    for (at::Tensor& t : outputs) out.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(t))));
    return out;
  }
};

// ---- CUDA graphs: torch's graph object, at the times when one is made or dropped (python/flashover/recording.py) ----
py::object borrowed(void* p) { return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(p)); }
void* make_pool() {
  py::gil_scoped_acquire gil;
  return py::module_::import("flashover.recording").attr("Pool")().release().ptr();
}
void* begin_capture(void* pool) {
  py::gil_scoped_acquire gil;
  return py::module_::import("flashover.recording").attr("Recording")(borrowed(pool)).release().ptr();
}
run::cuda::GraphExec end_capture(void* graph) {
  py::gil_scoped_acquire gil;
  return reinterpret_cast<run::cuda::GraphExec>(borrowed(graph).attr("end")().cast<uintptr_t>());
}
void replay_graph(void* graph) {
  py::gil_scoped_acquire gil;
  replays_own_graph = true;
  const struct Ends {
    ~Ends() { replays_own_graph = false; }
  } ends;
  borrowed(graph).attr("replay")();
}
void abandon_capture(void* graph) {
  py::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  try {
    borrowed(graph).attr("abandon")();
  } catch (py::error_already_set& e) {
    e.discard_as_unraisable("flashover: dropping a CUDA graph");
  }
  PyErr_Restore(type, value, trace);
}
void drop_object(void* object) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Py_DECREF(static_cast<PyObject*>(object));
  PyErr_Restore(type, value, trace);
}

}  // namespace

void take_python_lock(void* state) { compat::take_lock_again(static_cast<PyThreadState*>(state)); }

void bind_run(py::module_& m) {
  install_hooks();
  run::cuda::capture_hooks = {make_pool, begin_capture, end_capture, replay_graph, abandon_capture, drop_object};
  run::python_lock = {[]() -> void* { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }, take_python_lock};
  host_hooks = {[]() -> void* { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; },
                [](void* state) {
                  if (state) take_python_lock(state);
                },
                [] {
                  if (!frame::on_main_thread()) return false;  // Python runs handlers nowhere else
                  const PyGILState_STATE gil = PyGILState_Ensure();
                  const bool raised = frame::run_signal_handlers();
                  PyGILState_Release(gil);
                  return raised;
                }};
  py::class_<PyPlan>(m, "_Plan")
      .def("__call__", &PyPlan::call)
      .def_property_readonly("heavy", [](const PyPlan& p) { return p.executable->heavy(); })
      .def_property_readonly("counters",
                             [](const PyPlan& p) {
                               const run::Counters c = p.executable->counters();
                               py::dict d;
                               d["calls"] = c.calls;
                               d["frozen_runs"] = c.frozen_runs;
                               d["graph_replays"] = c.graph_replays;
                               d["content_checks"] = c.content_checks;
                               return d;
                             })
      .def("__str__", [](const PyPlan& p) { return plan::print(p.executable->plan()); });
  m.def(
      "_load_plan",
      [](const std::string& text, const std::vector<py::bytes>& binaries, bool graphs) {
        plan::Plan p = plan::parse(text);
        if (binaries.size() != p.binaries.size()) throw UserError("as many binaries as the plan names are needed");
        for (size_t i = 0; i < binaries.size(); ++i) p.binaries[i].bytes = binaries[i];
        return PyPlan{run::load(std::move(p), {.graphs = graphs})};
      },
      py::arg("text"), py::arg("binaries") = std::vector<py::bytes>(), py::arg("graphs") = false);
  m.def("_plan_round_trip",
        [](const std::string& text) { return plan::print(plan::deserialize(plan::serialize(plan::parse(text)))); });
  m.def("_forget_pinned_pool", &run::cuda::forget_pinned_pool);
  m.def("launch_costs", &run::cuda::launch_costs);
  m.def("kept_arena_bytes", &run::kept_arena_bytes);
  m.def("_graph_replays", [] { return run::graph_replays(); });
  m.def("missing_feature", &target::missing_feature,
        "The first word that this processor lacks, FLASHOVER_ISA considered: missing_feature('avx512 amx_bf16')");
  m.def("_escapes_tracked", [] { return run::escapes_tracked.load(); });
}

}  // namespace flashover

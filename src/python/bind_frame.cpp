// The frame stage from Python, for tests and experiments: run a call in the interpreter, or capture it and run what was
// captured through the reference evaluator.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>

#include "base/check.h"
#include "compile/compile.h"
#include "eager/eval.h"
#include "frame/arrays.h"
#include "frame/bytecode/depth.h"
#include "frame/frame.h"
#include "frame/marks.h"
#include "frame/operands.h"
#include "graph/graph.h"
#include "guards/guards.h"
#include "python/bind.h"
#include "trace/assume.h"

namespace py = pybind11;

namespace flashover {
namespace {

struct FrameCapture {
  frame::Capture capture;
  std::unique_ptr<guards::GuardProgram> guards;
  size_t facts = 0;

  ~FrameCapture() {
    for (PyObject* c : capture.constants) Py_XDECREF(c);
    for (auto& step : capture.reconstruction) Py_XDECREF(step.object);
  }

  // None if a guard fails.
  py::object run(const py::list& bound) {
    std::vector<PyObject*> args;
    for (const py::handle& h : bound) args.push_back(h.ptr());
    std::vector<PyObject*> objects(capture.required.size());
    if (!guards->check(args.data(), objects.data())) return py::none();
    std::vector<at::Tensor> inputs;
    size_t next = 0, next_constant = 0;
    for (guards::SourceId id : capture.input_sources) {
      PyObject* tensor = id == guards::kNoSource ? capture.constants[next_constant++] : objects[next++];
      inputs.push_back(THPVariable_Unpack(tensor));
    }
    std::vector<at::Tensor> results;
    {
      py::gil_scoped_release nogil;
      results = aten::eval_graph(capture.graph, inputs);
    }
    std::vector<py::object> outputs;
    std::vector<PyObject*> raw;
    for (const at::Tensor& t : results) {
      outputs.push_back(py::reinterpret_steal<py::object>(THPVariable_Wrap(t)));
      raw.push_back(outputs.back().ptr());
    }
    PyObject* result = frame::rebuild(capture, objects.data(), raw.data());
    if (result == nullptr) throw py::error_already_set();
    return py::make_tuple(py::reinterpret_steal<py::object>(result));
  }
};

std::unique_ptr<FrameCapture> capture_call(const py::object& fn, const py::list& bound, bool with_guards) {
  std::vector<PyObject*> args;
  for (const py::handle& h : bound) args.push_back(h.ptr());
  auto out = std::make_unique<FrameCapture>();
  out->capture = frame::capture(fn.ptr(), args.data(), args.size());
  out->facts = out->capture.observations.facts.size();
  if (!out->capture.declined && with_guards)
    out->guards = guards::build(std::move(out->capture.observations), out->capture.required);
  return out;
}

// The texts of every stage for a GPU that need not be there; a joint trace becomes a forward and a backward.
py::list plan_capture_for_gpu(const FrameCapture& c, const std::map<std::string, std::string>& options) {
  if (c.capture.declined) throw Declined(c.capture.reason);
  compile::Report report;
  report.want_texts = true;
  compile::CompileTarget env;
  env.gpu = kernel::triton::Gpu{};
  {
    py::gil_scoped_release nogil;
    if (c.capture.joint.present)
      compile::compile_training(c.capture.graph, c.capture.joint, {options}, env, report);
    else
      compile::compile(c.capture.graph, {options}, env, report);
  }
  py::list out;
  for (const auto& [stage, text] : report.texts) out.append(py::make_tuple(stage, text));
  for (const auto& [name, text] : report.kernel_sources) out.append(py::make_tuple("source", text));
  return out;
}

py::object interpret_call(const py::object& fn, const py::args& args, const py::kwargs& kwargs) {
  std::string declined;
  PyObject* r = frame::interpret(fn.ptr(), args.ptr(), kwargs.ptr(), &declined);
  if (r == nullptr && !declined.empty()) throw Declined(declined);
  if (r == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(r);
}

}  // namespace

void bind_frame(py::module_& m) {
  m.def("mark", [](const py::object& f, const std::string& how) {
    if (how != "allow" && how != "disallow" && how != "constant") throw UserError("no such mark: " + how);
    frame::mark(f.ptr(), how == "allow"      ? frame::Mark::kAllow
                         : how == "disallow" ? frame::Mark::kDisallow
                                             : frame::Mark::kConstant);
  });
  m.def("substitute", [](const py::str& module, const py::str& qualname, const py::object& replacement) {
    frame::substitute(module.ptr(), qualname.ptr(), replacement.ptr());
  });
  m.def("put_in_place", [](const py::object& callable, const py::function& function) {
    frame::put_in_place(callable.ptr(), function.ptr());
  });
  m.def("trace_position", [] {
    const trace::Position now = trace::position();
    return std::pair(now.nodes, now.values);
  });
  m.def("has_effects_since", [](const std::pair<int64_t, int64_t>& since) {
    return trace::has_effects_since({since.first, since.second});
  });
  m.def("own_operators", &trace::own_operators);
  py::module_ f = m.def_submodule("_frame", "the frame interpreter, for tests");
  f.def("in_use_elsewhere", [](const py::object& o) {
    PyObject* object = o.ptr();
    return frame::in_use_elsewhere(&object, 1);
  });
  // How deep the stack is before each instruction, by code unit; empty where that is not known.
  f.def("stack_depths", [](const py::object& code) {
    if (!PyCode_Check(code.ptr())) throw py::type_error("not a code object");
    const std::vector<int32_t>* depths = frame::stack_depths(reinterpret_cast<PyCodeObject*>(code.ptr()));
    if (depths == nullptr) throw py::error_already_set();
    return *depths;
  });
  py::class_<FrameCapture>(f, "Capture")
      .def_property_readonly("declined", [](const FrameCapture& c) { return c.capture.declined; })
      .def_property_readonly("raised", [](const FrameCapture& c) { return c.capture.raised; })
      .def_property_readonly("reason", [](const FrameCapture& c) { return c.capture.reason; })
      .def_property_readonly("where", [](const FrameCapture& c) { return c.capture.where; })
      .def_property_readonly("seconds", [](const FrameCapture& c) { return c.capture.seconds; })
      .def_property_readonly("graph", [](const FrameCapture& c) { return graph::print(c.capture.graph); })
      .def_property_readonly("nodes", [](const FrameCapture& c) { return c.capture.graph.nodes.size(); })
      .def_property_readonly("effects", [](const FrameCapture& c) { return c.capture.effects.size(); })
      .def_property_readonly("steps", [](const FrameCapture& c) { return c.capture.reconstruction.size(); })
      .def_readonly("facts", &FrameCapture::facts)
      .def_property_readonly(
          "words", [](const FrameCapture& c) { return c.guards ? c.guards->describe() : std::vector<std::string>(); })
      .def("explain",
           [](const FrameCapture& c, const py::list& bound) {
             std::vector<PyObject*> args;
             for (const py::handle& h : bound) args.push_back(h.ptr());
             return c.guards->explain_failure(args.data());
           })
      .def("plan_for_gpu", &plan_capture_for_gpu, py::arg("options") = std::map<std::string, std::string>{})
      .def("run", &FrameCapture::run, "1-tuple of the result, or None if a guard fails");
  f.def("capture", &capture_call, py::arg("fn"), py::arg("bound"), py::arg("guards") = true);
  f.def("interpret", &interpret_call);
  f.def("lift", [](const py::object& array) {
    PyObject* made = frame::lift_array(array.ptr());
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  });
  f.def("may_write", [](const py::object& array) { return frame::may_write_array(array.ptr()); });
  f.def("stop", [](const std::string& reason) {
    frame::decline_capture(reason);
    throw py::error_already_set();
  });
}

}  // namespace flashover

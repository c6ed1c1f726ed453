// The compiled callable, counters, options, stance, logs.
#include <pybind11/stl.h>

#include "base/check.h"
#include "base/diagnostics.h"
#include "base/options.h"
#include "entry/backend.h"
#include "entry/background.h"
#include "entry/compiled_module.h"
#include "entry/entry.h"
#include "entry/log.h"
#include "entry/program.h"
#include "entry/stance.h"
#include "python/bind.h"

namespace flashover {
namespace py = pybind11;

void bind_entry(py::module_& m) {
  if (!entry::add_callable_type(m.ptr()) || !entry::add_disabled_type(m.ptr())) throw py::error_already_set();
  m.def("route", [](py::type compiled_class) {
    if (!entry::route(reinterpret_cast<PyTypeObject*>(compiled_class.ptr()))) throw py::error_already_set();
  });
  m.def("empty_module", [](py::type compiled_class) {
    PyObject* made = entry::empty_module(reinterpret_cast<PyTypeObject*>(compiled_class.ptr()));
    if (!made) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  });
  m.def("change_class", [](py::object instance, py::type to) {
    if (!entry::change_class(instance.ptr(), reinterpret_cast<PyTypeObject*>(to.ptr()))) throw py::error_already_set();
  });
  // For a type of ours: what its dict says of a name. Slots stay as they are.
  m.def("add_method", [](py::type type, const std::string& name, py::object method) {
    auto* t = reinterpret_cast<PyTypeObject*>(type.ptr());
    if (PyDict_SetItemString(t->tp_dict, name.c_str(), method.ptr()) != 0) throw py::error_already_set();
    PyType_Modified(t);
  });
  m.def("counters", [] {
    const entry::Counters& c = entry::counters();
    py::dict d;
    d["frames"] = c.frames;
    d["graphs"] = c.graphs;
    d["kernels"] = c.kernels;
    d["graph_breaks"] = c.graph_breaks;
    d["extern_calls"] = c.extern_calls;
    d["recompiles"] = c.recompiles;
    d["cache_hits"] = c.cache_hits;
    d["eager_calls"] = c.eager_calls;
    d["eager_frames"] = c.eager_frames;
    return d;
  });
  m.def("options", [] {
    py::dict d;
    for (const OptionInfo& o : option_table()) d[o.name] = py::make_tuple(o.type, o.default_value, o.doc);
    return d;
  });
  m.def("option_ranges", [] {
    py::dict d;
    for (const OptionInfo& o : option_table())
      if (o.least <= o.most) d[o.name] = py::make_tuple(o.least, o.most);
    return d;
  });
  m.def("option_choices", [] {
    py::dict d;
    for (const OptionInfo& o : option_table())
      if (*o.choices) d[o.name] = py::str(o.choices).attr("split")(",");
    return d;
  });
  m.def("background_jobs", &entry::background_jobs);
  m.def("cancel_background", &entry::cancel_background);
  m.def("wait_for_background", [](double seconds) {
    const bool done = entry::wait_for_background(seconds);
    if (PyErr_Occurred()) throw py::error_already_set();
    return done;
  });
  m.def("stance", &entry::stance_name);
  m.def("set_stance", &entry::set_stance);
  m.def("forced_backend", [] { return py::reinterpret_borrow<py::object>(entry::own_forced_backend()); });
  m.def("force_backend", [](py::object backend) { entry::force_backend(backend.ptr()); });
  set_listener(&entry::log_line);
  m.def("set_logs", &entry::set_logs);
  m.def("log_topics", &entry::log_topics);
  m.def("set_log_sink", [](py::object sink) { entry::set_log_sink(sink.is_none() ? nullptr : sink.ptr()); });
  m.def("set_dump", &entry::set_dump);
  m.def("pretend_gpu", &entry::pretend_gpu);
  m.def(
      "plan_of_program",
      [](const std::string& graph, const std::map<std::string, std::string>& options,
         const std::optional<std::pair<int, int>>& gpu) {
        std::optional<kernel::triton::Gpu> device;
        if (gpu) device = kernel::triton::Gpu{gpu->first, gpu->second};
        return py::bytes(entry::plan_of_program(graph, {options}, device));
      },
      py::arg("graph"), py::arg("options") = std::map<std::string, std::string>{}, py::arg("gpu") = py::none(),
      "gpu: architecture and number of processors of a device that need not be here.");
}

}  // namespace flashover

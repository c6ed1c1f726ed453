// The disk cache from Python, for the command line and the tests.
#include <pybind11/stl.h>

#include "compile/cache.h"
#include "python/bind.h"

namespace flashover {
namespace py = pybind11;

void bind_cache(py::module_& m) {
  using compile::Cache;
  const auto key = [](uint64_t k) { return Hash128{k, 0}; };
  py::class_<Cache>(m, "_Cache")
      .def(py::init<std::string, size_t, size_t>(), py::arg("directory"), py::arg("max_bytes") = size_t{1} << 30,
           py::arg("max_entries") = 20000)
      .def("get",
           [key](Cache& c, const std::string& kind, uint64_t k) -> std::optional<py::bytes> {
             auto bytes = c.get(kind, key(k));
             if (!bytes) return std::nullopt;
             return py::bytes(*bytes);
           })
      .def("put", [key](Cache& c, const std::string& kind, uint64_t k,
                        const std::string& bytes) { c.put(kind, key(k), bytes); })
      .def("evict", &Cache::evict)
      .def("contents",
           [](Cache& c) {
             std::map<std::string, std::pair<size_t, size_t>> out;  // kind -> entries, bytes
             for (const auto& [kind, usage] : c.contents()) out[kind] = {usage.entries, usage.bytes};
             return out;
           })
      .def("clear", &Cache::clear, py::arg("texts") = std::vector<std::string>{})
      .def("take_warning", &Cache::take_warning)
      .def_property_readonly("directory", &Cache::directory);
  m.def("_process_cache", [] { return py::cast(&Cache::process(), py::return_value_policy::reference); });
}

}  // namespace flashover

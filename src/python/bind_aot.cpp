// Packages: written from what flashover._package puts together, loaded and run.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>

#include "aot/package.h"
#include "base/check.h"
#include "compile/cache.h"
#include "entry/version.h"
#include "package/check.h"
#include "plan/contents.h"
#include "python/bind.h"
#include "run/without_torch.h"
#include "torch/convert.h"

namespace flashover {
namespace py = pybind11;
namespace {

using Kind = aot::Binding::Kind;

at::Tensor given_tensor(const py::handle& o) {
  if (!THPVariable_Check(o.ptr())) throw UserError("a tensor is needed");
  return THPVariable_Unpack(o.ptr());
}

Device device_of(const py::handle& o) {
  if (!THPDevice_Check(o.ptr())) throw UserError("a torch.device is needed");
  const at::Device device = reinterpret_cast<THPDevice*>(o.ptr())->device;
  if (!device.is_cpu() && !device.is_cuda()) throw UserError("packages run on the CPU and on CUDA devices");
  return aten::from_aten(device);
}

// ("argument", index) ("weight", index) ("output", index) ("value", text)
aot::Binding binding_of(const py::handle& o) {
  const auto pair = o.cast<std::pair<std::string, py::object>>();
  if (pair.first == "value") return {Kind::kValue, -1, pair.second.cast<std::string>()};
  const Kind kind = pair.first == "argument" ? Kind::kArgument : pair.first == "weight" ? Kind::kWeight : Kind::kOutput;
  return {kind, pair.second.cast<int32_t>(), ""};
}

py::object to_python(const aot::Binding& b) {
  static constexpr const char* kKinds[] = {"argument", "weight", "output", "value"};
  if (b.kind == Kind::kValue) return py::make_tuple("value", b.value);
  return py::make_tuple(kKinds[static_cast<size_t>(b.kind)], b.index);
}

aot::PackagedEntry entry_of(const py::dict& d) {
  aot::PackagedEntry e;
  e.name = d["name"].cast<std::string>();
  e.device = d["device"].cast<std::string>() == "cuda" ? DeviceType::kCUDA : DeviceType::kCPU;
  for (const py::handle& section : d["plans"]) e.plans.push_back({section.cast<std::string>(), {}});
  for (const py::handle& b : d["inputs"]) e.inputs.push_back(binding_of(b));
  for (const py::handle& a : d["arguments"]) {
    const auto row = a.cast<std::tuple<std::string, bool, std::string, int64_t>>();
    e.arguments.push_back({std::get<0>(row), std::get<1>(row), std::get<2>(row), std::get<3>(row)});
  }
  for (const py::handle& b : d["results"]) e.results.push_back(binding_of(b));
  for (const py::handle& g : d["guards"]) {
    const auto row = g.cast<std::tuple<std::string, std::string, std::string>>();
    e.guards.push_back(aot::parse_guard(std::get<0>(row), std::get<1>(row), std::get<2>(row)));
  }
  e.arguments_spec = d["arguments_spec"].cast<std::string>();
  e.results_spec = d["results_spec"].cast<std::string>();
  return e;
}

void write(const std::string& path, const py::list& entries,
           const std::vector<std::pair<std::string, py::object>>& weights,
           const std::vector<std::pair<std::string, py::bytes>>& plans, bool prepare) {
  aot::Manifest m;
  m.flashover = version();
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : weights) {
    m.weights.push_back({.name = name});
    tensors.push_back(given_tensor(tensor));
  }
  for (const py::handle& e : entries) m.entries.push_back(entry_of(e.cast<py::dict>()));
  std::vector<std::pair<std::string, std::string>> sections;
  for (const auto& [name, bytes] : plans) sections.emplace_back(name, bytes);
  const py::gil_scoped_release nogil;
  aot::write_package(path, std::move(m), tensors, sections, prepare);
}

py::dict describe_part(const aot::PackagedEntry& e, size_t chosen, const plan::Plan& p) {
  py::dict d;
  d["name"] = e.name;
  py::list arguments, results, guards, inputs;
  for (const aot::Argument& a : e.arguments) arguments.append(py::make_tuple(a.name, a.tensor, a.value));
  for (const aot::Binding& b : e.results) results.append(to_python(b));
  for (const sym::SizeGuard& g : e.guards) guards.append(sym::str(g));
  for (size_t i = 0; i < e.inputs.size(); ++i)
    inputs.append(py::make_tuple(to_python(e.inputs[i]), str(p.inputs[i].type)));
  d["arguments"] = arguments;
  d["results"] = results;
  d["guards"] = guards;
  d["inputs"] = inputs;
  d["target"] = p.target;
  d["device"] = aot::device_name(p.device);
  d["operators"] = plan::operators_called(p);
  d["needs_torch"] = run::needs_torch(p);
  d["replaced_without_torch"] = run::replaced_without_torch(p);
  d["kernels"] = p.kernels.size();
  d["prepared"] = e.plans[chosen].prepared.size();
  d["arguments_spec"] = e.arguments_spec;
  d["results_spec"] = e.results_spec;
  return d;
}

// plans: by entry, and which of PackagedEntry::plans it is.
py::dict describe_part(const aot::Manifest& m, const std::vector<std::pair<size_t, const plan::Plan*>>& plans) {
  py::dict d;
  d["torch"] = m.torch;
  d["flashover"] = m.flashover;
  py::list weights, entries;
  for (const aot::Weight& w : m.weights)
    weights.append(py::make_tuple(w.name, info(w.dtype).name, w.sizes, w.offset, w.bytes));
  for (size_t i = 0; i < m.entries.size(); ++i)
    entries.append(describe_part(m.entries[i], plans[i].first, *plans[i].second));
  d["weights"] = weights;
  d["entries"] = entries;
  return d;
}

py::list run_package(const aot::Package& p, size_t entry, const std::vector<py::object>& given) {
  std::vector<at::Tensor> arguments, results;
  for (const py::object& t : given) arguments.push_back(given_tensor(t));
  {
    const py::gil_scoped_release nogil;
    results = p.run(entry, arguments);
  }
  py::list out;
  for (at::Tensor& t : results)
    out.append(t.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(t))) : py::none());
  return out;
}

// Entries of a disk cache as sections of one file, and back. Their keys say for which machine and versions they are.
size_t save_cache(compile::Cache& cache, const std::string& path, size_t most) {
  std::vector<std::string> names, contents;
  size_t bytes = 0;
  for (const auto& [kind, key] : cache.entries()) {
    const std::optional<std::string> content = cache.get(kind, key);
    if (!content || bytes + content->size() > most) continue;
    bytes += content->size();
    names.push_back(kind);
    contents.push_back(std::string(reinterpret_cast<const char*>(&key), sizeof key) + *content);
  }
  std::vector<aot::Part> parts;
  for (size_t i = 0; i < names.size(); ++i)
    parts.push_back({"cache " + std::to_string(i) + " " + names[i], {contents[i]}});
  aot::write_container(path, parts);
  return parts.size();
}

size_t load_cache(compile::Cache& cache, const std::string& path) {
  const aot::Container file(aot::open_file(path));
  size_t count = 0;
  for (const aot::Section& s : file.sections()) {
    const std::string bytes = file.read(s), kind = s.name.substr(s.name.rfind(' ') + 1);
    Hash128 key;
    const bool plain = !kind.empty() && kind.size() < 32 &&
                       std::ranges::all_of(kind, [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
    if (!s.name.starts_with("cache ") || !plain || bytes.size() < sizeof key)
      throw UserError("the file " + path + " holds no cache");
    std::memcpy(&key, bytes.data(), sizeof key);
    cache.put(kind, key, std::string_view(bytes).substr(sizeof key));
    ++count;
  }
  return count;
}

}  // namespace

void bind_aot(py::module_& m) {
  py::class_<aot::Package, std::shared_ptr<aot::Package>>(m, "Package")
      .def_static(
          "load",
          [](const std::string& path, bool verify, const py::object& device) {
            const std::optional<Device> wanted = device.is_none() ? std::nullopt : std::optional(device_of(device));
            const py::gil_scoped_release nogil;
            return aot::Package::load(path, {.verify_weights = verify, .device = wanted});
          },
          py::arg("path"), py::arg("verify") = true, py::arg("device") = py::none())
      .def("describe",
           [](const aot::Package& p) {
             std::vector<std::pair<size_t, const plan::Plan*>> plans;
             for (size_t i = 0; i < p.manifest().entries.size(); ++i) plans.emplace_back(p.chosen(i), &p.plan(i));
             return describe_part(p.manifest(), plans);
           })
      .def("run", &run_package, py::arg("entry"), py::arg("arguments"))
      .def("weights",
           [](const aot::Package& p) {
             py::dict d;
             std::vector<at::Tensor> weights = p.weights();
             for (size_t i = 0; i < weights.size(); ++i)
               d[py::str(p.manifest().weights[i].name)] =
                   py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(weights[i])));
             return d;
           })
      .def("exchange", [](aot::Package& p, const std::map<std::string, py::object>& given) {
        std::vector<std::pair<std::string, at::Tensor>> weights;
        for (const auto& [name, t] : given) weights.emplace_back(name, given_tensor(t));
        const py::gil_scoped_release nogil;
        p.exchange(weights);
      });
  m.def("save_cache",
        [](const std::string& path, size_t most) { return save_cache(compile::Cache::process(), path, most); });
  m.def("load_cache", [](const std::string& path) { return load_cache(compile::Cache::process(), path); });
  m.def("write_package", &write, py::arg("path"), py::arg("entries"), py::arg("weights"), py::arg("plans"),
        py::arg("prepare"));
  m.def(
      "describe_package",
      [](const std::string& path) {
        std::vector<std::vector<plan::Plan>> plans;
        const aot::Manifest manifest = aot::check_package(aot::Container(aot::open_file(path)), &plans);
        std::vector<std::pair<size_t, const plan::Plan*>> first;
        for (const auto& of_entry : plans) first.emplace_back(0, &of_entry[0]);
        py::dict d = describe_part(manifest, first);
        for (size_t i = 0; i < plans.size(); ++i) {
          py::list targets;
          for (const plan::Plan& p : plans[i]) targets.append(p.target);
          d["entries"][py::int_(i)]["targets"] = targets;
        }
        return d;
      },
      "What a package says of itself; nothing of it is run.");
  m.def(
      "check_package",
      [](const py::bytes& bytes) { aot::check_package(aot::Container(aot::in_memory(std::string_view(bytes)))); },
      "Throws where these bytes are no package. For tests.");
}

}  // namespace flashover

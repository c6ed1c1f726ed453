// Guard programs from Python, for the tests: sources and facts as tuples.
#include <pybind11/stl.h>

#include "base/check.h"
#include "guards/global_state.h"
#include "guards/guards.h"
#include "python/bind.h"

namespace flashover {
namespace py = pybind11;
using guards::FactKind;
using guards::SourceKind;

namespace {

const char* const kSourceNames[] = {
    "argument", "callable",    "globals",     "builtins",      "closure_cell",  "cell_contents", "instance_dict",
    "type",     "type_lookup", "dict_item",   "dict_key_at",   "dict_value_at", "sequence_item", "set_item",
    "slot",     "module",      "tensor_attr", "context_value", "weak_target",   "proxied",       "constant_object"};
static_assert(std::size(kSourceNames) == static_cast<size_t>(SourceKind::kConstantObject) + 1);
const char* const kFactNames[] = {"identity",   "type_is",        "equals",         "length",       "dict_has",
                                  "dict_lacks", "dict_order",     "type_lacks",     "type_version", "instance_dict_is",
                                  "tensor",     "storage_offset", "tensor_aliases", "same_object",  "distinct",
                                  "written",    "not_aliases",    "code_is",        "address_is",   "specials",
                                  "looks_like", "subclass_is",    "call_gives",     "global_state"};
static_assert(std::size(kFactNames) == static_cast<size_t>(FactKind::kGlobalState) + 1);

template <size_t N>
int index_of(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; i++)
    if (name == names[i]) return static_cast<int>(i);
  throw UserError("no such kind: " + name);
}

PyObject* own(const py::object& o) {
  PyObject* p = o.ptr();
  if (p == Py_None) return nullptr;
  Py_INCREF(p);
  return p;
}

// A program and what check() needs around it.
struct TestProgram {
  std::unique_ptr<guards::GuardProgram> program;
  size_t required = 0;

  py::object check(const py::tuple& args) {
    std::vector<PyObject*> values(args.size()), out(required);
    for (size_t i = 0; i < args.size(); i++) values[i] = args[i].ptr();
    if (!program->check(values.data(), out.data())) return py::none();
    py::list list;
    for (PyObject* o : out) list.append(py::reinterpret_borrow<py::object>(o));
    return list;
  }
  bool plain(const py::tuple& args) const {
    std::vector<PyObject*> values(args.size());
    for (size_t i = 0; i < args.size(); i++) values[i] = args[i].ptr();
    return program->check_plainly(values.data());
  }
  std::string explain(const py::tuple& args) const {
    std::vector<PyObject*> values(args.size());
    for (size_t i = 0; i < args.size(); i++) values[i] = args[i].ptr();
    return program->explain_failure(values.data());
  }
};

// sources: (kind, parent, index, key, object); facts: (kind, source, expected, number). An expected or key of None is
// none; to expect None itself give the 1-tuple flag in `none_facts`.
TestProgram build_test_program(const std::vector<std::tuple<std::string, int, int, py::object, py::object>>& sources,
                               const std::vector<std::tuple<std::string, int, py::object, int64_t>>& facts,
                               const std::vector<int>& required) {
  guards::Observations o;
  for (const auto& [kind, parent, index, key, object] : sources) {
    guards::Source s;
    s.kind = static_cast<SourceKind>(index_of(kSourceNames, kind));
    s.parent = parent;
    s.index = index;
    s.key = own(key);
    s.object = object.ptr();
    Py_INCREF(s.object);
    o.sources.push_back(s);
  }
  for (const auto& [kind, source, expected, number] : facts) {
    guards::Fact f;
    f.kind = static_cast<FactKind>(index_of(kFactNames, kind));
    f.source = source;
    f.expected = own(expected);
    if (!f.expected && (f.kind == FactKind::kEquals || f.kind == FactKind::kIdentity)) {
      Py_INCREF(Py_None);
      f.expected = Py_None;
    }
    f.number = number;
    o.facts.push_back(f);
  }
  return {guards::build(std::move(o), required), required.size()};
}

}  // namespace

void bind_guards(py::module_& m) {
  py::module_ g = m.def_submodule("_guards", "guard programs, for tests");
  py::class_<TestProgram>(g, "Program")
      .def("check", &TestProgram::check, "the wanted objects, or None if a guard fails")
      .def("plain", &TestProgram::plain)
      .def("explain", &TestProgram::explain)
      .def("parts", [](const TestProgram& p) { return p.program->composition(); })
      .def("words", [](const TestProgram& p) { return p.program->describe(); })
      .def("__len__", [](const TestProgram& p) { return p.program->size(); })
      .def("time", [](TestProgram& p, const py::tuple& args, int64_t n) {
        std::vector<PyObject*> values(args.size()), out(p.required);
        for (size_t i = 0; i < args.size(); i++) values[i] = args[i].ptr();
        bool ok = true;
        for (int64_t i = 0; i < n; i++) ok &= p.program->check(values.data(), out.data());
        return ok;
      });
  g.def("build", &build_test_program);
  g.def("source_kinds", [] { return std::vector<std::string>(std::begin(kSourceNames), std::end(kSourceNames)); });
  g.def("state_to_avoid", [] { return guards::state_to_avoid(); });
}

}  // namespace flashover

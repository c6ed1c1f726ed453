// Programs as data: the markers that show which result is which of the graph's outputs, and what cannot be a program.
#include "entry/program.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/stack.h"
#include "entry/backend.h"
#include "entry/python_graph.h"
#include "frame/frame.h"
#include "frame/size_expression.h"
#include "graph/graph.h"

namespace flashover::entry {
namespace {

using guards::FactKind;
using guards::SourceId;

// What tells more of an object than its type.
bool tells_of_value(FactKind kind) {
  static constexpr FactKind kKinds[] = {FactKind::kEquals,    FactKind::kLength,    FactKind::kDictHas,
                                        FactKind::kDictOrder, FactKind::kAddressIs, FactKind::kCallGives,
                                        FactKind::kIdentity};
  return std::ranges::find(kKinds, kind) != std::end(kKinds);
}

using Effect = frame::Effect;

bool is_warning(Effect::Kind kind) {
  return kind == Effect::Kind::kWarn || kind == Effect::Kind::kWarnAtCaller || kind == Effect::Kind::kFiltersMutated;
}

// What an operand of an effect is: a constant's text, where an object comes from, or "".
std::string operand_in_words(const frame::Capture& c, const Effect& effect, size_t item) {
  if (item >= effect.items.size() || effect.items[item] < 0) return "";
  const frame::ReconstructionStep& step = c.reconstruction.at(static_cast<size_t>(effect.items[item]));
  if (step.kind == frame::ReconstructionStep::Kind::kSource)
    return guards::str(c.observations, c.required.at(static_cast<size_t>(step.index)));
  if (!step.object) return "";
  PyObject* text = PyObject_Repr(step.object);
  const char* utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
  std::string out = utf8 ? utf8 : "";
  Py_XDECREF(text);
  PyErr_Clear();
  constexpr size_t kLong = 80;
  return out.size() > kLong ? out.substr(0, kLong) + "..." : out;
}

std::string in_words(const frame::Capture& c, const Effect& effect) {
  const std::string target = operand_in_words(c, effect, 0), name = operand_in_words(c, effect, 1);
  const std::string of = target.empty() ? "an object" : target;
  switch (effect.kind) {
    case Effect::Kind::kSetAttr:
      return "writes the attribute " + name + " of " + of + ", which outlives the call";
    case Effect::Kind::kDelAttr:
      return "deletes the attribute " + name + " of " + of + ", which outlives the call";
    case Effect::Kind::kCellSet:
      return "writes a variable of a function around it, which outlives the call";
    case Effect::Kind::kSetItem:
      return "writes " + of + "[" + name + "], which outlives the call";
    default:
      return "changes the contents of " + of + ", which outlives the call";
  }
}

// What an operand is in the call at hand; null: made by the program.
PyObject* operand(const frame::Capture& c, const Effect& effect, size_t item, PyObject* const* objects) {
  if (item >= effect.items.size() || effect.items[item] < 0) return nullptr;
  const frame::ReconstructionStep& step = c.reconstruction.at(static_cast<size_t>(effect.items[item]));
  if (step.kind == frame::ReconstructionStep::Kind::kSource) return objects[step.index];
  return step.kind == frame::ReconstructionStep::Kind::kConstant ? step.object : nullptr;
}

// The items of a dict are set, and in the end this one holds what it held before.
bool leaves_item(const frame::Capture& c, size_t at, PyObject* const* objects) {
  PyObject* dict = operand(c, c.effects[at], 0, objects);
  PyObject* key = operand(c, c.effects[at], 1, objects);
  if (!dict || !PyDict_CheckExact(dict) || !key || !PyUnicode_CheckExact(key)) return false;
  PyObject* last = nullptr;
  for (const Effect& effect : c.effects) {
    if (operand(c, effect, 0, objects) != dict) continue;
    if (effect.kind != Effect::Kind::kSetItem) return false;
    PyObject* other = operand(c, effect, 1, objects);
    if (!other || !PyUnicode_CheckExact(other)) return false;
    if (PyUnicode_Compare(key, other) == 0) last = operand(c, effect, 2, objects);
  }
  return last && last == PyDict_GetItemWithError(dict, key);
}

// What is done to a set leaves it as it is: takes out what it does not hold, or puts in all that it holds. (Modules do
// so to the names of their buffers that are not saved, whenever a buffer is written.)
bool leaves_set(const frame::Capture& c, const Effect& effect, PyObject* const* objects) {
  PyObject* set = operand(c, effect, 0, objects);
  if (!set || !PySet_CheckExact(set)) return false;
  const auto holds = [&](size_t item) {  // -1: not to be told
    PyObject* key = operand(c, effect, item, objects);
    return key && PyUnicode_CheckExact(key) ? PySet_Contains(set, key) : -1;
  };
  if (effect.kind == Effect::Kind::kDiscardItem) return effect.items.size() == 2 && holds(1) == 0;
  if (effect.kind != Effect::Kind::kSetReplace) return false;
  std::set<PyObject*> keys;
  for (size_t i = 1; i < effect.items.size(); ++i) {
    if (holds(i) != 1) return false;
    keys.insert(operand(c, effect, i, objects));
  }
  return static_cast<Py_ssize_t>(keys.size()) == PySet_GET_SIZE(set) && keys.size() + 1 == effect.items.size();
}
// The same of all that is done to this one.
bool leaves_this_set(const frame::Capture& c, size_t at, PyObject* const* objects) {
  PyObject* set = operand(c, c.effects[at], 0, objects);
  return set && std::ranges::all_of(c.effects, [&](const Effect& effect) {
           return operand(c, effect, 0, objects) != set || leaves_set(c, effect, objects);
         });
}

std::vector<std::string> writes_of(const Entry& e, PyObject* const* objects) {
  const frame::Capture& c = e.capture;
  std::vector<std::string> out;
  for (size_t i = 0; i < c.effects.size(); ++i)
    if (!is_warning(c.effects[i].kind) && !leaves_item(c, i, objects) && !leaves_this_set(c, i, objects))
      out.push_back(e.written.at(i));
  return out;
}

std::vector<std::string> problems_of(const Entry& e) {
  const frame::Capture& c = e.capture;
  std::vector<std::string> out;
  if (!c.state.empty()) out.emplace_back("leaves a setting of torch changed");
  if (c.joint.present) out.emplace_back("computes gradients");
  if (!c.numbers.inputs.empty() || !c.numbers.checks.empty() || !c.narrowed_inputs.empty())
    out.emplace_back(
        "takes the number that a tensor holds, or computes with sizes in Python, and that decides what runs");
  if (c.calls) out.emplace_back("enters or leaves a context manager of its own while the result is made");
  for (const frame::ReconstructionStep& s : c.reconstruction)
    if (s.kind == frame::ReconstructionStep::Kind::kNumber ||
        s.kind == frame::ReconstructionStep::Kind::kNumberOfData) {
      out.emplace_back("a result is a number that follows from sizes or from what tensors hold");
      break;
    }
  return out;
}

template <typename Items, typename Make>
PyObject* list_of(const Items& items, Make&& make) {
  Reference out(PyList_New(0));
  for (const auto& item : items) {
    const Reference o(make(item));
    if (PyList_Append(out.p, o.p) != 0) throw python_error();
  }
  return out.release();
}

PyObject* new_text(const std::string& s) {
  return PyUnicode_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size()));
}

// The result of the call, made of markers and of the call's own objects.
PyObject* result_of(Entry& e, PyObject* const* objects, PyObject* markers) {
  std::vector<PyObject*> outputs;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(markers); ++i) outputs.push_back(PyList_GET_ITEM(markers, i));
  std::vector<Effect> effects = std::exchange(e.capture.effects, {});
  PyObject* result = frame::rebuild(e.capture, objects, outputs.data());
  e.capture.effects = std::move(effects);
  return result;
}

PyObject* examples_of(Entry& e, PyObject* const* objects) {
  return list_of(e.inputs, [&](int32_t i) -> PyObject* {
    if (i >= kGradientInput) return Py_NewRef(Py_None);  // problems_of() has named it
    return i < 0 ? THPVariable_Wrap(e.constants[static_cast<size_t>(-1 - i)]) : Py_NewRef(objects[i]);
  });
}

// Of the sizes that a call comes with. (What is taken for so of sizes that follow from data the graph checks.)
PyObject* facts_of(const graph::Graph& g) {
  static constexpr const char* kRelations[] = {"==", "!=", "<", "<="};
  std::vector<sym::SizeGuard> facts = g.facts.sizes;
  std::erase_if(facts, [](const sym::SizeGuard& s) { return sym::has_data_size(s.a) || sym::has_data_size(s.b); });
  return list_of(facts, [](const sym::SizeGuard& s) {
    Reference a(frame::size_expression(s.a)), b(frame::size_expression(s.b));
    return Py_BuildValue("(sNNs)", kRelations[static_cast<size_t>(s.relation)], a.release(), b.release(),
                         sym::str(s).c_str());
  });
}

PyObject* input_sizes(const graph::Graph& g) {
  return list_of(g.inputs,
                 [&](const graph::Input& in) { return list_of(g.type(in.value).sizes, frame::size_expression); });
}

}  // namespace

void note_of_program(Entry& e) {
  const guards::Observations& observations = e.capture.observations;
  for (const Effect& effect : e.capture.effects) e.written.push_back(in_words(e.capture, effect));
  for (const guards::Fact& fact : observations.facts) {
    if (!tells_of_value(fact.kind)) continue;
    for (SourceId s = fact.source; s != guards::kNoSource; s = observations.sources[static_cast<size_t>(s)].parent) {
      const PyObject* o = observations.sources[static_cast<size_t>(s)].object;
      if (!o || !THPVariable_Check(const_cast<PyObject*>(o))) continue;
      std::string where = guards::location_of(observations, fact);
      std::string text = guards::describe(observations, fact);
      e.seen.push_back({where.empty() ? std::move(text) : where + ": " + text, o});
      break;
    }
  }
}

PyObject* describe_program(Entry& e, PyObject* const* objects) {
  const frame::Capture& c = e.capture;
  if (e.kind != Entry::Kind::kCompiled) throw UserError(e.reason.empty() ? "nothing was captured" : e.reason);
  Reference markers(list_of(c.graph.outputs, [](const graph::Output&) { return THPVariable_Wrap(at::empty({0})); }));
  Reference problems(list_of(problems_of(e), new_text)), writes(list_of(writes_of(e, objects), new_text));
  Reference result(PyList_GET_SIZE(problems.p) == 0 ? result_of(e, objects, markers.p) : Py_NewRef(Py_None));
  Reference examples(examples_of(e, objects)), graph(to_python(c.graph, true)), facts(facts_of(c.graph));
  Reference sizes(input_sizes(c.graph)), places(places_of_symbols(c.graph)), text(new_text(graph::print(c.graph)));
  Reference seen(list_of(e.seen, [](const SeenOfTensor& s) {
    return Py_BuildValue("(sN)", s.fact.c_str(), PyLong_FromVoidPtr(const_cast<PyObject*>(s.tensor)));
  }));
  return Py_BuildValue("{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:s}", "writes", writes.release(), "graph",
                       graph.release(), "text", text.release(), "inputs", examples.release(), "input_sizes",
                       sizes.release(), "markers", markers.release(), "result", result.release(), "facts",
                       facts.release(), "problems", problems.release(), "seen", seen.release(), "places",
                       places.release(), "static_because", e.static_because.c_str());
}

std::string plan_of_program(const std::string& graph, const compile::Options& options,
                            const std::optional<kernel::triton::Gpu>& gpu) {
  plan::Plan plan;
  with_stack(kCompileStack, [&] { plan = compile_plan(graph::parse(graph), options, gpu); });
  return plan::serialize(plan);
}

}  // namespace flashover::entry

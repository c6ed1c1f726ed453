// flashover/_guard_filter.py makes of each fact what torch hands to such functions.
#include "entry/filter_guards.h"

#include <torch/csrc/Exceptions.h>

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "entry/python_graph.h"
#include "frame/frame.h"
#include "frame/signals.h"
#include "guards/source.h"

namespace flashover::entry {
namespace {

using guards::Fact;
using guards::FactKind;
using guards::kNoSource;
using guards::Observations;
using guards::Source;
using guards::SourceId;
using guards::SourceKind;

const char* name_of(FactKind kind) {
  switch (kind) {
    case FactKind::kIdentity:
    case FactKind::kAddressIs:
      return "identity";
    case FactKind::kTypeIs:
    case FactKind::kLooksLike:
    case FactKind::kSubclassIs:
      return "type";
    case FactKind::kEquals:
    case FactKind::kCallGives:
      return "equals";
    case FactKind::kLength:
      return "length";
    case FactKind::kDictHas:
    case FactKind::kDictLacks:
      return "contains";
    case FactKind::kDictOrder:
      return "keys";
    case FactKind::kTypeLacks:
    case FactKind::kTypeVersion:
    case FactKind::kInstanceDictIs:
    case FactKind::kSpecials:
      return "attributes";
    case FactKind::kTensor:
    case FactKind::kStorageOffset:
      return "tensor";
    case FactKind::kCodeIs:
      return "code";
    case FactKind::kGlobalState:
      return "state";
    default:
      return "aliasing";
  }
}

// What the fetching of other sources, and the compiled code, rely on.
bool carries_paths(FactKind kind) {
  switch (kind) {
    case FactKind::kTypeIs:
    case FactKind::kLooksLike:
    case FactKind::kLength:
    case FactKind::kDictOrder:
    case FactKind::kInstanceDictIs:
    case FactKind::kTensor:
    case FactKind::kStorageOffset:
    case FactKind::kTensorAliases:
    case FactKind::kWritten:
    case FactKind::kNotAliases:
      return true;
    default:
      return false;
  }
}

bool names_another(FactKind kind) {
  return kind == FactKind::kTensorAliases || kind == FactKind::kSameObject || kind == FactKind::kDistinct;
}

const Source& source_at(const Observations& o, SourceId id) { return o.sources[static_cast<size_t>(id)]; }

// The dict of a function's globals; where the function's code is guarded, it is known by address.
bool is_globals(const Source& s) {
  if (s.kind == SourceKind::kGlobals) return true;
  return s.kind == SourceKind::kConstantObject && s.object != nullptr && PyDict_Check(s.object) &&
         PyDict_GetItemString(s.object, "__name__") != nullptr;
}

// The name as torch has it: x, self.layer, G['table']['key'].
std::string torchs_name(const Observations& o, SourceId id, bool& global) {
  const std::string whole = guards::str(o, id);
  for (SourceId s = id; s != kNoSource; s = source_at(o, s).parent) {
    const SourceId parent = source_at(o, s).parent;
    if (parent == kNoSource || !is_globals(source_at(o, parent)) || source_at(o, s).kind != SourceKind::kDictItem)
      continue;
    global = true;
    PyObject* key = source_at(o, s).key;
    const char* text = key != nullptr && PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
    PyErr_Clear();
    const std::string path = guards::str(o, s);
    const std::string rest = whole.starts_with(path) ? whole.substr(path.size()) : "";
    return "G['" + std::string(text != nullptr ? text : "") + "']" + rest;
  }
  return whole;
}

// The modules on the way, the nearest last.
PyObject* modules_above(const Observations& o, SourceId id) {
  Reference found(PyList_New(0));
  for (SourceId s = id; s != kNoSource; s = source_at(o, s).parent)
    if (source_at(o, s).object != nullptr && frame::is_module(source_at(o, s).object) &&
        PyList_Insert(found.p, 0, source_at(o, s).object) != 0)
      throw python_error();
  return found.release();
}

std::vector<bool> asked(const Observations& o, PyObject* filter) {
  Reference rows(PyList_New(0));
  for (const Fact& f : o.facts) {
    bool global = false;
    const std::string name = f.source != kNoSource ? torchs_name(o, f.source, global) : "";
    PyObject* object = f.source != kNoSource ? source_at(o, f.source).object : Py_None;
    Reference modules(modules_above(o, f.source));
    Reference row(Py_BuildValue("(ssOOO)", name.c_str(), name_of(f.kind), object != nullptr ? object : Py_None,
                                global ? Py_True : Py_False, modules.p));
    if (PyList_Append(rows.p, row.p) != 0) throw python_error();
  }
  const frame::SignalsPass as_usual;
  Reference module(PyImport_ImportModule("flashover._guard_filter"));
  Reference answers(PyObject_CallMethod(module.p, "kept", "OO", filter, rows.p));
  std::vector<bool> kept;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(answers.p); ++i) kept.push_back(PyList_GET_ITEM(answers.p, i) == Py_True);
  FLASHOVER_CHECK(kept.size() == o.facts.size()) << "as many answers as guards";
  return kept;
}

// Sources that facts or calls need, with all on their way.
std::vector<bool> needed_sources(const frame::Capture& c, const std::vector<bool>& kept) {
  const Observations& o = c.observations;
  std::vector<bool> needed(o.sources.size());
  const auto need = [&](SourceId s) {
    for (; s != kNoSource && !needed[static_cast<size_t>(s)]; s = source_at(o, s).parent)
      needed[static_cast<size_t>(s)] = true;
  };
  for (SourceId s : c.required) need(s);
  for (SourceId s : c.input_sources) need(s);
  for (size_t i = 0; i < o.facts.size(); ++i) {
    if (!kept[i]) continue;
    need(o.facts[i].source);
    if (names_another(o.facts[i].kind)) need(static_cast<SourceId>(o.facts[i].number));
  }
  return needed;
}

}  // namespace

void filter_guards(frame::Capture& c, PyObject* filter) {
  Observations& o = c.observations;
  std::vector<bool> kept = asked(o, filter);
  const std::vector<bool> needed = needed_sources(c, kept);
  const auto is_needed = [&](int64_t s) { return s == kNoSource || needed[static_cast<size_t>(s)]; };
  for (size_t i = 0; i < o.facts.size(); ++i) {
    Fact& f = o.facts[i];
    const bool whole = is_needed(f.source) && (!names_another(f.kind) || is_needed(f.number));
    if (kept[i] || !whole) continue;
    if (f.kind == FactKind::kIdentity && f.source != kNoSource) {  // of its class all the same: paths go on from it
      f.kind = FactKind::kTypeIs;
      Py_SETREF(f.expected, Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(source_at(o, f.source).object))));
      kept[i] = true;
    }
    kept[i] = kept[i] || carries_paths(f.kind);
  }
  std::vector<SourceId> now(o.sources.size(), kNoSource);
  std::vector<Source> sources;
  for (size_t s = 0; s < o.sources.size(); ++s) {
    Source& source = o.sources[s];
    if (!needed[s]) {
      Py_CLEAR(source.key);
      Py_CLEAR(source.object);
      continue;
    }
    now[s] = static_cast<SourceId>(sources.size());
    if (source.parent != kNoSource) source.parent = now[static_cast<size_t>(source.parent)];
    sources.push_back(source);
  }
  const auto moved = [&](SourceId s) { return s == kNoSource ? s : now[static_cast<size_t>(s)]; };
  std::vector<Fact> facts;
  for (size_t i = 0; i < o.facts.size(); ++i) {
    Fact& f = o.facts[i];
    if (!kept[i]) {
      Py_CLEAR(f.expected);
      continue;
    }
    f.source = moved(f.source);
    if (names_another(f.kind)) f.number = moved(static_cast<SourceId>(f.number));
    facts.push_back(f);
  }
  o.sources = std::move(sources);
  o.facts = std::move(facts);
  for (SourceId& s : c.required) s = moved(s);
  for (SourceId& s : c.input_sources) s = moved(s);
}

}  // namespace flashover::entry

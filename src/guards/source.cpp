// Words for people: paths such as "self.layers[3].weight", and what was seen there.
#include "guards/source.h"

#include "guards/objects.h"

namespace flashover::guards {
namespace {

std::string text(PyObject* key) {
  if (!key || !PyUnicode_Check(key)) return short_repr(key);
  const char* utf8 = PyUnicode_AsUTF8(key);
  PyErr_Clear();
  return utf8 ? utf8 : "?";
}

bool is_key(const Source& s, const char* name) {
  return s.kind == SourceKind::kDictItem && s.key && PyUnicode_Check(s.key) &&
         PyUnicode_CompareWithASCIIString(s.key, name) == 0;
}

// The globals of a module, known by address. prefix: "torch.nn.", or "" where names are said without their module.
bool is_module_dict(const Source& dict, std::string& prefix) {
  if (dict.kind != SourceKind::kConstantObject || !dict.object || !PyDict_CheckExact(dict.object)) return false;
  PyObject* name = PyDict_GetItemString(dict.object, "__name__");
  if (!name || !PyUnicode_Check(name) || !PyDict_GetItemString(dict.object, "__builtins__")) return false;
  prefix = text(name) + ".";
  if (prefix == "__main__.") prefix.clear();
  return true;
}

std::string item(const Observations& o, const Source& s) {
  const Source& dict = o.sources[s.parent];
  if (std::string prefix; s.key && PyUnicode_Check(s.key) && is_module_dict(dict, prefix)) return prefix + text(s.key);
  if (dict.kind == SourceKind::kGlobals || dict.kind == SourceKind::kBuiltins) return text(s.key);
  if (dict.kind == SourceKind::kArgument && !o.positional.empty() && s.key && PyUnicode_Check(s.key))
    return text(s.key);  // of **kwargs
  if (s.key && PyUnicode_Check(s.key)) {
    if (dict.kind == SourceKind::kInstanceDict) return str(o, dict.parent) + "." + text(s.key);
    // Children of an nn.Module as people write them: self.conv1, not self._modules['conv1'].
    if ((is_key(dict, "_modules") || is_key(dict, "_parameters") || is_key(dict, "_buffers")) &&
        o.sources[dict.parent].kind == SourceKind::kInstanceDict)
      return str(o, o.sources[dict.parent].parent) + "." + text(s.key);
  }
  return str(o, s.parent) + "[" + short_repr(s.key) + "]";
}

}  // namespace

std::string str(const Observations& o, SourceId id) {
  if (id < 0 || static_cast<size_t>(id) >= o.sources.size()) return "a fresh object";
  const Source& s = o.sources[id];
  auto parent = [&] { return s.parent == kNoSource ? std::string("callable") : str(o, s.parent); };
  std::string index = std::to_string(s.index);
  switch (s.kind) {
    case SourceKind::kArgument:
      return s.key ? text(s.key) : "argument " + index;
    case SourceKind::kCallable:
      return "callable";
    case SourceKind::kGlobals:
      return "globals of " + parent();
    case SourceKind::kBuiltins:
      return "builtins";
    case SourceKind::kClosureCell:
      return parent() + ".__closure__[" + index + "]";
    case SourceKind::kCellContents:
      return parent() + ".cell_contents";
    case SourceKind::kInstanceDict:
      return parent() + ".__dict__";
    case SourceKind::kType:
      return "type(" + parent() + ")";
    case SourceKind::kTypeLookup:
      return parent() + "." + text(s.key);
    case SourceKind::kDictItem:
      return item(o, s);
    case SourceKind::kDictKeyAt:
      return "list(" + parent() + ")[" + index + "]";
    case SourceKind::kDictValueAt:
      return "list(" + parent() + ".values())[" + index + "]";
    case SourceKind::kSequenceItem:
      if (s.parent != kNoSource && o.sources[s.parent].kind == SourceKind::kArgument && s.index >= 0 &&
          static_cast<size_t>(s.index) < o.positional.size() && text(o.sources[s.parent].key) == "args")
        return o.positional[s.index];
      return parent() + "[" + index + "]";
    case SourceKind::kSetItem:
      return "list(" + parent() + ")[" + index + "]";
    case SourceKind::kSlot:
      return parent() + "." + text(s.key);
    case SourceKind::kModule:
      return "module " + text(s.key);
    case SourceKind::kTensorAttr:
      return parent() + "." + text(s.key);
    case SourceKind::kConstantObject:
      return short_repr(s.object);
    case SourceKind::kContextValue:
      return parent() + ".get()";
    case SourceKind::kProxied:
      return parent();
    case SourceKind::kWeakTarget:
      return parent() + "()";
  }
  return "?";
}

std::string describe(const Observations& o, const Fact& f) {
  std::string x = f.source == kNoSource ? "" : str(o, f.source);
  PyObject* e = f.expected;
  if (e && PyWeakref_CheckRef(e)) e = PyWeakref_GET_OBJECT(e);
  std::string want = short_repr(e);
  std::string out;
  switch (f.kind) {
    case FactKind::kIdentity:
      out = x + " is " + (e && is_constant(e) ? want : "the same object (" + want + ")");
      break;
    case FactKind::kTypeIs:
      out = "type(" + x + ") is " + want;
      break;
    case FactKind::kEquals:
      out = x + (e == Py_True || e == Py_False || e == Py_None ? " is " : " == ") + want;
      break;
    case FactKind::kLength:
      out = "len(" + x + ") == " + std::to_string(f.number);
      break;
    case FactKind::kDictHas:
      out = want + " in " + x;
      break;
    case FactKind::kDictLacks:
      out = want + " not in " + x;
      break;
    case FactKind::kDictOrder:
      out = "keys of " + x + " are " + want;
      break;
    case FactKind::kTypeLacks:
      out = x + " has no attribute " + want;
      break;
    case FactKind::kTypeVersion:
      out = x + " is unchanged";
      break;
    case FactKind::kInstanceDictIs:
      out = x + " has its own __dict__";
      break;
    case FactKind::kTensor:
      out = "tensor " + x;
      break;
    case FactKind::kStorageOffset:
      out = x + ".storage_offset() == " + std::to_string(f.number);
      break;
    case FactKind::kTensorAliases:
      out = x + " shares memory with " + str(o, static_cast<SourceId>(f.number));
      break;
    case FactKind::kSameObject:
      out = x + " is " + str(o, static_cast<SourceId>(f.number));
      break;
    case FactKind::kDistinct:
      out = x + " is not " + str(o, static_cast<SourceId>(f.number));
      break;
    case FactKind::kNotAliases:
      out = "no other tensor inputs share memory";
      break;
    case FactKind::kCodeIs:
      out = x + ".__code__ is the same (" + want + ")";
      break;
    case FactKind::kWritten:
      out = x + ", which is written, is met under no other name";
      break;
    case FactKind::kAddressIs:
      out = "id(" + x + ") is the same";
      break;
    case FactKind::kSpecials:
      out = x + " keeps its special methods";
      break;
    case FactKind::kLooksLike:
      out = x + " is a class like the one before";
      break;
    case FactKind::kSubclassIs:
      out = want + (f.number ? " is" : " is not") + " a subclass of " + x;
      break;
    case FactKind::kCallGives: {
      out = short_repr(PyTuple_GET_ITEM(e, 0)) + "(";
      const Py_ssize_t last = PyTuple_GET_SIZE(e) - 1;
      for (Py_ssize_t i = 1; i < last; i++) out += (i > 1 ? ", " : "") + short_repr(PyTuple_GET_ITEM(e, i));
      out += ") gives " + short_repr(PyTuple_GET_ITEM(e, last));
      break;
    }
    case FactKind::kGlobalState:
      out = "torch's global state";
      break;
  }
  return out;
}

std::string location_of(const Observations& o, const Fact& f) {
  return f.location >= 0 && static_cast<size_t>(f.location) < o.locations.size() ? o.locations[f.location] : "";
}

void release(Observations& o) {
  for (Source& s : o.sources) {
    Py_CLEAR(s.key);
    Py_CLEAR(s.object);
  }
  for (Fact& f : o.facts) Py_CLEAR(f.expected);
  o.sources.clear();
  o.facts.clear();
}

}  // namespace flashover::guards

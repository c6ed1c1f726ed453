// Where the program stands: lines for guards, reasons and the graph's nodes, and the modules that nodes belong to.
#include "frame/bytecode/code_file.h"
#include "frame/interpret/interpreter.h"
#include "frame/resume.h"

namespace flashover::frame {
namespace {

_PyInterpreterFrame* complete(_PyInterpreterFrame* f) {
  while (f != nullptr && _PyFrame_IsIncomplete(f)) f = f->previous;
  return f;
}

std::string line_of_frame(_PyInterpreterFrame* f) {
  DecodedCode* decoded = decode(code_of(f));
  if (decoded == nullptr) {
    PyErr_Clear();
    return "";
  }
  const std::string_view file = file_of(code_of(f));
  return std::string(file.empty() ? "?" : file) + ":" + std::to_string(line_of(code_of(f), decoded, unit_of(f)));
}

// What stands in for a library's functions while a call is captured, and what of Triton's calls it.
bool stands_in(PyCodeObject* code) {
  const std::string_view file = file_of(code);
  return file.ends_with("/flashover/_substitutes.py") || file.ends_with("/flashover/_sized.py") ||
         file.ends_with("/flashover/_user_kernels.py") || file.find("-packages/triton/runtime/") != file.npos;
}

// A file of the torch package, or of what stands in for it.
bool is_torchs_own(PyCodeObject* code) {
  static const std::string folder = [] {
    PyObject* torch = PyImport_AddModule("torch");  // borrowed
    Ref file = Ref::steal(torch != nullptr ? PyObject_GetAttrString(torch, "__file__") : nullptr);
    const char* path = file ? PyUnicode_AsUTF8(file.get()) : nullptr;
    PyErr_Clear();
    const std::string text = path != nullptr ? path : "";
    return text.substr(0, text.rfind('/') + 1);
  }();
  return !folder.empty() && (file_of(code).starts_with(folder) || stands_in(code));
}

// The innermost frame whose line tells the user something.
_PyInterpreterFrame* told_frame() {
  _PyInterpreterFrame* f = complete(current_frame(PyThreadState_Get()));
  while (f != nullptr && stands_in(code_of(f)))
    if (_PyInterpreterFrame* caller = complete(f->previous); caller != nullptr)
      f = caller;
    else
      break;
  return f;
}

thread_local PyObject* root_module = nullptr;

// Names `module` and what is below it; of two ways to one module the first counts.
void name_modules(PyObject* module, const std::string& path, std::unordered_map<PyObject*, std::string>& paths,
                  int depth) {
  constexpr int kMostDeep = 64;
  if (depth > kMostDeep || !paths.try_emplace(module, path).second) return;
  static PyObject* const name = PyUnicode_InternFromString("_modules");
  PyObject** dict = _PyObject_GetDictPtr(module);
  PyObject* children = dict != nullptr && *dict != nullptr ? PyDict_GetItemWithError(*dict, name) : nullptr;
  if (children == nullptr || !PyDict_Check(children)) return;
  PyObject *key, *child;
  Py_ssize_t at = 0;
  while (PyDict_Next(children, &at, &key, &child)) {
    const char* text = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
    if (text != nullptr && is_module(child)) name_modules(child, path + "." + text, paths, depth + 1);
  }
  PyErr_Clear();
}

}  // namespace

std::string Interpreter::location() const {
  _PyInterpreterFrame* f = told_frame();
  return f == nullptr ? "" : line_of_frame(f);
}

bool Interpreter::torchs_own(ActiveFrame& a) {
  if (a.torchs_own < 0) {
    auto [own, fresh] = names_.torchs_own.try_emplace(code_of(a.frame));
    if (fresh) own->second = is_torchs_own(code_of(a.frame));
    a.torchs_own = own->second;
  }
  return a.torchs_own != 0;
}

_PyInterpreterFrame* Interpreter::asking_frame() {
  for (ActiveFrame* a = top_; a != nullptr; a = a->caller)
    if (!torchs_own(*a)) return a->frame;
  return top_ == nullptr ? nullptr : top_->frame;
}

std::string Interpreter::asking_line() {
  _PyInterpreterFrame* f = complete(asking_frame());
  return f == nullptr ? begins_at : line_of_frame(f);
}

uint64_t Interpreter::asking_key() {
  _PyInterpreterFrame* f = asking_frame();
  return f == nullptr ? 0 : reinterpret_cast<uint64_t>(compat::instruction_of(f));
}

NamesModules::NamesModules(PyObject* root) : outer_(std::exchange(root_module, root)) {}

NamesModules::~NamesModules() { root_module = outer_; }

// The path from the module that is compiled, in the rest of a call, which finds its modules in local variables.
const std::string* Interpreter::path_of_module(PyObject* module) {
  if (!is_continuation_ || root_module == nullptr) return nullptr;
  if (!std::exchange(names_.looked_for_paths, true)) name_modules(root_module, "self", names_.paths, 0);
  const auto found = names_.paths.find(module);
  return found == names_.paths.end() ? nullptr : &found->second;
}

graph::Location Interpreter::operator_location() {
  if (top_ == nullptr) return {};  // autograd's engine: the recorder knows which forward it belongs to
  _PyInterpreterFrame* innermost = complete(current_frame(PyThreadState_Get()));
  _PyInterpreterFrame* line = nullptr;
  const std::string* module = nullptr;
  // Beyond the capture's own frames is its caller.
  for (_PyInterpreterFrame* f = innermost; f != nullptr && (line == nullptr || module == nullptr);
       f = complete(f->previous)) {
    bool ours = false;
    for (const ActiveFrame* a = top_; a != nullptr && !ours; a = a->caller) ours = a->frame == f;
    if (!ours) break;
    auto [own, fresh] = names_.torchs_own.try_emplace(code_of(f));
    if (fresh) own->second = is_torchs_own(code_of(f));
    if (line == nullptr && !own->second) line = f;
    if (module != nullptr || code_of(f)->co_argcount == 0) continue;
    PyObject* self = compat::local_of(f, 0);
    if (self != nullptr && PyCell_Check(self)) self = PyCell_GET(self);
    if (self == nullptr || !is_module(self)) continue;
    auto [name, unnamed] = names_.modules.try_emplace(self);
    if (unnamed) {
      const std::string* path = path_of_module(self);
      const SourceId id = path == nullptr ? recorder.source_of(self) : kNoSource;
      if (path != nullptr) name->second = *path;
      if (id != kNoSource) name->second = recorder.name_of(id);
    }
    module = &name->second;
  }
  if (line == nullptr) line = innermost;
  if (line == nullptr) return {};
  return {line_of_frame(line) + (module == nullptr || module->empty() ? "" : " in " + *module),
          checkpoint_depth_ > 0 ? checkpoints_ : -1};
}

std::string Interpreter::stack() const {
  std::string out;
  for (_PyInterpreterFrame* f = told_frame(); f != nullptr; f = complete(f->previous)) {
    const char* name = PyUnicode_AsUTF8(code_of(f)->co_qualname);
    if (name == nullptr) PyErr_Clear();
    out = line_of_frame(f) + " in " + (name != nullptr ? name : "?") + (out.empty() ? "" : "\n" + out);
  }
  return out;
}

}  // namespace flashover::frame

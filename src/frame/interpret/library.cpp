// Which code is a library's, that CPython runs by itself.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "frame/bytecode/code_file.h"
#include "frame/interpret/instructions.h"

namespace flashover::frame {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// torch.compile's count of its own calls: what notes it on each module that is made, and what forgets the module when
// it dies. It changes without end, and is nobody's business here.
bool is_torch_compiles_tag(PyCodeObject* code) {
  static PyObject* const tag = PyUnicode_InternFromString("tag");
  // Names like <lambda> are not interned: told by what they say.
  const bool forgets =
      PyUnicode_CompareWithASCIIString(code->co_qualname, "ExactWeakKeyDictionary.__setitem__.<locals>.<lambda>") == 0;
  if (code->co_name != tag && !forgets) return false;
  return contains(file_of(code), forgets ? "/torch/_dynamo/utils.py" : "/torch/_dynamo/mutation_guard.py");
}

// Not a file of the program's that has the same name.
bool is_of_standard_library(std::string_view file) {
  static const std::string folder = [] {
    Ref os = Ref::steal(PyImport_ImportModule("os"));
    Ref path = Ref::steal(os ? PyObject_GetAttrString(os.get(), "__file__") : nullptr);
    const char* text = path && PyUnicode_Check(path.get()) ? PyUnicode_AsUTF8(path.get()) : nullptr;
    PyErr_Clear();
    const std::string whole = text != nullptr ? text : "";
    return whole.substr(0, whole.rfind('/') + 1);
  }();
  if (file.starts_with("<frozen ")) return true;
  return !folder.empty() && file.starts_with(folder) && !contains(file, "/site-packages/");
}

constexpr const char* kNestedTensors = "/torch/nested/";

// typing.cast and its like hand an argument on: a number in it would be one that was read.
bool hands_argument_on(PyCodeObject* code) {
  const bool named = PyUnicode_CompareWithASCIIString(code->co_name, "cast") == 0 ||
                     PyUnicode_CompareWithASCIIString(code->co_name, "assert_type") == 0;
  return named && file_of(code).ends_with("/typing.py");
}

bool is_library_code(PyCodeObject* code) {
  if (hands_argument_on(code)) return false;
  static const char* const kStandardLibrary[] = {"<frozen importlib", "/importlib/", "/inspect.py", "/re/_",
                                                 "/re/__init__.py",   "/typing.py",  "/ast.py",     "/tokenize.py",
                                                 "/traceback.py"};
  // Functions of libraries that only look something up: in which order torch.einsum multiplies, where any is right, and
  // what einops takes for the class of a tensor, which it looks for among its classes and remembers; _slotnames fills a
  // cache in the class, which copy and pickle read.
  struct Lookup {
    const char *name, *file;
  };
  static constexpr Lookup kLookups[] = {
      {"contract_path", "/opt_einsum/"}, {"get_backend", "/einops/_backends.py"}, {"_slotnames", "/copyreg.py"}};
  for (const Lookup& l : kLookups)
    if (PyUnicode_CompareWithASCIIString(code->co_name, l.name) == 0 && contains(file_of(code), l.file)) return true;
  // Python kernels of registered operators (called by the dispatcher, not by the program) and the registration of
  // operators.
  static const char* const kTorch[] = {"/torch/_library/", "/torch/library.py", "/torch/_functorch/predispatch.py",
                                       kNestedTensors};
  static std::unordered_map<PyObject*, bool> known;  // by file name object; kept alive
  if (const auto it = known.find(code->co_filename); it != known.end()) return it->second;
  const std::string_view file = file_of(code);
  auto matches = [file](const char* part) { return contains(file, part); };
  const bool standard = is_of_standard_library(file);
  const bool found = (standard && std::any_of(std::begin(kStandardLibrary), std::end(kStandardLibrary), matches)) ||
                     std::any_of(std::begin(kTorch), std::end(kTorch), matches);
  known.emplace(code->co_filename, found);
  Py_INCREF(code->co_filename);
  return found;
}

// What jagged tensors are made of is known (SourceTracker::wrapper), and their code reads nothing else that changes.
bool is_of_nested_tensors(PyCodeObject* code) { return contains(file_of(code), kNestedTensors); }

// torch.library.custom_op's objects are called.
bool is_operators_call(PyCodeObject* code) {
  static PyObject* name = PyUnicode_InternFromString("CustomOpDef.__call__");
  return code->co_qualname == name || PyUnicode_Compare(code->co_qualname, name) == 0;
}

// torch.func.vmap's functions in C++, behind a wrapper each.
bool takes_batch_size(PyCodeObject* code) {
  return PyUnicode_CompareWithASCIIString(code->co_name, "_vmap_increment_nesting") == 0 ||
         PyUnicode_CompareWithASCIIString(code->co_name, "_remove_batch_dim") == 0;
}

}  // namespace

LibraryCode library_code(PyCodeObject* code) {
  if (is_torch_compiles_tag(code)) return LibraryCode::kUntracked;
  if (!is_library_code(code)) return LibraryCode::kNo;
  if (takes_batch_size(code)) return LibraryCode::kBatches;
  if (is_of_nested_tensors(code)) return LibraryCode::kNested;
  return is_operators_call(code) ? LibraryCode::kOperator : LibraryCode::kGuarded;
}

// re.sub(pattern, function, text): what the function reads is no argument.
bool calls_what_it_is_given(_PyInterpreterFrame* frame) {
  PyCodeObject* code = code_of(frame);
  return contains(file_of(code), "/re/__init__.py") && code->co_argcount > 1 && compat::local_of(frame, 1) != nullptr &&
         PyCallable_Check(compat::local_of(frame, 1)) != 0;
}

namespace {
// What registers operators and kernels, or changes the class that it decorates: a call that is captured again would do
// so twice, and one that was compiled never again. (opcheck traces the operators itself.)
bool registers(PyCodeObject* code) {
  struct Registration {
    std::string_view file;
    std::string_view starts;  // of the function's qualified name
  };
  // (The two of library.py named _ take a Library first: define and impl are functools.singledispatch.)
  static constexpr Registration kRegistrations[] = {
      {"/torch/library.py", "Library."},
      {"/torch/library.py", "register_"},
      {"/torch/library.py", "_register_"},
      {"/torch/library.py", "define"},
      {"/torch/library.py", "impl"},
      {"/torch/library.py", "_impl"},
      {"/torch/library.py", "_.<locals>."},
      {"/torch/library.py", "opcheck"},
      {"/torch/_library/custom_ops.py", "custom_op"},
      {"/torch/_library/custom_ops.py", "CustomOpDef.register_"},
      {"/torch/_library/custom_ops.py", "CustomOpDef.set_kernel_enabled"},
      {"/torch/_library/triton.py", "triton_op"},
      {"/torch/_library/autograd.py", "supports_tensorlist"},
      {"/torch/_library/fake_class_registry.py", "register_fake_class"},
      {"/torch/_library/fake_class_registry.py", "deregister_fake_class"},
      {"/torch/_library/opaque_object.py", "register_opaque_type"},
  };
  const char* function = PyUnicode_AsUTF8(code->co_qualname);
  if (function == nullptr) {
    PyErr_Clear();
    return false;
  }
  const std::string_view file = file_of(code);
  // What is defined in them is a decorator, or a kernel that the dispatcher calls.
  static constexpr std::string_view kDecorators[] = {"wrap", "register", "register_", "inner", "dec"};
  std::string_view name = function;
  if (const size_t defined_in = name.rfind(".<locals>."); defined_in != std::string_view::npos)
    if (std::ranges::find(kDecorators, name.substr(defined_in + 10)) == std::end(kDecorators)) return false;
  return std::ranges::any_of(
      kRegistrations, [=](const Registration& r) { return file.ends_with(r.file) && name.starts_with(r.starts); });
}
}  // namespace

bool talks_to_the_outside(PyCodeObject* code) {
  for (const char* name : {"print_tb", "print_exception", "print_exc", "print_last", "print_stack", "print_list",
                           "extract_stack", "format_stack", "walk_stack", "stack", "getouterframes", "reveal_type"})
    if (PyUnicode_CompareWithASCIIString(code->co_name, name) == 0) return true;
  return registers(code);
}

}  // namespace flashover::frame

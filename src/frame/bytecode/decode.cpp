// Decodes a code object once and keeps the result in the code object's extra slot.
#include "frame/bytecode/decode.h"

#include <memory>
#include <string>
#include <string_view>

#include "compat/opcodes.h"
#include "frame/bytecode/code_file.h"

namespace flashover::frame {
namespace {

void free_code(void* p) { delete static_cast<DecodedCode*>(p); }

Py_ssize_t extra_index() {
  static const Py_ssize_t index = _PyEval_RequestCodeExtraIndex(free_code);
  return index;
}

// The exception table is a list of (start, length, target, depth * 2 + lasti) as big-endian 6-bit varints.
std::vector<Handler> read_handlers(PyObject* table) {
  std::vector<Handler> handlers;
  auto* p = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(table));
  const auto* end = p + PyBytes_GET_SIZE(table);
  auto varint = [&p] {
    int value = *p & 63;
    while (*p++ & 64) value = (value << 6) | (*p & 63);
    return value;
  };
  while (p < end) {
    Handler h{};
    h.start = varint();
    h.end = h.start + varint();
    h.target = varint();
    int depth = varint();
    h.depth = depth >> 1;
    h.lasti = depth & 1;
    handlers.push_back(h);
  }
  return handlers;
}

}  // namespace

DecodedCode* decode(PyCodeObject* code) {
  void* extra = nullptr;
  auto* object = reinterpret_cast<PyObject*>(code);
  if (_PyCode_GetExtra(object, extra_index(), &extra) < 0) return nullptr;
  if (extra != nullptr) return static_cast<DecodedCode*>(extra);
  PyObject* bytes = PyCode_GetCode(code);
  if (bytes == nullptr) return nullptr;
  auto decoded = std::make_unique<DecodedCode>();
  auto* raw = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
  const Py_ssize_t units = PyBytes_GET_SIZE(bytes) / 2;
  decoded->instructions.resize(static_cast<size_t>(units));
  uint32_t extended = 0;
  for (Py_ssize_t i = 0; i < units;) {
    BytecodeInstruction& in = decoded->instructions[static_cast<size_t>(i)];
    const int op = raw[2 * i];
    in.arg = (extended << 8) | raw[2 * i + 1];
    in.op = static_cast<int16_t>(compat::plain_instruction(op, static_cast<int>(in.arg)));
    in.skip = compat::kInlineCaches[static_cast<size_t>(op)];
    if (in.op == EXTENDED_ARG) {  // does nothing: the next instruction already has the whole argument
      extended = in.arg;
    } else {
      extended = 0;
    }
    i += 1 + in.skip;
  }
  Py_DECREF(bytes);
  decoded->handlers = read_handlers(code->co_exceptiontable);
  decoded->generator = code->co_flags & CO_GENERATOR;
  decoded->coroutine = code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE);
  DecodedCode* result = decoded.release();
  if (_PyCode_SetExtra(object, extra_index(), result) < 0) {
    delete result;
    return nullptr;
  }
  return result;
}

namespace {

// PyCode_Addr2Line walks the table of lines from its start, so that asking for each instruction of a long function
// takes time with the square of its length. This walks it once; false where it cannot.
bool fill_lines(PyCodeObject* code, std::vector<int32_t>& lines) {
  if (PyErr_Occurred()) return false;  // no call into Python beside an exception in flight
  const Ref table = Ref::steal(PyObject_CallMethod(reinterpret_cast<PyObject*>(code), "co_lines", nullptr));
  while (table) {
    const Ref row = Ref::steal(PyIter_Next(table.get()));
    if (!row) break;
    int start = 0, end = 0;
    PyObject* line = nullptr;
    if (!PyArg_ParseTuple(row.get(), "iiO", &start, &end, &line)) break;
    const int32_t number = line == Py_None ? code->co_firstlineno : static_cast<int32_t>(PyLong_AsLong(line));
    for (size_t unit = static_cast<size_t>(start) / 2; unit < static_cast<size_t>(end) / 2 && unit < lines.size();
         ++unit)
      lines[unit] = number;
  }
  const bool failed = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  return table && !failed;
}

}  // namespace

int line_of(PyCodeObject* code, DecodedCode* decoded, int unit) {
  constexpr int32_t kUnknown = -2;
  constexpr size_t kLong = 1000;  // code units
  if (decoded->lines.empty()) {
    decoded->lines.assign(decoded->instructions.size(), kUnknown);
    if (decoded->lines.size() >= kLong && !fill_lines(code, decoded->lines))
      decoded->lines.assign(decoded->instructions.size(), kUnknown);
  }
  if (unit < 0 || unit >= static_cast<int>(decoded->lines.size())) return code->co_firstlineno;
  int32_t& line = decoded->lines[static_cast<size_t>(unit)];
  if (line == kUnknown) {
    line = PyCode_Addr2Line(code, unit * 2);
    if (line < 0) line = code->co_firstlineno;
  }
  return line;
}

const Handler* handler_at(const DecodedCode& code, int unit) {
  for (const Handler& h : code.handlers)
    if (h.start <= unit && unit < h.end) return &h;
  return nullptr;
}

Flow flow_of(const BytecodeInstruction& in, int pc) {
  const int after = pc + 1 + in.skip, arg = static_cast<int>(in.arg);
  switch (const int op = in.op; op) {
    case JUMP_FORWARD:
      return {false, after + arg};
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
      return {false, after - arg};
    case RETURN_VALUE:
    case RAISE_VARARGS:
    case RERAISE:
    case RETURN_CONST:
      return {false, -1};
    case FOR_ITER:
    case SEND:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
      return {true, after + arg};
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return {true, after - arg};
    default:
      return {};
  }
}

namespace {

LocalUse use_of_two(const BytecodeInstruction& in, int local) {
  const bool first = compat::first_local_of(static_cast<int>(in.arg)) == local;
  if (!first && compat::second_local_of(static_cast<int>(in.arg)) != local) return LocalUse::kNone;
  if (in.op == LOAD_FAST_LOAD_FAST || (in.op == STORE_FAST_LOAD_FAST && !first)) return LocalUse::kReads;
  return LocalUse::kWrites;  // of STORE_FAST_LOAD_FAST the first one is written before the second is read
}

}  // namespace

LocalUse local_use(const BytecodeInstruction& in, int local) {
  if (in.op == LOAD_FAST_LOAD_FAST || in.op == STORE_FAST_LOAD_FAST || in.op == STORE_FAST_STORE_FAST)
    return use_of_two(in, local);
  if (static_cast<int>(in.arg) != local) return LocalUse::kNone;
  switch (const int op = in.op; op) {
    case LOAD_FAST:
    case LOAD_CLOSURE:
    case DELETE_FAST:
    case MAKE_CELL:
    case LOAD_FAST_CHECK:
    case LOAD_FAST_AND_CLEAR:
      return LocalUse::kReads;
    case STORE_FAST:
      return LocalUse::kWrites;
    default:
      return LocalUse::kNone;
  }
}

bool is_library(PyCodeObject* code) {
  static const std::string standard = [] {
    PyObject* os = PyDict_GetItemString(PyImport_GetModuleDict(), "os");  // (an import would run under the hook)
    PyObject* file = os != nullptr ? PyObject_GetAttrString(os, "__file__") : nullptr;
    const char* text = file != nullptr ? PyUnicode_AsUTF8(file) : nullptr;
    std::string path = text != nullptr ? text : "";
    Py_XDECREF(file);
    PyErr_Clear();
    return path.substr(0, path.rfind('/') + 1);
  }();
  const std::string_view file = file_of(code);
  if (file.ends_with("/flashover/_sized.py")) return true;
  if (file.ends_with("/flashover/_substitutes.py"))
    return std::string_view(PyUnicode_AsUTF8(code->co_name)).starts_with("_whole_");
  // What works on arrays goes through many functions of its own for one call, none of which leads to a tensor.
  constexpr std::string_view kLibraries[] = {"torch/", "numpy/", "scipy/", "pandas/", "sklearn/", "PIL/"};
  constexpr std::string_view kInstalled = "-packages/";
  if (const size_t at = file.find(kInstalled); at != file.npos) {
    const std::string_view package = file.substr(at + kInstalled.size());
    return std::ranges::any_of(kLibraries, [&](std::string_view l) { return package.starts_with(l); }) &&
           !package.starts_with("torch/nn/modules/");
  }
  return !standard.empty() && file.substr(0, standard.size()) == standard;
}

bool reads_its_locals(PyCodeObject* code) {
  for (const char* name : {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i)
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_names, i), name) == 0) return true;
  return false;
}

}  // namespace flashover::frame

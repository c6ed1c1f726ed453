// Words and Python data for a failed guard: what was so, what is now, the lines of both.
#include "entry/recompiles.h"

#include "base/decimal.h"

namespace flashover::entry {
namespace {

std::string utf8(PyObject* steal) {
  const char* text = steal && PyUnicode_Check(steal) ? PyUnicode_AsUTF8(steal) : nullptr;
  std::string out = text ? text : "";
  Py_XDECREF(steal);
  PyErr_Clear();
  return out;
}

std::string folder_of(const char* package) {
  PyObject* module = PyImport_ImportModule(package);
  const std::string file = utf8(module ? PyObject_GetAttrString(module, "__file__") : nullptr);
  Py_XDECREF(module);
  return file.substr(0, file.rfind('/') + 1);
}

}  // namespace

std::string with_text(const std::string& where) {
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos) return where;
  PyObject* module = PyImport_ImportModule("linecache");
  PyObject* line = module
                       ? PyObject_CallMethod(module, "getline", "si", where.substr(0, colon).c_str(),
                                             parse_number<int>(std::string_view(where).substr(colon + 1)).value_or(0))
                       : nullptr;
  Py_XDECREF(module);
  std::string text = utf8(line);
  text.erase(0, text.find_first_not_of(" \t"));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return where + (text.empty() ? "" : ": " + text);
}

std::string calling_line() {
  // Calls of explain() and through torch's decorators are the program's: its line is the first outside of both folders.
  static const std::string folders[] = {folder_of("flashover"), folder_of("torch")};
  std::string innermost;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const std::string file = utf8(Py_NewRef(code->co_filename));
    const std::string line = file + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
    if (innermost.empty()) innermost = line;
    bool own = false;
    for (const std::string& folder : folders) own |= !folder.empty() && file.compare(0, folder.size(), folder) == 0;
    if (own) continue;
    Py_XDECREF(frame);
    return line;
  }
  return innermost;
}

std::string describe(const Recompile& why, int64_t version, size_t limit) {
  std::string out = "compiled again, as version " + std::to_string(version) + " (limit " + std::to_string(limit) + ")";
  if (!why.called.empty()) out += ", for the call at " + with_text(why.called);
  for (const Missed& m : why.missed) {
    out += "\n  not version " + std::to_string(m.version) + " (used " + std::to_string(m.hits) +
           (m.hits == 1 ? " time" : " times") + "): " + m.failure.guard +
           (m.failure.now.empty() ? "" : "; now " + m.failure.now);
    if (!m.failure.where.empty()) out += "\n    seen at " + with_text(m.failure.where);
    if (!m.advice.empty()) out += "\n    " + m.advice;
  }
  return out;
}

PyObject* to_python(const Recompile& why) {
  PyObject* out = PyList_New(0);
  for (const Missed& m : why.missed) {
    PyObject* d = Py_BuildValue("{s:L,s:L,s:s,s:s,s:s,s:s}", "version", static_cast<long long>(m.version), "hits",
                                static_cast<long long>(m.hits), "guard", m.failure.guard.c_str(), "now",
                                m.failure.now.c_str(), "where", m.failure.where.c_str(), "advice", m.advice.c_str());
    if (out && d) PyList_Append(out, d);
    Py_XDECREF(d);
  }
  return out;
}

}  // namespace flashover::entry

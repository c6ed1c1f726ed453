// A Python interpreter for unit tests: python3 of PATH with its packages, where ./x puts the environment first. A test
// program that includes this has one from its first test on.
#pragma once
#include <Python.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace flashover {

class Interpreter : public testing::Environment {
 public:
  void SetUp() override {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = config.install_signal_handlers = 0;
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, "python3");
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    // This program is linked with the stages; the package would load and register them a second time.
    PyRun_SimpleString("import sys; sys.modules['flashover'] = None");
  }
};
inline testing::Environment* const kInterpreter = testing::AddGlobalTestEnvironment(new Interpreter);

// A module of the test's own: what it defines, and objects by expression, alive as long as it.
class Python {
 public:
  explicit Python(const std::string& code = "") : globals_(PyDict_New()) {
    PyDict_SetItemString(globals_, "__builtins__", PyEval_GetBuiltins());
    PyObject* name = PyUnicode_FromString("unit_test");
    PyDict_SetItemString(globals_, "__name__", name);
    Py_DECREF(name);
    run(code);
  }
  ~Python() {
    for (PyObject* o : made_) Py_DECREF(o);
    PyDict_Clear(globals_);
    Py_DECREF(globals_);
  }
  Python(const Python&) = delete;

  void run(const std::string& code) { Py_DECREF(evaluated(code, Py_file_input)); }
  PyObject* operator[](const std::string& expression) {  // borrowed
    made_.push_back(evaluated(expression, Py_eval_input));
    return made_.back();
  }
  std::string text(const std::string& expression) { return string_of((*this)["str((" + expression + "))"]); }
  void forget() {  // what [] kept alive
    for (PyObject* o : std::exchange(made_, {})) Py_DECREF(o);
  }
  PyObject* globals() const { return globals_; }

  static std::string string_of(PyObject* text) { return PyUnicode_AsUTF8(text); }

 private:
  PyObject* evaluated(const std::string& code, int start) {
    PyObject* value = PyRun_String(code.c_str(), start, globals_, globals_);
    if (value) return value;
    PyErr_Print();
    throw std::runtime_error("Python: " + code);
  }
  PyObject* globals_;
  std::vector<PyObject*> made_;
};

}  // namespace flashover

// Bound arguments against those of a real call, over signatures and calls of every kind.
#include "entry/binder.h"

#include <gtest/gtest.h>

#include "guards/interpreter_test.h"

namespace flashover::entry {
namespace {

// Each function returns its parameters; each call is (args, kwargs).
const char* kProgram = R"(
def f0(): return locals()
def f1(a): return locals()
def f2(a, b=2): return locals()
def f3(a, /, b): return locals()
def f4(a, /, b=2, *, c, d=4): return locals()
def f5(*args): return locals()
def f6(**kwargs): return locals()
def f7(a, /, *args, b=1, **kwargs): return locals()
def f8(a, b=2, *args, c=3, **kwargs): return locals()
def f9(self, a=1): return locals()
exec('def many(' + ', '.join(f'p{i}={i}' for i in range(40)) + '): return locals()')
functions = [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, many]
calls = [((), {}), ((1,), {}), ((1, 2), {}), ((1, 2, 3), {}), ((), {'a': 1}), ((), {'b': 1}), ((1,), {'b': 5}),
         ((1,), {'a': 5}), ((1,), {'c': 5}), ((1, 2), {'c': 5, 'd': 6}), ((1,), {'c': 5, 'x': 6}), ((), {'x': 1, 'y': 2}),
         ((1, 2, 3), {'c': 5, 'x': 6}), ((), {'p39': 1}), ((1,), {''.join(['p', '7']): 1}), ((), {'kwargs': 1, 'args': 2})]
def expected(f, call):
    try:
        return str(list(f(*call[0], **call[1]).values()))
    except TypeError:
        return 'no'
)";

std::string bound(Python& py, const std::string& function, const std::string& call, PyObject* self = nullptr) {
  auto* f = reinterpret_cast<PyFunctionObject*>(py[function]);
  PyObject *args = py[call + "[0]"], *names = py["tuple(" + call + "[1])"],
           *values = py["tuple(" + call + "[1].values())"];
  std::vector<PyObject*> given(&PyTuple_GET_ITEM(args, 0), &PyTuple_GET_ITEM(args, 0) + PyTuple_GET_SIZE(args));
  given.insert(given.end(), &PyTuple_GET_ITEM(values, 0), &PyTuple_GET_ITEM(values, 0) + PyTuple_GET_SIZE(values));
  const Signature s = Signature::of(f);
  Bound b;
  const bool fits = b.bind(s, f, self, given.data(), PyTuple_GET_SIZE(args), PyTuple_GET_SIZE(names) ? names : nullptr);
  EXPECT_EQ(PyErr_Occurred(), nullptr);
  if (!fits) return "no";
  PyObject* list = PyList_New(0);
  for (int i = 0; i < s.slots; ++i) PyList_Append(list, b.slots()[i]);
  PyObject* text = PyObject_Str(list);
  const std::string out = Python::string_of(text);
  Py_DECREF(text), Py_DECREF(list);
  return out;
}

TEST(Binder, AsTheInterpreterBinds) {
  Python py(kProgram);
  int fits = 0;
  for (int f = 0; f < 11; ++f)
    for (int c = 0; c < 16; ++c) {
      const std::string function = "functions[" + std::to_string(f) + "]", call = "calls[" + std::to_string(c) + "]";
      const std::string got = bound(py, function, call);
      EXPECT_EQ(got, py.text("expected(" + function + ", " + call + ")")) << py.text(function) << py.text(call);
      fits += got != "no";
    }
  EXPECT_GE(fits, 50);
}

TEST(Binder, ABoundMethodsObjectComesFirst) {
  Python py(kProgram);
  EXPECT_EQ(bound(py, "f9", "((), {})", py["'self'"]), "['self', 1]");
  EXPECT_EQ(bound(py, "f9", "((5,), {})", py["'self'"]), "['self', 5]");
  EXPECT_EQ(bound(py, "f9", "((5, 6), {})", py["'self'"]), "no");
  EXPECT_EQ(bound(py, "f5", "((5,), {})", py["'self'"]), "[('self', 5)]");
  EXPECT_EQ(bound(py, "f9", "((), {'self': 1})", py["'self'"]), "no");
}

TEST(Binder, DefaultsAreThoseOfTheMoment) {
  Python py(kProgram);
  EXPECT_EQ(bound(py, "f2", "((1,), {})"), "[1, 2]");
  py.run("f2.__defaults__ = (7,)");
  EXPECT_EQ(bound(py, "f2", "((1,), {})"), "[1, 7]");
  py.run("f2.__defaults__ = None; f4.__kwdefaults__ = None");
  EXPECT_EQ(bound(py, "f2", "((1,), {})"), "no");
  EXPECT_EQ(bound(py, "f4", "((1,), {'c': 3})"), "no");
}

}  // namespace
}  // namespace flashover::entry

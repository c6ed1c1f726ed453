// Number programs: CPython's arithmetic on the numbers of a call; all that is not as in the trace is a miss.
#include "frame/numbers.h"

#include <gtest/gtest.h>

#include "guards/interpreter_test.h"

namespace flashover::frame {
namespace {

using NumberKind = NumberStep::Kind;

std::shared_ptr<PyObject> held(PyObject* o) {
  return {Py_NewRef(o), [](PyObject* p) { Py_DECREF(p); }};
}

struct Numbered {
  Python py{"import math"};
  NumberProgram program{.limit = 1e6};

  int32_t step(NumberKind kind, PyTypeObject* type, int32_t a = -1, int32_t b = -1, int32_t op = 0,
               const std::string& object = "") {
    program.steps.push_back({kind, a, b, op, DType::kF64, object.empty() ? nullptr : held(py[object]), type});
    return static_cast<int32_t>(program.steps.size()) - 1;
  }
  // The last step's value for a call with these objects; "miss".
  std::string run(const std::vector<std::string>& objects) {
    std::vector<PyObject*> given, values;
    for (const std::string& o : objects) given.push_back(py[o]);
    const bool hit = evaluate(program, given.data(), nullptr, values);
    EXPECT_EQ(PyErr_Occurred(), nullptr) << "a miss leaves no error";
    EXPECT_EQ(values.size(), hit ? program.steps.size() : 0);
    PyObject* text = hit ? PyObject_Repr(values.back()) : nullptr;
    const std::string out = text ? Python::string_of(text) : "miss";
    Py_XDECREF(text);
    for (PyObject* v : values) Py_DECREF(v);
    return out;
  }
};
// Arguments of BINARY_OP.
constexpr int kPlus = 0, kTimes = 5, kPower = 8, kDivide = 11, kInPlace = 13;

TEST(Numbers, Arithmetic) {
  Numbered n;
  const int32_t x = n.step(NumberKind::kSource, &PyFloat_Type, 0);
  const int32_t two = n.step(NumberKind::kConstant, &PyLong_Type, -1, -1, 0, "2");
  const int32_t twice = n.step(NumberKind::kBinary, &PyFloat_Type, x, two, kTimes + kInPlace);
  const int32_t sum = n.step(NumberKind::kBinary, &PyFloat_Type, twice, two, kPlus);
  const int32_t minus = n.step(NumberKind::kUnary, &PyFloat_Type, sum, -1, 0);
  EXPECT_EQ(n.run({"1.5"}), "-5.0");
  EXPECT_EQ(n.run({"float('inf')"}), "-inf");
  n.step(NumberKind::kRound, &PyFloat_Type, minus);
  EXPECT_EQ(n.run({"0.1"}), n.py.text("__import__('struct').unpack('f', __import__('struct').pack('f', -2.2))[0]"));
  n.step(NumberKind::kCall, &PyFloat_Type, minus, -1, 0, "abs");
  EXPECT_EQ(n.run({"1.5"}), "5.0");
  n.step(NumberKind::kFormat, &PyUnicode_Type, minus, -1, 0, "'.2f'");
  EXPECT_EQ(n.run({"1.5"}), "'-5.00'");
}

TEST(Numbers, AStepThatRaisesIsAMiss) {
  Numbered n;
  const int32_t x = n.step(NumberKind::kSource, &PyFloat_Type, 0), y = n.step(NumberKind::kSource, &PyFloat_Type, 1);
  n.step(NumberKind::kBinary, &PyFloat_Type, x, y, kDivide);
  EXPECT_EQ(n.run({"1.0", "4.0"}), "0.25");
  EXPECT_EQ(n.run({"1.0", "0.0"}), "miss");
}

TEST(Numbers, AnotherTypeIsAMiss) {
  Numbered n;
  const int32_t x = n.step(NumberKind::kSource, &PyLong_Type, 0), y = n.step(NumberKind::kSource, &PyLong_Type, 1);
  n.step(NumberKind::kBinary, &PyLong_Type, x, y, kPower);
  EXPECT_EQ(n.run({"2", "3"}), "8");
  EXPECT_EQ(n.run({"2", "-3"}), "miss") << "a float";
  EXPECT_EQ(n.run({"2.0", "3"}), "miss");
  EXPECT_EQ(n.run({"True", "3"}), "miss") << "a bool is no int here";
}

TEST(Numbers, ComparisonsThatGoTheOtherWayAreAMiss) {
  Numbered n;
  const int32_t x = n.step(NumberKind::kSource, &PyFloat_Type, 0),
                zero = n.step(NumberKind::kConstant, &PyLong_Type, -1, -1, 0, "0");
  n.program.checks = {{x, zero, Py_GT, true}, {x, x, Py_EQ, true}};
  EXPECT_EQ(n.run({"1.0"}), "0");
  EXPECT_EQ(n.run({"-1.0"}), "miss");
  EXPECT_EQ(n.run({"float('nan')"}), "miss") << "NaN is not equal to itself";
  n.program.checks = {{x, zero, Py_GT, false}};
  EXPECT_EQ(n.run({"float('nan')"}), "0");
}

TEST(Numbers, InputsThatTheirTensorCannotHoldAreAMiss) {
  Numbered n;
  n.program.inputs = {n.step(NumberKind::kSource, &PyFloat_Type, 0)};
  EXPECT_EQ(n.run({"1e6"}), "1000000.0");
  EXPECT_EQ(n.run({"1.1e6"}), "miss");
  EXPECT_EQ(n.run({"float('-inf')"}), "-inf");
  Numbered i;
  i.program.inputs = {i.step(NumberKind::kSource, &PyLong_Type, 0)};
  EXPECT_EQ(i.run({"-(1 << 24)"}), "-16777216");
  EXPECT_EQ(i.run({"(1 << 24) + 1"}), "miss");
  EXPECT_EQ(i.run({"1 << 100"}), "miss");
}

TEST(Numbers, OwnNumbersAreOthersWithTheSameValue) {
  Python py;
  for (const char* value : {"1", "0", "-5", "1 << 100", "-(1 << 70)", "0.5", "float('inf')", "'step'", "'\\u0101'"}) {
    PyObject* const shared = py[value];
    PyObject* const own = own_number(shared);
    EXPECT_NE(own, shared) << value;
    EXPECT_EQ(Py_TYPE(own), Py_TYPE(shared));
    EXPECT_EQ(PyObject_RichCompareBool(own, shared, Py_EQ), 1) << value;
    Py_DECREF(own);
  }
  EXPECT_EQ(own_number(py["''"]), nullptr) << "there is only one";
}

}  // namespace
}  // namespace flashover::frame

// Frames that a break left behind, made by hand and resumed: who is asked to take them on, where they stand then, and
// what CPython makes of each answer.
#include "frame/resume.h"

#include <map>

#include "guards/interpreter_test.h"

namespace flashover::frame {
namespace {

using Outcome = Continuations::Outcome;

const char* kHelpers = R"(
import dis
def behind_call(f, nth=0):
    return [b.offset // 2 for a, b in zip(*[list(dis.get_instructions(f))[k:] for k in (0, 1)]) if a.opname == 'CALL'][nth]
)";

// A frame of `function` at code unit `next`; slots by expression, "" for none. Locals come first.
FrameState frame(Python& py, const std::string& function, int32_t next, const std::vector<std::string>& slots) {
  FrameState f;
  f.function = Py_NewRef(py[function]);
  f.code = Py_NewRef(PyFunction_GetCode(f.function));
  f.next = next;
  for (const std::string& slot : slots) f.slots.push_back(slot.empty() ? nullptr : Py_NewRef(py[slot]));
  return f;
}
int32_t number(Python& py, const std::string& expression) {
  return static_cast<int32_t>(PyLong_AsLong(py[expression]));
}

// Answers by the function's name; functions without an answer are not taken.
struct Asked : Continuations {
  using Answer = std::function<Outcome(const CaptureRequest&, PyObject** result, std::vector<FrameState>& frames)>;
  std::map<std::string, Answer> answers;
  std::string log;

  bool accepts(PyObject* function) override { return answers.contains(name_of(function)); }
  bool gives_up(const CaptureRequest& request, PyObject*, const char* reason) override {
    log += name_of(request.function) + " given up: " + reason + ";";
    return true;
  }
  Outcome resume(const CaptureRequest& request, PyObject*, PyObject** result,
                 std::vector<FrameState>& frames) override {
    log += name_of(request.function) + "(";
    for (size_t i = 0; i + 2 < request.count; ++i)  // the last two are the function and the handled exception
      log += (i ? " " : "") + shown(request.slots[i]);
    log += ");";
    const auto found = answers.find(name_of(request.function));
    return found == answers.end() ? Outcome::kNotTaken : found->second(request, result, frames);
  }
  static std::string name_of(PyObject* function) {
    return Python::string_of(reinterpret_cast<PyFunctionObject*>(function)->func_name);
  }
  static std::string shown(PyObject* o) {
    if (!o) return "-";
    if (PyFunction_Check(o)) return name_of(o);
    PyObject* text = PyObject_Repr(o);
    std::string s = Python::string_of(text);
    Py_DECREF(text);
    return s;
  }
};

std::string run(Python& py, Asked& asked, std::vector<FrameState> frames) {
  PyObject* result = resume(std::move(frames), asked);
  if (!result) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyErr_NormalizeException(&type, &value, &tb);
    const std::string text = Asked::shown(value);
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(tb);
    return "error: " + text;
  }
  PyDict_SetItemString(py.globals(), "result", result);
  Py_DECREF(result);
  return py.text("repr(result)");
}
template <typename... Frames>
std::vector<FrameState> list(Frames... frames) {
  std::vector<FrameState> out;
  (out.push_back(std::move(frames)), ...);
  return out;
}

const char* kCaller = R"(
def g(x): return x + 1
def f(x):
    y = x * 2
    try:
        y = g(y)
    except ValueError as e:
        return str(e)
    return y * 100
)";

TEST(Resume, NumbersRunForRealAndACallIsAChance) {
  Python py(std::string(kHelpers) + kCaller);
  Asked asked;
  EXPECT_EQ(run(py, asked, list(frame(py, "f", 0, {"3", "", ""}))), "700");
  EXPECT_EQ(asked.log.substr(0, asked.log.find(';')), "f(3 6 -)") << asked.log;
}

TEST(Resume, WhatIsTakenGivesTheResult) {
  Python py(std::string(kHelpers) + kCaller);
  Asked asked;
  asked.answers["f"] = [&](const CaptureRequest& request, PyObject** result, std::vector<FrameState>&) {
    EXPECT_TRUE(request.may_break);
    *result = Py_NewRef(py["'taken'"]);
    return Outcome::kReturned;
  };
  EXPECT_EQ(run(py, asked, list(frame(py, "f", 0, {"3", "", ""}))), "'taken'");
}

TEST(Resume, AnErrorGoesToTheFramesHandlers) {
  Python py(std::string(kHelpers) + kCaller);
  Asked asked;
  const auto raises = [](PyObject* type) {
    return [type](const CaptureRequest&, PyObject**, std::vector<FrameState>&) {
      PyErr_SetString(type, "of the compiled part");
      return Outcome::kRaised;
    };
  };
  asked.answers["f"] = raises(PyExc_ValueError);
  EXPECT_EQ(run(py, asked, list(frame(py, "f", 0, {"3", "", ""}))), "'of the compiled part'");
  asked.answers["f"] = raises(PyExc_KeyError);
  EXPECT_EQ(run(py, asked, list(frame(py, "f", 0, {"3", "", ""}))), "error: KeyError('of the compiled part')");
}

TEST(Resume, TheOuterFrameWaitsForTheInner) {
  Python py(std::string(kHelpers) + kCaller);
  Asked asked;
  const auto both = [&](const char* x) {
    return list(frame(py, "f", number(py, "behind_call(f)"), {"3", "6", ""}), frame(py, "g", 0, {x}));
  };
  EXPECT_EQ(run(py, asked, both("6")), "700");
  EXPECT_EQ(run(py, asked, both("'6'")), "error: TypeError('can only concatenate str (not \"int\") to str')");
  py.run("def g(x): raise ValueError(x)");
  EXPECT_EQ(run(py, asked, both("6")), "'6'") << "its handler";
}

TEST(Resume, ABreakFurtherOnIsResumedInTurn) {
  Python py(std::string(kHelpers) + kCaller);
  Asked asked;
  bool broke = false;
  asked.answers["f"] = [&](const CaptureRequest&, PyObject**, std::vector<FrameState>& frames) {
    if (std::exchange(broke, true)) return Outcome::kNotTaken;
    frames = list(frame(py, "f", number(py, "behind_call(f)"), {"3", "6", ""}), frame(py, "g", 0, {"10"}));
    return Outcome::kBroke;
  };
  EXPECT_EQ(run(py, asked, list(frame(py, "f", 0, {"3", "", ""}))), "1100");
}

// A frame has the code that it began with; what is compiled would begin with a frame of the function.
TEST(Resume, AFunctionWithOtherCodeByNowIsGivenUp) {
  Python py(std::string(kHelpers) + kCaller + "def h(x): return 'other'\n");
  Asked asked;
  auto frames = list(frame(py, "f", 0, {"3", "", ""}));
  py.run("f.__code__ = h.__code__");
  asked.answers["f"] = [](const CaptureRequest&, PyObject**, std::vector<FrameState>&) {
    ADD_FAILURE() << "asked";
    return Outcome::kNotTaken;
  };
  EXPECT_EQ(run(py, asked, std::move(frames)), "700");
  EXPECT_EQ(asked.log.substr(0, asked.log.find(';')), "f given up: the function was given other code");
  EXPECT_EQ(py.text("f(1)"), "other") << "its new code is its own";
}

}  // namespace
}  // namespace flashover::frame

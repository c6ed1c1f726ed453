// Continuations that compile nothing: what is not taken, how that is counted, and when it is not tried again.
#include "entry/continuations.h"

#include "entry/stance.h"
#include "guards/interpreter_test.h"

namespace flashover::entry {
namespace {

using Outcome = frame::Continuations::Outcome;

struct Rest {
  Python py{"def f(x): return x\ndef own(x): return x\n"};
  CallableState state;
  CompiledContinuations continuations{state};
  PyObject* function = py["f"];
  PyObject* code = PyFunction_GetCode(function);

  Rest() { state.limit = 8; }
  ~Rest() {
    set_stance("default");
    for (auto& [key, barren] : state.barren) Py_DECREF(key);
  }
  Outcome resume(int32_t next) {
    PyObject* slots[] = {Py_None, function, Py_None};
    PyObject* result = nullptr;
    std::vector<frame::FrameState> frames;
    return continuations.resume({function, slots, 3, next, true}, code, &result, frames);
  }
};

TEST(Continuations, NothingIsTakenUnderForceEager) {
  Rest rest;
  set_stance("force_eager");
  EXPECT_EQ(rest.resume(1), Outcome::kNotTaken);
  EXPECT_EQ(rest.state.eager.frames(), 1);
  EXPECT_EQ(rest.state.eager.calls(), 0);
  EXPECT_TRUE(rest.state.continuations.empty()) << "nothing was compiled";
  EXPECT_TRUE(rest.state.barren.empty()) << "the rest of a call says nothing about calls of it";
}

TEST(Continuations, NothingNewIsTakenUnderEagerOnRecompile) {
  Rest rest;
  set_stance("eager_on_recompile");
  EXPECT_EQ(rest.resume(1), Outcome::kNotTaken);
  EXPECT_EQ(rest.state.eager.frames(), 1);
}

TEST(Continuations, AFunctionThatLedToNothingIsNotTriedForEver) {
  Rest rest;
  set_stance("force_eager");
  int tries = 0;
  while (tries < 100 && rest.continuations.accepts(rest.function)) {
    EXPECT_EQ(rest.resume(0), Outcome::kNotTaken);
    ++tries;
  }
  EXPECT_EQ(tries, 4);
  EXPECT_EQ(rest.state.eager.frames(), 5) << "a call that is not tried is counted, too";
  EXPECT_TRUE(rest.continuations.accepts(rest.py["own"])) << "others are";
}

TEST(Continuations, WhatIsGivenUpIsCountedOnce) {
  Rest rest;
  PyObject* slots[] = {Py_None, rest.function, Py_None};
  EXPECT_TRUE(rest.continuations.gives_up({rest.function, slots, 3, 1, true}, rest.code, "for a test"));
  EXPECT_EQ(rest.state.eager.frames(), 1);
  EXPECT_EQ(rest.state.eager.calls(), 0);
}

}  // namespace
}  // namespace flashover::entry

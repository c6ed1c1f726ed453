// Stances: our own, torch's where ours says nothing, and the backend that either wants. torch's is a global of a module
// that a stand-in plays here: importing torch._dynamo takes seconds.
#include "entry/stance.h"

#include "base/check.h"
#include "guards/interpreter_test.h"

namespace flashover::entry {
namespace {

TEST(Stance, NamesReadBack) {
  for (const char* name : {"force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile",
                           "aot_eager_then_compile", "default"}) {
    set_stance(name);
    EXPECT_STREQ(stance_name(), name);
  }
  EXPECT_EQ(current_stance(), Stance::kDefault);
}

TEST(Stance, AnUnknownNameIsAnErrorThatNamesThem) {
  try {
    set_stance("eager");
    FAIL() << "taken";
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(),
                 "no stance 'eager'; there are default, force_eager, eager_on_recompile, fail_on_recompile, "
                 "eager_then_compile, aot_eager_then_compile");
  }
  EXPECT_STREQ(stance_name(), "default") << "nothing changed";
}

const char* kTorch = R"(
import sys, types
module = types.ModuleType('torch._dynamo.eval_frame')
def say(stance, backend=None): module._stance = types.SimpleNamespace(stance=stance, backend=backend)
say('default')
sys.modules[module.__name__] = module
)";

TEST(Stance, TorchsCountsWhereOursSaysNothing) {
  EXPECT_EQ(current_stance(), Stance::kDefault) << "before the module is loaded";
  Python py(kTorch);
  EXPECT_EQ(current_stance(), Stance::kDefault);
  py.run("say('fail_on_recompile')");
  EXPECT_EQ(current_stance(), Stance::kFailOnRecompile);
  set_stance("eager_on_recompile");
  EXPECT_EQ(current_stance(), Stance::kEagerOnRecompile);
  py.run("say('force_eager')");
  EXPECT_EQ(current_stance(), Stance::kForceEager) << "torch's force_eager holds for everybody";
  set_stance("default");
  py.run("say('unheard_of')");
  EXPECT_EQ(current_stance(), Stance::kDefault);
  EXPECT_EQ(PyErr_Occurred(), nullptr);

  // Backends: ours before torch's, under the default stance only.
  py.run("say('default', 'theirs')");
  EXPECT_EQ(Python::string_of(forced_backend()), "theirs");
  EXPECT_EQ(own_forced_backend(), Py_None);
  force_backend(py["'ours'"]);
  EXPECT_EQ(Python::string_of(forced_backend()), "ours");
  set_stance("eager_then_compile");
  EXPECT_EQ(forced_backend(), nullptr);
  set_stance("default");
  force_backend(Py_None);
  py.run("say('default')");
  EXPECT_EQ(forced_backend(), nullptr);
}

TEST(Stance, TorchsTracerIsSeenWhileItTraces) {
  Python py("import torch.fx._symbolic_trace as m");
  EXPECT_FALSE(fx_is_tracing());
  py.run("say = getattr(m, '_set_is_fx_tracing', lambda traces: setattr(m, '_is_fx_tracing_flag', traces))");
  py.run("say(True)");
  EXPECT_TRUE(fx_is_tracing());
  py.run("say(False)");
  EXPECT_FALSE(fx_is_tracing());
}

}  // namespace
}  // namespace flashover::entry

// Guards on tensors and on torch's state: what they look at, and in which words they fail.
#include "guards/tensors.h"

#include <gtest/gtest.h>

#include "guards/global_state.h"
#include "guards/guarded_test.h"

namespace flashover::guards {
namespace {

const char* kTensor = "import torch\nx = torch.zeros(2, 3)";

TEST(Tensors, AMatchLooksAtAllThatCodeDependsOn) {
  Python py(kTensor);
  const TensorSpec spec = read_tensor(py["x"]);
  for (const char* same : {"x", "torch.ones(2, 3)", "torch.zeros(4, 3)[2:]", "x.detach()"})
    EXPECT_TRUE(matches(py[same], spec)) << same;
  for (const char* other : {"torch.zeros(2, 4)", "torch.zeros(3, 2).t()", "x.double()", "x.to('meta')",
                            "torch.zeros(6)", "torch.zeros(2, 3).requires_grad_()", "torch.nn.Parameter(x)",
                            "x.to_sparse()", "torch.zeros(2, 6)[:, ::2]", "3", "None", "torch"})
    EXPECT_FALSE(matches(py[other], spec)) << other;
}

TEST(Tensors, DifferencesAreSaid) {
  Python py(kTensor);
  const TensorSpec spec = read_tensor(py["x"]);
  EXPECT_EQ(difference(spec, read_tensor(py["torch.zeros(2, 4)"])), "size(1) is 4, not 3");
  EXPECT_NE(difference(spec, read_tensor(py["x.double()"])), "");
  EXPECT_EQ(difference(spec, spec), "");
}

TEST(Tensors, WhatHasNoPlainGeometryIsDeclined) {
  Python py(kTensor);
  EXPECT_THROW(read_tensor(py["x.to_sparse()"]), Declined);
  EXPECT_THROW(read_tensor(py["3"]), InternalError);
}

TEST(Tensors, LooksTellWhatChanged) {
  Python py("import torch\nxs = [torch.zeros(2, 3) for _ in range(3)]");
  TensorLooks looks;
  TensorCompare compares[3];
  for (int i = 0; i < 3; ++i) {
    compares[i].object = py["xs[" + std::to_string(i) + "]"];
    take_look(compares[i].object, looks, compares[i]);
  }
  // Tensors of one kind may differ where torch writes nothing: the sizes of dimensions that they do not have.
  TensorCompare again;
  const size_t seen = looks.size();
  take_look(compares[0].object, looks, again);
  EXPECT_EQ(looks.size(), seen) << "a look that was taken before is shared";
  EXPECT_EQ(again.look, compares[0].look);
  EXPECT_EQ(look_the_same(compares, 3), 3u);
  py.run("xs[1].resize_(3, 2)");
  EXPECT_EQ(look_the_same(compares, 3), 1u) << "the first one does";
}

TEST(Tensors, MemoryThatIsSharedIsGuarded) {
  Python py("import torch\nbase = torch.zeros(8); x, y = base[:4], base[4:]");
  Guarded g(py);
  const SourceId x = g.argument("x", 0), y = g.argument("y", 1);
  for (SourceId s : {x, y}) g.fact(FactKind::kTensor, s);
  g.fact(FactKind::kStorageOffset, y);
  g.fact(FactKind::kTensorAliases, x, "", y);
  g.build();
  EXPECT_TRUE(g.check({"x", "y"}));
  EXPECT_FALSE(g.check({"x", "torch.zeros(8)[4:]"})) << "another storage";
  EXPECT_FALSE(g.check({"x", "base[3:7]"})) << "another offset";
  EXPECT_TRUE(g.check({"base[0:4]", "base[4:8]"}));
}

TEST(Tensors, OffsetsThatWereSeenAreGuarded) {
  Python py("import torch\nbase = torch.zeros(8); x = base[4:]");
  Guarded g(py);
  const SourceId x = g.argument("x");
  g.fact(FactKind::kTensor, x);
  g.fact(FactKind::kStorageOffset, x);
  g.build();
  EXPECT_TRUE(g.check({"torch.ones(8)[4:]"}));
  EXPECT_FALSE(g.check({"base[3:7]"}));
}

TEST(Tensors, MemoryThatWasNotSharedStaysSo) {
  Python py("import torch\nbase = torch.zeros(8); x, y = torch.zeros(4), torch.zeros(4)");
  Guarded g(py);
  const SourceId x = g.argument("x", 0), y = g.argument("y", 1);
  for (SourceId s : {x, y}) g.fact(FactKind::kTensor, s);
  g.fact(FactKind::kNotAliases, kNoSource);
  g.build();
  EXPECT_TRUE(g.check({"x", "y"}));
  EXPECT_TRUE(g.check({"y", "x"}));
  EXPECT_FALSE(g.check({"base[:4]", "base[4:]"}));
  EXPECT_FALSE(g.check({"x", "x"}));
}

TEST(Tensors, TorchsStateIsGuarded) {
  Python py(kTensor);
  Guarded g(py);
  g.fact(FactKind::kTensor, g.argument("x"));
  g.build();
  EXPECT_TRUE(g.check({"x"}));
  const GlobalState before = GlobalState::read();
  struct Switch {
    const char *on, *off, *name;
  };
  for (const Switch& s :
       {Switch{"torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "grad mode"},
        Switch{"torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)", ""},
        Switch{"torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)",
               "deterministic algorithms"},
        Switch{"c = torch.autocast('cpu'); c.__enter__()", "c.__exit__(None, None, None)", "autocast"}}) {
    py.run(s.on);
    EXPECT_FALSE(g.check({"x"})) << s.on;
    EXPECT_NE(before.difference(GlobalState::read()).find(s.name), std::string::npos);
    EXPECT_FALSE(before.holds()) << s.on;
    py.run(s.off);
    EXPECT_TRUE(before.holds() && g.check({"x"})) << s.off;
  }
}

TEST(Tensors, NothingIsCompiledUnderAMode) {
  Python py("import torch\nfrom torch.overrides import TorchFunctionMode\nmode = TorchFunctionMode()");
  EXPECT_EQ(state_to_avoid(), nullptr);
  py.run("mode.__enter__()");
  EXPECT_NE(state_to_avoid(), nullptr);
  py.run("mode.__exit__(None, None, None)");
  EXPECT_EQ(state_to_avoid(), nullptr);
}

}  // namespace
}  // namespace flashover::guards

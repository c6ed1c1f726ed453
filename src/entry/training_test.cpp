// A training runner over a forward and a backward written by hand: what autograd sees of it, without a compiler.
#include "entry/training.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "guards/interpreter_test.h"
#include "run/run.h"

namespace flashover::entry {
namespace {

using graph::PartitionSignature;
using Source = PartitionSignature::BackwardInput::Kind;
using Tensors = std::vector<at::Tensor>;

TensorType two_floats() {
  TensorType t;
  t.dtype = DType::kF32;
  t.sizes = {2};
  t.strides = {1};
  return t;
}
PartitionSignature::Result result(int32_t number, bool requires_grad = true) {
  return {.index = number,
          .sizes = {2},
          .strides = {1},
          .requires_grad = requires_grad,
          .tangent = requires_grad ? number : -1};
}
at::Tensor floats(float a, float b) { return at::tensor({a, b}); }
at::Tensor leaf(float a, float b) { return floats(a, b).requires_grad_(); }
std::string shown(const at::Tensor& t) {
  if (!t.defined()) return "none";
  return std::to_string(t.data_ptr<float>()[0]).substr(0, 4) + " " +
         std::to_string(t.data_ptr<float>()[1]).substr(0, 4);
}
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

// torch's engine refuses callers that hold the GIL, where torch is loaded (as by tests before these).
Tensors gradients_of(const at::Tensor& result, const Tensors& inputs, const at::Tensor& tangent, bool retain = false,
                     bool create = false, bool allow_unused = false) {
  struct WithoutGil {
    PyThreadState* state = PyEval_SaveThread();
    ~WithoutGil() { PyEval_RestoreThread(state); }
  } without_gil;
  return torch::autograd::grad({result}, inputs, {tangent}, retain, create, allow_unused);
}

// x, w -> x * w. The backward reads both as they were.
struct Product {
  int backwards = 0;
  std::unique_ptr<Runner> runner;
  at::Tensor x = leaf(2, 3), w = leaf(5, 7);

  explicit Product(const Step& backward = nullptr) {
    PartitionSignature p;
    p.results = {result(0)};
    p.backward_inputs = {{Source::kTangent, 0}, {Source::kInput, 0}, {Source::kInput, 1}};
    p.gradients = {{.input = 0, .output = 0, .depends = {0}}, {.input = 1, .output = 1, .depends = {0}}};
    const Step forward = [](Tensors&& in, Tensors& out) {
      at::AutoDispatchBelowADInplaceOrView below;
      out = {at::mul(in[0], in[1])};
    };
    const Step gradients = [this](Tensors&& in, Tensors& out) {
      ++backwards;
      out = {at::mul(in[0], in[2]), at::mul(in[0], in[1])};
    };
    runner = make_training_runner(p, {two_floats(), two_floats()}, {two_floats(), two_floats(), two_floats()}, forward,
                                  backward ? backward : gradients, nullptr, {0, 0}, nullptr);
  }
  at::Tensor run() {
    const at::Tensor inputs[] = {x, w};
    Tensors outputs;
    runner->run(inputs, 2, outputs);
    return outputs.at(0);
  }
  Tensors gradients(const at::Tensor& y, bool retain = false, bool create = false) {
    return gradients_of(y, {x, w}, floats(1, 10), retain, create);
  }
};

TEST(Training, GradientsGoToTheirInputs) {
  Product f;
  const at::Tensor y = f.run();
  EXPECT_EQ(shown(y), "10.0 21.0");
  ASSERT_TRUE(y.requires_grad());
  EXPECT_EQ(y.grad_fn()->name(), "CompiledBackward");
  EXPECT_EQ(f.backwards, 0) << "nothing runs before it is asked for";
  const Tensors g = f.gradients(y);
  EXPECT_EQ(shown(g[0]), "5.00 70.0");
  EXPECT_EQ(shown(g[1]), "2.00 30.0");
}

TEST(Training, ASecondBackwardNeedsRetainGraph) {
  Product f;
  const at::Tensor y = f.run();
  f.gradients(y, true);
  f.gradients(y);
  EXPECT_NE(error_of([&] { f.gradients(y); }).find("backward through the graph a second time"), std::string::npos);
  EXPECT_EQ(f.backwards, 2);
}

TEST(Training, AnInputWrittenSinceIsAnError) {
  Product f;
  const at::Tensor y = f.run();
  {
    c10::AutoGradMode off(false);
    f.x.add_(1);
  }
  EXPECT_NE(error_of([&] { f.gradients(y); }).find("modified by an inplace operation"), std::string::npos);
  EXPECT_EQ(f.backwards, 0);
}

TEST(Training, AParameterOfOtherMemoryIsDifferentiatedWhereItWas) {
  Product f;
  const at::Tensor y = f.run();
  f.x.set_data(floats(100, 100));
  EXPECT_EQ(shown(f.gradients(y)[1]), "2.00 30.0");
}

TEST(Training, DoubleBackwardIsDeclined) {
  Product f;
  const at::Tensor y = f.run();
  EXPECT_NE(error_of([&] { f.gradients(y, true, true); }).find("create_graph=True"), std::string::npos);
  EXPECT_EQ(shown(f.gradients(y)[0]), "5.00 70.0") << "and nothing is lost";
}

TEST(Training, AWrongOperatorEndsTheServiceOfLaterCalls) {
  Product f([](Tensors&&, Tensors&) { throw run::Mismatch("an operator is not as it says"); });
  const at::Tensor y = f.run();
  EXPECT_NE(error_of([&] { f.gradients(y); }).find("an operator is not as it says"), std::string::npos);
  bool clean = false;
  try {
    f.run();
  } catch (const run::Mismatch& m) {
    clean = m.clean;
  }
  EXPECT_TRUE(clean) << "the call may run eager: it has done nothing yet";
}

// x, y -> 2x, 3y: each gradient depends on its own tangent.
struct Pair {
  std::string asked;  // which tangents a backward was specialized for, and what the whole one was given
  std::unique_ptr<Runner> runner;
  at::Tensor x = leaf(1, 1), y = leaf(1, 1);

  explicit Pair(bool specializes) {
    PartitionSignature p;
    p.results = {result(0), result(1)};
    p.backward_inputs = {{Source::kTangent, 0}, {Source::kTangent, 1}};
    p.gradients = {{.input = 0, .output = 0, .depends = {0}}, {.input = 1, .output = 1, .depends = {1}}};
    const auto twice_and_thrice = [](Tensors&& in, Tensors& out) {
      at::AutoDispatchBelowADInplaceOrView below;
      out = {at::mul(in[0], 2), at::mul(in[1], 3)};
    };
    const Step whole = [this, twice_and_thrice](Tensors&& in, Tensors& out) {
      for (const at::Tensor& t : in) asked += shown(t) + ";";
      twice_and_thrice(std::move(in), out);
    };
    const Specialize specialize = [this](const std::vector<bool>& tangent, const std::vector<bool>& absent) {
      EXPECT_EQ(tangent, (std::vector<bool>{true, true}));
      asked += absent[0] ? "without 0;" : "without 1;";
      const int32_t left = absent[0] ? 1 : 0;
      return Variant{[left](Tensors&& in, Tensors& out) { out = {at::mul(in[0], left + 2)}; }, {left}, {left}};
    };
    runner = make_training_runner(p, {two_floats(), two_floats()}, {two_floats(), two_floats()}, twice_and_thrice,
                                  whole, specializes ? specialize : Specialize(), {0, 0}, nullptr);
  }
  Tensors run() {
    const at::Tensor inputs[] = {x, y};
    Tensors outputs;
    runner->run(inputs, 2, outputs);
    return outputs;
  }
};

TEST(Training, AnAbsentTangentIsZeroAndGivesNoGradient) {
  Pair f(false);
  const Tensors out = f.run();
  const Tensors g = gradients_of(out[1], {f.x, f.y}, floats(1, 1), false, false, /*allow_unused=*/true);
  EXPECT_EQ(f.asked, "0.00 0.00;1.00 1.00;");
  EXPECT_EQ(shown(g[0]), "none");
  EXPECT_EQ(shown(g[1]), "3.00 3.00");
}

TEST(Training, OneResultAloneHasABackwardOfItsOwnMadeOnce) {
  Pair f(true);
  const Tensors out = f.run();
  EXPECT_EQ(shown(gradients_of(out[1], {f.y}, floats(1, 1))[0]), "3.00 3.00");
  EXPECT_EQ(shown(gradients_of(out[0], {f.x}, floats(1, 1))[0]), "2.00 2.00") << "what it left is there";
  EXPECT_EQ(f.asked, "without 0;without 1;");
  EXPECT_EQ(shown(gradients_of(f.run()[1], {f.y}, floats(1, 1))[0]), "3.00 3.00");
  EXPECT_EQ(f.asked, "without 0;without 1;");
}

TEST(Training, AResultThatNothingDifferentiatesIsNoPartOfIt) {
  PartitionSignature p;
  p.results = {result(0, false)};
  const auto runner = make_training_runner(
      p, {two_floats()}, {}, [](Tensors&& in, Tensors& out) { out = {in[0].detach().clone()}; }, nullptr, nullptr, {0},
      nullptr);
  const at::Tensor x = leaf(1, 2);
  Tensors out;
  runner->run(&x, 1, out);
  EXPECT_EQ(shown(out.at(0)), "1.00 2.00");
  EXPECT_FALSE(out[0].requires_grad());
}

}  // namespace
}  // namespace flashover::entry

// Version counters move as eager moves them; what has none is reported.
#include "run/written.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "run/writes.h"

namespace flashover::run {
namespace {

std::vector<c10::TensorImpl*> pointers(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::TensorImpl*> out;
  for (const at::Tensor& t : tensors) out.push_back(t.unsafeGetTensorImpl());
  return out;
}

TEST(WrittenInputs, CountersMoveAsEagersDo) {
  const at::Tensor x = at::empty({4}), view = x.view({2, 2}), statistics = at::empty({4}), unwritten = at::empty({4});
  WrittenInputs written;
  written.set({0, 2}, {2, -1, 0, 0});
  EXPECT_EQ(written.inputs(), (std::vector<int32_t>{0, 1, 2}));
  const auto inputs = pointers({x, view, statistics, unwritten});
  written.check(inputs.data());
  written.tell(inputs.data());
  EXPECT_EQ(x._version(), 2);
  EXPECT_EQ(view._version(), 2);  // one counter
  EXPECT_EQ(statistics._version(), 0);
  EXPECT_EQ(unwritten._version(), 0);
  // In another call the two have counters of their own.
  const at::Tensor other = x.variable_data();
  const auto apart = pointers({x, other, statistics, unwritten});
  written.tell(apart.data());
  EXPECT_EQ(x._version(), 4);
  EXPECT_EQ(other._version(), 2);
  written.tell_restored(apart.data());
  EXPECT_EQ(x._version(), 4);
}

TEST(WrittenInputs, WhatHasNoVersionIsReported) {
  const at::Tensor statistics = at::empty({4}), weight = at::empty({4});
  WrittenInputs written;
  written.set({0}, {0, 0});
  const auto inputs = pointers({statistics, weight});
  anything_kept = true;
  const uint64_t before = escape_epoch.load();
  written.tell(inputs.data());
  EXPECT_GT(escape_epoch.load(), before);
  EXPECT_EQ(escape_of(inputs[0], 1, before), Escape::kOver);
  EXPECT_EQ(escape_of(inputs[1], 1, before), Escape::kNone);
  EXPECT_EQ(escape_of(inputs[0], 1, escape_epoch.load()), Escape::kNone);
  written.tell_restored(inputs.data());
  EXPECT_EQ(escape_of(inputs[0], 1, before + 1), Escape::kOver);
}

TEST(WrittenInputs, InferenceTensorsAreRefusedOutsideInferenceMode) {
  at::Tensor made;
  {
    c10::InferenceMode inference;
    made = at::empty({4});
  }
  WrittenInputs written;
  written.set({0}, {});
  const auto inputs = pointers({made});
  EXPECT_THROW(written.check(inputs.data()), c10::Error);
  c10::InferenceMode inference;
  written.check(inputs.data());
  written.tell(inputs.data());
}

}  // namespace
}  // namespace flashover::run

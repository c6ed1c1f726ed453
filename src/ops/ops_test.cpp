// The one table of operators: what is declared, what is met, what acts, twins; rules of aten from text.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/infer_test.h"

namespace flashover::ops {
namespace {

TEST(Ops, ANameIsOneRowForGood) {
  const OpRow* op = find("aten.add.Tensor");
  EXPECT_EQ(op, find("aten.add.Tensor"));
  EXPECT_EQ(find_existing("ops_test.never_met.default"), nullptr);
  const OpRow* met = find("ops_test.met.default");
  EXPECT_EQ(met, find_existing("ops_test.met.default"));
  EXPECT_TRUE(met->kind == OpKind::kExtern && !met->declared && !met->infer);
}

TEST(Ops, RowsAreSortedByName) {
  const std::vector<const OpRow*> ops = all();
  EXPECT_GT(ops.size(), 500u);
  EXPECT_TRUE(std::is_sorted(ops.begin(), ops.end(), [](const OpRow* a, const OpRow* b) { return a->name < b->name; }));
}

// An operator of a namespace that nobody knows may do anything: it runs once a call, unless its schema says more.
TEST(Ops, UnknownOperatorsMayAct) {
  EXPECT_TRUE(find("ops_test.logs.default")->once());
  EXPECT_FALSE(find("aten.never_heard_of.default")->effectful);
  EXPECT_TRUE(find("aten._print.default")->effectful && !find("aten._print.default")->check);
  EXPECT_TRUE(find("aten._assert_async.default")->check);
  EXPECT_FALSE(find("ops_test.pure.default", {.pure = true})->once());
  EXPECT_TRUE(find("ops_test.draws.default", {.nondeterministic = true, .pure = true})->once());
}

TEST(Ops, SchemaFactsAreTakenOnce) {
  const OpRow* op =
      find("ops_test.scale_.default", {.mutates = 1, .pure = true, .functional = "ops_test.scale.default"});
  EXPECT_EQ(op->mutates, 1u);
  EXPECT_EQ(op->functional, find("ops_test.scale.default"));
  find("ops_test.scale_.default", {.mutates = 6});
  EXPECT_EQ(op->mutates, 1u) << "later facts change nothing";
  find("aten.add.Tensor", {.mutates = 1});
  EXPECT_EQ(find("aten.add.Tensor")->mutates, 0u) << "nor facts about a row of the table";
}

TEST(Ops, TwinsOnClones) {
  const OpRow* op = find("functional.ops_test.writes.default");
  EXPECT_EQ(op->on_clones, find("ops_test.writes.default"));
  EXPECT_TRUE(op->effectful) << "as the operator itself";
  EXPECT_FALSE(find("functional.aten.resize_.default")->effectful);
}

// Every row that has a twin writes, and its twin does not; where the twin has a row of its own, of the same kind.
TEST(Ops, TwinsDoNotWrite) {
  size_t twins = 0;
  for (const OpRow* op : all()) {
    if (!op->declared || !op->functional || !op->name.starts_with("aten.")) continue;
    ++twins;
    EXPECT_NE(op->mutates, 0u) << op->name;
    EXPECT_EQ(op->functional->mutates, 0u) << op->name << " -> " << op->functional->name;
    EXPECT_TRUE(op->functional->kind == op->kind || !op->functional->declared) << op->name;
  }
  EXPECT_GT(twins, 100u);
}

struct AtenCase {
  const char *call, *result;
};
// "unknown" hands the case to ATen's meta kernels, which word the error.
TEST(Ops, RulesOfAtenGiveWhatEagerGives) {
  for (const AtenCase& c : std::initializer_list<AtenCase>{
           {"aten.add.Tensor(%f32[2,1], %f32[3], 1)", "f32[2,3]"},
           {"aten.add.Tensor(%f32[2], %f64[]w, 1)", "f32[2]"},  // a Python number is weak
           {"aten.add.Tensor(%i64[2], %f32[], 1)", "f32[2]"},   // another category wins
           {"aten.add.Tensor(%bf16[2], %f16[2], 1)", "f32[2]"},
           {"aten.add.Tensor(%f32[2,3]{1,2}, %f32[2,3]{1,2}, 1)", "f32[2,3]{1,2}"},
           {"aten.add.Tensor(%f32[2], %f32[3], 1)", "unknown"},
           {"aten.add_.Tensor(%f32[2], %f32[1], 1)", "f32[2]"},
           {"aten.add_.Tensor(%i64[2], %f32[2], 1)", "unknown"},  // cannot be cast back
           {"aten.sub.Tensor(%b8[2], %b8[2], 1)", "unknown"},
           {"aten.div.Tensor(%i64[2], %i64[2])", "f32[2]"},
           {"aten.gt.Tensor(%f32[2], %i64[])", "b8[2]"},
           {"aten.exp.default(%i64[2])", "f32[2]"},
           {"aten.abs.default(%c64[2])", "f32[2]"},
           {"aten.relu.default(%f32[2,3,4,4]{48,1,12,3})", "f32[2,3,4,4]{48,1,12,3}"},
           {"aten.sum.dim_IntList(%i32[2,3], [1], true, None)", "i64[2,1]"},
           {"aten.sum.dim_IntList(%f32[2,3], [-1], false, f64)", "f64[2]"},
           {"aten.mm.default(%f32[2,3], %f32[3,4])", "f32[2,4]"},
           {"aten.mm.default(%f32[2,3], %f32[4,3])", "unknown"},
           {"aten.view.default(%f32[2,6], [3, -1])", "f32[3,4]"},
           {"aten.view.default(%f32[2,3]{1,2}, [6])", "unknown"},
           {"aten.t.default(%f32[2,3])", "f32[3,2]{1,3}"},
           {"aten.transpose.int(%f32[2,3,4], 0, -1)", "f32[4,3,2]{1,4,12}"},
           {"aten.select.int(%f32[2,3], 0, 1)", "f32[3]+3"},
           {"aten.slice.Tensor(%f32[8,2], 0, 2, 8, 3)", "f32[2,2]{6,1}+4"},
           {"aten.expand.default(%f32[3,1], [2, 3, -1], false)", "f32[2,3,1]{0,1,1}"},
           {"aten.cat.default(%[f32[2,3], f64[1,3]], 0)", "f64[3,3]"},
           {"aten.embedding.default(%f32[10,4], %i64[2,3], -1, false, false)", "f32[2,3,4]"},
           {"aten.convolution.default(%f32[1,3,8,8], %f32[6,3,3,3], None, [2, 2], [1, 1], [1, 1], false, [0, 0], 1)",
            "f32[1,6,4,4]"},
           {"aten.native_layer_norm.default(%f32[2,5], [5], %f32[5], %f32[5], 1e-5)", "f32[2,5], f32[2,1], f32[2,1]"},
           {"aten.full.default([2], 1.0, None, None, cpu, None)", "f32[2]"},
           {"aten.full.default([2], 1, i8, None, cpu, None)", "i8[2]"}})
    EXPECT_EQ(inferred(c.call), c.result) << c.call;
}

}  // namespace
}  // namespace flashover::ops

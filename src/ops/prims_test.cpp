// The closed set: its rows agree with each other, and each family's type rule.
#include <gtest/gtest.h>

#include <set>

#include "ops/infer_test.h"
#include "ops/names.h"

namespace flashover::ops {
namespace {

struct Pointwise {
  std::string name;
  size_t arity;
  std::string types, traits;
  int cost;
};
std::vector<Pointwise> pointwise() {
  return {
#define POINTWISE(name, arity, types, cost, traits, meaning) {#name, arity, types, traits, cost},
#include "ops/prims.def"
  };
}

TEST(Prims, EveryRowIsInTheTableWithARule) {
  std::set<std::string> names;
#define PRIM(name, kind_, cost_, traits, meaning)                                                       \
  {                                                                                                     \
    const OpRow* op = find_existing("prim." #name);                                                     \
    ASSERT_TRUE(op) << #name;                                                                           \
    EXPECT_TRUE(op->prim == Prim::name && find(Prim::name) == op) << #name;                             \
    EXPECT_TRUE(op->infer && op->is_prim() && op->declared && !op->effectful && !op->mutates) << #name; \
    EXPECT_TRUE(op->kind == OpKind::kind_ && op->cost == (cost_)) << #name;                             \
    EXPECT_EQ(op->approximated, std::string_view(traits).find('~') != std::string_view::npos) << #name; \
    EXPECT_EQ(op->moves, std::string_view(traits).find('m') != std::string_view::npos) << #name;        \
    EXPECT_TRUE(names.insert(#name).second) << #name << " stands twice";                                \
  }
#define POINTWISE(name, arity, types, cost, traits, meaning) PRIM(name, kPointwise, cost, traits, meaning)
#include "ops/prims.def"
  for (const OpRow* op : all())
    if (op->is_prim()) {
      EXPECT_TRUE(names.count(op->name.substr(5))) << op->name << " has no row";
    }
}

TEST(Prims, PointwiseRowsSayWhatTheyTake) {
  for (const Pointwise& p : pointwise()) {
    EXPECT_TRUE(p.arity >= 1 && p.arity <= 3) << p.name;
    EXPECT_NE(p.types.find_first_of("fib"), std::string::npos) << p.name << " takes nothing";
    EXPECT_EQ(p.types.find_first_not_of("fib>"), std::string::npos) << p.name;
    EXPECT_EQ(p.traits.find_first_not_of("~m"), std::string::npos) << p.name;
    EXPECT_GT(p.cost, 0) << p.name << " computes";
  }
}

// The rule takes what the row says, and gives the operands' dtype, or bool where the row has a >.
TEST(Prims, PointwiseResultsAreAsTheRowSays) {
  for (const Pointwise& p : pointwise())
    for (const char* dtype : {"f32", "bf16", "i64", "u8", "b8"}) {
      const DType d = parse_dtype(dtype);
      const char kind = d == DType::kBool ? 'b' : is_floating(d) ? 'f' : 'i';
      if (p.types.find(kind) == std::string::npos) continue;
      const std::string operand = "%" + std::string(dtype) + "[2,3]";
      std::string call = "prim." + p.name + "(" + (p.name == "where" ? "%b8[2,3]" : operand);
      for (size_t i = 1; i < p.arity; ++i) call += ", " + operand;
      const bool truth = p.types.find('>') != std::string::npos;
      EXPECT_EQ(inferred(call + ")"), (truth ? "b8" : std::string(dtype)) + "[2,3]") << call;
    }
}

TEST(Prims, NamesAreTheTables) {
  EXPECT_EQ(name(Prim::add), "prim.add");
  EXPECT_EQ(find(Prim::reshape)->kind, OpKind::kView);
  EXPECT_STREQ(op::bmm, "aten.bmm.default");
  for (const char* name : {op::add_Tensor, op::mm, op::bmm, op::copy_}) EXPECT_TRUE(find_existing(name)) << name;
}

struct Case {
  const char *call, *result;
};
void check(std::initializer_list<Case> cases) {
  for (const Case& c : cases) EXPECT_EQ(inferred(c.call), c.result) << c.call;
}
void refused(std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    const std::string got = inferred(c.call);
    EXPECT_TRUE(got.starts_with("error: ") && got.find(c.result) != std::string::npos) << c.call << ": " << got;
  }
}

TEST(Prims, PointwiseTakesALayoutThatIsDense) {
  check({{"prim.neg(%f32[2,3]{1,2})", "f32[2,3]{1,2}"},
         {"prim.neg(%f32[2,3]{6,2})", "f32[2,3]"},                       // gaps are closed
         {"prim.neg(%f32[2,3]{1,4})", "f32[2,3]{1,2}"},                  // the order of dims stays
         {"prim.add(%f32[2,3]{0,1}, %f32[2,3]{1,2})", "f32[2,3]{1,2}"},  // the dense operand decides
         {"prim.abs(%c64[4])", "f32[4]"},
         {"prim.convert(%f32[4], i64)", "i64[4]"},
         {"prim.where(%b8[2,3], %f32[2,3]{1,2}, %f32[2,3])", "f32[2,3]{1,2}"}});
  refused({{"prim.add(%f32[2,3], %f32[3])", "sizes differ"},
           {"prim.add(%f32[2], %f64[2])", "dtypes differ"},
           {"prim.fma(%f32[2], %f32[2], %f32[3])", "sizes differ"},
           {"prim.where(%f32[2], %f32[2], %f32[2])", "condition must be b8"}});
}

TEST(Prims, Factories) {
  check({{"prim.full([2, 3], 1.0, bf16, cuda:1)", "bf16[2,3]@cuda:1"},
         {"prim.iota(5, 0, 1, i32, cpu)", "i32[5]"},
         {"prim.uniform(%i64[2]@cuda:0, [4, 2], [2, 1], 0, 256, 4)", "f32[4,2]@cuda:0"}});
  refused({{"prim.uniform(%i32[2], [4], [1], 0, 256, 4)", "state is i64[2]"}});
}

TEST(Prims, Views) {
  check({{"prim.broadcast(%f32[3,1], [2, 3, 4], [1, 2])", "f32[2,3,4]{0,1,0}"},
         {"prim.permute(%f32[2,3,4], [2, 0, 1])", "f32[4,2,3]{1,12,4}"},
         {"prim.reshape(%f32[2,3,4], [6, 4])", "f32[6,4]"},
         {"prim.reshape(%f32[4,2]{1,4}, [2, 2, 2])", "f32[2,2,2]{2,1,4}"},  // a view of columns
         {"prim.reshape(%f32[2,3]{1,2}, [6])", "f32[6]"},                   // no view: row major
         {"prim.slice(%f32[8,6], [1, 0], [8, 6], [2, 3])", "f32[4,2]{12,3}"},
         {"prim.diagonal(%f32[3,4], 1, 0, 1)", "f32[3]{5}"},
         {"prim.diagonal(%f32[3,4], -5, 0, 1)", "f32[0]{5}"},
         {"prim.as_strided(%f32[12], [2, 2], [4, 1], 0)", "f32[2,2]{4,1}"}});
  refused({{"prim.broadcast(%f32[3], [2, 4], [1])", "does not fit"},
           {"prim.broadcast(%f32[4,3], [3, 4], [1, 0])", "increasing"},
           {"prim.permute(%f32[2,3], [0, 0])", "not a permutation"},
           {"prim.reshape(%f32[6], [4])", "another number of elements"},
           {"prim.slice(%f32[8,6], [1], [8], [2])", "one entry per dim"},
           {"prim.diagonal(%f32[3,4], 0, 1, 1)", "bad dims"}});
}

TEST(Prims, Movement) {
  check({{"prim.pad(%f32[2,3], [0, 1], [2, 0], 0.0)", "f32[4,4]"},
         {"prim.cat(%[f32[2,3]{1,2}, f32[4,3]], 0)", "f32[6,3]{1,6}"},
         {"prim.gather(%f32[4,5], 1, %i64[4,2])", "f32[4,2]"},
         {"prim.index(%f32[4,5,6], %[i64[3], None, i64[2,1]])", "f32[2,3,5]"},  // apart: their dims come first
         {"prim.index(%f32[4,5,6], %[None, i64[3], i64[3]])", "f32[4,3]"},      // together: they stay in place
         {"prim.scatter(%f32[4,5], 0, %i64[1,5], %f32[1,5], \"add\")", "f32[4,5]"},
         {"prim.slice_scatter(%f32[8], %f32[4], [0], [8], [2])", "f32[8]"}});
  refused({{"prim.cat(%[], 0)", "cat of nothing"},
           {"prim.cat(%[f32[2,3], f32[2,4]], 0)", "sizes differ"},
           {"prim.cat(%[f32[2], f32[2]], 1)", "bad dim"},
           {"prim.gather(%f32[4,5], 1, %i64[4])", "ranks differ"},
           {"prim.index(%f32[4], %[b8[4]])", "integer indices only"},
           {"prim.index(%f32[4], %[i64[2], i64[2]])", "more indices than dims"},
           {"prim.slice_scatter(%f32[8], %f32[3], [0], [8], [2])", "does not fill"}});
}

TEST(Prims, ReductionsScansAndWindows) {
  check({{"prim.sum(%bf16[2,3,4], [0, 2])", "bf16[3]"},
         {"prim.sum(%f32[2,3,4]{1,2,6}, [1])", "f32[2,4]{1,2}"},  // the order of dims stays
         {"prim.argmax(%f32[2,3], [1])", "i64[2]"},
         {"prim.any(%b8[2,3], [0])", "b8[3]"},
         {"prim.var(%f32[2,3], [0], 1.0)", "f32[3], f32[3]"},
         {"prim.cumsum(%i64[2,3], 1)", "i64[2,3]"},
         {"prim.max_pool(%f32[1,2,7,7], [3, 3], [2, 2], [1, 1], [1, 1], false)", "f32[1,2,4,4]"},
         {"prim.max_pool(%f32[1,8], [2], [3], [0], [1], true)", "f32[1,3]"},
         {"prim.max_pool(%f32[1,7], [2], [7], [0], [1], true)", "f32[1,1]"},  // one in the right padding is left out
         {"prim.avg_pool(%f32[1,2,8], [2], [2], [0], false, true, None)", "f32[1,2,4]"}});
  refused({{"prim.sum(%f32[2,3], [1, 0])", "sorted, unique"},
           {"prim.sum(%f32[2,3], [0, 0])", "sorted, unique"},
           {"prim.all(%f32[2,3], [0])", "take b8"},
           {"prim.cumsum(%f32[2], 1)", "bad dim"},
           {"prim.max_pool(%f32[1,8], [2], [3, 3], [0], [1], false)", "one entry per spatial dim"}});
}

}  // namespace
}  // namespace flashover::ops

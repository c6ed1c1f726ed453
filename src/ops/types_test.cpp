// The table of dtypes; what is provable of a layout.
#include "ops/types.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/text.h"

namespace flashover {
namespace {

TEST(Types, DtypesHaveTheNumbersAndNamesOfOneTable) {
  std::set<std::string> names;
  for (int n = 0; n < 256; ++n) {
    const DTypeInfo& i = info(static_cast<DType>(n));
    if (i.dtype == DType::kUndefined) continue;
    EXPECT_EQ(static_cast<int>(i.dtype), n);
    EXPECT_EQ(parse_dtype(i.name), i.dtype);
    EXPECT_TRUE(names.insert(i.name).second) << i.name;
    EXPECT_GT(i.bytes, 0);
    EXPECT_EQ(i.floating + i.integral + i.complex, i.dtype == DType::kBool ? 0 : 1) << i.name << " is one kind";
    EXPECT_TRUE(!i.floating || i.is_signed) << i.name;
  }
  EXPECT_EQ(names.size(), 18u);
  EXPECT_EQ(parse_dtype("float32"), DType::kUndefined);
}

TensorType type(std::string_view text) { return Cursor(text).type(); }

TEST(Types, ContiguousMindsNoDimOfOnePlace) {
  EXPECT_TRUE(is_contiguous(type("f32[2,1,3]{3,99,1}")));
  EXPECT_TRUE(is_contiguous(type("f32[0,3]{7,7}"))) << "no elements";
  EXPECT_FALSE(is_contiguous(type("f32[2,3]{1,2}")));
  EXPECT_FALSE(is_contiguous(type("f32[2,3]opaque")));
}

TEST(Types, EmptyDimsKeepStridesPositive) { EXPECT_EQ(str(Arg(contiguous_strides({2, 0, 3}))), "[3, 3, 1]"); }

TEST(Types, SizesAreTheSameWhereThatIsProvable) {
  const sym::Expr n = sym::var("types_n", {1, 9}, 3);
  EXPECT_TRUE(same_sizes({n, 2}, {n, 2}));
  EXPECT_FALSE(same_sizes({n}, {3})) << "equal by its hint is not provably equal";
  EXPECT_FALSE(same_sizes({2}, {2, 1}));
}

}  // namespace
}  // namespace flashover

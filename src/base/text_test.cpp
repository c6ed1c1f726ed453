// Text without streams says what streams would say; files come back as they were written.
#include "base/text.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace flashover {
namespace {
struct Point {
  int x;
};
std::string str(const Point& p) { return "(" + std::to_string(p.x) + ")"; }
enum class Color { kRed, kBlue };

TEST(Text, AppendsWhatStreamsWould) {
  std::string out;
  append_text(out, "a");
  append_text(out, std::string("b"));
  append_text(out, 'c');
  append_text(out, 7);
  append_text(out, true);
  append_text(out, Point{3});
  append_text(out, Color::kBlue);
  EXPECT_EQ(out, "abc71(3)1");
}

TEST(Text, Split) {
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("a,", ','), (std::vector<std::string>{"a"}));
  EXPECT_TRUE(split("", ',').empty());
}

TEST(Text, Files) {
  std::string path = testing::TempDir() + "/flashover_text_test", back;
  EXPECT_EQ(write_text_file(path, std::string("x\0y", 3)), "");
  ASSERT_TRUE(read_text_file(path, back));
  EXPECT_EQ(back, std::string("x\0y", 3));
  EXPECT_NE(write_text_file("/no/such/folder/file", "x"), "");
  EXPECT_FALSE(read_text_file("/no/such/folder/file", back));
}

TEST(Check, MessageHasTheValues) {
  try {
    FLASHOVER_CHECK(1 + 1 == 3) << "sum " << 2 << " of " << Point{4};
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("1 + 1 == 3 sum 2 of (4)"), std::string::npos) << e.what();
  }
}
}  // namespace
}  // namespace flashover

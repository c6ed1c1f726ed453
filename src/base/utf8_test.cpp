// Valid text stays as it is; other bytes are replaced.
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace flashover {
namespace {

TEST(Utf8, OtherBytesAreReplaced) {
  for (const char* good : {"", "plain", "\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbd"})
    EXPECT_EQ(valid_utf8(good), good);
  EXPECT_EQ(valid_utf8("a\xff\x80z"), "a??z");
  EXPECT_EQ(valid_utf8("\xc3"), "?");                 // cut off
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "??");            // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "????");  // beyond U+10FFFF
}

}  // namespace
}  // namespace flashover

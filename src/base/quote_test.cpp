// Strings in quotes.
#include "base/quote.h"

#include <gtest/gtest.h>

namespace flashover {
namespace {

TEST(Quote, QuotesBackslashesAndWhatTheCallerEscapes) {
  const auto newline = [](unsigned char c) { return c == '\n' ? "\\n" : ""; };
  EXPECT_EQ(in_quotes("a\"b\\c\nd", newline), "\"a\\\"b\\\\c\\nd\"");
  EXPECT_EQ(in_quotes("", newline), "\"\"");
  EXPECT_EQ(in_quotes("\xc3\xa9", newline), "\"\xc3\xa9\"") << "other bytes stand for themselves";
}

}  // namespace
}  // namespace flashover

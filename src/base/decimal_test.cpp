// Decimal text against printf in the C locale, which defines what is right.
#include "base/decimal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

namespace flashover {
namespace {

// The test runs in the C locale, where printf is the definition.
std::string by_printf(const char* format, int digits, double value) {
  char text[400];
  std::snprintf(text, sizeof text, format, digits, value);
  return text;
}

TEST(Decimal, AgreesWithPrintfOfTheCLocale) {
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0, -0.0,  1.25, -1e-310, 5e-324, 1e22, std::numeric_limits<double>::max(),
                                1e5, 123456};
  for (int i = 0; i < 2000; ++i) {
    const uint64_t bits = random();
    double v;
    static_assert(sizeof v == sizeof bits);
    std::memcpy(&v, &bits, sizeof v);
    if (std::isfinite(v)) values.push_back(v);
  }
  for (double v : values) {
    for (int digits : {1, 6, 9, 17}) EXPECT_EQ(decimal(v, digits), by_printf("%.*g", digits, v));
    for (int digits : {0, 1, 6}) EXPECT_EQ(fixed_decimal(v, digits), by_printf("%.*f", digits, v));
    EXPECT_EQ(parse_number<double>(decimal(v, 17)), v);
  }
}

TEST(Decimal, WidthAndBase) {
  EXPECT_EQ(padded(7, 3), "007");
  EXPECT_EQ(padded(1234, 3), "1234");
  EXPECT_EQ(hexadecimal(10, 2), "0a");
  EXPECT_EQ(hexadecimal(0x1234, 4), "1234");
}

TEST(Decimal, ParsesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number<int64_t>("-12"), -12);
  for (const char* bad : {"", " 1", "1 ", "+1", "1,5", "99999999999999999999", "0x1"})
    EXPECT_FALSE(parse_number<int64_t>(bad)) << bad;
  EXPECT_EQ(parse_number<double>("1.5"), 1.5);
  EXPECT_FALSE(parse_number<double>("1,5"));
}

TEST(Decimal, CharactersAreAscii) {
  EXPECT_TRUE(is_letter_or_digit('z') && is_letter_or_digit('0') && is_space('\n'));
  EXPECT_FALSE(is_letter_or_digit('\xe4') || is_letter_or_digit('_') || is_space('a'));
}

}  // namespace
}  // namespace flashover

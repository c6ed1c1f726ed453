// Defaults are used where no value is given, and no row of the table is half empty.
#include "base/options.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace flashover {

TEST(Options, DefaultsAndValues) {
  EXPECT_TRUE(bool_option({}, "cache"));
  EXPECT_FALSE(bool_option({{"cache", "False"}}, "cache"));
  EXPECT_EQ(int_option({}, "recompile_limit"), 8);
  EXPECT_EQ(int_option({{"recompile_limit", "3"}}, "recompile_limit"), 3);
  EXPECT_THROW(option({}, "no_such_option"), InternalError);
  for (const char* bad : {"-1", "1000001", "99999999999999999999", "", "8x", "1e3"})
    EXPECT_THROW(int_option({{"recompile_limit", bad}}, "recompile_limit"), InternalError) << bad;
}

TEST(Options, EveryRowIsComplete) {
  for (const OptionInfo& o : option_table()) {
    std::string type = o.type, value = o.default_value;
    EXPECT_TRUE(type == "bool" || type == "int" || type == "str") << o.name;
    if (type == "bool") {
      EXPECT_TRUE(value == "True" || value == "False") << o.name;
    }
    EXPECT_FALSE(std::string(o.doc).empty()) << o.name;
  }
}

}  // namespace flashover

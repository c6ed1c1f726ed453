// Who hears what is said, and when.
#include "base/diagnostics.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace flashover {
namespace {

std::vector<std::string>& heard() {
  static std::vector<std::string> all;
  return all;
}

TEST(Diagnostics, OnlyWhileSomebodyListens) {
  say("before");
  set_listener([](const std::string& text) noexcept { heard().push_back(text); });
  say("meanwhile");
  set_listener(nullptr);
  say("after");
  EXPECT_EQ(heard(), std::vector<std::string>{"meanwhile"});
}

}  // namespace
}  // namespace flashover

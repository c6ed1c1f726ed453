// The table of what changed as text: it comes back as it was, and what is no such text is none.
#include "entry/remembered_sizes.h"

#include "guards/interpreter_test.h"

namespace flashover::entry {
namespace {

constexpr Hash128 kSite{1, 2}, kOther{3, 4};

ChangeTable sample() {
  ChangeTable table;
  EXPECT_TRUE(table.add(kSite, {{{"x", {0, 2}}, {"self.cache[0]", {2}}}, {"scale with blanks"}}));
  return table;
}

TEST(RememberedSizes, Roundtrip) {
  const std::string text = sample().print();
  const std::optional<ChangeTable> back = ChangeTable::parse(text);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->print(), text);
  ASSERT_TRUE(back->find(kSite));
  EXPECT_EQ(*back->find(kSite), (Changing{{{"x", {0, 2}}, {"self.cache[0]", {2}}}, {"scale with blanks"}}));
  EXPECT_FALSE(back->find(kOther));
}

TEST(RememberedSizes, AddAndForget) {
  ChangeTable table = sample();
  EXPECT_FALSE(table.add(kSite, {{{"x", {0}}}, {}})) << "known";
  EXPECT_TRUE(table.add(kSite, {{{"x", {1}}}, {}}));
  EXPECT_FALSE(table.add(kOther, {{{"a\nb", {0}}}, {"\x7f"}})) << "no line could hold that";
  table.forget(kSite);
  EXPECT_FALSE(table.find(kSite));
}

TEST(RememberedSizes, WhatIsNoSuchText) {
  const std::string good = sample().print(), line = good.substr(good.find('\n') + 1);
  EXPECT_FALSE(ChangeTable::parse(""));
  EXPECT_FALSE(ChangeTable::parse(line)) << "no first line";
  for (size_t cut = 1; cut < good.size(); ++cut) {
    const std::string part = good.substr(0, cut);
    EXPECT_EQ(ChangeTable::parse(part).has_value(), part.back() == '\n') << part;
  }
  for (const char* bad :
       {"zz size 0 x", "00000000000000000000000000000001 size -1 x", "00000000000000000000000000000001 size 64 x",
        "00000000000000000000000000000001 size x", "00000000000000000000000000000001 size 0 ",
        "00000000000000000000000000000001 code 0 x", "00000000000000000000000000000001 number a\x01", ""})
    EXPECT_FALSE(ChangeTable::parse(good + bad + "\n")) << bad;
  EXPECT_FALSE(ChangeTable::parse(good + "00000000000000000000000000000001 number " + std::string(501, 'a') + "\n"));
}

TEST(RememberedSizes, SitesOfCode) {
  Python py(R"(
def make(k):
    def f(x):
        return x + k, (lambda: 1), {"a", "b"}
    return f
def g(x):
    return x + 2
a, b, c = make(1).__code__, make(2).__code__, g.__code__
)");
  EXPECT_EQ(site_of(py["a"], nullptr, -1), site_of(py["b"], nullptr, -1));
  EXPECT_NE(site_of(py["a"], nullptr, -1), site_of(py["c"], nullptr, -1));
  EXPECT_NE(site_of(py["a"], nullptr, -1), site_of(py["a"], nullptr, 7));
}

}  // namespace
}  // namespace flashover::entry

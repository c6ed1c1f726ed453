// Which entry serves a call: the one used last is asked first, and a miss says why each was not the one.
#include "entry/lookup.h"

#include "guards/guarded_test.h"

namespace flashover::entry {
namespace {

using guards::FactKind;
using guards::SourceKind;

// An entry for calls whose first argument is this number.
EntryPtr entry_for(Python& py, const std::string& value, int64_t version) {
  guards::Observations o;
  o.sources.push_back({SourceKind::kArgument, guards::kNoSource, 0, PyUnicode_FromString("x"), Py_NewRef(py[value])});
  o.facts.push_back({FactKind::kEquals, 0, Py_NewRef(py[value])});
  auto e = std::make_shared<Entry>();
  e->required = 1;
  e->version = version;
  e->guards = guards::build(std::move(o), {0});
  return e;
}

TEST(Lookup, TheEntryUsedLastComesFirst) {
  Python py;
  const EntryPtr one = entry_for(py, "1", 1), two = entry_for(py, "2", 2), three = entry_for(py, "3", 3);
  std::vector<EntryPtr> entries{std::make_shared<Entry>(), one, two, three};  // the first failed before it had guards
  SourceObjects objects;
  PyObject* call[] = {py["3"]};
  EXPECT_EQ(find_entry(entries, call, objects), three);
  EXPECT_EQ(entries, (std::vector<EntryPtr>{three, entries[1], one, two})) << "the others keep their order";
  call[0] = py["1"];
  EXPECT_EQ(find_entry(entries, call, objects), one);
  EXPECT_EQ(entries[1], three);
  call[0] = py["4"];
  EXPECT_EQ(find_entry(entries, call, objects), nullptr);
  EXPECT_EQ(entries[0], one) << "a miss moves nothing";
}

TEST(Lookup, AMissNamesTheGuardOfEachVersion) {
  Python py;
  std::vector<EntryPtr> entries{entry_for(py, "2", 2), entry_for(py, "1", 1)};
  PyObject* call[] = {py["7"]};
  const Recompile why = why_recompile(entries, call, {});
  ASSERT_EQ(why.missed.size(), 2u);
  EXPECT_EQ(why.missed[0].version, 2);
  EXPECT_EQ(why.missed[0].failure.guard, "x == 2");
  EXPECT_EQ(why.missed[1].failure.now, "7");
  EXPECT_FALSE(why_recompile({}, call, {})) << "compiled for the first time";
  std::unordered_set<std::string> varying;
  note_varying_numbers(entries, call, varying);
  EXPECT_EQ(varying, std::unordered_set<std::string>{"x"});
  call[0] = py["'text'"];
  varying.clear();
  note_varying_numbers(entries, call, varying);
  EXPECT_TRUE(varying.empty()) << "another type is no other value";
}

TEST(Lookup, TheLimitIsSaidOnce) {
  EXPECT_EQ(
      limit_text("f", 8, "x == 3; now 4"),
      "flashover: f was compiled 8 times (recompile_limit); other calls run eager. The last guard that failed: x == "
      "3; now 4. FLASHOVER_LOGS=recompiles tells of each.");
}

}  // namespace
}  // namespace flashover::entry

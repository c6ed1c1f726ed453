// The words for calls that were compiled again.
#include "entry/recompiles.h"

#include "guards/interpreter_test.h"

namespace flashover::entry {
namespace {

const Recompile kWhy{{{2, 1, {"x == 3", "4", "nowhere.py:7"}}, {1, 5, {"y is None", "", ""}}}, "nowhere.py:20"};

TEST(Recompiles, TellOfEachVersion) {
  EXPECT_EQ(describe(kWhy, 3, 8),
            "compiled again, as version 3 (limit 8), for the call at nowhere.py:20\n"
            "  not version 2 (used 1 time): x == 3; now 4\n"
            "    seen at nowhere.py:7\n"
            "  not version 1 (used 5 times): y is None");
  EXPECT_FALSE(Recompile());
  EXPECT_EQ(Recompile().last(), "");
  EXPECT_NE(kWhy.last().find("x == 3"), std::string::npos) << "the version used last";
}

TEST(Recompiles, AreListsOfDictsForPython) {
  Python py;
  PyObject* list = to_python(kWhy);
  PyDict_SetItemString(py.globals(), "why", list);
  Py_DECREF(list);
  EXPECT_EQ(py.text("len(why), why[0]"),
            "(2, {'version': 2, 'hits': 1, 'guard': 'x == 3', 'now': '4', 'where': 'nowhere.py:7', 'advice': ''})");
}

}  // namespace
}  // namespace flashover::entry

// The guard program as a whole: paths of every kind, its order, what arming leaves out and notices again, programs that
// try to run code in a check, and what cannot be built.
#include <gtest/gtest.h>

#include "guards/guarded_test.h"

namespace flashover::guards {
namespace {

using K = SourceKind;
using F = FactKind;

struct Step {
  SourceKind kind;
  const char* object;
  const char* key;
  int32_t index;
};
struct Path {
  const char* setup;  // defines x, the argument, and the objects of the steps
  std::vector<Step> steps;
  const char* fails;
  const char* text;  // the path for people
};
// The last object of each path is the number 1; it changes, or the way to it does.
const std::vector<Path> kPaths = {
    {"class A: pass\nx = A(); x.n = 1",
     {{K::kInstanceDict, "x.__dict__", "", -1}, {K::kDictItem, "1", "n", -1}},
     "x.n = 2",
     "x.n"},
    {"class A: pass\nx = A(); x.n = 1",
     {{K::kInstanceDict, "x.__dict__", "", -1}, {K::kDictItem, "1", "n", -1}},
     "x.__dict__ = {'n': 2}",
     "x.n"},
    {"class A: pass\nx = A(); x.n = 1",
     {{K::kInstanceDict, "x.__dict__", "", -1}, {K::kDictItem, "1", "n", -1}},
     "del x.n",
     "x.n"},
    {"class A: n = 1\nx = A()", {{K::kType, "A", "", -1}, {K::kTypeLookup, "1", "n", 0}}, "A.n = 2", "type(x).n"},
    {"x = {'k': 1}", {{K::kDictItem, "1", "k", -1}}, "x['k'] = 2", "x['k']"},
    {"x = {1: 'a'}", {{K::kDictKeyAt, "1", "", 0}}, "x.clear(); x[2] = 'a'", "list(x)[0]"},
    {"x = {'a': 1}", {{K::kDictValueAt, "1", "", 0}}, "x['a'] = 2", "list(x.values())[0]"},
    {"x = [0, 1]", {{K::kSequenceItem, "1", "", 1}}, "x[1] = 2", "x[1]"},
    {"x = [0, 1]", {{K::kSequenceItem, "1", "", 1}}, "x.pop()", "x[1]"},
    {"x = (0, 1)", {{K::kSequenceItem, "1", "", 1}}, "x = (0, 2)", "x[1]"},
    {"import collections\nx = collections.deque([1])", {{K::kSequenceItem, "1", "", 0}}, "x[0] = 2", "x[0]"},
    {"x = {1}", {{K::kSetItem, "1", "", 0}}, "x.clear()", ""},
    {"class A: __slots__ = ('n',)\nx = A(); x.n = 1", {{K::kSlot, "1", "n", -1}}, "x.n = 2", "x.n"},
    {"def x(a=1): pass",
     {{K::kSlot, "x.__defaults__", "__defaults__", -1}, {K::kSequenceItem, "1", "", 0}},
     "x.__defaults__ = (2,)",
     "x.__defaults__[0]"},
    {"def make(c):\n  return lambda: c\nx = make(1)",
     {{K::kClosureCell, "x.__closure__[0]", "", 0}, {K::kCellContents, "1", "", -1}},
     "x.__closure__[0].cell_contents = 2",
     "x.__closure__[0].cell_contents"},
    {"n = 1\ndef x(): return n", {{K::kGlobals, "x.__globals__", "", -1}, {K::kDictItem, "1", "n", -1}}, "n = 2", "n"},
    {"import contextvars\nx = contextvars.ContextVar('x'); x.set(1)",
     {{K::kContextValue, "1", "", -1}},
     "x.set(2)",
     ""},
    {"import types\nd = {'k': 1}\nx = types.MappingProxyType(d)",
     {{K::kProxied, "d", "", -1}, {K::kDictItem, "1", "k", -1}},
     "d['k'] = 2",
     ""},
    {"import types\nd = {'k': 1}\nx = types.MappingProxyType(d)",
     {{K::kProxied, "d", "", -1}, {K::kDictItem, "1", "k", -1}},
     "x = types.MappingProxyType({'k': 2})",
     "x['k']"},
};

TEST(CompiledGuards, EveryKindOfPath) {
  for (const Path& path : kPaths) {
    SCOPED_TRACE(std::string(path.setup) + "; then " + path.fails);
    Python py(path.setup);
    Guarded g(py);
    SourceId at = g.argument("x");
    g.fact(F::kTypeIs, at, "type(x)");
    g.fill(at, "x");
    for (const Step& s : path.steps) at = g.add(s.kind, at, s.object, s.key, s.index);
    g.fact(F::kEquals, at, "1");
    g.build({at});
    EXPECT_TRUE(g.check({"x"}));
    EXPECT_TRUE(g.check({"x"}));
    EXPECT_EQ(g.required().at(0), py["1"]);
    py.run(path.fails);
    EXPECT_FALSE(g.check({"x"}));
    EXPECT_NE(g.failure().guard.find(path.text), std::string::npos) << g.failure().text();
  }
}

// x.a[0].n and x.b of one object with a dict: five sources.
SourceId add_box(Guarded& g) {
  const SourceId x = g.argument("x");
  g.fact(F::kTypeIs, x, "Box");
  const SourceId dict = g.add(K::kInstanceDict, x, "x.__dict__");
  const SourceId list = g.add(K::kDictItem, dict, "x.a", "a");
  g.fact(F::kTypeIs, list, "list");
  g.fact(F::kLength, list, "", 1);
  const SourceId item = g.add(K::kSequenceItem, list, "x.a[0]", "", 0);
  g.fact(F::kEquals, item, "x.a[0]");
  const SourceId b = g.add(K::kDictItem, dict, "x.b", "b");
  g.fact(F::kEquals, b, "x.b");
  return list;
}
const char* kBox = "class Box: pass\nx = Box(); x.a = [1]; x.b = 2";

TEST(CompiledGuards, ArmingComparesAddressesAndTags) {
  Python py(kBox);
  Guarded g(py);
  add_box(g);
  g.build();
  const std::string armed = g.program().composition();
  EXPECT_NE(armed.find("1 dicts"), std::string::npos) << armed;
  EXPECT_NE(armed.find("objects"), std::string::npos) << armed;
  for (const char* change : {"x.other = 1", "x.b = int('2')", "x.a = [1]", "x.a[0] = int('1')", "del x.other"}) {
    py.run(change);
    EXPECT_TRUE(g.check({"x"})) << change << ": nothing that was observed";
  }
  py.run("y = Box(); y.a = [1]; y.b = 2");
  EXPECT_TRUE(g.check({"y"})) << "another object with the same in it";
  EXPECT_TRUE(g.check({"x"}));
  py.run("y.a.append(1)");
  EXPECT_FALSE(g.check({"y"}));
  EXPECT_TRUE(g.check({"x"})) << "a miss spoils nothing";
}

// Calls with an object of their own each time end in the plain check, which is as strict.
TEST(CompiledGuards, WhatMovesInEachCallIsCheckedAllTheSame) {
  Python py(kBox);
  Guarded g(py);
  const SourceId list = add_box(g);
  g.build({list});
  for (int call = 0; call < 100; ++call) {
    py.run("x = Box(); x.a = [1]; x.b = 2");
    ASSERT_TRUE(g.check({"x"})) << call;
    ASSERT_EQ(g.required().at(0), py["x.a"]) << "the list of this call";
    py.run(call % 2 ? "x.b = 3" : "x.a[0] = 3");
    ASSERT_FALSE(g.check({"x"})) << call;
    py.forget();
  }
}

TEST(CompiledGuards, TheFirstGuardThatFailsIsNamed) {
  Python py(kBox);
  Guarded g(py);
  add_box(g);
  g.build();
  py.run("x.a = [1, 2]; x.b = 3");
  EXPECT_FALSE(g.check({"x"}));
  EXPECT_NE(g.failure().guard.find("x.a"), std::string::npos) << g.failure().text();
  EXPECT_FALSE(g.check({"3"}));
  EXPECT_NE(g.failure().guard.find("type(x)"), std::string::npos) << "a parent before its children";
}

// While no dict changed, the caller may say so, and only what needs no dict is looked at.
TEST(CompiledGuards, UntouchedSparesOnlyDicts) {
  Python py(kBox);
  Guarded g(py);
  add_box(g);
  g.build();
  ASSERT_TRUE(g.check({"x"}));
  PyObject* args[] = {py["x"]};
  PyObject* none[1];
  EXPECT_TRUE(g.program().check(args, none, true));
  PyList_SetItem(py["x.a"], 0, PyLong_FromLong(5));
  EXPECT_FALSE(g.program().check(args, none, true)) << "a list has no tag";
}

TEST(CompiledGuards, DictClockMovesWithAnyDict) {
  Python py("d = {}");
  const uint64_t before = dict_clock();
  EXPECT_EQ(dict_clock(), before + kDictTick) << "by one tick for its own";
  py.run("d['a'] = 1");
  EXPECT_GT(dict_clock(), before + 3 * kDictTick);
}

TEST(CompiledGuards, NoCodeOfTheProgramRuns) {
  Python py(R"(
class Loud:
    def __eq__(self, other): raise SystemExit
    def __hash__(self): return hash('n')
    def __len__(self): raise SystemExit
    def __getattr__(self, name): raise SystemExit
    def __getattribute__(self, name): raise SystemExit
    n = property(lambda self: 1 / 0)
class List(list):
    def __getitem__(self, i): raise SystemExit
    def __len__(self): raise SystemExit
class Dict(dict):
    def __missing__(self, key): raise SystemExit
    def __getitem__(self, key): raise SystemExit
loud, l, d = Loud(), List([1]), Dict(n=1)
)");
  Guarded g(py);
  const SourceId loud = g.argument("loud", 0), l = g.argument("l", 1), d = g.argument("d", 2);
  g.fact(F::kTypeIs, loud, "Loud");
  g.fact(F::kIdentity, loud, "loud");
  g.fact(F::kTypeIs, l, "List");
  g.fact(F::kLength, l, "", 1);
  g.fact(F::kEquals, g.add(K::kSequenceItem, l, "1", "", 0), "1");
  g.fact(F::kTypeIs, d, "Dict");
  g.fact(F::kEquals, g.add(K::kDictItem, d, "1", "n"), "1");
  g.build();
  EXPECT_TRUE(g.check({"loud", "l", "d"}));
  for (const char* other : {"loud", "3", "None", "Loud", "[]", "{}", "iter(())"}) {
    EXPECT_FALSE(g.check({other, "l", other})) << other;
    EXPECT_FALSE(g.check({"loud", other, "d"})) << other;
  }
  py.run("d.clear(); dict.__setitem__(d, 3, 1)");
  EXPECT_FALSE(g.check({"loud", "l", "d"})) << "gone";
}

TEST(CompiledGuards, ObservedObjectsMayDie) {
  Python py("import weakref\nclass A: pass\nx = A(); gone = weakref.ref(x)");
  Guarded g(py);
  g.fact(F::kIdentity, g.argument("x"), "x");
  g.build();
  py.run("del x");
  EXPECT_EQ(py.text("gone()"), "None") << "guards do not keep a program's objects";
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(g.check({"A()"})) << "one of them lies at the old address";
}

std::string refused(Guarded& g) {
  try {
    g.build();
  } catch (const Declined& e) {
    return std::string("declined: ") + e.what();
  } catch (const InternalError& e) {
    return std::string("bug: ") + e.what();
  }
  return "built";
}
TEST(CompiledGuards, WhatCannotBeGuardedIsDeclined) {
  Python py("x = [1]");
  {
    Guarded g(py);
    g.fact(F::kEquals, g.argument("x"), "x");
    EXPECT_EQ(refused(g), "declined: guard: a list cannot be compared by value (x)");
  }
  {
    Guarded g(py);
    g.fact(F::kLength, g.argument("x"), "", 2);
    EXPECT_NE(refused(g).find("declined: guard: does not hold right after the trace: "), std::string::npos);
  }
  {
    Guarded g(py);
    g.add(K::kSequenceItem, 0, "x", "", 0);
    EXPECT_NE(refused(g).find("comes before its parent"), std::string::npos);
  }
  {
    Guarded g(py);
    g.fact(F::kTypeVersion, g.argument("x"));
    EXPECT_NE(refused(g).find("bug: "), std::string::npos) << "of an object that is no class";
  }
}

}  // namespace
}  // namespace flashover::guards

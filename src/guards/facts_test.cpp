// Each kind of fact, about an argument or between two: what passes, what fails, and in which words.
#include <gtest/gtest.h>

#include "guards/guarded_test.h"
#include "ops/geometry.h"

namespace flashover::guards {
namespace {

struct Row {
  FactKind kind;
  const char* setup;     // defines x
  const char* expected;  // of the fact; "" for none
  int64_t number;
  const char* passes;  // a statement; x passes after it
  const char* fails;
};
const char* kClasses = R"(
class A:
    def f(self): return 1
class B(A): pass
def local():
    class L:
        def g(self): return 2
    return L
)";
const Row kRows[] = {
    {FactKind::kEquals, "x = 300", "300", 0, "x = int('300')", "x = 301"},
    {FactKind::kEquals, "x = 1", "1", 0, "x = 1", "x = True"},
    {FactKind::kEquals, "x = 1", "1", 0, "x = 1", "x = 1.0"},
    {FactKind::kEquals, "x = 0.0", "0.0", 0, "x = 0.0", "x = -0.0"},
    {FactKind::kEquals, "x = float('nan')", "x", 0, "x = float('nan')", "x = 1.0"},
    {FactKind::kEquals, "x = ('a', (1, None))", "x", 0, "x = ('a', (1, None))", "x = ('a', (1, 0))"},
    {FactKind::kEquals, "x = 'a'", "'a'", 0, "x = chr(97)", "x = b'a'"},
    {FactKind::kTypeIs, "x = A()", "A", 0, "x = A()", "x = B()"},
    {FactKind::kTypeIs, "x = A()", "A", 0, "x.y = 1", "x.__class__ = B"},
    {FactKind::kIdentity, "x = A()", "x", 0, "x.y = 1", "x = A()"},
    {FactKind::kIdentity, "x = A()", "x", 0, "x.y = 1", "x.__class__ = B"},
    {FactKind::kIdentity, "x = lambda: 1", "x", 0, "x.y = 1", "x = lambda: 1"},
    {FactKind::kLength, "x = [1, 2]", "", 2, "x[0] = 3", "x.append(3)"},
    {FactKind::kLength, "x = {1}", "", 1, "x = {2}", "x = set()"},
    {FactKind::kLength, "x = 'ab'", "", 2, "x = 'cd'", "x = 'c'"},
    {FactKind::kLength, "x = [1, 2]", "", 2, "x = (1, 2)", "x = 12"},
    {FactKind::kDictHas, "x = {'a': 1}", "'a'", 0, "x['b'] = 2", "del x['a']"},
    {FactKind::kDictHas, "x = {'a'}", "'a'", 0, "x.add('b')", "x.discard('a')"},
    {FactKind::kDictLacks, "x = {'a': 1}", "'b'", 0, "x['a'] = 2", "x['b'] = 2"},
    {FactKind::kDictLacks, "x = {'a': 1}", "'b'", 0, "x = {}", "x = []"},
    {FactKind::kDictOrder, "x = {'a': 1, 'b': 2}", "('a', 'b')", 0, "x['a'] = 3", "x['a'] = x.pop('a')"},
    {FactKind::kDictOrder, "x = {'a': 1}", "('a',)", 0, "x = {'a': 2}", "x['b'] = 1"},
    {FactKind::kTypeLacks, "x = B", "'g'", 0, "A.h = 1", "A.g = 1"},
    {FactKind::kTypeLacks, "x = B", "'f'", 2, "x = B", "x = 3"},
    {FactKind::kCodeIs, "f = lambda: 1; x = f", "f.__code__", 0, "x = type(f)(f.__code__, {})",
     "x.__code__ = (lambda: 2).__code__"},
    {FactKind::kCodeIs, "x = lambda: 1", "x.__code__", 1, "x = type(x)(x.__code__.replace(), {})", "x = lambda: 2"},
    {FactKind::kSpecials, "x = A", "", 0, "A.plain = 1", "A.__len__ = lambda s: 0"},
    {FactKind::kLooksLike, "x = local()", "", 0, "x = local()", "x = type('L', (), {})"},
    {FactKind::kTypeVersion, "x = A", "", 0, "y = A()", "A.f = 3"},
    {FactKind::kAddressIs, "x = [1]", "", 0, "x.append(2)", "y = x; x = [1]"},
};

TEST(Facts, OfOneObject) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(row.setup) + "; then " + row.fails);
    Python py(kClasses);
    py.run(row.setup);
    Guarded g(py);
    const SourceId x = g.argument("x");
    g.fact(row.kind, x, row.expected, row.number);
    g.fill(x, "x");
    g.build();
    EXPECT_TRUE(g.check({"x"}));
    EXPECT_TRUE(g.check({"x"})) << "the second look is the armed one";
    py.run(row.passes);
    EXPECT_TRUE(g.check({"x"})) << row.passes << ": " << g.failure().text();
    py.run(row.fails);
    EXPECT_FALSE(g.check({"x"}));
    EXPECT_FALSE(g.failure().guard.empty() || g.failure().now.empty());
    EXPECT_EQ(g.failure().where, "model.py:1");
  }
}

struct Pair {
  FactKind kind;
  const char *setup, *fails;  // x and y; number is y
};
TEST(Facts, BetweenTwoObjects) {
  for (const Pair& row :
       {Pair{FactKind::kSameObject, "x = y = [1]", "y = [1]"}, Pair{FactKind::kDistinct, "x, y = [1], [1]", "y = x"},
        Pair{FactKind::kWritten, "x, y = [1], [1]", "y = x"}}) {
    SCOPED_TRACE(row.setup);
    Python py(row.setup);
    Guarded g(py);
    const SourceId x = g.argument("x", 0), y = g.argument("y", 1);
    for (SourceId s : {x, y}) g.fact(FactKind::kTypeIs, s, "list");
    g.fact(row.kind, x, "", y);
    g.build();
    EXPECT_TRUE(g.check({"x", "y"}));
    py.run(row.fails);
    EXPECT_FALSE(g.check({"x", "y"}));
  }
}

TEST(Facts, AnswersOfFunctionsAndAbstractClasses) {
  Python py("import abc\nclass Shape(abc.ABC): pass\nclass Square: pass\nimport sys");
  Guarded g(py);
  g.fact(FactKind::kCallGives, kNoSource, "(sys.getrecursionlimit, sys.getrecursionlimit())");
  g.fact(FactKind::kSubclassIs, g.add(SourceKind::kConstantObject, kNoSource, "Shape"), "Square", 0);
  g.build();
  EXPECT_TRUE(g.check({}));
  py.run("before = sys.getrecursionlimit(); sys.setrecursionlimit(before + 1)");
  EXPECT_FALSE(g.check({}));
  py.run("sys.setrecursionlimit(before)");
  EXPECT_TRUE(g.check({}));
  py.run("Shape.register(Square)");
  EXPECT_FALSE(g.check({})) << "a class was registered";
}

TEST(Facts, WordsSayWhatWasAndWhatIs) {
  Python py("x = 3");
  Guarded g(py);
  g.fact(FactKind::kEquals, g.argument("x"), "3");
  g.build();
  EXPECT_FALSE(g.check({"4"}));
  EXPECT_EQ(g.failure().guard, "x == 3");
  EXPECT_EQ(g.failure().now, "4");
  EXPECT_EQ(g.program().describe(), std::vector<std::string>{"x == 3, guarded at model.py:1"});
  PyObject* args[] = {py["4"]};
  EXPECT_EQ(g.program().changed_numbers(args), std::vector<std::string>{"x"});
}

TEST(Facts, SizesThatChangedAreNamed) {
  Python py("import torch\nx = torch.zeros(4, 3)");
  Guarded g(py);
  g.fact(FactKind::kTensor, g.argument("x"), "torch.zeros(4, 3)");
  g.build();
  using Changed = std::vector<std::pair<std::string, size_t>>;
  const auto changed = [&](const char* now) {
    PyObject* args[] = {py[now]};
    return g.program().changed_geometry(args);
  };
  EXPECT_EQ(changed("torch.zeros(4, 3)"), Changed{});
  EXPECT_EQ(changed("torch.zeros(5, 3)"), (Changed{{"x", 0}}));
  EXPECT_EQ(changed("torch.zeros(5, 2)"), (Changed{{"x", 0}, {"x", 1}}));
  EXPECT_EQ(changed("torch.zeros(5, 3, dtype=torch.int64)"), Changed{}) << "another dtype is no other size";
  EXPECT_EQ(changed("torch.zeros(4, 8)[:, :3]"), (Changed{{"x", kMaxSymbolicRank}}));
  EXPECT_EQ(changed("torch.zeros(5, 8)[:, :2]"), (Changed{{"x", 0}, {"x", 1}, {"x", kMaxSymbolicRank}}));
  EXPECT_EQ(changed("torch.zeros(3, 4).t()"), Changed{}) << "these strides follow from the sizes, too";
  EXPECT_EQ(changed("torch.zeros(5)"), Changed{});
  EXPECT_EQ(changed("3"), Changed{});
}

}  // namespace
}  // namespace flashover::guards

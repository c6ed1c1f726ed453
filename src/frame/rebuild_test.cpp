// Reconstruction steps and effects, each made by hand and run: what they build, without running the program's code.
#include <gtest/gtest.h>

#include "frame/frame.h"
#include "frame/internals.h"
#include "guards/interpreter_test.h"

namespace flashover::frame {
namespace {

using Kind = ReconstructionStep::Kind;

struct Steps {
  Python& py;
  Capture capture;
  ~Steps() { release(capture); }

  int32_t add(Kind kind, std::vector<int32_t> items = {}, const std::string& object = "", int32_t index = -1) {
    PyObject* held = object.empty() ? nullptr : Py_NewRef(py[object]);
    capture.reconstruction.push_back({kind, index, -1, held, std::move(items)});
    return capture.result = static_cast<int32_t>(capture.reconstruction.size()) - 1;
  }
  int32_t constant(const std::string& expression) { return add(Kind::kConstant, {}, expression); }
  void effect(Effect::Kind kind, std::vector<int32_t> items) { capture.effects.push_back({kind, std::move(items)}); }
  // The result as `result` in py; "error: ..." where a step raises.
  std::string run(const std::string& shown = "repr(result)", PyObject* const* objects = nullptr,
                  PyObject* const* outputs = nullptr) {
    PyObject* made = rebuild(capture, objects, outputs);
    if (!made) {
      PyObject *type, *value, *tb;
      PyErr_Fetch(&type, &value, &tb);
      const std::string name = type ? reinterpret_cast<PyTypeObject*>(type)->tp_name : "none";
      Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(tb);
      return "error: " + name;
    }
    PyDict_SetItemString(py.globals(), "result", made);
    Py_DECREF(made);
    return py.text(shown);
  }
};

TEST(Rebuild, OutputsAndSources) {
  Python py("a, b = ['a'], ['b']");
  PyObject *objects[] = {py["a"]}, *outputs[] = {py["b"]};
  Steps s{py, {}};
  s.capture.required = {0};
  const int32_t source = s.add(Kind::kSource, {}, "", 0), output = s.add(Kind::kGraphOutput, {}, "", 0);
  EXPECT_EQ(s.run("result is b", objects, outputs), "True") << "a single result needs no registers";
  s.add(Kind::kTuple, {output, output});
  EXPECT_EQ(s.run("result[0] is b and result == (b, b)", objects, outputs), "True");
  s.add(Kind::kTuple, {source, output});
  EXPECT_EQ(s.run("result[0] is a and result[1] is b", objects, outputs), "True");
}

TEST(Rebuild, Containers) {
  Python py("import collections\nP = collections.namedtuple('P', 'x y')\nclass D(collections.OrderedDict): pass");
  Steps s{py, {}};
  const int32_t one = s.constant("1"), k = s.constant("'k'"), none = s.constant("None");
  const auto gives = [&](Kind kind, std::vector<int32_t> items, const char* object, const char* text) {
    s.add(kind, std::move(items), object);
    EXPECT_EQ(s.run(), text);
  };
  gives(Kind::kList, {one, k}, "", "[1, 'k']");
  gives(Kind::kTuple, {}, "", "()");
  gives(Kind::kSet, {one, one}, "", "{1}");
  gives(Kind::kFrozenSet, {k}, "", "frozenset({'k'})");
  gives(Kind::kDict, {k, one, one, k}, "", "{'k': 1, 1: 'k'}");
  gives(Kind::kDict, {k, one}, "collections.OrderedDict", py.text("repr(collections.OrderedDict(k=1))").c_str());
  gives(Kind::kSlice, {none, one, none}, "", "slice(None, 1, None)");
  gives(Kind::kNamedTuple, {one, k}, "P", "P(x=1, y='k')");
  gives(Kind::kDeque, {one}, "collections.deque", "deque([], maxlen=1)");
  s.add(Kind::kDict, {s.add(Kind::kList), one});
  EXPECT_EQ(s.run(), "error: TypeError") << "an unhashable key";
}

// Instances are filled past __new__, __init__, __setattr__ and __setitem__ of their classes.
TEST(Rebuild, InstancesWithoutTheirCode) {
  Python py(R"(
class A:
    __slots__ = ('s', '__dict__')
    def __new__(cls): raise SystemExit
    def __init__(self): raise SystemExit
    def __setattr__(self, name, value): raise SystemExit
class L(list):
    def __init__(self): raise SystemExit
    def append(self, x): raise SystemExit
class N(int):
    def __new__(cls, x): raise SystemExit
class E(ValueError):
    def __init__(self): raise SystemExit
)");
  Steps s{py, {}};
  const int32_t one = s.constant("1"), attribute = s.constant("'x'"), slot = s.constant("'s'");
  const int32_t a = s.add(Kind::kObject, {}, "A");
  s.add(Kind::kFillDict, {a, attribute, one});
  s.add(Kind::kFillSlots, {a, slot, attribute});
  s.capture.result = a;
  EXPECT_EQ(s.run("type(result) is A and (result.x, result.s)"), "(1, 'x')");
  const int32_t l = s.add(Kind::kObject, {}, "L");
  s.add(Kind::kFillItems, {l, one, l});
  s.capture.result = l;
  EXPECT_EQ(s.run("type(result) is L and len(result) == 2 and result[1] is result"), "True") << "it holds itself";
  s.add(Kind::kNewFrom, {s.constant("41")}, "N");
  EXPECT_EQ(s.run("type(result) is N and result + 1"), "42");
  const int32_t cause = s.constant("KeyError('k')");
  const int32_t e = s.add(Kind::kException, {s.constant("('text',)")}, "E");
  s.add(Kind::kFinishException, {e, cause, -1, -1});
  s.capture.result = e;
  EXPECT_EQ(s.run("(type(result) is E, result.args, repr(result.__cause__), result.__suppress_context__)"),
            "(True, ('text',), \"KeyError('k')\", False)");
}

TEST(Rebuild, FunctionsMethodsAndIterators) {
  Python py("def make(c):\n def f(x, y=1): return x + y + c\n return f\nd = {'a': 1, 'b': 2}");
  Steps s{py, {}};
  const int32_t none = s.constant("None"), cell = s.add(Kind::kCell), name = s.constant("'f'");
  s.add(Kind::kFillItems, {cell, s.constant("100")});
  const int32_t f = s.add(Kind::kFunction, {s.constant("make(0).__code__"), s.constant("globals()"), name, name,
                                            s.constant("(10,)"), none, s.add(Kind::kTuple, {cell}), none, none, none});
  EXPECT_EQ(s.run("(result(1), result(1, 2), result.__name__)"), "(111, 103, 'f')");
  s.add(Kind::kBoundMethod, {f, s.constant("5")});
  EXPECT_EQ(s.run("result()"), "115");
  s.add(Kind::kBuiltinMethod, {s.constant("'text'")}, "str.upper");
  EXPECT_EQ(s.run("result()"), "TEXT");
  const int32_t d = s.constant("d");
  s.add(Kind::kDictIterator, {d}, "type(iter(d.items()))", 1);
  EXPECT_EQ(s.run("list(result)"), "[('b', 2)]") << "one was taken";
  s.add(Kind::kDictIterator, {d}, "type(d.keys())", -1);
  EXPECT_EQ(s.run("type(result), list(result)"), py.text("(type(d.keys()), ['a', 'b'])"));
}

TEST(Rebuild, EffectsInTheOrderOfTheProgram) {
  Python py(R"(
import collections
class O: pass
o, l, d, q, s = O(), [0], {'a': 1, 'b': 2}, collections.deque([0]), {0}
od = collections.OrderedDict(a=1, b=2)
before = l, d, q, s, od
)");
  using E = Effect::Kind;
  Steps s{py, {}};
  const int32_t one = s.constant("1"), two = s.constant("2"), a = s.constant("'a'"), x = s.constant("'x'");
  const int32_t o = s.constant("o"), l = s.constant("l"), d = s.constant("d"), q = s.constant("q"),
                set = s.constant("s"), od = s.constant("od");
  s.effect(E::kSetAttr, {o, x, one});
  s.effect(E::kSetAttr, {o, x, two});
  s.effect(E::kListAppend, {l, one});
  s.effect(E::kListReplace, {l, two, l});
  s.effect(E::kListAppend, {l, two});
  s.effect(E::kDelItem, {d, a});
  s.effect(E::kDiscardItem, {d, x});
  s.effect(E::kSetItem, {d, a, two});
  s.effect(E::kDictReplace, {od, x, one});
  s.effect(E::kDequeReplace, {q, one, two});
  s.effect(E::kSetReplace, {set, two});
  EXPECT_EQ(s.run("o.x, len(l), l[0], l[1] is l, l[2]"), "(2, 3, 2, True, 2)");
  EXPECT_EQ(py.text("d, list(q), s, list(od.items())"), "({'b': 2, 'a': 2}, [1, 2], {2}, [('x', 1)])");
  EXPECT_EQ(py.text("all(x is y for x, y in zip(before, (l, d, q, s, od)))"), "True") << "identities stay";
}

TEST(Rebuild, EffectsThatFailRaise) {
  Python py("d = {}");
  Steps s{py, {}};
  s.effect(Effect::Kind::kDelItem, {s.constant("d"), s.constant("'gone'")});
  EXPECT_EQ(s.run(), "error: KeyError");
}

}  // namespace
}  // namespace flashover::frame

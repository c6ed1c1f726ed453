// What a trace wrote to old objects is taken back: identity, order and what others did meanwhile stay.
#include "frame/journal.h"

#include <gtest/gtest.h>

#include "guards/interpreter_test.h"

namespace flashover::frame {
namespace {

struct Written {
  Python py;
  SourceTracker recorder{nullptr};
  Journal journal{recorder};
  explicit Written(const std::string& code) : py(code) {
    recorder.location = [] { return std::string("test.py:1"); };
    recorder.location_key = [] { return uint64_t{1}; };
  }
  PyObject* old(const char* name) {
    PyObject* o = py[name];
    recorder.constant(o);
    return o;
  }
};

TEST(Journal, DictItemsAndTheirOrder) {
  Written w("d = {'a': 1, 'b': 2}; same = d");
  PyObject* d = w.old("d");
  w.journal.dict_item(d, w.py["'a'"], true);
  w.py.run("del d['a']; d['a'] = 3");
  w.journal.dict_item(d, w.py["'c'"]);
  w.py.run("d['c'] = 4");
  w.journal.undo();
  EXPECT_EQ(w.py.text("d"), "{'a': 1, 'b': 2}");
  EXPECT_EQ(w.py.text("same is d"), "True");
  EXPECT_TRUE(w.journal.empty());
}

TEST(Journal, WholeContainers) {
  Written w("import collections\nl, s, q, d = [1, 2], {1}, collections.deque([1, 2], 3), {'a': 1}\nit = iter(l)");
  for (const char* name : {"l", "s", "q", "d"}) w.journal.whole(w.old(name));
  w.py.run("l.reverse(); l.append(l); s.add(2); q.rotate(); d.clear()");
  w.journal.undo();
  EXPECT_EQ(w.py.text("l, s, q, d, next(it)"), "([1, 2], {1}, deque([1, 2], maxlen=3), {'a': 1}, 1)");
}

TEST(Journal, CellsAndSlots) {
  Written w("class A: __slots__ = ('s', 't')\no = A(); o.s = 1\ndef make():\n c = 1\n return lambda: c\nf = make()");
  w.journal.cell(w.old("f.__closure__[0]"));
  PyObject* o = w.old("o");
  w.journal.slot(o, w.py["'s'"], w.py["1"]);
  w.journal.slot(o, w.py["'t'"], nullptr);
  w.py.run("f.__closure__[0].cell_contents = 2; o.s = 5; o.t = 6");
  w.journal.undo();
  EXPECT_EQ(w.py.text("f(), o.s, hasattr(o, 't')"), "(1, 1, False)");
}

// Only what the trace added to a list goes; another thread's items stay.
TEST(Journal, AppendsOfOthersStay) {
  Written w("l = [0]");
  PyObject *l = w.old("l"), *item = w.py["'mine'"];
  w.journal.append(l, item);
  PyList_Append(l, item);
  w.py.run("l.append('theirs')");
  w.journal.undo();
  EXPECT_EQ(w.py.text("l"), "[0, 'theirs']");
}

TEST(Journal, WhatIsKeptStays) {
  Written w("d = {}");
  w.journal.dict_item(w.old("d"), w.py["'a'"]);
  w.py.run("d['a'] = 1");
  w.journal.keep();
  w.journal.undo();
  EXPECT_EQ(w.py.text("d"), "{'a': 1}");
}

}  // namespace
}  // namespace flashover::frame

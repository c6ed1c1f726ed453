// A traced graph as Python data, for backends written in Python (python/flashover/fx_graph.py builds a GraphModule from
// it).
#pragma once
#include <torch/csrc/Exceptions.h>

#include <utility>

#include <Python.h>

#include "graph/graph.h"

namespace flashover::entry {

// An owned reference. Made of null, it throws the error that Python has.
struct Reference {
  PyObject* p;
  explicit Reference(PyObject* steal) : p(steal) {
    if (!p) throw python_error();
  }
  ~Reference() { Py_XDECREF(p); }
  Reference(const Reference&) = delete;
  PyObject* release() { return std::exchange(p, nullptr); }
};

// {"inputs": [(value, kind, name)], "nodes": [(op, args, outs, location)], "outputs": [value], "memory":
// [number]}, the last by value: those with equal numbers share memory. A tensor argument is a
// 1-tuple (value,); everything else is what torch.ops takes. New reference; null with an error set.
// sizes: those that are symbols are frame::size_expression()s; else a graph with such declines.
PyObject* to_python(const graph::Graph& g, bool sizes = false);

// {name: (value, dimension, whether it is a stride there)}: where each symbol of a size stands. New reference.
PyObject* places_of_symbols(const graph::Graph& g);

}  // namespace flashover::entry

// A traced graph as Python data, for backends written in Python (python/flashover/fx_graph.py builds a GraphModule from
// it).
#pragma once
#include <Python.h>

#include "graph/graph.h"

namespace flashover::entry {

// {"inputs": [(value, kind, name)], "nodes": [(op, args, outs, location)], "outputs": [value]}. A tensor argument is a
// 1-tuple (value,); everything else is what torch.ops takes. New reference; null with an error set.
PyObject* to_python(const graph::Graph& g);

}  // namespace flashover::entry

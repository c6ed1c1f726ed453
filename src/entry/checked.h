// What a Python object sees of each graph and of each call of it: the option crosscheck, and the minifier.
//
//   In        a captured graph, and the object: graph(description, inputs) is asked before the graph is compiled
//   Out       a Runner of the compiled graph. Before each call the object is given the call's inputs and two functions
//             of (inputs) -> outputs, the compiled graph and the same operator by operator: it may run them on copies
//   Promises  what runs is what would run unwatched: the same plans, sizes that are symbols, forward and backward
#pragma once
#include <memory>

#include "entry/backend.h"

namespace flashover::entry {

// watcher: Python's, borrowed. Errors that it raises are torch's python_error.
std::unique_ptr<Runner> make_checked(graph::Graph graph, const Request& request, compile::Report& report,
                                     PyObject* watcher);

}  // namespace flashover::entry

// A call that was captured whole, as data: what flashover.export and flashover.package make programs from.
//
//   In        an entry of the backend "export", the objects of the call that it was made for
//   Out       a dict: the graph (python_graph.h, sizes as expressions) and its text; the tensors at its inputs; the
//             result of the call with a marker in the place of each of the graph's outputs; the facts that sizes meet;
//             what stands in the way of a program that shall serve other calls, too (`problems`); what a call writes
//             of Python objects that outlive it (`writes`)
//   Promises  nothing is run and nothing is written
//   Declines  nothing
#pragma once
#include <Python.h>

#include <string>
#include <vector>

#include "entry/entry.h"

namespace flashover::entry {

// Takes note of facts that follow from more than the types of tensors, and of what is written. Before guards are built
// of the observations.
void note_of_program(Entry& e);

// Null with an error set where the result cannot be made. GIL held.
PyObject* describe_program(Entry& e, PyObject* const* objects);

// The plan of a program (plan.h, serialized), by the text of its graph.
// gpu: for such a device, which need not be here.
std::string plan_of_program(const std::string& graph, const compile::Options& options,
                            const std::optional<kernel::triton::Gpu>& gpu = std::nullopt);

}  // namespace flashover::entry

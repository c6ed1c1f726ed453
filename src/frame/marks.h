// What the user said about single callables: how a capture treats calls of them.
#pragma once
#include <cstdint>
#include <string>

typedef struct _object PyObject;

namespace flashover::frame {

enum class Mark : uint8_t {
  kNone,
  kAllow,     // runs natively on the trace's tensors, its Python is not looked into
  kDisallow,  // never part of a graph
  kConstant,  // runs while capturing; its result stands in the compiled code
};
void mark(PyObject* callable, Mark mark);  // keeps the callable alive
// Marks made here, and torch's own (torch.compiler.disable, assume_constant_result, allow_in_graph ...).
Mark mark_of(PyObject* callable);
// A Python function that stands in for one of torch's while a capture runs: the same results, by a way that can be
// traced. Known by names, so that nothing has to be imported for it.
void substitute(PyObject* module, PyObject* qualname, PyObject* replacement);
PyObject* substitute_of(PyObject* function);  // borrowed; null: there is none
// The same for a callable that is no Python function: one of torch's operators, which is there from the start.
void put_in_place(PyObject* callable, PyObject* function);
// The function that was put in the place of `f`, by ours or by the user with torch._dynamo.substitute_in_graph;
// borrowed, null: none.
PyObject* polyfill_of(PyObject* f);
// Of functions that torch disabled: what they call is not to be compiled either.
bool disables_callees(PyObject* function);

}  // namespace flashover::frame

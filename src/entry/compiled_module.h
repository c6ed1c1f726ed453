// The instances that flashover.compile makes of modules: how a call of one finds its callable.
//
// The class of a compiled module is shared by all compiled modules of one original class. What is one module's own, its
// compiled callable, lies in a slot of the instance. An instance whose slot is empty is not compiled.
#pragma once
#include <Python.h>

namespace flashover::entry {

// From now on a call of an instance goes to the callable in its slot. The class's __call__ says the same in Python, for
// those who read classes instead of calling them. Returns false with an error set.
bool route_calls(PyTypeObject* compiled_class);
// instance.__class__ = to, for two classes of compiled modules; CPython refuses classes that added a slot each. Returns
// false with an error set if their layouts differ.
bool change_class(PyObject* instance, PyTypeObject* to);

}  // namespace flashover::entry

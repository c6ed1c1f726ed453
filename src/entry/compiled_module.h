// The instances that flashover.compile makes of modules: how a call of one finds its callable.
//
// The class of a compiled module is shared by all compiled modules of one original class. What is one module's own, its
// compiled callable, lies in a slot of the instance. An instance whose slot is empty waits for its original.
#pragma once
#include <Python.h>

namespace flashover::entry {

// From now on a call of an instance goes to the callable in its slot. The class's __call__ says the same in Python, for
// code that reads classes instead of calling them. And from now on object.__new__ of the class makes an instance of the
// original class. Returns false with an error set.
bool route(PyTypeObject* compiled_class);
// A compiled module with an empty slot and no dict. Returns null with an error set.
PyObject* empty_module(PyTypeObject* compiled_class);
// instance.__class__ = to, for two classes of compiled modules; CPython refuses classes that added a slot each. Returns
// false with an error set if their layouts differ.
bool change_class(PyObject* instance, PyTypeObject* to);

}  // namespace flashover::entry

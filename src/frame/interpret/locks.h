// Locks and context variables of the program: see locks.cpp.
#pragma once
#include "frame/interpret/native.h"

namespace flashover::frame {

PyObject* maker_of_lock(PyObject* lock);  // what makes another like this one (released); null: it is no lock

PyObject* do_make_lock(const NativeCall& c);  // _thread.allocate_lock(), _thread.lock(), _thread.RLock()
PyObject* do_lock(const NativeCall& c);       // acquire, __enter__
PyObject* do_unlock(const NativeCall& c);     // release, __exit__
PyObject* do_context_get(const NativeCall& c);
PyObject* do_context_set(const NativeCall& c);
PyObject* do_context_reset(const NativeCall& c);

}  // namespace flashover::frame

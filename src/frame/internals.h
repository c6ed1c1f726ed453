// CPython's internals as the frame stage needs them: the one place that includes them, and what differs between
// versions.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>
#undef HAVE_STD_ATOMIC  // the internal headers' stdatomic.h does not compile as C++; the builtin-atomics path does
#undef _PyGC_FINALIZED  // 3.12: a compatibility macro of the public headers collides with the internal function
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <internal/pycore_frame.h>
#include <internal/pycore_genobject.h>
#include <internal/pycore_interp.h>

#include <utility>

#if PY_VERSION_HEX >= 0x030C0000
#define _PyEval_RequestCodeExtraIndex PyUnstable_Eval_RequestCodeExtraIndex
#define _PyCode_GetExtra PyUnstable_Code_GetExtra
#define _PyCode_SetExtra PyUnstable_Code_SetExtra
#endif

namespace flashover::frame {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  static Ref steal(PyObject* p) { return Ref(p); }
  static Ref borrow(PyObject* p) {
    Py_XINCREF(p);
    return Ref(p);
  }
  Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  Ref(const Ref& other) : p_(other.p_) { Py_XINCREF(p_); }
  Ref& operator=(Ref other) noexcept {
    std::swap(p_, other.p_);
    return *this;
  }
  ~Ref() { Py_XDECREF(p_); }
  PyObject* get() const { return p_; }
  PyObject* release() { return std::exchange(p_, nullptr); }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  explicit Ref(PyObject* p) : p_(p) {}
  PyObject* p_ = nullptr;
};

// Layouts that CPython keeps private, unchanged from 3.8 to 3.12.
struct SuperLayout {
  PyObject ob_base;
  PyTypeObject* type;
  PyObject* obj;
  PyTypeObject* obj_type;
};
struct MethodWrapperLayout {
  PyObject ob_base;
  PyWrapperDescrObject* descr;
  PyObject* self;
};
struct MappingProxyLayout {
  PyObject ob_base;
  PyObject* mapping;
};
struct PropertyLayout {
  PyObject ob_base;
  PyObject *get, *set, *del, *doc;
};
struct ClassMethodLayout {  // staticmethod too
  PyObject ob_base;
  PyObject* callable;
};
struct DictIteratorLayout {
  PyObject ob_base;
  PyObject* dict;
  Py_ssize_t used, pos;
};
struct SetIteratorLayout {
  PyObject ob_base;
  PyObject* set;
  Py_ssize_t used, pos, left;
};
struct LruLinkLayout {
  PyObject ob_base;
  LruLinkLayout *prev, *next;
  Py_hash_t hash;
  PyObject *key, *result;
};
struct LruCacheLayout {
  LruLinkLayout root;  // of its own, it holds only the header and the ends of the list
  void* wrapper;
  int typed;
  PyObject* cache;  // dict: key -> link; without a limit: key -> result
  Py_ssize_t hits;
  PyObject* func;
  Py_ssize_t maxsize, misses;
};
struct DictViewLayout {
  PyObject ob_base;
  PyDictObject* dict;
};

#if PY_VERSION_HEX >= 0x030C0000
inline PyObject* frame_function(_PyInterpreterFrame* f) { return f->f_funcobj; }
#else
inline PyObject* frame_function(_PyInterpreterFrame* f) { return reinterpret_cast<PyObject*>(f->f_func); }
#endif
// Borrowed. Static builtin types keep theirs per interpreter from 3.12 on.
inline PyObject* type_dict(PyTypeObject* t) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* dict = PyType_GetDict(t);
  Py_XDECREF(dict);
  return dict;
#else
  return t->tp_dict;
#endif
}
inline bool has_instance_dict(PyTypeObject* t) {
  return t->tp_dictoffset != 0 || (t->tp_flags & Py_TPFLAGS_MANAGED_DICT);
}
inline _PyInterpreterFrame* current_frame(PyThreadState* tstate) { return tstate->cframe->current_frame; }

}  // namespace flashover::frame

// CPython's internals as the frame stage needs them: what of them differs between versions is in compat.
#pragma once
#include <utility>

#include "compat/api.h"
#include "compat/dicts.h"
#include "compat/frames.h"
#include "compat/internals.h"

namespace flashover::frame {

using compat::code_of;
using compat::current_frame;
using compat::finish_frame;
using compat::function_of;
using compat::next_unit;
using compat::type_dict;
using compat::unit_of;

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

// Layouts that CPython keeps private, unchanged from 3.8 to 3.14.
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

inline bool has_instance_dict(PyTypeObject* t) {
  return t->tp_dictoffset != 0 || (t->tp_flags & Py_TPFLAGS_MANAGED_DICT);
}

}  // namespace flashover::frame

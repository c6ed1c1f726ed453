// A type over Python's generator whose `next` and `send` turn the frame hook on while the body runs.
#include <Python.h>

#include "entry/generator.h"

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/boundary.h"

namespace flashover::entry {
namespace {

struct Kept {
  PyObject* owner;  // owned
  std::unique_ptr<frame::Continuations> continuations;
};

// By generator, of those that are alive: their own layout has no room. GIL held.
std::unordered_map<PyObject*, Kept>& kept() {
  static auto* table = new std::unordered_map<PyObject*, Kept>;  // outlives the interpreter
  return *table;
}

PyTypeObject* compiled_generator() {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  return &type;
}

// While its body runs: the hook is on, and the owner stays.
class Running {
 public:
  explicit Running(PyObject* generator) : Running(find(generator)) {}
  ~Running() { Py_XDECREF(owner_); }
  Running(const Running&) = delete;

 private:
  static const Kept* find(PyObject* generator) {
    const auto it = kept().find(generator);
    return it == kept().end() ? nullptr : &it->second;
  }
  explicit Running(const Kept* k)
      : owner_(k ? Py_NewRef(k->owner) : nullptr), callees_(k ? k->continuations.get() : nullptr) {}
  PyObject* owner_;  // dropped when the hook is off again
  frame::TakeCallees callees_;
};

PyObject* next(PyObject* self) {
  Running running(self);
  return PyGen_Type.tp_iternext(self);
}

PySendResult am_send(PyObject* self, PyObject* value, PyObject** result) {
  Running running(self);
  return PyGen_Type.tp_as_async->am_send(self, value, result);
}

PyObject* call_base(const char* name, PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  PyObject* method = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyGen_Type), name);
  if (method == nullptr) return nullptr;
  std::vector<PyObject*> all = {self};
  all.insert(all.end(), args, args + nargs);
  Running running(self);
  PyObject* result = PyObject_Vectorcall(method, all.data(), all.size(), nullptr);
  Py_DECREF(method);
  return result;
}
PyObject* send(PyObject* self, PyObject* value) { return call_base("send", self, &value, 1); }
PyObject* close(PyObject* self, PyObject*) { return call_base("close", self, nullptr, 0); }
PyObject* throw_into(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  return call_base("throw", self, args, nargs);
}

int generator_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
  if (const auto it = kept().find(self); it != kept().end()) Py_VISIT(it->second.owner);
  return PyGen_Type.tp_traverse(self, visit, arg);
}

void generator_dealloc(PyObject* self) noexcept {
  auto node = kept().extract(self);  // the address may be another one's afterwards
  PyObject *type, *error, *tb;
  PyErr_Fetch(&type, &error, &tb);
  PyGen_Type.tp_dealloc(self);
  if (!node.empty()) Py_DECREF(node.mapped().owner);
  PyErr_Restore(type, error, tb);
}

PyMethodDef kGeneratorMethods[] = {
    {"send", at_boundary<send>, METH_O, nullptr},
    {"throw", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(at_boundary<throw_into>)), METH_FASTCALL,
     nullptr},
    {"close", at_boundary<close>, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool is_new_generator(PyObject* object) { return PyGen_CheckExact(object) && Py_REFCNT(object) == 1; }

void keep_compiling(PyObject* generator, PyObject* owner, std::unique_ptr<frame::Continuations> continuations) {
  kept()[generator] = {Py_NewRef(owner), std::move(continuations)};
  Py_SET_TYPE(generator, compiled_generator());
}

bool add_generator_type() {
  static PyAsyncMethods async = *PyGen_Type.tp_as_async;
  async.am_send = at_boundary<am_send>;
  for (PyMethodDef *m = kGeneratorMethods, *of; m->ml_name != nullptr; ++m)
    for (of = PyGen_Type.tp_methods; of->ml_name != nullptr; ++of)
      if (std::string_view(of->ml_name) == m->ml_name) m->ml_doc = of->ml_doc;
  PyTypeObject& type = *compiled_generator();
  type.tp_name = PyGen_Type.tp_name;
  type.tp_base = &PyGen_Type;
  type.tp_basicsize = PyGen_Type.tp_basicsize;
  type.tp_itemsize = PyGen_Type.tp_itemsize;
  // Its own flags: the base's say of 3.12's built-in types that the interpreter keeps their dict elsewhere.
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE;
  type.tp_dealloc = generator_dealloc;
  type.tp_traverse = generator_traverse;
  type.tp_finalize = PyGen_Type.tp_finalize;
  type.tp_iternext = at_boundary<next>;
  type.tp_as_async = &async;
  type.tp_methods = kGeneratorMethods;
  return PyType_Ready(&type) == 0;
}

}  // namespace flashover::entry

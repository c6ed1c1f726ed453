// Calls of what the user marked: kept out of graphs, run beside the trace, or run on its tensors without a look into
// their Python.
#include <cstring>
#include <unordered_set>

#include "frame/fetched_error.h"
#include "frame/interpret/calls.h"
#include "frame/interpret/native.h"
#include "frame/marks.h"
#include "trace/aside.h"

namespace flashover::frame {
namespace {

// Code that is not watched gets an object: whatever it may read of it has to be what it is now in later calls, too.
class WholeArgument {
 public:
  explicit WholeArgument(Interpreter& in) : in_(in) {}

  void look(PyObject* o) {
    if (is_atom(o) || is_tensor(o) || is_operator(o) || !seen_.insert(o).second) return;
    in_.consume(o);
    if (PyTuple_Check(o) || PyList_Check(o)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) look(PySequence_Fast_GET_ITEM(o, i));
    } else if (PyDict_Check(o)) {
      look_at_values(o);
    } else if (PyType_Check(o) || PyFunction_Check(o) || PyMethod_Check(o)) {
      in_.recorder.whole(o);
      if (PyMethod_Check(o)) look(PyMethod_GET_SELF(o));
      return;
    }
    if (is_python_class(Py_TYPE(o))) return look_at_instance(o);
    if (!is_known(o))
      throw Declined(std::string("an object of class ") + Py_TYPE(o)->tp_name +
                     ", of which not all can be seen, in a call that is not looked into");
  }

 private:
  static bool is_known(PyObject* o) {
    return PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || PySlice_Check(o) ||
           PyRange_Check(o) || is_dict_view(o) || is_deque(o) || is_array(o) || is_numpy_scalar(o) || is_pinned_kind(o);
  }
  void look_at_values(PyObject* dict) {
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &key, &value);) look(value);
  }
  void look_at_instance(PyObject* o) {
    for (PyTypeObject* t = Py_TYPE(o); t != nullptr && (t->tp_flags & Py_TPFLAGS_HEAPTYPE); t = t->tp_base)
      if (Py_SIZE(t) > 0)
        throw Declined(std::string("an object with __slots__, of class ") + Py_TYPE(o)->tp_name +
                       ", in a call that is not looked into");
    in_.recorder.whole(o);
    PyObject** dict = _PyObject_GetDictPtr(o);
    if (dict != nullptr && *dict != nullptr) look_at_values(*dict);
  }

  Interpreter& in_;
  std::unordered_set<PyObject*> seen_;
};

// What the program said when it asked for a break here; empty: nothing.
std::string words_of_break(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  const auto text = [](PyObject* o) {
    const char* utf8 = o != nullptr && PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : nullptr;
    PyErr_Clear();
    return std::string(utf8 != nullptr ? utf8 : "");
  };
  if (f == of_module("torch._dynamo.decorators", "graph_break")) {
    for (size_t i = 0; i < keyword_count(kwnames); ++i)
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, static_cast<Py_ssize_t>(i)), "msg") == 0)
        return text(args[nargs + i]);
    return nargs > 0 ? text(args[0]) : "";
  }
  PyObject* dict = PyFunction_Check(f) ? reinterpret_cast<PyFunctionObject*>(f)->func_dict : nullptr;
  return dict != nullptr ? text(PyDict_GetItemString(dict, "_torchdynamo_disable_msg")) : "";
}

bool is_tensor_or_holds_some(PyObject* o) {
  return is_tensor(o) || ((PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o)) && holds_tensor(o));
}

}  // namespace

PyObject* Interpreter::call_marked(Mark mark, PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  if (mark == Mark::kDisallow) {
    const std::string words = words_of_break(f, args, nargs, kwnames);
    throw Declined("call of " + callable_name(f) + ", which is not to be part of a graph" +
                   (words.empty() ? "" : ": " + words));
  }
  if (PyFunction_Check(f)) recorder.function(f);
  if (mark == Mark::kConstant) return call_for_constant(f, args, nargs, kwnames);
  WholeArgument arguments(*this);
  for (size_t i = 0; i < nargs + keyword_count(kwnames); ++i) {
    consume(args[i]);
    arguments.look(args[i]);
  }
  if (!PyFunction_Check(f)) arguments.look(f);
  ++uninterpreted;
  Ref result = Ref::steal(call_plain(f, args, nargs, kwnames));
  --uninterpreted;
  stop_if_declined();
  return result.release();
}

// It runs beside the trace, on the real tensors of what it reaches. Its result, whatever it is, stands in what is
// compiled.
PyObject* Interpreter::call_for_constant(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  for (size_t i = 0; i < nargs + keyword_count(kwnames); ++i) {
    if (is_tensor_or_holds_some(args[i]))
      throw Declined("a function with a constant result is called with a tensor: " + callable_name(f));
    if (recorder.numbers.any()) recorder.numbers.read_deep(args[i]);
  }
  ++uninterpreted;
  Ref result;
  {
    const trace::Aside aside;
    result = Ref::steal(PyObject_Vectorcall(f, args, nargs, kwnames));
  }
  --uninterpreted;
  stop_if_declined();
  if (!result) {  // perhaps since it met a tensor that has no value yet
    PyErr_Clear();
    throw Declined("a function with a constant result raised an exception: " + callable_name(f));
  }
  if (!is_atom(result.get()) && !recorder.is_old(result.get())) recorder.constant(result.get());
  return result.release();
}

}  // namespace flashover::frame

#include <chrono>
#include <cstdlib>

#include "frame/frame.h"
#include "frame/interpret/interpreter.h"
#include "frame/interpret/opcode_parts.h"
#include "frame/recipe.h"
#include "frame/torch_state.h"

namespace flashover::frame {
namespace {

// A copy of the current context: what the program sets in it is gone when the trace ends.
class ContextCopy {
 public:
  ContextCopy() : context_(PyContext_CopyCurrent()) {
    if (context_ == nullptr || PyContext_Enter(context_) < 0) throw Declined("the context could not be copied");
  }
  ~ContextCopy() {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyContext_Exit(context_);
    Py_XDECREF(context_);
    PyErr_Restore(type, value, tb);
  }
  ContextCopy(const ContextCopy&) = delete;
  ContextCopy& operator=(const ContextCopy&) = delete;

 private:
  PyObject* context_;
};

// Where a traceback ends: the line that raised.
std::string raised_at(PyObject* tb) {
  if (tb == nullptr || !PyTraceBack_Check(tb)) return "";
  auto* t = reinterpret_cast<PyTracebackObject*>(tb);
  while (t->tb_next != nullptr) t = t->tb_next;
  Ref code = Ref::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(t->tb_frame)));
  const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
  return std::string(file != nullptr ? file : "?") + ":" +
         std::to_string(PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(code.get()), t->tb_lasti));
}

bool profiled(PyThreadState* tstate) {
#if PY_VERSION_HEX < 0x030C0000
  return tstate->cframe->use_tracing != 0;
#else
  return tstate->c_tracefunc != nullptr || tstate->c_profilefunc != nullptr;
#endif
}

// bound is in localsplus order: positional and keyword-only parameters, then *args, then **kwargs.
PyObject* call_bound(Interpreter& in, PyObject* callable, PyObject* const* bound) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(callable));
  const int positional = code->co_argcount, named = code->co_kwonlyargcount;
  std::vector<PyObject*> args(1);
  Ref names = Ref::steal(PyList_New(0));
  args.insert(args.end(), bound, bound + positional);
  int at = positional + named;
  if (code->co_flags & CO_VARARGS) {
    PyObject* rest = bound[at++];
    in.recorder.contents(rest);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i) args.push_back(PyTuple_GET_ITEM(rest, i));
  }
  const size_t count = args.size() - 1;
  for (int i = 0; i < named; ++i) {
    args.push_back(bound[positional + i]);
    PyList_Append(names.get(), PyTuple_GET_ITEM(code->co_localsplusnames, positional + i));
  }
  if (code->co_flags & CO_VARKEYWORDS) {
    PyObject* rest = bound[at++];
    in.recorder.contents(rest);
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(rest, &pos, &key, &value)) {
      args.push_back(value);
      PyList_Append(names.get(), key);
    }
  }
  Ref kwnames = PyList_GET_SIZE(names.get()) > 0 ? Ref::steal(PyList_AsTuple(names.get())) : Ref();
  return PyObject_Vectorcall(callable, args.data() + 1, count, kwnames.get());
}

}  // namespace

namespace {
// A collection in the middle of a trace would run other people's finalizers and weak reference callbacks as if the program
// had called them.
class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) {}
  ~NoCollection() {
    if (was_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;

 private:
  int was_;
};
}  // namespace

Capture capture(PyObject* callable, PyObject* const* bound, size_t count) {
  const auto start = std::chrono::steady_clock::now();
  Capture out;
  auto decline = [&](std::string reason, std::string where) {
    out.declined = true;
    out.reason = std::move(reason);
    out.where = std::move(where);
  };
  if (PyErr_Occurred() || !PyFunction_Check(callable)) {
    decline("not a Python function", "");
    return out;
  }
  if (Interpreter::current() != nullptr) {
    decline("a capture inside a capture", "");
    return out;
  }
  PyThreadState* tstate = PyThreadState_Get();
  if (profiled(tstate)) {
    decline("a tracer or profiler is active", "");
    return out;
  }
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(callable));
  if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) {
    decline("a generator or coroutine function", "");
    return out;
  }
  try {
    NoCollection no_collection;
    TorchState before;
    Ref result;  // outlives the session: what it holds of the trace is dead by then
    std::unique_ptr<trace::Session> session = trace::begin();
    TorchState state;  // as the session sets it up
    {
      Interpreter in(session.get());
      session->location = [&in] { return in.location(); };
      session->unknown_tensor = [&in](PyObject* tensor) {
        try {
          return in.recorder.add_tensor(tensor);
        } catch (const std::exception&) {
          return false;
        }
      };
      try {
        Compiling compiling;
        ContextCopy context;
        static const bool check_sources = std::getenv("FLASHOVER_CHECK_SOURCES") != nullptr;
        if (check_sources) in.remember_old_objects();
        in.recorder.add_root(callable);
        for (size_t i = 0; i < count; ++i)
          in.recorder.reach(SourceKind::kArgument, kNoSource, static_cast<int64_t>(i),
                            PyTuple_GET_ITEM(code->co_localsplusnames, static_cast<Py_ssize_t>(i)), bound[i]);
        {
          HookInstalled hook;
          result = Ref::steal(call_bound(in, callable, bound));
          if (!result) {
            if (!in.aborted()) {
              out.raised = true;
              PyObject *type, *value, *tb;
              PyErr_Fetch(&type, &value, &tb);
              PyErr_NormalizeException(&type, &value, &tb);
              Ref text = Ref::steal(value != nullptr ? PyObject_Repr(value) : nullptr);
              decline(std::string("the program raised ") + (text ? PyUnicode_AsUTF8(text.get()) : "an exception"), raised_at(tb));
              PyErr_Clear();
              Py_XDECREF(type);
              Py_XDECREF(value);
              Py_XDECREF(tb);
            } else {
              PyErr_Clear();
            }
          }
        }
        if (in.aborted()) {
          decline(in.reason(), in.where());
        } else if (session->declined()) {
          decline(session->decline_reason(), in.location());
        } else if (const char* changed = state.changed()) {
          decline(std::string("the program leaves torch's state changed: ") + changed, "");
        }
        if (!out.declined) {
          // The graph's inputs, in order; a constant of the trace stands among them without a source.
          out.input_sources = in.recorder.tensor_sources();
          for (SourceId id : out.input_sources)
            if (id != kNoSource) out.wanted.push_back(id);
          RecipeMaker maker(in, out);
          out.result = maker.make(result.get());
          maker.effects();
          out.graph = session->end(maker.outputs(), out.constants);
          out.input_sources.resize(out.graph.inputs.size(), kNoSource);
          for (size_t i = 0; i < out.graph.inputs.size(); ++i) {
            const bool constant = out.graph.inputs[i].kind == graph::InputKind::kConstant;
            if (constant != (out.input_sources[i] == kNoSource)) throw Declined("a tensor input without a source");
          }
          in.recorder.fact(FactKind::kGlobalState, kNoSource);
          in.recorder.fact(FactKind::kNotAliases, kNoSource);
        }
      } catch (const Declined& d) {
        decline(d.reason, d.where.empty() ? in.location() : d.where);
      }
      PyErr_Clear();
      in.journal.undo();
      out.observations = in.recorder.take();  // also of a decline: such calls need not be tried again
    }
    session.reset();
    before.restore();
    PyErr_Clear();
  } catch (const Declined& d) {
    decline(d.reason, d.where);
  } catch (const std::exception& e) {
    decline(std::string("internal error: ") + e.what(), "");
  }
  PyErr_Clear();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace flashover::frame

// Calls of torch as the program writes them (F.relu(x), x.add_(1), x[0] = y), beside the trace of the operators that
// they run: for backends that want a graph of those, as torch.compile hands it out, and leave gradients to autograd.
//
//   In        what the interpreter calls, reads of tensors and operates on them with; only the outermost of a nest
//   Out       a graph module of torch.fx, made by flashover/_torch_graph.py
//   Promises  it does what the program does to tensors, autograd's part included
//             what the trace took for granted of sizes that follow from data is checked (torch._check)
//   Declines  no graph module: operators ran outside of such calls, arguments that a graph cannot hold, hooks and
//             Functions of autograd, switches of torch's but the grad mode, sizes of data that no result shows
#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frame/internals.h"
#include "frame/torch_state.h"

namespace flashover::frame {

class Interpreter;

class TorchCalls {
 public:
  explicit TorchCalls(Interpreter& in);
  ~TorchCalls();
  TorchCalls(const TorchCalls&) = delete;

  void input(PyObject* tensor, size_t index, const std::string& path);
  void spoil() { spoilt_ = true; }  // something happened that no call says
  // Is a call of `f` one of torch's, with what it does inside its own affair?
  bool takes(PyObject* f, PyObject* const* args, size_t nargs);

  // Runs `run`, and takes note of it as f(*args, **kwargs).
  template <typename F>
  PyObject* around(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames, F run) {
    if (f == nullptr || depth_ > 0 || spoilt_) return run();
    Call call = begin(f, args, nargs, kwnames);
    Ref result;
    {
      struct Inside {
        int& depth;
        explicit Inside(int& d) : depth(++d) {}
        ~Inside() { --depth; }
      } const inside(depth_);
      result = Ref::steal(run());
    }
    if (result) end(call, result.get());
    return result.release();
  }
  // The same for an operator of Python's: module operator's function of that name.
  template <typename F>
  PyObject* around_operator(const char* name, PyObject* a, PyObject* b, PyObject* c, F run) {
    if (depth_ > 0 || spoilt_) return run();
    PyObject* const args[] = {a, b, c};
    return around(operator_named(name), args, c != nullptr ? 3 : b != nullptr ? 2 : 1, nullptr, run);
  }

  // A new reference: what _torch_graph.py makes of them; null without an error: they do not say all.
  Ref graph_of(const std::vector<PyObject*>& outputs);

 private:
  struct Call {
    Ref function, args, kwargs;
    bool grad = false;
    int64_t ops = 0;
  };
  Call begin(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
  void end(Call& call, PyObject* result);
  Ref snapshot(PyObject* o, bool numbers, int depth = 0);
  Ref number(PyObject* o);          // one that changes from call to call, as _torch_graph.py wants it
  Ref number_of_data(PyObject* o);  // of one that follows from data
  void note_data(PyObject* result, PyObject* found, PyObject* copies, int depth = 0);
  void note_number_of_data(int32_t step, PyObject* copies);
  void flush_checks();
  bool says_all() const;
  PyObject* operator_named(const char* name);  // borrowed
  bool asks_module(const char* function, PyObject* of = nullptr);

  Interpreter& in_;
  TorchState state_;
  bool spoilt_ = false;
  int depth_ = 0;
  int64_t ops_before_, covered_ = 0;
  bool grad_before_;
  Ref calls_, inputs_;  // lists
  // Of sizes that follow from data: what the trace took for granted since the last call, and which symbols results say.
  std::vector<sym::SizeGuard> checks_;
  std::unordered_set<sym::Expr> told_sizes_;
  std::unordered_set<PyObject*> told_numbers_;
  std::function<void(const sym::SizeGuard&, std::string)> assume_;
  Ref module_;                                  // _torch_graph.py, from the first such number on
  std::unordered_map<std::string, Ref> names_;  // of operators
  std::unordered_map<PyObject*, bool> in_graph_;
};

}  // namespace flashover::frame

// Operator calls on trace tensors become nodes of a Graph.
//
// A trace tensor is a TensorImpl with the Fake dispatch key plus its real device's keys, over a real *meta* StorageImpl
// that its views share, so that version counters, aliasing, autograd, autocast and composite kernels work as in eager;
// what reaches the backend is recorded here. While a Session is active on a thread, Fake is TLS-included so factories
// are caught.
//
//   In        at::Tensor calls made by whoever runs the user's code (the frame interpreter, a test)
//   Out       graph::Graph in form kTraced + the constants it lifted
//   Promises  sizes, strides, dtype, device, storage sharing and requires_grad as eager would give; real tensors are
//             never written
//   Declines  data-dependent reads (.item(), bool(t), nonzero ...), sparse / nested / quantized tensors: a Python
//             exception derived from BaseException (flashover._C.Decline) is thrown as python_error and `declined()`
//             stays set (sticky), since user code may swallow exceptions
// Rules for shapes come from ops::OpRow::infer, then ATen's C++ meta kernels, then torch's Python metas (counted in
// stats()).
//
// What a kTraced graph looks like, beyond graph.h:
//   - outs of a node are its tensor results, lists flattened; kNoValue where ATen left a result undefined
//   - an in-place node's out is a new value with the storage and geometry of the written argument; the tensor stands
//   for it
//     from there on (older values of that storage read the new content too: storage ids tell)
//   - in-place changes of metadata (t_, squeeze_, as_strided_, shrinking resize_, set_) appear as the view operator
//   - detach, lift_fresh and alias-free copies of a tensor object add no node: equal value ids
//   - numbers mixed with tensors are prim.full nodes of rank 0, type.wrapped_number tells weak ones
//   - native_batch_norm in training appears as _native_batch_norm_legit, whose schema tells what it writes
//   - dtype and device left open by a factory call are filled in
//
// This header is plain C++ for frame/: at::Tensor crosses as PyObject* only.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/joint.h"
#include "ops/version_steps.h"
#include "sym/environment.h"

typedef struct _object PyObject;

namespace flashover::trace {

struct Stats {
  int64_t ops = 0, own_rules = 0, cpp_meta = 0, python_meta = 0;
  std::vector<std::string> python_meta_ops;  // names, for the report
};

// What a 0-d tensor on the CPU holds, as a function of an input's value before the call: each step is computed in
// `dtype`.
struct HostValue {
  int32_t input = -1;  // of the graph
  DType dtype = DType::kF32;
  struct Step {
    char op;                   // '+', '-', '*', '/'; 'n' is minus
    double number = 0;         // the other operand, or
    ValueId value = kNoValue;  // a number that changes
  };
  std::vector<Step> steps;
  std::shared_ptr<PyObject> now;  // the input's value in this call
};

struct SymbolicSize {
  size_t dim = 0;
  sym::Promise promise;
  // The size that the trace takes it for; 0: the one it has. The trace is one of a call with that size then: whether it
  // serves this one its guards say.
  int64_t instead = 0;
};
constexpr int64_t kInsteadOfFew = 3;  // of 0 and 1

// A tensor of a class with __torch_dispatch__ among the results, a wrapper that requires grad: it leads into the
// backward by the plain tensors that it is made of.
struct WrappedResult {
  PyObject* wrapper = nullptr;  // borrowed
  // Its parts in order: which output each is, or -1: nothing that is differentiated (an object from before, whole
  // numbers), which a gradient of the result shares.
  std::vector<int32_t> outputs;
  PyObject* tangent = nullptr;  // what its gradient is taken for; of the session
};

// A gradient that is a wrapper, or the gradient of one: its parts leave the graph as gradients of inputs that nothing
// reads, which are made for each call so that autograd finds them.
struct WrappedGradient {
  PyObject* of = nullptr;        // the tensor whose gradient it is, borrowed
  PyObject* gradient = nullptr;  // of the session
  std::vector<int32_t> inputs;   // by part: such an input; -1: the part is an object of before the call
};

// How wrappers are taken apart and made of other parts, in Python: new references, null with an error set. And how their
// classes are called.
struct WrapperClasses {
  std::function<PyObject*(PyObject* wrapper)> parts;                  // a tuple of plain tensors
  std::function<PyObject*(PyObject* wrapper, PyObject* parts)> like;  // one of these parts that requires no grad
  // Python code that is called meanwhile is the program's, also where a library's kernel (a custom operator's) calls.
  std::function<void(const std::function<void()>& call)> as_program;
};

class Session {
 public:
  virtual ~Session() = default;  // swaps every real tensor back; safe in any state

  // The program meets a real tensor (argument, parameter, buffer, global): its TensorImpl is swapped *under the same
  // PyObject* for a trace impl, so identity, isinstance and containers keep working; end() or the destructor swaps
  // back. Tensors that share storage share a meta storage. Same object twice: same input. Returns the input's index.
  // symbolic: dimensions whose sizes become symbols (sizes()), those of 0 and 1 left out, and what was promised of them.
  // Strides that are what a dense tensor of these sizes has are expressions over them.
  // Throws Declined for tensors that cannot be traced (sparse, subclass with __torch_dispatch__, mkldnn, quantized
  // ...).
  virtual int32_t add_input(PyObject* tensor, graph::InputKind kind, const std::string& name,
                            const std::vector<SymbolicSize>& symbolic) = 0;
  // The program makes a tensor of a class with __torch_dispatch__ (a wrapper around others). It stays what it is:
  // operators on it call the class, whose Python code is part of the program.
  virtual void add_made_subclass(PyObject* made) = 0;
  // The program meets a wrapper from before the call: another TensorImpl stands for its own meanwhile, so that what
  // autograd notes in it and how often it was written stay of the trace. What it is made of are inputs of their own.
  virtual void add_wrapper(PyObject* wrapper) = 0;
  // Once the trace has ended: those that were written, and by how much that moved their version counters. Borrowed.
  virtual const std::vector<std::pair<PyObject*, uint32_t>>& written_wrappers() const = 0;
  // Whether sizes may follow from data (nonzero, masks, numbers in tensors): symbols without a number. False: whoever
  // needs data declines.
  bool data_sizes = false;
  // Whether operators of ours may stand for what others take apart: the graph becomes a plan.
  bool own_operators = false;
  // The number in a tensor of one whole number, as a size; nullopt: of another tensor, or known as it is.
  virtual std::optional<sym::Expr> size_of_data(PyObject* tensor) = 0;
  // What a tensor holds now, where the trace does not know it: a copy that nothing writes, without dimensions where it
  // is one number (a new reference). Null: of another tensor.
  virtual PyObject* copy_of_data(PyObject* tensor) = 0;
  // Such a copy of one number, floating or whole, as a number in calls of torch (a new reference; `number` shows its
  // type). Null: torch has no such number.
  virtual PyObject* symbol_of_data(PyObject* copy, PyObject* number, ValueId& value) = 0;
  // A size as a tensor of one number: a new reference.
  virtual PyObject* tensor_of_size(sym::Expr e) = 0;
  // What was asked of the sizes that are symbols.
  virtual sym::Environment& sizes() = 0;
  // A Python int that is a symbol: an input of so many elements, which nothing reads.
  virtual sym::Expr add_size(int64_t now, const std::string& name, int32_t& input) = 0;
  virtual std::pair<int32_t, int32_t> source_of_size(sym::Expr symbol) const = 0;  // input, dimension
  // The torch.SymInt for such a size (a new reference; an int where it is known), and back; nullopt: another object.
  virtual PyObject* size_symbol(sym::Expr e) = 0;
  virtual std::optional<sym::Expr> size_of_symbol(PyObject* symbol) const = 0;
  virtual bool is_input(PyObject* tensor) const = 0;

  // A part of an input, as an input of its own: where it starts may change from call to call.
  struct Narrow {
    int64_t dim = 0, start = 0, length = 0;
  };
  // New reference; null: not of such a tensor. Nothing may write their memory,
  // and no output lie in it.
  virtual PyObject* add_narrowed_input(PyObject* tensor, const std::vector<Narrow>& narrows, const std::string& name,
                                       int32_t& input) = 0;

  // The program assigns .grad of this input. False: it may not.
  virtual bool write_grad(PyObject* tensor) = 0;
  // The program is about to assign .data of this input: from then on it is in the memory of `value`. False: it may not.
  virtual bool write_data(PyObject* tensor, PyObject* value) = 0;

  // The value that a trace tensor stands for (fresh result or swapped input); kNoValue if it is a real tensor.
  virtual ValueId value_of(PyObject* tensor) const = 0;
  virtual bool is_trace_tensor(PyObject* object) const = 0;  // false for anything that is not a tensor

  // Numbers (float, int) that differ from call to call become inputs of the graph: 0-d tensors of f64 or i64 that
  // promote as Python's numbers do. Returns what is to stand for the number in calls of torch (a new reference).
  virtual PyObject* add_number(PyObject* number, const std::string& name, int32_t& input) = 0;
  // Torch needs the value of such a number: true when the caller has seen to it that it is always the one of this call.
  std::function<bool(ValueId number)> number_read;
  // A tensor is asked for its item by torch itself: what stands for it (a new reference), or null.
  std::function<PyObject*(PyObject* tensor)> item_symbol;
  // The program asks for what follows from a buffer of one element on the CPU: true when the caller has seen to it that
  // it always holds what it holds now.
  std::function<bool(int32_t input)> element_read;
  virtual ValueId input_value(int32_t input) const = 0;
  // What an input of one element on the CPU holds (a new reference); null for dtypes that no number is read of.
  virtual PyObject* element(int32_t input, DType& dtype) const = 0;
  virtual std::optional<HostValue> host_value(PyObject* tensor) const = 0;

  // Called at record time for the user's "file:line"; may be empty.
  std::function<graph::Location()> location;

  // A real tensor reached an operator without add_input and is not a Python-data constant. Return true after having
  // called add_input(tensor), false to decline.
  std::function<bool(PyObject* tensor)> unknown_tensor;

  // What runs from here on is in a checkpoint whose results are kept or made again as this policy says (torch's
  // selective checkpointing; asked for each operator that is recorded). Null ends that.
  virtual void select(PyObject* policy) = 0;

  virtual bool declined() const = 0;
  virtual std::string decline_reason() const = 0;
  virtual void decline(const std::string& reason) = 0;  // sets the sticky flag and the Python error

  // The backward of these outputs, if one of them requires grad: tangent inputs join the graph, the
  // autograd engine runs over trace tensors (on this thread; Python hooks and Functions are called), gradients of every
  // input that requires grad become outputs behind the given ones when the trace ends. Throws Declined.
  // `wrapped`: results that are wrappers; their tangents are set.
  virtual graph::Joint add_backward(const std::vector<PyObject*>& outputs, std::vector<WrappedResult>& wrapped) = 0;
  virtual const std::vector<WrappedGradient>& wrapped_gradients() const = 0;
  WrapperClasses wrapper_classes;

  // Ends the trace: outputs become Graph::outputs (in this order), real impls are back in place, and trace tensors that
  // survive are dead (any use raises). Constants: real tensors, new references, in order of the kConstant inputs.
  virtual graph::Graph end(const std::vector<PyObject*>& outputs, std::vector<PyObject*>& constants) = 0;
  // Once it has ended. By how much the program's forward moved each input's version counter.
  virtual const VersionSteps& version_steps() const = 0;
  // Outputs in the memory of an input or an earlier output, whose version counters are not that one's.
  virtual const std::vector<graph::OwnCounter>& own_counters() const = 0;
  virtual const Stats& stats() const = 0;
};

// Activates tracing on this thread (one at a time per thread; nesting throws Declined). GIL held.
std::unique_ptr<Session> begin();
Session* current();  // of this thread; null outside a trace

// The exception class (derived from BaseException) that a decline raises; borrowed.
PyObject* decline_class();
// True while one of torch's own functions runs on behalf of the trace (Python shape functions): not the user's program.
bool internal_call();

}  // namespace flashover::trace

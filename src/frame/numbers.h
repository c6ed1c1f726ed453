// Python numbers (float, int) that differ from call to call, without a compilation for each value.
//
// Where a number read through a source is known to change (it did once: CaptureRequest::varying_numbers), is a size
// that does (CaptureRequest::varying_sizes), or is the .item() of a 0-d tensor whose value follows from an input, the
// trace hands the program a number object of its own, known by address. What Python computes with such objects is
// written down as steps, which run again before each call of the compiled code, by CPython's own arithmetic; what
// reaches a tensor operation becomes an input of the graph. Comparisons become checks, as guards are: a call where one
// goes the other way is another call. Whoever looks at such a number in any other way gets its value, and that value is
// guarded. So it is with strings that show such numbers ("step 3"), as long as they are only put together and handed
// on.
//
//   Promises  a step that raises, gives another type or a failing check is a miss, before anything of the call ran
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frame/internals.h"
#include "guards/source.h"
#include "ops/types.h"
#include "sym/environment.h"
#include "sym/sym.h"
#include "sym/whole.h"

namespace flashover::trace {
class Session;
}

namespace flashover::frame {

struct NumberStep {
  // kOfData: follows from data, so that no call knows it before it runs: None.
  enum class Kind : uint8_t { kSource, kItem, kSize, kConstant, kBinary, kUnary, kCall, kRound, kFormat, kOfData };
  Kind kind = Kind::kConstant;
  int32_t a = -1,
          b = -1;  // earlier steps; kSource, kItem, kSize: index in Capture::required (a source until the trace ends)
  int32_t op = 0;  // kBinary: the argument of BINARY_OP; kUnary: 0 is minus, 1 plus, 2 ~;
                   // kFormat: as FORMAT_VALUE's; kSize: the part of geometry
  DType dtype = DType::kF64;         // kItem: of the tensor; kRound: kF32
  std::shared_ptr<PyObject> object;  // kConstant: the number; kCall: the function; kFormat: how, or null
  PyTypeObject* type = nullptr;      // of the result: float, int or str
};
struct NumberCheck {
  int32_t a = -1, b = -1;
  int op = 0;  // Py_LT ...
  bool expected = true;
};
struct NumberProgram {
  std::vector<NumberStep> steps;
  std::vector<NumberCheck> checks;
  std::vector<int32_t> inputs;  // steps whose values are inputs of the graph
  std::vector<int32_t> sizes;   // ints that are symbols: the graph has an input of so many elements
  double limit = 0;             // finite inputs are not larger (the tensors' dtypes hold them)
  bool empty() const { return steps.empty(); }
};

PyObject* power(PyObject* a, PyObject* b);  // a ** b

// Number in a 0-d CPU tensor of that dtype. New reference; null: it is not such a tensor.
using ReadItem = PyObject* (*)(PyObject* tensor, DType dtype);
// values: one a step, new references. False, without an error: a miss.
bool evaluate(const NumberProgram& program, PyObject* const* objects, ReadItem read, std::vector<PyObject*>& values);
// values: of its operands. New reference; null: with an error, or another type than the step has.
PyObject* evaluate_step(const NumberStep& step, const std::vector<PyObject*>& values);

class SourceTracker;

// Of one trace.
class Numbers {
 public:
  Numbers(SourceTracker& recorder, trace::Session* session) : recorder_(recorder), session_(session) {}
  Numbers(const Numbers&) = delete;

  bool any() const { return !known_.empty(); }
  bool is(PyObject* o) const { return !known_.empty() && known_.count(o) != 0; }
  int32_t step_of(PyObject* o) const {
    auto it = known_.find(o);
    return it == known_.end() ? -1 : it->second;
  }
  // The object that stands for what was read; borrowed.
  PyObject* from_source(guards::SourceId source, PyObject* value);
  // A size that is a symbol, or computed of such: the numbers in the place of SymInts (torch's own functions give those,
  // one by one or in tuples). New reference; steals `o`, which it is where there is none in it.
  PyObject* of_sizes(PyObject* o);
  bool all_sizes(PyObject* o, int depth = 0) const;  // the numbers in it are sizes
  PyObject* item(PyObject* tensor);                  // null: not a number that follows from inputs
  // The number that it holds when the program runs: a size where it is whole. Null: none that may be open.
  PyObject* of_data(PyObject* tensor);
  PyObject* list_of_data(PyObject* tensor);  // the same of its tolist()
  bool is_of_data(PyObject* o) const {       // such a size, or computed of one
    const int32_t step = step_of(o);
    return step >= 0 && program.steps[static_cast<size_t>(step)].kind == NumberStep::Kind::kOfData;
  }
  bool any_of_data() const { return any_of_data_; }
  // Where a number that follows from data comes from: a tensor, or an element of it.
  struct InTensor {
    Ref tensor;
    int64_t at = -1;  // of the tensor with all dimensions in one; -1: it is one number
  };
  const InTensor* in_tensor(int32_t step) const;
  const NumberStep* computed_of_data(int32_t step) const;            // null: it is not computed of others
  Ref size_in_tensor(int32_t step);                                  // of one that is a size; null: it is none
  std::optional<sym::Expr> size_handed_out(PyObject* tensor) const;  // that size_in_tensor() made
  PyObject* object_of(int32_t step) const { return objects_[static_cast<size_t>(step)].get(); }
  bool may_raise_of_data(int32_t step) const { return may_raise_.contains(step); }
  const std::vector<int32_t>& must_be_computed() const { return must_be_computed_; }
  bool was_read(PyObject* o) const {  // its value is guarded
    const int32_t step = step_of(o);
    return step >= 0 && read_[static_cast<size_t>(step)] != 0;
  }
  // An input of one element on the CPU holds this number, also in later calls: they check it.
  bool holds_always(int32_t input, PyObject* number, DType dtype);
  // Results are new references; null: not taken (the operands are to be read()).
  PyObject* binary(PyObject* a, PyObject* b, int op);
  PyObject* unary(PyObject* a, unaryfunc f);
  PyObject* format(PyObject* a, int conversion, PyObject* spec);  // as FORMAT_VALUE does
  PyObject* format_items(PyObject* a);                            // a tuple or list, as its repr() does
  PyObject* join(PyObject* const* parts, int count);              // strings, made of numbers or not
  PyObject* call(PyObject* function, PyObject* const* args, size_t nargs);
  // Ints that change, where sizes are taken or compared: symbols from now on, if they may be. Containers are looked into.
  void as_sizes(PyObject* o, int depth = 0);
  // a - b, where that is the same whatever they are: n + 3 - n.
  std::optional<int64_t> constant_difference(PyObject* a, PyObject* b) const;
  int compare(PyObject* a, PyObject* b, int op);  // -1: not taken
  int truth(PyObject* a);                         // -1: not taken

  // Their values are seen: guarded. Throws Declined where the value follows from data.
  void read(PyObject* o);
  void read_deep(PyObject* o, int depth = 0);
  bool holds(PyObject* o, int depth = 0) const;
  // What stands for it in a call of torch (a new reference): the number's symbol; containers of them are copied.
  PyObject* symbols(PyObject* o, int depth = 0);
  bool read_value(ValueId value);  // Session::number_read

  bool takes_the_usual_way = false;  // where the program asks for sizes that follow from data, with a check
  bool answered_usually = false;     // it did
  int expected = -1;                 // the truth of the next comparison, where the program goes on for one only
  bool in_graph = false;             // CaptureRequest::whole
  bool asserts_divisors = false;     // the graph looks at divisors that follow from data, CPython does not
  bool elements = false;             // what a buffer of one element holds may be taken for always so
  bool ints_are_sizes = false;       // those that change may be symbols
  bool larger_than_few = false;      // those that are -1, 0 or 1 in this call are traced as larger ones
  bool larger_than_call = false;     // one was
  bool larger_was_read = false;      // and the program saw it
  std::vector<std::pair<int32_t, int32_t>> inputs, size_inputs;  // graph input, step
  NumberProgram program;

 private:
  // A float that is a function of one size.
  struct FloatOfSize {
    sym::Expr size;
    sym::WholeFunction value;
  };
  std::optional<FloatOfSize> float_of(PyObject* o) const;  // also of a size itself
  std::optional<FloatOfSize> float_of(PyObject* a, PyObject* b, int op) const;
  std::optional<sym::Expr> whole(PyObject* function, PyObject* number) const;  // what int(), math.floor ... make of it
  PyObject* fold(PyObject* function, PyObject* items);                         // sum, math.prod, numel, max and min
  std::optional<sym::Expr> computed(sym::Expr a, sym::Expr b, int op) const;
  // Sums of numbers: how often each step counts that is none. False: too large.
  bool add_terms(PyObject* number, int64_t times, std::unordered_map<int32_t, int64_t>& terms, int64_t& rest) const;
  std::optional<sym::Expr> size_of(int32_t step);
  sym::Expr symbol_of(int32_t step, int64_t now, const std::string& name);
  sym::Expr negative_size(PyObject* number, const std::string& name);
  void mixed_with_sizes(PyObject* a, PyObject* b);             // where one of two operands is a size, the other is one
  PyObject* of_size(sym::Expr e);                              // borrowed
  std::optional<sym::Expr> expr_of(PyObject* o) const;         // of an int: a size, or a plain one
  void is_size(PyObject* number, std::optional<sym::Expr> e);  // what was computed last
  int32_t step_or_constant(PyObject* o);
  PyObject* add(NumberStep step, PyObject* value);  // steals value; borrowed result
  void read_step(int32_t step);
  bool follows_data(const NumberStep& s) const;
  bool may_raise(const NumberStep& s) const;
  bool is_never_zero(int32_t step) const;
  PyObject* element_of_data(PyObject* copy, int64_t at, PyObject* select_from);
  Ref held_by_tensor(int32_t step) const;
  Ref tensor_of_data(int32_t step);  // f64; null: no tensor is computed for it
  PyObject* symbol_of_data(PyObject* o);
  static bool usual_truth(sym::Relation r, sym::Expr a, sym::Expr b);
  [[noreturn]] void refuse_question(sym::Expr a, sym::Expr b, int op);
  Ref rounded(PyObject* o);  // to f32

  SourceTracker& recorder_;
  trace::Session* session_;
  std::unordered_map<PyObject*, int32_t> known_;
  std::vector<Ref> objects_, symbols_;  // by step
  std::vector<Ref> sources_;            // kSource: the object that was read; null: traced as a larger one
  std::vector<char> read_;
  std::unordered_map<int32_t, sym::Expr> sizes_;  // by step
  std::unordered_map<sym::Expr, int32_t> step_of_size_;
  std::unordered_map<int32_t, FloatOfSize> floats_;  // by step
  std::unordered_map<ValueId, int32_t> by_value_;
  bool any_of_data_ = false;
  std::unordered_map<int32_t, InTensor> in_tensors_;                           // by step, as what follows
  std::unordered_map<int32_t, NumberStep> computed_;                           // of data, what the steps would be
  std::unordered_set<int32_t> may_raise_;                                      // for some data
  std::unordered_map<PyObject*, std::pair<Ref, sym::Expr>> sizes_handed_out_;  // by tensor
  void assert_divisor(int32_t step, const Ref& divisor);
  std::vector<int32_t> must_be_computed_;  // though nothing may show them: they may raise
  std::unordered_set<int32_t> asserted_;   // quotients whose divisors the graph asserts not to be zero
};

// A new object with the same value, also where CPython would share one.
PyObject* own_number(PyObject* number);

}  // namespace flashover::frame

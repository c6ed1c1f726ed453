// From the objects that a finished trace left behind to steps that make them again.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frame/frame.h"
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

void quiet_reduce(bool on);  // no warnings about copied iterators meanwhile

class Reconstructor {
 public:
  Reconstructor(Interpreter& in, Capture& capture) : in_(in), capture_(capture) {}

  int32_t make(PyObject* o);              // the register that holds `o`; throws Declined for what cannot be made again
  void input_hooks();                     // those that are registered still, in order; before all others
  void numbers_of_data();                 // those that may raise, and nothing shows
  void enter_ranges();                    // record_function objects that the trace has not left
  void effects();                         // what the journal says was written, as it ended
  void frames(const Snapshot& snapshot);  // Capture::frames
  bool may_raise() const { return may_raise_; }              // for what tensors hold
  bool made_parameters() const { return made_parameters_; }  // of which the graph knows the memory alone
  bool made_leaf() const { return made_leaf_; }              // one of them requires grad: none of ours reaches it
  const std::vector<PyObject*>& outputs() const { return outputs_; }  // borrowed, in graph output order
  // Results of classes with __torch_dispatch__ that require grad (wrappers.cpp). Once the backward is there, so is how
  // they lead into it, and how gradients are made of their parts.
  std::vector<trace::WrappedResult>& wrapped() { return wrapped_; }
  void lead_wrapped(const std::vector<trace::WrappedGradient>& gradients);
  // Index in Capture::required.
  int32_t require(SourceId id);

 private:
  int32_t step(ReconstructionStep::Kind kind, PyObject* object = nullptr, std::vector<int32_t> items = {},
               int32_t index = -1);
  // A step that makes an instance of a class.
  int32_t instance(ReconstructionStep::Kind kind, PyObject* type, std::vector<int32_t> items = {});
  int32_t make_object(PyObject* o);
  int32_t make_number_of_data(int32_t step);  // of Interpreter::recorder's numbers
  int32_t make_hook(const InputHook& hook);   // its handle
  std::vector<int32_t> elements(PyObject* sequence);
  int32_t make_container(PyObject* o);
  int32_t make_array_method(PyObject* o);
  int32_t make_parameter(PyObject* o);
  void fill_dict_of(PyObject* tensor, int32_t made);
  int32_t make_of_parts(PyObject* o, PyObject* parts);  // a function and its arguments
  int32_t make_wrapper(PyObject* o);                    // a tensor of a class with __torch_dispatch__
  void make_parts(PyObject* wrapper);                   // of one that requires grad
  Ref call_wrappers(const char* function, PyObject* args);
  int32_t make_traceback(PyObject* o);
  int32_t make_function(PyObject* o);
  int32_t make_instance(PyObject* o);
  int32_t make_iterator(PyObject* o);   // -1: not a builtin iterator
  int32_t make_generator(PyObject* o);  // one that stands at a yield
  int32_t make_exception(PyObject* o, PyTypeObject* base);
  void fill_attributes(PyObject* o, int32_t made, PyTypeObject* base);
  void tell(const Warning& w);  // that a call is to be made behind the graph
  void warn(const Warning& w);
  void dict_effects(PyObject* dict, int32_t target);
  void fill_cells();
  std::vector<int32_t> pairs(PyObject* dict);

  Interpreter& in_;
  Capture& capture_;
  std::unordered_map<PyObject*, int32_t> registers_;
  std::vector<PyObject*> outputs_;
  std::vector<trace::WrappedResult> wrapped_;
  std::unordered_map<PyObject*, int32_t> led_parts_;  // registers of outputs that lead into the backward
  std::unordered_map<SourceId, int32_t> required_;
  std::unordered_map<int32_t, int32_t> numbers_of_data_;  // by step: registers
  std::unordered_map<PyObject*, int32_t> lists_of_data_;  // by tensor: registers
  bool may_raise_ = false, made_parameters_ = false, made_leaf_ = false;
  std::vector<std::pair<int32_t, PyObject*>> cells_;  // made empty, filled when their contents can refer to them
  struct ListIterator {
    int32_t made, state;   // registers
    const PyObject* list;  // compared, never followed
  };
  std::vector<ListIterator> list_iterators_;
  std::vector<Ref> kept_;
  int depth_ = 0;
};

}  // namespace flashover::frame

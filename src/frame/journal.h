// Undo and redo of writes to objects that outlive the call.
//
// Before the first write the object's old contents are kept; undo() puts them back in reverse order, by clear and
// refill, so identity, order and live iterators survive. What the program left behind is read from the objects' final
// state when the reconstruction is made (reconstruction.cpp), so a fresh list stored into an old dict and then appended
// to is replayed as it ended.
#pragma once
#include <cstdint>
#include <vector>

#include "frame/observe.h"

namespace flashover::frame {

class Journal {
 public:
  explicit Journal(SourceTracker& recorder) : recorder_(recorder) {
    recorder.settle = [this](PyObject* dict) { whole(dict); };
  }
  ~Journal() { undo(); }

  struct Entry {
    enum class Kind : uint8_t {
      kDictItem,
      kDictAll,
      kList,
      kAppend,
      kSet,
      kDeque,
      kCell,
      kSlot,
      kClassAttribute,
      kTensorAttribute
    };
    Kind kind;
    Ref target;  // the old object
    Ref key;     // kDictItem: key; kSlot, kClassAttribute: attribute name
    Ref before;  // kDictItem, kCell, kSlot, kClassAttribute: the old value or null; else a copy of the old contents
    Ref order;   // kDictItem: for the first write to a dict, the whole dict as it was (for order when keys come or go)
    Py_ssize_t length = 0;   // kAppend: of the list before
    std::vector<Ref> added;  // kAppend: by the trace; other threads may add to the list meanwhile
    bool removed = false;    // kDictItem: taken out at some time; if it is there now, it went to the end
  };

  // Call before the write; the target must be old. Throws Declined for kinds of objects that cannot be restored.
  void dict_item(PyObject* dict, PyObject* key, bool removes = false);
  void whole(PyObject* container);              // any native mutation: dict, list, set, deque ...
  void append(PyObject* list, PyObject* item);  // (null: some) to be added at its end: says nothing of those it has
  void cell(PyObject* cell);
  void slot(PyObject* object, PyObject* name, PyObject* before);
  void class_attribute(PyTypeObject* type, PyObject* name);
  // tensor.grad and .data, of the trace tensor that stands in for an input: nothing to undo, the real one is not touched.
  void tensor_attribute(PyObject* tensor, PyObject* name);

  bool empty() const { return entries_.empty(); }
  const std::vector<Entry>& entries() const { return entries_; }
  void undo() noexcept;
  void keep() { entries_.clear(); }  // the writes stay (used when a call is only interpreted)

 private:
  SourceTracker& recorder_;
  void make_room();
  std::vector<Entry> entries_;
};

}  // namespace flashover::frame

// Tensor metadata read straight off the TensorImpl: no Python, no dispatcher, a few nanoseconds each.
#pragma once
#include <Python.h>

#include <array>
#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace flashover::guards {

struct TensorSpec {
  PyTypeObject* type = nullptr;  // Tensor, Parameter or a subclass; kept alive by whoever holds the spec's facts
  uint64_t keys = 0;             // dispatch key set: device, layout, autograd, conj, inference tensor ...
  int8_t dtype = 0, device = 0, device_index = -1;
  bool requires_grad = false, wrapped_number = false;
  bool ragged = false;  // jagged: sizes and strides that are no plain numbers are kAny (what it is made of tells them)
  int32_t rank = 0;
  static constexpr int64_t kAny = -1;
  std::vector<int64_t> geometry;  // sizes, then strides; kAny: a symbol, which SizeProgram (sizes.h) compares
  bool operator==(const TensorSpec&) const = default;
};

// torch.from_numpy of an array of numpy that can be written. Borrowed, until let_go_of_arrays() on this thread; null,
// without an error: not of this object.
PyObject* tensor_of_array(PyObject* array);
bool is_tensor(PyObject* object);
TensorSpec read_tensor(
    PyObject*
        tensor);  // throws Declined for what has no plain geometry (sparse, nested but for jagged, symbolic sizes)
bool matches(PyObject* object, const TensorSpec& spec);
// Of a tensor that matched, in elements.
int32_t rank_of(PyObject* tensor);
int64_t size_of(PyObject* tensor, int32_t dim);
int64_t stride_of(PyObject* tensor, int32_t dim);
int64_t geometry_of(PyObject* tensor, size_t part);  // ops/geometry.h

// What a tensor that matched looked like in memory: while it looks the same it still matches, and comparing costs a
// fraction of matches(). A tensor that looks different may match all the same (its storage offset is in there).
struct TensorLook {                      // mostly shared by tensors of one kind: a model's parameters have few
  static constexpr size_t kBytes = 120;  // sizes, strides, offset, dtype, device, flags, dispatch keys
  alignas(16) std::array<unsigned char, kBytes> bytes{};
  PyTypeObject* type = nullptr;
  bool requires_grad = false;
  bool leaf = false;  // and because it was told to: then nothing else of its autograd state matters
  auto operator<=>(const TensorLook&) const = default;
};
using TensorLooks = std::set<TensorLook>;
// Two to a cache line: what a pass over a model's parameters costs is the lines it reads.
struct TensorCompare {
  PyObject* object = nullptr;
  void* impl = nullptr;  // null: this one has no look, and is compared in full
  void* autograd = nullptr;
  const TensorLook* look = nullptr;
};
void take_look(PyObject* tensor, TensorLooks& all, TensorCompare& compare);
// How many of the first look as they did. Quick for neighbours of one look.
size_t look_the_same(const TensorCompare* compares, size_t count);
// The parts of its geometry that are others, if nothing else differs; kAny equals all. Strides that follow from the
// sizes are none of them.
std::vector<size_t> other_parts(const TensorSpec& was, PyObject* tensor);
std::string str(const TensorSpec& spec);
std::string difference(const TensorSpec& was, const TensorSpec& now);  // "size(0) is 4, not 3"

// Where a tensor's memory lies, to tell which inputs alias.
struct Memory {
  const void* storage = nullptr;  // the StorageImpl
  const char* begin = nullptr;    // bytes of the whole storage
  const char* end = nullptr;
  int64_t offset = 0;  // storage offset in elements
};
Memory memory_of(PyObject* tensor);

}  // namespace flashover::guards

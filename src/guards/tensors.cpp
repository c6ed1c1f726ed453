// Reads and compares sizes, strides, dtype, keys and flags in the TensorImpl's own memory.
#include "guards/tensors.h"

#include "guards/arrays.h"

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstring>
#include <utility>

#include "base/check.h"
#include "ops/geometry.h"

namespace flashover::guards {
namespace {

// torch's Python tensor begins with the object header and the at::Tensor, which is one pointer (checked in a test
// through torch's own header, which is too slow to include here).
struct PythonTensor {
  PyObject_HEAD c10::TensorImpl* impl;
};
c10::TensorImpl* impl_of(PyObject* tensor) { return reinterpret_cast<PythonTensor*>(tensor)->impl; }

PyTypeObject* tensor_base() {
  static PyTypeObject* base = [] {
    PyObject* module = PyImport_ImportModule("torch._C");
    PyObject* type = module ? PyObject_GetAttrString(module, "TensorBase") : nullptr;
    Py_XDECREF(module);
    FLASHOVER_CHECK(type) << "torch._C.TensorBase not found";
    return reinterpret_cast<PyTypeObject*>(type);
  }();
  return base;
}

}  // namespace

static thread_local std::vector<PyObject*> tensors_of_arrays;  // owned

PyObject* tensor_of_array(PyObject* array) {
  if (std::strcmp(Py_TYPE(array)->tp_name, "numpy.ndarray") != 0) return nullptr;
  // numpy's ABI.
  struct Layout {
    PyObject_HEAD char* data;
    int dimensions;
    Py_ssize_t *sizes, *strides;
    PyObject *base, *descr;
    int flags;
  };
  constexpr int kWriteable = 0x400;
  if (!(reinterpret_cast<Layout*>(array)->flags & kWriteable)) return nullptr;
  static PyObject* const convert = [] {
    PyObject* module = PyImport_ImportModule("torch._C");
    PyObject* functions = module ? PyObject_GetAttrString(module, "_VariableFunctions") : nullptr;
    PyObject* f = functions ? PyObject_GetAttrString(functions, "from_numpy") : nullptr;
    Py_XDECREF(functions);
    Py_XDECREF(module);
    return f;
  }();
  PyObject* tensor = convert ? PyObject_CallOneArg(convert, array) : nullptr;
  PyErr_Clear();
  if (tensor) tensors_of_arrays.push_back(tensor);
  return tensor;
}

void let_go_of_arrays() {
  if (tensors_of_arrays.empty()) [[likely]]
    return;
  for (PyObject* tensor : std::exchange(tensors_of_arrays, {})) Py_DECREF(tensor);
}

bool is_tensor(PyObject* object) { return PyType_IsSubtype(Py_TYPE(object), tensor_base()); }

namespace {

// Of a class in Python: a size is a symbol that stands for the lengths.
bool is_jagged(const c10::TensorImpl& t) {
  return t.is_nested() && t.has_symbolic_sizes_strides() && t.key_set().has(c10::DispatchKey::Python);
}

// Sizes, then strides, without a question to its class.
std::vector<int64_t> jagged_geometry(const c10::TensorImpl& t) {
  std::vector<int64_t> out;
  for (const c10::SymIntArrayRef list : {t.sym_sizes_default(), t.sym_strides_default()})
    for (const c10::SymInt& n : list) out.push_back(n.is_heap_allocated() ? TensorSpec::kAny : n.as_int_unchecked());
  return out;
}

void read_kind(const c10::TensorImpl& t, TensorSpec& s) {
  s.keys = t.key_set().raw_repr();
  s.dtype = static_cast<int8_t>(t.dtype().toScalarType());
  s.device = static_cast<int8_t>(t.device().type());
  s.device_index = t.device().index();
  s.requires_grad = t.requires_grad();
  s.wrapped_number = t.is_wrapped_number();
}

// Other numbers are kAny in both, or one of them is no number any more.
bool matches_jagged(const c10::TensorImpl& t, const TensorSpec& s) {
  if (!is_jagged(t) || t.sym_sizes_default().size() != static_cast<size_t>(s.rank)) return false;
  TensorSpec now = s;
  read_kind(t, now);
  now.geometry = jagged_geometry(t);
  return now == s;
}

}  // namespace

TensorSpec read_tensor(PyObject* tensor) {
  FLASHOVER_CHECK(is_tensor(tensor)) << "a tensor fact on a " << Py_TYPE(tensor)->tp_name;
  c10::TensorImpl* t = impl_of(tensor);
  TensorSpec s;
  if (t && is_jagged(*t)) {
    s.type = Py_TYPE(tensor);
    s.ragged = true;
    read_kind(*t, s);
    s.rank = static_cast<int32_t>(t->sym_sizes_default().size());
    s.geometry = jagged_geometry(*t);
    return s;
  }
  if (!t || t->layout() != c10::kStrided || t->is_nested()) throw Declined("tensor guard: not a strided tensor");
  if (t->has_symbolic_sizes_strides()) throw Declined("tensor guard: symbolic sizes");
  s.type = Py_TYPE(tensor);
  read_kind(*t, s);
  s.rank = static_cast<int32_t>(t->dim());
  s.geometry.assign(t->sizes().begin(), t->sizes().end());
  s.geometry.insert(s.geometry.end(), t->strides().begin(), t->strides().end());
  return s;
}

bool matches(PyObject* object, const TensorSpec& s) {
  // Only types that were tensors when the spec was made equal s.type, so the cast below is right.
  if (Py_TYPE(object) != s.type) return false;
  c10::TensorImpl* t = impl_of(object);
  // Equal keys mean equal layout, so sizes() below are plain unless they are symbolic.
  if (!t || t->key_set().raw_repr() != s.keys) return false;
  if (t->has_symbolic_sizes_strides() || s.ragged) return s.ragged && matches_jagged(*t, s);
  if (static_cast<int8_t>(t->dtype().toScalarType()) != s.dtype || t->dim() != s.rank) return false;
  c10::Device device = t->device();
  if (static_cast<int8_t>(device.type()) != s.device || device.index() != s.device_index) return false;
  if (t->requires_grad() != s.requires_grad || t->is_wrapped_number() != s.wrapped_number) return false;
  const int64_t* sizes = t->sizes().data();
  const int64_t* strides = t->strides().data();
  const int64_t* want = s.geometry.data();
  const auto differs = [](int64_t is, int64_t wanted) { return is != wanted && wanted != TensorSpec::kAny; };
  for (int32_t i = 0; i < s.rank; i++)
    if (differs(sizes[i], want[i]) || differs(strides[i], want[s.rank + i])) return false;
  return true;
}

int32_t rank_of(PyObject* tensor) { return static_cast<int32_t>(impl_of(tensor)->dim()); }
int64_t size_of(PyObject* tensor, int32_t dim) { return impl_of(tensor)->sizes()[static_cast<size_t>(dim)]; }
int64_t stride_of(PyObject* tensor, int32_t dim) { return impl_of(tensor)->strides()[static_cast<size_t>(dim)]; }
int64_t geometry_of(PyObject* tensor, size_t part) {
  return (is_stride_part(part) ? stride_of : size_of)(tensor, static_cast<int32_t>(dimension_of_part(part)));
}

namespace {
// The members that are compared, from sizes_and_strides_ to key_set_, lie together.
struct Layout : c10::TensorImpl {
  using c10::TensorImpl::key_set_;
  using c10::TensorImpl::sizes_and_strides_;
  using c10::TensorImpl::storage_;
  // autograd_meta_ is private, and comes next; stamp_tensor() makes sure.
  const void* autograd() const { return *reinterpret_cast<const void* const*>(&storage_ + 1); }
};
const Layout& layout_of(const void* impl) {
  return *static_cast<const Layout*>(static_cast<const c10::TensorImpl*>(impl));
}
const torch::autograd::AutogradMeta& autograd_of(const void* meta) {
  return *static_cast<const torch::autograd::AutogradMeta*>(static_cast<const c10::AutogradMetaInterface*>(meta));
}
bool requires_grad(const torch::autograd::AutogradMeta& m) { return m.requires_grad_ || m.grad_fn_; }
// requires_grad_ and is_view_ are two bytes of four.
constexpr uint32_t kFlagBytes = 0x00FF00FF, kRequiresGrad = 1;
uint32_t flags(const torch::autograd::AutogradMeta& m) {
  uint32_t word;
  std::memcpy(&word, &m.requires_grad_, sizeof word);
  return word & kFlagBytes;
}
bool has_such_flags(const torch::autograd::AutogradMeta& m) {
  const auto* first = reinterpret_cast<const char*>(&m.requires_grad_);
  return reinterpret_cast<const char*>(&m.is_view_) - first == 2 &&
         reinterpret_cast<const char*>(&m.output_nr_) - first == 4;
}
}  // namespace

void take_look(PyObject* tensor, TensorLooks& all, TensorCompare& compare) {
  c10::TensorImpl* t = impl_of(tensor);
  compare = {tensor, nullptr, nullptr, nullptr};
  if (!t || t->has_symbolic_sizes_strides() || t->dim() > 5) return;  // longer shapes lie elsewhere
  const Layout& l = layout_of(t);
  const auto* begin = reinterpret_cast<const unsigned char*>(&l.sizes_and_strides_);
  const auto* end = reinterpret_cast<const unsigned char*>(&l.key_set_ + 1);
  if (end - begin != static_cast<std::ptrdiff_t>(TensorLook::kBytes)) return;  // another torch
  void* const autograd = t->autograd_meta();
  if (l.autograd() != autograd) return;
  TensorLook look{{}, Py_TYPE(tensor), t->requires_grad()};
  if (autograd) {
    const torch::autograd::AutogradMeta& m = autograd_of(autograd);
    // A view requires grad as soon as its base does, which nothing of its own shows.
    if (m.is_view_ || requires_grad(m) != look.requires_grad || !has_such_flags(m)) return;
    look.leaf = m.requires_grad_;
  }
  std::memcpy(look.bytes.data(), begin, TensorLook::kBytes);
  compare = {tensor, t, autograd, &*all.insert(look).first};
}

namespace {
inline bool is_the_same(const void* autograd, const TensorLook& look) {
  const torch::autograd::AutogradMeta& m = autograd_of(autograd);
  return look.leaf ? flags(m) == kRequiresGrad : flags(m) == 0 && (m.grad_fn_ != nullptr) == look.requires_grad;
}
inline uintptr_t differ(const void* a, const void* b) {
  return reinterpret_cast<uintptr_t>(a) ^ reinterpret_cast<uintptr_t>(b);
}
inline bool is_the_same_object(const TensorCompare& t, const TensorLook& look) {
  return (differ(Py_TYPE(t.object), look.type) | differ(impl_of(t.object), t.impl)) == 0;
}
inline const char* bytes_of(const TensorCompare& t) {
  return reinterpret_cast<const char*>(&layout_of(t.impl).sizes_and_strides_);
}
size_t compare(const TensorCompare* t, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!t[i].impl || !is_the_same_object(t[i], *t[i].look) || layout_of(t[i].impl).autograd() != t[i].autograd ||
        std::memcmp(bytes_of(t[i]), t[i].look->bytes.data(), TensorLook::kBytes) != 0 ||
        (t[i].autograd && !is_the_same(t[i].autograd, *t[i].look)))
      return i;
  return count;
}
#ifdef __x86_64__
// A third of the time of the above: what it costs is the number of loads.
__attribute__((target("avx2"))) size_t compare_with_avx2(const TensorCompare* t, size_t count) {
  static_assert(TensorLook::kBytes == 120);
  for (size_t i = 0; i < count;) {
    if (!t[i].impl) return i;
    const TensorLook look = *t[i].look;
    const TensorLook* const shared = t[i].look;
    const auto* was = reinterpret_cast<const __m256i*>(look.bytes.data());
    constexpr size_t kLast = 88;  // of the fourth: they overlap
    const __m256i a = _mm256_loadu_si256(was), b = _mm256_loadu_si256(was + 1), c = _mm256_loadu_si256(was + 2);
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(look.bytes.data() + kLast));
    for (; i < count && t[i].look == shared; ++i) {
      const TensorCompare& x = t[i];
      if (!is_the_same_object(x, look)) return i;
      const auto* now = reinterpret_cast<const __m256i*>(bytes_of(x));
      const __m256i moved = _mm256_or_si256(
          _mm256_or_si256(_mm256_xor_si256(_mm256_loadu_si256(now), a),
                          _mm256_xor_si256(_mm256_loadu_si256(now + 1), b)),
          _mm256_or_si256(
              _mm256_xor_si256(_mm256_loadu_si256(now + 2), c),
              _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes_of(x) + kLast)), d)));
      if (!_mm256_testz_si256(moved, moved) || layout_of(x.impl).autograd() != x.autograd) return i;
      if (x.autograd && !is_the_same(x.autograd, look)) return i;
    }
  }
  return count;
}
#endif
}  // namespace

size_t look_the_same(const TensorCompare* t, size_t count) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return compare_with_avx2(t, count);
#endif
  return compare(t, count);
}

std::string str(const TensorSpec& s) {
  auto numbers = [&](int32_t first) {
    std::string out;
    for (int32_t i = 0; i < s.rank; i++) {
      const int64_t n = s.geometry[static_cast<size_t>(first + i)];
      out += (i ? "," : "") + (n == TensorSpec::kAny ? "any" : std::to_string(n));
    }
    return out;
  };
  return std::string(c10::toString(static_cast<c10::ScalarType>(s.dtype))) + "[" + numbers(0) + "] strides [" +
         numbers(s.rank) + "] " + c10::Device(static_cast<c10::DeviceType>(s.device), s.device_index).str() +
         (s.requires_grad ? " requires_grad" : "");
}

std::string difference(const TensorSpec& was, const TensorSpec& now) {
  std::string out;
  const auto differ = [&](const std::string& what, const std::string& is, const std::string& before) {
    out += (out.empty() ? "" : ", ") + what + " is " + is + ", not " + before;
  };
  const auto type = [](int8_t t) { return std::string(c10::toString(static_cast<c10::ScalarType>(t))); };
  const auto yes = [](bool b) { return std::string(b ? "True" : "False"); };
  const auto device = [](const TensorSpec& s) {
    return c10::Device(static_cast<c10::DeviceType>(s.device), s.device_index).str();
  };
  if (was.dtype != now.dtype) differ("dtype", type(now.dtype), type(was.dtype));
  if (device(was) != device(now)) differ("device", device(now), device(was));
  if (was.rank != now.rank) {
    differ("dim()", std::to_string(now.rank), std::to_string(was.rank));
  } else {
    const size_t n = static_cast<size_t>(was.rank);
    bool sizes = false;
    for (size_t i = 0; i < 2 * n; i++) {
      if (was.geometry[i] == now.geometry[i] || was.geometry[i] == TensorSpec::kAny || (i >= n && sizes))
        continue;  // other sizes, other strides
      sizes |= i < n;
      const std::string what = (i < n ? "size(" : "stride(") + std::to_string(i % n) + ")";
      differ(what, std::to_string(now.geometry[i]), std::to_string(was.geometry[i]));
    }
  }
  if (was.requires_grad != now.requires_grad) differ("requires_grad", yes(now.requires_grad), yes(was.requires_grad));
  if (was.type != now.type) differ("its class", now.type->tp_name, was.type->tp_name);
  if (was.wrapped_number != now.wrapped_number)
    differ("being a number", yes(now.wrapped_number), yes(was.wrapped_number));
  if (out.empty() && was.keys != now.keys) {
    const auto keys = [](const TensorSpec& s) {
      return c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, s.keys));
    };
    differ("its kind", keys(now), keys(was));
  }
  return out;
}

std::vector<size_t> other_parts(const TensorSpec& was, PyObject* tensor) {
  TensorSpec same_geometry = was;
  const c10::TensorImpl* t = impl_of(tensor);
  if (!t || t->has_symbolic_sizes_strides() || t->layout() != c10::kStrided || t->is_nested() || t->dim() != was.rank)
    return {};
  const TensorSpec now = read_tensor(tensor);
  same_geometry.geometry = now.geometry;
  if (!(same_geometry == now)) return {};
  std::vector<size_t> out;
  const auto rank = static_cast<size_t>(was.rank);
  const auto differs = [&](size_t i) {
    return was.geometry[i] != TensorSpec::kAny && was.geometry[i] != now.geometry[i];
  };
  const size_t dims = std::min(rank, kMaxSymbolicRank);
  for (size_t d = 0; d < dims; ++d)
    if (differs(d)) out.push_back(d);
  const std::vector<bool> spanned = spanned_strides(t->sizes(), t->strides());
  for (size_t d = 0; d < dims; ++d)
    if (!spanned[d] && differs(rank + d)) out.push_back(kMaxSymbolicRank + d);
  return out;
}

Memory memory_of(PyObject* tensor) {
  c10::TensorImpl* t = impl_of(tensor);
  Memory m;
  if (!t || !t->has_storage() || t->key_set().has(c10::DispatchKey::Python)) return m;  // (what it is made of has)
  const c10::Storage& storage = t->unsafe_storage();
  m.storage = storage.unsafeGetStorageImpl();
  if (m.storage) {
    m.begin = static_cast<const char*>(storage.data());
    m.end = m.begin + storage.nbytes();
  }
  m.offset = t->storage_offset();
  return m;
}

}  // namespace flashover::guards

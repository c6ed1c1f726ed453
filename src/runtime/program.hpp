// The C++ face of flashover.h: header only, C++17, needs neither torch's headers nor Python.
#pragma once
#include <flashover/flashover.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace flashover::runtime {

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr flashover_dtype value = FLASHOVER_F32;
};
template <>
struct dtype_of<double> {
  static constexpr flashover_dtype value = FLASHOVER_F64;
};
template <>
struct dtype_of<int64_t> {
  static constexpr flashover_dtype value = FLASHOVER_I64;
};
template <>
struct dtype_of<int32_t> {
  static constexpr flashover_dtype value = FLASHOVER_I32;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr flashover_dtype value = FLASHOVER_U8;
};
template <>
struct dtype_of<bool> {
  static constexpr flashover_dtype value = FLASHOVER_BOOL;
};

inline void check(int status) {
  if (status != 0) throw std::runtime_error(flashover_last_error());
}

// A tensor: a view of the caller's memory, or a result that owns its own.
class Array {
 public:
  // data: row by row, stays while the array is used.
  template <typename T>
  Array(T* data, std::vector<int64_t> sizes) : Array(data, dtype_of<std::remove_const_t<T>>::value, std::move(sizes)) {}
  Array(const void* data, flashover_dtype dtype, std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {
    tensor_.data = const_cast<void*>(data);
    tensor_.dtype = dtype;
    tensor_.rank = static_cast<int32_t>(sizes_.size());
  }
  static Array on(flashover_device device, int index, void* data, flashover_dtype dtype, std::vector<int64_t> sizes) {
    Array a(data, dtype, std::move(sizes));
    a.tensor_.device = device;
    a.tensor_.device_index = index;
    return a;
  }
  explicit Array(const flashover_tensor& result)  // takes it over
      : sizes_(result.sizes, result.sizes + (result.rank > 0 ? result.rank : 0)),
        strides_(result.strides, result.strides + sizes_.size()),
        tensor_(result),
        owner_(result.owner, [](void* owner) {
          flashover_tensor t{};
          t.owner = owner;
          flashover_tensor_free(&t);
        }) {}

  bool is_tensor() const { return tensor_.rank >= 0; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<int64_t>& strides() const { return strides_; }  // empty: row by row
  flashover_dtype dtype() const { return static_cast<flashover_dtype>(tensor_.dtype); }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : sizes_) n *= s;
    return n;
  }
  bool contiguous() const {
    int64_t expected = 1;
    for (size_t d = strides_.size(); d-- > 0; expected *= sizes_[d])
      if (sizes_[d] != 1 && strides_[d] != expected) return numel() == 0;
    return true;
  }
  flashover_device device() const { return static_cast<flashover_device>(tensor_.device); }
  // A copy on a device, which is there when this returns.
  Array to(flashover_device device, int index = 0) const {
    const flashover_tensor from = native();
    flashover_tensor copy{};
    check(flashover_tensor_copy(&from, device, index, &copy));
    return Array(copy);
  }
  // The first element (an address on device()); the others follow by strides().
  template <typename T>
  T* data() const {
    if (dtype() != dtype_of<std::remove_const_t<T>>::value) throw std::runtime_error("the array has another dtype");
    return static_cast<T*>(tensor_.data);
  }
  void* bytes() const { return tensor_.data; }
  flashover_tensor native() const {
    flashover_tensor t = tensor_;
    t.sizes = sizes_.data();
    t.strides = strides_.empty() ? nullptr : strides_.data();
    return t;
  }

 private:
  std::vector<int64_t> sizes_, strides_;
  flashover_tensor tensor_{};
  std::shared_ptr<void> owner_;
};

// A loaded package. Copies share it.
class Program {
 public:
  explicit Program(const std::string& path, bool verify_weights = true) {
    flashover_package* p = nullptr;
    check(flashover_load(path.c_str(), verify_weights, &p));
    package_.reset(p, flashover_free);
  }
  // Of a file that the owner of this key signed: PEM, or the path of a file with it.
  struct SignedBy {
    std::string public_key;
  };
  Program(const std::string& path, const SignedBy& by, bool verify_weights = true) {
    flashover_package* p = nullptr;
    check(flashover_load_signed(path.c_str(), by.public_key.c_str(), verify_weights, &p));
    package_.reset(p, flashover_free);
  }
  // For a device.
  struct Device {
    flashover_device kind;
    int index = 0;
  };
  Program(const std::string& path, const Device& device, const SignedBy& by = {}, bool verify_weights = true) {
    flashover_package* p = nullptr;
    const char* key = by.public_key.empty() ? nullptr : by.public_key.c_str();
    check(flashover_load_on(path.c_str(), key, verify_weights, device.kind, device.index, &p));
    package_.reset(p, flashover_free);
  }
  Device device(const std::string& entry = "") const {
    int32_t kind = 0, index = 0;
    check(flashover_entry_device(get(), find(entry), &kind, &index));
    return {static_cast<flashover_device>(kind), index};
  }
  void synchronize(const std::string& entry = "") const { check(flashover_synchronize(get(), find(entry))); }
  std::vector<std::string> entries() const {
    std::vector<std::string> out;
    for (size_t i = 0; i < flashover_entries(get()); ++i) out.emplace_back(flashover_entry_name(get(), i));
    return out;
  }
  // By entry: "name: type" of each tensor that it takes.
  std::vector<std::string> arguments(const std::string& entry = "") const {
    const size_t e = find(entry);
    std::vector<std::string> out;
    for (size_t i = 0; i < flashover_arguments(get(), e); ++i)
      out.push_back(std::string(flashover_argument_name(get(), e, i)) + ": " + flashover_argument_type(get(), e, i));
    return out;
  }
  // entry: "" where there is one.
  std::vector<Array> run(const std::vector<Array>& arguments, const std::string& entry = "") const {
    const size_t e = find(entry);
    std::vector<flashover_tensor> given, results(flashover_results(get(), e));
    for (const Array& a : arguments) given.push_back(a.native());
    check(flashover_run(get(), e, given.data(), given.size(), results.data(), results.size()));
    std::vector<Array> out;
    for (const flashover_tensor& t : results) out.emplace_back(t);
    return out;
  }
  void exchange(const std::vector<std::pair<std::string, Array>>& weights) {
    std::vector<const char*> names;
    std::vector<flashover_tensor> values;
    for (const auto& [name, value] : weights) names.push_back(name.c_str()), values.push_back(value.native());
    check(flashover_exchange(get(), names.data(), values.data(), names.size()));
  }

 private:
  flashover_package* get() const { return package_.get(); }
  size_t find(const std::string& entry) const {
    size_t found = 0;
    check(flashover_find_entry(get(), entry.c_str(), &found));
    return found;
  }
  std::shared_ptr<flashover_package> package_;
};

}  // namespace flashover::runtime

// A table of torch's switches: how each is read, set, and put back when a trace ends.
#include "frame/torch_state.h"

#include <cstring>

#include "base/check.h"

namespace flashover::frame {
namespace {

PyObject* torch_c(const char* name) {  // new reference, kept for good; null if absent
  PyObject* m = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C");
  PyObject* f = m == nullptr ? nullptr : PyObject_GetAttrString(m, name);
  PyErr_Clear();
  return f;
}

struct StateRow {
  const char* name;
  PyObject *get, *set;
  std::vector<PyObject*> args;
};

const std::vector<StateRow>& rows() {
  static std::vector<StateRow> kept;
  if (kept.empty() && PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C") != nullptr) {
    std::vector<StateRow> table;  // kept when it is whole
    auto add = [&table](const char* get, const char* set, std::vector<PyObject*> args = {}) {
      PyObject* getter = torch_c(get);
      if (getter != nullptr) table.push_back({get, getter, set != nullptr ? torch_c(set) : nullptr, std::move(args)});
    };
    add("is_grad_enabled", "_set_grad_enabled");
    add("is_inference_mode_enabled", nullptr);
    add("_is_fwd_grad_enabled", "_set_fwd_grad_enabled");
    for (const char* device : {"cpu", "cuda"}) {
      PyObject* name = PyUnicode_InternFromString(device);
      add("is_autocast_enabled", "set_autocast_enabled", {name});
      add("get_autocast_dtype", "set_autocast_dtype", {name});
    }
    add("is_autocast_cache_enabled", "set_autocast_cache_enabled");
    add("get_default_dtype", "_set_default_dtype");
    add("_get_deterministic_algorithms", nullptr);
    add("_get_float32_matmul_precision", "_set_float32_matmul_precision");
    for (const auto& [get, set] : {std::pair{"_get_cudnn_enabled", "_set_cudnn_enabled"},
                                   {"_get_cudnn_benchmark", "_set_cudnn_benchmark"},
                                   {"_get_cudnn_deterministic", "_set_cudnn_deterministic"},
                                   {"_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"},
                                   {"_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel"},
                                   {"_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"}})
      add(get, set);
    add("_get_fp32_precision_getter", "_set_fp32_precision_setter",
        {PyUnicode_InternFromString("cuda"), PyUnicode_InternFromString("all")});
    for (const auto& [get, set] : {std::pair{"_get_flash_sdp_enabled", "_set_sdp_use_flash"},
                                   {"_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"},
                                   {"_get_math_sdp_enabled", "_set_sdp_use_math"},
                                   {"_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"},
                                   {"_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"},
                                   {"_get_sdp_priority_order", "_set_sdp_priority_order"}})
      add(get, set);
    add("_len_torch_function_stack", nullptr);
    add("_len_torch_dispatch_stack", nullptr);
    add("_get_torch_function_state", "_set_torch_function_state");
    kept = std::move(table);
  }
  return kept;
}

PyObject* call(PyObject* f, const std::vector<PyObject*>& args, PyObject* last = nullptr) {
  PyObject* all[4] = {nullptr};
  size_t n = 0;
  for (PyObject* a : args) all[n++] = a;
  if (last != nullptr) all[n++] = last;
  return PyObject_Vectorcall(f, all, n, nullptr);
}

bool equal(PyObject* a, PyObject* b) { return a == b || PyObject_RichCompareBool(a, b, Py_EQ) == 1; }

// A depth that torch counts; going one down tells the depth that is left.
struct Nesting {
  PyObject *up, *down;
  long read() const {
    if (up == nullptr || down == nullptr) return 0;
    Ref more = Ref::steal(PyObject_CallNoArgs(up)), less = Ref::steal(PyObject_CallNoArgs(down));
    long depth = less ? PyLong_AsLong(less.get()) : 0;
    PyErr_Clear();
    return depth;
  }
  void restore(long before) const {
    long now = read();
    for (; now > before; --now) Ref::steal(PyObject_CallNoArgs(down));
    for (; now < before; ++now) Ref::steal(PyObject_CallNoArgs(up));
  }
};
const Nesting& autocast_depth() {
  static const Nesting depth{torch_c("autocast_increment_nesting"), torch_c("autocast_decrement_nesting")};
  return depth;
}
// The older vmap, of torch.autograd.functional and of batched gradients.
const Nesting& vmap_depth() {
  static const Nesting depth{torch_c("_vmapmode_increment_nesting"), torch_c("_vmapmode_decrement_nesting")};
  return depth;
}

}  // namespace

TorchState::TorchState() {
  for (const StateRow& row : rows()) {
    Ref v = Ref::steal(call(row.get, row.args));
    PyErr_Clear();
    if (v) items_.push_back({row.name, row.get, row.set, row.args, std::move(v)});
  }
  if (!items_.empty()) {
    autocast_depth_ = autocast_depth().read();
    vmap_depth_ = vmap_depth().read();
    function_modes_ = function_modes();
  }
  functorch_ = Ref::steal(torch_c("_functorch"));
  if (functorch_) depth_ = Ref::steal(PyObject_CallMethod(functorch_.get(), "get_dynamic_layer_stack_depth", nullptr));
  PyErr_Clear();
}

const char* TorchState::changed(const char* but) const {
  for (const Item& item : items_) {
    if (std::strcmp(item.name, but) == 0) continue;
    Ref now = Ref::steal(call(item.get, item.args));
    if (!now) {
      PyErr_Clear();
      continue;
    }
    if (!equal(now.get(), item.value.get())) return item.name;
  }
  if (!items_.empty() && autocast_depth().read() != autocast_depth_) return "autocast nesting";
  return in_other_transforms() ? "a torch.func transform is entered" : nullptr;
}

bool TorchState::in_other_transforms() const {
  if (!items_.empty() && vmap_depth().read() != vmap_depth_) return true;
  if (!depth_) return false;
  Ref depth = Ref::steal(PyObject_CallMethod(functorch_.get(), "get_dynamic_layer_stack_depth", nullptr));
  const bool same = depth && PyObject_RichCompareBool(depth.get(), depth_.get(), Py_EQ) == 1;
  PyErr_Clear();
  return !same;
}

std::vector<StateChange> TorchState::changes(bool inference_mode) const {
  std::vector<StateChange> out;
  for (const Item& item : items_) {
    Ref now = Ref::steal(call(item.get, item.args));
    if (!now) {
      PyErr_Clear();
      continue;
    }
    if (equal(now.get(), item.value.get())) continue;
    if (inference_mode && std::strcmp(item.name, "is_inference_mode_enabled") == 0) continue;
    if (item.set == nullptr) throw Declined(std::string("torch's state is changed: ") + item.name);
    out.push_back({item.set, item.args, now.release()});
  }
  if (in_other_transforms()) throw Declined("torch's state is changed: a torch.func transform is entered");
  if (!items_.empty()) {
    const long now = autocast_depth().read();
    for (long i = autocast_depth_; i < now; ++i) out.push_back({autocast_depth().up, {}, nullptr});
    for (long i = now; i < autocast_depth_; ++i) out.push_back({autocast_depth().down, {}, nullptr});
  }
  return out;
}

std::vector<Ref> TorchState::function_modes() {
  static PyObject *const length = torch_c("_len_torch_function_stack"), *const at = torch_c("_get_function_stack_at");
  std::vector<Ref> modes;
  const Ref count = Ref::steal(length != nullptr && at != nullptr ? PyObject_CallNoArgs(length) : nullptr);
  for (long i = 0, n = count ? PyLong_AsLong(count.get()) : 0; i < n; ++i)
    modes.push_back(Ref::steal(PyObject_CallFunction(at, "l", i)));
  PyErr_Clear();
  return modes;
}

// A capture that was given up has pushed some, and taken some off for the time of a call.
void TorchState::restore_function_modes() const {
  static PyObject *const pop = torch_c("_pop_torch_function_stack"), *const push =
                                                                         torch_c("_push_on_torch_function_stack");
  if (pop == nullptr || push == nullptr) return;
  const std::vector<Ref> now = function_modes();
  size_t same = 0;
  while (same < now.size() && same < function_modes_.size() && now[same].get() == function_modes_[same].get()) ++same;
  for (size_t i = same; i < now.size(); ++i) Ref::steal(PyObject_CallNoArgs(pop));
  for (size_t i = same; i < function_modes_.size(); ++i)
    Ref::steal(PyObject_CallOneArg(push, function_modes_[i].get()));
  PyErr_Clear();
}

Ref TorchState::value_of(const char* getter) const {
  for (const Item& item : items_)
    if (std::strcmp(item.name, getter) == 0) return Ref::borrow(item.value.get());
  return {};
}

void TorchState::restore() {
  PyObject *type, *value, *tb;
  PyErr_Fetch(&type, &value, &tb);
  if (depth_) {
    Ref done = Ref::steal(
        PyObject_CallMethod(functorch_.get(), "pop_dynamic_layer_stack_and_undo_to_depth", "O", depth_.get()));
    PyErr_Clear();
  }
  if (!items_.empty()) {
    autocast_depth().restore(autocast_depth_);
    vmap_depth().restore(vmap_depth_);
  }
  restore_function_modes();
  for (const Item& item : items_) {
    Ref now = Ref::steal(call(item.get, item.args));
    PyErr_Clear();
    // What is as it was is not set again: setters set more than their getters say (matmul precisions of all backends).
    if (item.set == nullptr || (now && equal(now.get(), item.value.get()))) continue;
    Ref done = Ref::steal(call(item.set, item.args, item.value.get()));
    PyErr_Clear();
  }
  PyErr_Restore(type, value, tb);
}

Compiling::Compiling() {
  PyObject* m = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.compiler");
  if (m == nullptr || !PyModule_Check(m)) return;
  dict_ = PyModule_GetDict(m);
  before_ = Ref::borrow(PyDict_GetItemString(dict_, "_is_compiling_flag"));
  if (before_) PyDict_SetItemString(dict_, "_is_compiling_flag", Py_True);
}

Compiling::~Compiling() {
  if (before_) PyDict_SetItemString(dict_, "_is_compiling_flag", before_.get());
}

}  // namespace flashover::frame

// The table of C callables that may run natively inside a capture, with what each reads, writes and gives back.
#include "frame/interpret/native.h"

#include "compat/opcodes.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "frame/fetched_error.h"
#include "frame/interpret/locks.h"
#include "frame/interpret/native_handlers.h"
#include "frame/interpret/plain_data.h"

namespace flashover::frame {
namespace {

constexpr uint8_t kReads = Native::kReads, kReadsSelf = Native::kReadsSelf, kWrites = Native::kWrites,
                  kShares = Native::kShares, kCalls = Native::kCalls, kTensors = Native::kTensors;

template <int kOp>  // NB_INPLACE_...
PyObject* do_operator_inplace(const NativeCall& c) {
  return c.nargs == 2 && c.kwnames == nullptr ? c.in.binary(c.args[0], c.args[1], kOp) : c.run();
}

struct NativeRow {
  const char* owner;  // module, or module:Type for methods
  const char* names;  // blanks between
  uint8_t flags;
  PyObject* (*handler)(const NativeCall&) = nullptr;
};

const NativeRow kFunctions[] = {
    {"builtins", "getattr", 0, do_getattr},
    {"builtins", "hasattr", 0, do_hasattr},
    {"builtins", "setattr", 0, do_setattr},
    {"builtins", "delattr", 0, do_delattr},
    {"builtins", "isinstance issubclass", 0, do_isinstance},
    {"builtins", "len", 0, do_len},
    {"builtins", "iter", 0, do_iter},
    {"builtins", "next", kShares, do_next},
    {"builtins", "vars", 0, do_vars},
    {"builtins", "__build_class__", kShares, do_build_class},
    {"builtins", "exec eval", kShares, do_exec},
    {"builtins", "compile", kShares, do_compile},
    {"builtins", "__import__", kShares, do_import},
    {"builtins", "callable", kShares, do_callable},
    {"builtins", "id", kShares, do_id},
    {"builtins", "hash", kShares, do_hash},
    {"builtins", "dir", kShares, do_dir},
    {"builtins", "abs all any ascii bin chr divmod format hex max min oct ord pow repr round sorted sum",
     kReads | kShares | kCalls},
    {"builtins", "globals locals", kShares},
    {"math", "*", kReads},
    {"cmath", "*", kReads},
    {"_operator", "setitem", 0, do_operator_setitem},
    {"_operator", "delitem", 0, do_operator_delitem},
    {"_operator", "getitem", kShares, do_operator_getitem},
    {"_operator", "contains", 0, do_operator_contains},
    {"_operator", "is_ is_not", 0, do_operator_is},
    {"_operator", "call", kShares, do_operator_call},
    {"_operator", "iadd iconcat", kShares, do_operator_inplace<NB_INPLACE_ADD>},
    {"_operator", "iand", kShares, do_operator_inplace<NB_INPLACE_AND>},
    {"_operator", "ifloordiv", kShares, do_operator_inplace<NB_INPLACE_FLOOR_DIVIDE>},
    {"_operator", "ilshift", kShares, do_operator_inplace<NB_INPLACE_LSHIFT>},
    {"_operator", "imatmul", kShares, do_operator_inplace<NB_INPLACE_MATRIX_MULTIPLY>},
    {"_operator", "imul", kShares, do_operator_inplace<NB_INPLACE_MULTIPLY>},
    {"_operator", "imod", kShares, do_operator_inplace<NB_INPLACE_REMAINDER>},
    {"_operator", "ior", kShares, do_operator_inplace<NB_INPLACE_OR>},
    {"_operator", "ipow", kShares, do_operator_inplace<NB_INPLACE_POWER>},
    {"_operator", "irshift", kShares, do_operator_inplace<NB_INPLACE_RSHIFT>},
    {"_operator", "isub", kShares, do_operator_inplace<NB_INPLACE_SUBTRACT>},
    {"_operator", "itruediv", kShares, do_operator_inplace<NB_INPLACE_TRUE_DIVIDE>},
    {"_operator", "ixor", kShares, do_operator_inplace<NB_INPLACE_XOR>},
    {"_operator", "*", kReads | kShares},
    {"_string", "formatter_parser formatter_field_name_split", kReads | kShares},
    {"_functools", "reduce", kReads | kShares | kCalls},
    {"_functools", "cmp_to_key", kReads},
    {"_bisect", "bisect bisect_left bisect_right", kReads},
    {"_bisect", "insort insort_left insort_right", kShares, do_write_list},
    {"_heapq", "*", kShares, do_write_list},
    {"_collections", "_count_elements", 0, do_count_elements},
    {"itertools", "tee", kReads},
    {"_abc", "_abc_instancecheck", kShares, do_instance_check},
    {"_abc", "_abc_subclasscheck", kShares, do_subclass_check},
    {"_abc", "get_cache_token", kShares, do_state},
    {"_abc", "_abc_init", 0, do_abc_init},
    {"_abc", "_abc_register", kShares, do_abc_register},
    {"_contextvars", "copy_context", 0},
    {"sys", "intern is_finalizing exc_info getfilesystemencoding exception", kShares},
    {"sys", "getrecursionlimit", kShares, do_state},
    {"sys", "_getframe", kShares, do_getframe},
    {"sys", "_getframemodulename", kShares},
    {"sys", "_clear_type_descriptors", kShares, do_clear_type_descriptors},
    {"_thread", "RLock allocate_lock", kShares, do_make_lock},
    {"_thread", "get_ident", kShares, do_state},
    {"posix", "fspath", kShares},
    {"posix", "_path_normpath _path_splitroot_ex", kReads},
    {"posix", "getpid", kShares, do_state},
    {"_warnings", "warn", kShares, do_warn},
    {"_warnings", "_filters_mutated _filters_mutated_lock_held", kShares, do_filters_mutated},
    {"_warnings", "_acquire_lock _release_lock", kShares},
    {"_struct", "calcsize pack unpack", kReads},
    {"_json", "encode_basestring encode_basestring_ascii scanstring", kReads},
    {"_typing", "_idfunc", kShares},
    {"_pickle", "dumps", 0, do_pickle},
    {"zlib", "crc32 adler32 compress", 0, do_plain},
    {"binascii", "hexlify unhexlify b2a_hex a2b_hex b2a_base64 a2b_base64 crc32 crc_hqx", 0, do_plain},
    {"torch._C",
     "_get_tracing_state _has_torch_function _has_torch_function_unary _has_torch_function_variadic "
     "is_grad_enabled _set_grad_enabled is_inference_mode_enabled is_autocast_enabled "
     "set_autocast_enabled get_autocast_dtype set_autocast_dtype autocast_increment_nesting "
     "autocast_decrement_nesting clear_autocast_cache is_autocast_cpu_enabled set_autocast_cpu_enabled "
     "get_autocast_cpu_dtype set_autocast_cpu_dtype get_autocast_gpu_dtype is_autocast_available "
     "_is_any_autocast_enabled get_default_dtype _get_default_device _get_default_dtype "
     "_log_api_usage_once _jit_debug_module_iterators _is_torch_function_enabled "
     "_is_torch_function_all_disabled _peek_should_skip_torch_function _len_torch_function_stack "
     "_len_torch_dispatch_stack "
     "_get_cudnn_enabled _get_mkldnn_enabled _get_flash_sdp_enabled _get_mem_efficient_sdp_enabled "
     "_get_math_sdp_enabled _get_cudnn_sdp_enabled _get_overrideable_sdp_enabled _get_deterministic_algorithms "
     "_get_cudnn_benchmark "
     "_get_cudnn_deterministic _get_deterministic_algorithms_warn_only _is_tracing "
     "_are_functorch_transforms_active _functorch_is_active _get_cpu_capability _cuda_isInBadFork "
     "_cuda_getDeviceCount _cuda_isCurrentStreamCapturing _get_accelerator _accelerator_getAccelerator "
     "_accelerator_getDeviceIndex "
     "_is_autocast_available _is_torch_function_mode_enabled _can_use_cudnn_attention "
     "_can_use_flash_attention _can_use_mem_efficient_attention _get_mkldnn_deterministic _has_storage "
     "_meta_in_tls_dispatch_include _jit_is_script_object _mps_is_available _cuda_getDevice _cuda_getArchFlags "
     "_get_torch_function_state _set_torch_function_state _push_on_torch_function_stack _pop_torch_function_stack "
     "_get_function_stack_at "
     "_vmapmode_decrement_nesting _demangle _is_key_in_tls _infer_size "
     "_conv_determine_backend_memory_format _get_obj_in_tls _debug_has_internal_overlap "
     "_is_flash_attention_available _has_mkldnn _dispatch_tls_is_dispatch_key_excluded "
     "_dispatch_tls_is_dispatch_key_included _dispatch_keys _vmapmode_increment_nesting",
     kShares},
    // State that GlobalState does not hold.
    {"torch._C",
     "is_autocast_xla_enabled is_anomaly_enabled _get_nnpack_enabled _is_multithreading_enabled "
     "_is_view_replay_enabled _is_xnnpack_enabled _jit_get_profiling_mode _get_graph_executor_optimize "
     "_get_float32_matmul_precision _get_qengine _get_blas_preferred_backend "
     "_get_linalg_preferred_backend _get_cublas_allow_tf32 _get_onednn_allow_tf32 _get_cudnn_allow_tf32 "
     "_get_fp32_precision_getter _is_fwd_grad_enabled _get_sdp_priority_order get_num_threads "
     "_cuda_get_cudnn_benchmark_limit _get_privateuse1_backend_name _get_cublas_allow_fp16_reduced_precision_reduction "
     "_get_warnAlways _get_cudnn_depthwise_kernel",
     kShares, do_state},
    {"torch._C",
     "_set_cudnn_enabled _set_cudnn_benchmark _set_cudnn_deterministic _set_cudnn_allow_tf32 "
     "_set_cudnn_depthwise_kernel "
     "_cuda_set_cudnn_benchmark_limit _set_fp32_precision_setter _set_fwd_grad_enabled _set_default_dtype "
     "_set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math _set_sdp_use_cudnn _set_sdp_use_overrideable "
     "_set_sdp_priority_order",
     kShares, do_switch},
    {"torch._C", "is_autocast_cache_enabled", kShares, do_autocast_cache},
    {"torch._C", "set_autocast_cache_enabled", kShares, do_set_autocast_cache},
    {"torch._C._functorch",
     "is_functorch_wrapped_tensor is_batchedtensor is_gradtrackingtensor peek_interpreter_stack "
     "maybe_current_level maybe_get_level current_level get_dynamic_layer_stack_depth maybe_get_bdim "
     "is_dead_tensor_wrapper _add_batch_dim _remove_batch_dim _vmap_increment_nesting "
     "_vmap_decrement_nesting _unwrap_batched _is_vmap_fallback_enabled unwrap_if_dead get_unwrapped "
     "is_functionaltensor is_legacy_batchedtensor _grad_decrement_nesting _wrap_for_grad "
     "_unwrap_for_grad _jvp_increment_nesting _jvp_decrement_nesting get_inplace_requires_grad_allowed "
     "set_inplace_requires_grad_allowed get_single_level_autograd_function_allowed "
     "set_single_level_autograd_function_allowed",
     kShares},
    {"torch._C._autograd", "_saved_tensors_hooks_get_disabled_error_message _saved_tensors_hooks_is_enabled", kShares},
    {"torch._C._autograd", "_saved_tensors_hooks_disable _saved_tensors_hooks_enable", kShares},
    {"torch._C._autograd", "_push_saved_tensors_default_hooks", kShares, do_push_saved_hooks},
    {"torch._C._autograd", "_pop_saved_tensors_default_hooks", kShares, do_pop_saved_hooks},
    {"torch._C._dynamo.autograd_compiler", "set_autograd_compiler", kShares},  // off, and back, around torch.func.grad
    {"torch._C._nn", "_parse_to", kTensors | kShares},
    {"torch._C._functorch", "_grad_increment_nesting", kShares},
    {"torch._C", "_enter_dual_level", 0, do_enter_dual_level},
    {"torch._C", "_exit_dual_level", 0, do_exit_dual_level},
    {"torch._C", "parse_schema", 0},
    {"torch._C", "_stash_obj_in_tls _remove_obj_from_tls", kShares, do_context_of_backward},
    {"torch._C", "_group_tensors_by_device_and_dtype", kTensors | kShares},
    {"flashover._C", "own_operators", 0},
    {"flashover._C", "trace_position has_effects_since", 0},
};

const NativeRow kMethods[] = {
    {"builtins:dict", "get", kShares, do_dict_get},
    {"builtins:dict", "__contains__", 0, do_dict_contains},
    {"builtins:dict", "__getitem__", kShares, do_dict_getitem},
    {"builtins:dict", "pop", kShares, do_dict_pop},
    {"builtins:dict", "setdefault", kShares, do_dict_setdefault},
    {"builtins:dict", "keys values items copy __reversed__ __sizeof__", kReadsSelf},
    {"builtins:dict", "update", kWrites | kReads},
    {"builtins:dict", "clear popitem", kWrites | kShares},
    {"builtins:dict", "fromkeys", kReads},
    {"collections:OrderedDict", "fromkeys", kReads},
    {"collections:OrderedDict", "keys values items copy __reversed__", kReadsSelf},
    {"collections:OrderedDict", "pop popitem move_to_end clear setdefault update", kWrites | kReads | kShares},
    {"builtins:list", "append", 0, do_list_append},
    {"builtins:list", "insert", kWrites},
    {"builtins:list", "extend remove", kWrites | kReads},
    {"builtins:list", "pop clear reverse", kWrites | kShares},
    {"builtins:list", "sort", kWrites | kReadsSelf | kCalls},
    {"builtins:list", "index count copy __reversed__", kReadsSelf | kReads},
    {"builtins:list", "__getitem__", kReadsSelf | kShares},
    {"builtins:tuple", "index count __getnewargs__", kReadsSelf | kReads},
    {"builtins:set", "add discard remove", kWrites | kReads},
    {"builtins:set", "pop clear", kWrites | kShares},
    {"builtins:set", "update intersection_update difference_update symmetric_difference_update", kWrites | kReads},
    {"builtins:set",
     "copy union intersection difference symmetric_difference isdisjoint issubset issuperset __contains__",
     kReadsSelf | kReads},
    {"itertools:chain", "from_iterable", kReads},
    {"builtins:frozenset",
     "copy union intersection difference symmetric_difference isdisjoint issubset issuperset __contains__",
     kReadsSelf | kReads | kShares},
    {"builtins:str", "format format_map", kReads | kShares, do_format},
    {"builtins:str", "*", kReads | kShares},
    {"builtins:bytes", "*", kReads | kShares},
    {"builtins:int", "*", kReads | kShares},
    {"builtins:float", "*", kReads | kShares},
    {"builtins:complex", "*", kReads | kShares},
    {"builtins:range", "*", kReads},
    {"builtins:slice", "*", kReads},
    {"builtins:object", "__reduce_ex__ __reduce__ __getstate__", kShares, do_object_reduce},
    {"builtins:object", "__format__ __sizeof__ __init_subclass__ __subclasshook__ __dir__", kReads | kShares},
    {"builtins:type", "mro __prepare__ __instancecheck__ __subclasscheck__", kShares},
    {"builtins:property", "getter setter deleter", kReads},
    {"builtins:mappingproxy", "get keys values items copy", kReadsSelf | kShares},
    {"builtins:BaseException", "with_traceback add_note __setstate__", kShares, do_exception_write},
    {"types:GeneratorType", "send throw close", kShares, do_generator},
    {"types:MappingProxyType", "get keys values items copy", kReadsSelf | kShares},
    {"builtins:dict_keys", "isdisjoint", kReads},
    {"builtins:dict_items", "isdisjoint", kReads},
    {"re:Pattern", "*", kReads},
    {"re:Match", "*", kReads | kShares},
    {"_thread:RLock", "acquire __enter__", kShares, do_lock},
    {"_thread:RLock", "release __exit__", kShares, do_unlock},
    {"_thread:LockType", "acquire __enter__", kShares, do_lock},
    {"_thread:LockType", "release __exit__", kShares, do_unlock},
    {"collections:deque", "append appendleft insert pop popleft clear", kWrites | kShares},
    {"collections:deque", "extend extendleft remove reverse rotate", kWrites | kReads | kShares},
    {"collections:deque", "copy count index", kReadsSelf | kReads},
    {"collections:defaultdict", "copy __missing__ __copy__", kReadsSelf | kShares},
    {"_contextvars:ContextVar", "get", kShares, do_context_get},
    {"_contextvars:ContextVar", "set", kShares, do_context_set},
    {"_contextvars:ContextVar", "reset", kShares, do_context_reset},
    {"_random:Random", "random getrandbits getstate setstate", 0, do_own_random},
    {"_random:Random", "seed", 0, do_seed},
    {"torch._C:TensorBase", "_make_subclass", kShares, do_make_parameter},
    {"torch._C:TensorBase", "_make_wrapper_subclass", kShares, do_make_wrapper},
    {"torch._C:_ImperativeEngine", "run_backward", kShares, do_run_backward},
    {"torch:Size", "*", kReads | kShares},
    {"torch:finfo", "*", 0},
    {"torch:Generator", "initial_seed", 0, do_state},
    {"torch:device", "__enter__ __exit__", kShares},
    {"torch:DisableTorchFunctionSubclass", "*", kShares},
    {"torch:DisableTorchFunction", "*", kShares},
    {"torch._C:DisableTorchFunctionSubclass", "*", kShares},
    {"torch._C:_InferenceMode", "__enter__", kShares, do_enter_inference_mode},
    {"torch._C:_InferenceMode", "__exit__", kShares, do_leave_inference_mode},
    {"torch._C:_AutoDispatchBelowAutograd", "*", kShares},
    {"torch._C:_DisableAutocast", "*", kShares},
    {"torch._C:_DisableFuncTorch", "*", kShares},
    {"torch._C:_CudaDeviceProperties", "*", kShares},
};

const NativeRow kTypes[] = {
    {"builtins", "bool", 0, do_bool},
    {"_thread", "lock", kShares, do_make_lock},
    {"builtins",
     "bytes complex dict enumerate float frozenset int list property range reversed set slice str tuple zip type "
     "bytearray memoryview",
     kReads | kShares},
    {"builtins", "map filter", kReads | kCalls, nullptr},
    {"builtins", "object super staticmethod classmethod", kShares},
    {"types", "FunctionType", kShares, do_make_function},
    {"types", "MethodType MappingProxyType SimpleNamespace GenericAlias CellType ModuleType UnionType", kShares},
    {"collections", "OrderedDict deque defaultdict", kReads},
    {"functools", "partial _lru_cache_wrapper", kShares},
    {"operator", "itemgetter attrgetter methodcaller", kReads},
    {"itertools",
     "chain islice repeat product permutations combinations combinations_with_replacement accumulate count cycle "
     "zip_longest starmap takewhile dropwhile groupby compress filterfalse pairwise",
     kReads | kCalls},
    {"weakref", "ref", kShares},
    {"_json", "make_scanner make_encoder", kReads | kShares},
    {"_collections", "_tuplegetter", 0},
    {"_random", "Random", kReads},
    {"numpy", "dtype", kReads},
    {"_thread", "_local", 0},
    {"_thread", "RLock", 0, do_make_lock},
    {"torch", "Size device dtype finfo iinfo Generator", kReads | kShares},
    {"torch._C",
     "DisableTorchFunctionSubclass DisableTorchFunction _AutoDispatchBelowAutograd "
     "_DisableAutocast _DisableFuncTorch _ForceDispatchKeyGuard _IncludeDispatchKeyGuard _ExcludeDispatchKeyGuard",
     kShares},
    {"torch._C", "_InferenceMode", kShares, do_make_inference_mode},
};

// Tensor methods whose result leaves the world of tensors in a way the dispatcher does not see, or that write to what
// it does not record.
const char* const kForbiddenTensorMethods[] = {
    "numpy",          "tolist",          "data_ptr",
    "storage",        "untyped_storage", "_typed_storage",
    "share_memory_",  "backward",        "register_hook",
    "set_",           "__array__",       "__array_wrap__",
    "_make_subclass", "as_subclass",     "_make_wrapper_subclass",
    "_use_count",     "_version",        "__reduce_ex__",
    "__setstate__",   "record_stream",   "map_",
    "map2_",          "apply_",          "_backward_hooks",
    "retain_grad",    "requires_grad_",  "__dlpack__",
    "pin_memory",     "module_load",     "_clear_non_serializable_cached_data",
    "storage_type",   "_set_names",      "swap_tensors",
    "_fix_weakref",   "resize_",         "resize_as_",
    "rename_",        "is_shared",       "new",
    "new_",           "storage_offset",  "is_set_to",
    "_is_view",       "is_pinned",       "rename",
    "refine_names",   "align_to",        "align_as",
    "const_data_ptr",
};
// torch functions that are not operators on tensors.
const char* const kForbiddenTensorFunctions[] = {"from_file",
                                                 "from_numpy",
                                                 "frombuffer",
                                                 "_from_blob",
                                                 "_sync",
                                                 "_from_functional_tensor",
                                                 "_to_functional_tensor",
                                                 "_enable_functionalization",
                                                 "_disable_functionalization",
                                                 "set_flush_denormal"};

class Table {
 public:
  static Table& get() {
    static Table* table = new Table;  // lives as long as the interpreter: it holds borrowed objects of modules
    table->extend_with_torch();
    return *table;
  }
  std::unordered_map<PyObject*, Native> functions;
  std::unordered_map<PyMethodDef*, Native> methods;
  std::unordered_map<PyTypeObject*, Native> types;
  std::unordered_set<PyObject*> tensor_owners;  // what torch functions are bound to
  PyTypeObject* autograd_function = nullptr;
  std::unordered_set<std::string_view> forbidden_methods, forbidden_functions;

 private:
  Table() {
    for (const char* name : kForbiddenTensorMethods) forbidden_methods.insert(name);
    for (const char* name : kForbiddenTensorFunctions) forbidden_functions.insert(name);
    fill(false);
  }

  void extend_with_torch() {
    if (with_torch_) return;
    PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (torch == nullptr || known_types().module == nullptr) return;
    with_torch_ = true;
    struct Again {  // where there was no memory for all of it
      Table& table;
      bool whole = false;
      ~Again() { table.with_torch_ = whole; }
    } again{*this};
    fill(true);
    if (Ref c = Ref::steal(PyObject_GetAttrString(torch, "_C")); c)
      autograd_function = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(c.get(), "_FunctionBase"));
    PyErr_Clear();
    for (const char* path : {"_VariableFunctions", "_nn", "_fft", "_linalg", "_special", "_nested", "_sparse"}) {
      Ref c = Ref::steal(PyObject_GetAttrString(torch, "_C"));
      Ref owner = c ? Ref::steal(PyObject_GetAttrString(c.get(), path)) : Ref();
      PyErr_Clear();
      if (!owner) continue;
      tensor_owners.insert(owner.get());
      if (std::strcmp(path, "_VariableFunctions") == 0)
        tensor_owners.insert(reinterpret_cast<PyObject*>(Py_TYPE(owner.get())));
      owner.release();
    }
    again.whole = true;
  }

  static std::vector<std::string> split(const char* names) {
    std::vector<std::string> out;
    for (std::string_view rest = names; !rest.empty();) {
      size_t end = std::min(rest.find(' '), rest.size());
      if (end > 0) out.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return out;
  }

  static Ref module(const char* name) {
    Ref m = Ref::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), name));
    if (!m && std::strncmp(name, "torch", 5) != 0) m = Ref::steal(PyImport_ImportModule(name));
    PyErr_Clear();
    return m;
  }

  void fill(bool torch) {
    auto mine = [torch](const NativeRow& row) { return (std::strncmp(row.owner, "torch", 5) == 0) == torch; };
    for (const NativeRow& row : kFunctions) {
      Ref m = mine(row) ? module(row.owner) : Ref();
      if (!m) continue;
      const Native native{row.flags, row.handler};
      if (std::strcmp(row.names, "*") == 0) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(PyModule_GetDict(m.get()), &at, &key, &value))
          if (PyCFunction_Check(value)) functions.emplace(Py_NewRef(value), native);
        continue;
      }
      for (const std::string& name : split(row.names)) {
        PyObject* f = PyObject_GetAttrString(m.get(), name.c_str());
        PyErr_Clear();
        if (f != nullptr) functions.emplace(f, native);
      }
    }
    for (const NativeRow& row : kMethods) {
      if (!mine(row)) continue;
      std::string owner = row.owner;
      size_t colon = owner.find(':');
      Ref m = module(owner.substr(0, colon).c_str());
      if (!m) continue;
      Ref t = Ref::steal(PyObject_GetAttrString(m.get(), owner.substr(colon + 1).c_str()));
      PyErr_Clear();
      if (!t) {  // not exported under its name: the type of a live object would do, but none is needed
        if (owner == "builtins:mappingproxy") t = Ref::borrow(reinterpret_cast<PyObject*>(&PyDictProxy_Type));
        if (owner == "builtins:dict_keys") t = Ref::borrow(reinterpret_cast<PyObject*>(&PyDictKeys_Type));
        if (owner == "builtins:dict_items") t = Ref::borrow(reinterpret_cast<PyObject*>(&PyDictItems_Type));
        if (!t) continue;
      }
      if (!PyType_Check(t.get())) continue;
      auto* type = reinterpret_cast<PyTypeObject*>(t.get());
      Py_INCREF(type);
      const Native native{row.flags, row.handler};
      const bool all = std::strcmp(row.names, "*") == 0;
      const auto names = split(row.names);
      PyObject *key, *value;
      Py_ssize_t at = 0;
      while (PyDict_Next(type_dict(type), &at, &key, &value)) {
        PyMethodDef* def = nullptr;
        if (Py_TYPE(value) == &PyMethodDescr_Type || Py_TYPE(value) == &PyClassMethodDescr_Type)
          def = reinterpret_cast<PyMethodDescrObject*>(value)->d_method;
        if (Py_TYPE(value) == &PyStaticMethod_Type) {  // str.maketrans
          PyObject* inner = reinterpret_cast<ClassMethodLayout*>(value)->callable;
          if (PyCFunction_Check(inner)) def = reinterpret_cast<PyCFunctionObject*>(inner)->m_ml;
        }
        if (PyInstanceMethod_Check(value) && PyCFunction_Check(PyInstanceMethod_GET_FUNCTION(value))) {
          const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;  // made by pybind11
          if (all || (name != nullptr && std::find(names.begin(), names.end(), name) != names.end()))
            functions.emplace(Py_NewRef(PyInstanceMethod_GET_FUNCTION(value)), native);
          continue;
        }
        if (all && Py_TYPE(value) == &PyProperty_Type) {  // pybind11's members
          Ref get = Ref::steal(PyObject_GetAttrString(value, "fget"));
          PyErr_Clear();
          if (get && PyInstanceMethod_Check(get.get())) get = Ref::borrow(PyInstanceMethod_GET_FUNCTION(get.get()));
          if (get && PyCFunction_Check(get.get())) functions.emplace(get.release(), native);
          continue;
        }
        if (def == nullptr) continue;
        bool listed = all;
        for (const auto& name : names) listed = listed || name == def->ml_name;
        if (listed) methods.emplace(def, native);
      }
    }
    for (const NativeRow& row : kTypes) {
      Ref m = mine(row) ? module(row.owner) : Ref();
      if (!m) continue;
      for (const std::string& name : split(row.names)) {
        PyObject* t = PyObject_GetAttrString(m.get(), name.c_str());
        PyErr_Clear();
        if (t != nullptr && PyType_Check(t))
          types.emplace(reinterpret_cast<PyTypeObject*>(t), Native{row.flags, row.handler});
      }
    }
    if (!torch) types.emplace(reinterpret_cast<PyTypeObject*>(PyExc_BaseException), Native{kShares, nullptr});
  }

  bool with_torch_ = false;
};

}  // namespace

const Native* native_function(PyObject* f) {
  Table& table = Table::get();
  auto it = table.functions.find(f);
  if (it != table.functions.end()) return &it->second;
  auto* c = reinterpret_cast<PyCFunctionObject*>(f);
  PyObject* self = c->m_self;  // also of static methods, for which PyCFunction_GET_SELF answers null
  if (self == nullptr) return nullptr;
  if (table.tensor_owners.count(self)) {
    static const Native tensors{kTensors | kShares, nullptr};
    return table.forbidden_functions.count(c->m_ml->ml_name) ? nullptr : &tensors;
  }
  auto method = table.methods.find(c->m_ml);
  if (method != table.methods.end()) return &method->second;
  const bool bound_by_pybind =
      PyCapsule_CheckExact(self) || std::strstr(Py_TYPE(self)->tp_name, "pybind11_detail_function_record");
  if (bound_by_pybind && c->m_module != nullptr && PyUnicode_Check(c->m_module)) {
    // torch.ops.<library>.<operator>: goes through the dispatcher.
    const char* module = PyUnicode_AsUTF8(c->m_module);
    static const Native tensors{kTensors | kShares, nullptr}, record{0, do_record_function};
    if (module != nullptr && std::strcmp(module, "torch._ops.profiler") == 0) return &record;
    if (module != nullptr && std::strncmp(module, "torch._ops.", 11) == 0) return &tensors;
    // Made when CUDA is first used, perhaps after the table.
    static const Native properties{kShares, nullptr};
    if (module != nullptr && std::strncmp(module, "torch.", 6) == 0 &&
        std::strcmp(c->m_ml->ml_name, "_get_device_properties") == 0)
      return &properties;
  }
  if (PyType_Check(self) && std::strcmp(c->m_ml->ml_name, "apply") == 0 && table.autograd_function != nullptr &&
      PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(self), table.autograd_function)) {
    static const Native apply{kTensors | kShares | Native::kHandsOn, do_autograd_apply};
    return &apply;
  }
  if (PyType_Check(self) && std::strcmp(c->m_ml->ml_name, "__new__") == 0) {
    static const Native make{kShares, do_new};
    return &make;
  }
  if (PyType_Check(self) && std::strcmp(c->m_ml->ml_name, "__class_getitem__") == 0) {
    static const Native alias{kShares, nullptr};
    return &alias;
  }
  return nullptr;
}

const Native* native_method(PyMethodDef* method) {
  auto& methods = Table::get().methods;
  auto it = methods.find(method);
  return it == methods.end() ? nullptr : &it->second;
}

const Native* native_type(PyTypeObject* type) {
  auto& types = Table::get().types;
  auto it = types.find(type);
  if (it != types.end()) return &it->second;
  if (PyExceptionClass_Check(reinterpret_cast<PyObject*>(type))) {
    static const Native exception{kShares, nullptr};
    return &exception;
  }
  for (const char* number : {"numpy.float32", "numpy.float64", "numpy.int32", "numpy.int64", "numpy.bool"}) {
    static const Native scalar{kReads | kShares, nullptr};
    if (std::strcmp(type->tp_name, number) == 0) return &scalar;
  }
  // torch.return_types: immutable records of an operator's results.
  if (PyType_IsSubtype(type, &PyTuple_Type) && std::strncmp(type->tp_name, "torch.return_types.", 19) == 0) {
    static const Native record{kReads, nullptr};
    return &record;
  }
  return nullptr;
}

bool is_tensor_method_allowed(const char* name) { return Table::get().forbidden_methods.count(name) == 0; }

bool stores_items(const PyWrapperDescrObject* method) {
  const PyTypeObject* type = PyDescr_TYPE(method);
  return std::strcmp(method->d_base->name, "__setitem__") == 0 &&
         (type == &PyDict_Type || type == &PyODict_Type || type == &PyList_Type);
}

const char* name_of_c(PyObject* f) {
  return PyCFunction_Check(f)                ? reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name
         : Py_TYPE(f) == &PyMethodDescr_Type ? reinterpret_cast<PyMethodDescrObject*>(f)->d_method->ml_name
                                             : "";
}

std::string callable_name(PyObject* f) {
  FetchedError error;
  Ref name = Ref::steal(_PyObject_FunctionStr(f));
  std::string text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : Py_TYPE(f)->tp_name;
  if (!(PyFunction_Check(f) || PyCFunction_Check(f) || PyType_Check(f) || Py_TYPE(f) == &PyMethodDescr_Type))
    text = std::string("a ") + Py_TYPE(f)->tp_name + " object";
  error.restore();
  if (text.size() > 2 && text.substr(text.size() - 2) == "()") text.resize(text.size() - 2);
  return text;
}

}  // namespace flashover::frame

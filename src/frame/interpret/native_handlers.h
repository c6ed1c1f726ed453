// What the interpreter does in place of C callables, by the file that it stands in. The table of native.cpp names them.
#pragma once
#include "frame/interpret/native.h"

namespace flashover::frame {

// native_objects.cpp
PyObject* do_getattr(const NativeCall& c);
PyObject* do_hasattr(const NativeCall& c);
PyObject* do_setattr(const NativeCall& c);
PyObject* do_delattr(const NativeCall& c);
PyObject* do_isinstance(const NativeCall& c);
PyObject* do_len(const NativeCall& c);
PyObject* do_callable(const NativeCall& c);
PyObject* do_id(const NativeCall& c);
PyObject* do_hash(const NativeCall& c);
PyObject* do_subclass_check(const NativeCall& c);
PyObject* do_instance_check(const NativeCall& c);
PyObject* do_iter(const NativeCall& c);
PyObject* do_next(const NativeCall& c);
PyObject* do_vars(const NativeCall& c);
PyObject* do_build_class(const NativeCall& c);
PyObject* do_abc_init(const NativeCall& c);
PyObject* do_clear_type_descriptors(const NativeCall& c);
PyObject* do_abc_register(const NativeCall& c);
PyObject* do_bool(const NativeCall& c);
PyObject* do_object_reduce(const NativeCall& c);
PyObject* do_exception_write(const NativeCall& c);
PyObject* do_new(const NativeCall& c);

// native_containers.cpp
PyObject* do_dict_get(const NativeCall& c);
PyObject* do_dict_contains(const NativeCall& c);
PyObject* do_dict_getitem(const NativeCall& c);
PyObject* do_dict_pop(const NativeCall& c);
PyObject* do_dict_setdefault(const NativeCall& c);
PyObject* do_list_append(const NativeCall& c);
PyObject* do_generator(const NativeCall& c);
PyObject* do_write_list(const NativeCall& c);
PyObject* do_operator_setitem(const NativeCall& c);
PyObject* do_operator_delitem(const NativeCall& c);
PyObject* do_operator_getitem(const NativeCall& c);
PyObject* do_operator_contains(const NativeCall& c);
PyObject* do_operator_is(const NativeCall& c);
PyObject* do_operator_call(const NativeCall& c);
PyObject* do_count_elements(const NativeCall& c);

// native_python.cpp
PyObject* do_warn(const NativeCall& c);
PyObject* do_filters_mutated(const NativeCall& c);
PyObject* do_getframe(const NativeCall& c);
PyObject* do_exec(const NativeCall& c);
PyObject* do_make_function(const NativeCall& c);
PyObject* do_compile(const NativeCall& c);
PyObject* do_own_random(const NativeCall& c);
PyObject* do_seed(const NativeCall& c);
PyObject* do_import(const NativeCall& c);
PyObject* do_format(const NativeCall& c);

// native_torch.cpp
PyObject* do_state(const NativeCall& c);
PyObject* do_switch(const NativeCall& c);
PyObject* do_enter_dual_level(const NativeCall& c);
PyObject* do_exit_dual_level(const NativeCall& c);
PyObject* do_make_inference_mode(const NativeCall& c);
PyObject* do_enter_inference_mode(const NativeCall& c);
PyObject* do_leave_inference_mode(const NativeCall& c);
PyObject* do_autocast_cache(const NativeCall& c);
PyObject* do_set_autocast_cache(const NativeCall& c);
PyObject* do_make_parameter(const NativeCall& c);
PyObject* do_make_wrapper(const NativeCall& c);
PyObject* do_record_function(const NativeCall& c);
PyObject* do_autograd_apply(const NativeCall& c);
PyObject* do_push_saved_hooks(const NativeCall& c);
PyObject* do_pop_saved_hooks(const NativeCall& c);
PyObject* do_run_backward(const NativeCall& c);
PyObject* do_context_of_backward(const NativeCall& c);

}  // namespace flashover::frame

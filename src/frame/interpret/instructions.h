// What single instructions do, for the loop in evaluate.cpp. Objects are new references, null with a Python error set;
// ints are negative then.
#pragma once
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

PyObject* decline_exception();  // BaseException subclass used when no trace session is there to make one
PyObject* abandon_frame(PyThreadState* tstate, _PyInterpreterFrame* frame);
// Library code that CPython runs by itself: it keeps process-wide caches or talks to the outside (once). Its effects
// stay, and what it answers depends on nothing that user code changes between calls but its arguments (kGuarded), or is
// nobody's business (kUntracked). kOperator: the Python of a registered operator, which hands what it is given to code
// that is not looked at. kBatches: torch.func.vmap's, whose count of examples may be a symbol.
enum class LibraryCode : uint8_t { kNo, kGuarded, kOperator, kBatches, kNested, kUntracked };
LibraryCode library_code(PyCodeObject* code);
bool calls_what_it_is_given(_PyInterpreterFrame* frame);  // library code that is about to run a function of the user's
bool talks_to_the_outside(PyCodeObject* code);  // library code that prints, or looks at the frames of those who called

bool is_checkpoint(PyObject* function);  // torch.utils.checkpoint.checkpoint

void unbound_local(PyCodeObject* code, int index);
void name_error(PyObject* name);
void not_iterable_after_star(PyObject* o);
void bad_keyword_dict(PyObject* f, PyObject* kwargs);
bool is_iterable_argument(PyObject* f, PyObject* args);
inline size_t keyword_count(PyObject* kwnames) {
  return kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(kwnames));
}

// names.cpp
PyObject* load_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name);
PyObject* load_from_dict_or_globals(Interpreter& in, _PyInterpreterFrame* frame, PyObject* dict, PyObject* name);
int store_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name, PyObject* value);
int delete_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name);
int store_global(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name, PyObject* value);
int delete_global(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name);
int setup_annotations(Interpreter& in, _PyInterpreterFrame* frame);
void copy_free_variables(_PyInterpreterFrame* frame, int count);
PyObject* load_cell(Interpreter& in, PyCodeObject* code, PyObject* cell, int index);
// `names`: the namespace to look into first; null: the frame's own.
PyObject* load_class_cell(Interpreter& in, _PyInterpreterFrame* frame, const Ref& names, int index);
void store_cell(Interpreter& in, PyObject* cell, PyObject* value);
PyObject* load_super_attr(Interpreter& in, PyObject* super, PyObject* type, PyObject* self, PyObject* name,
                          bool two_arguments);
PyObject* common_constant(int which);
PyObject* load_build_class(Interpreter& in, _PyInterpreterFrame* frame);
// build.cpp. Operands are borrowed.
bool is_same(Interpreter& in, Ref& a, Ref& b);  // `a is b`; arrays of numpy stand for those of before the trace
PyObject* length_of(PyObject* o);
PyObject* build_set(Interpreter& in, PyObject** items, int count);
PyObject* build_map(Interpreter& in, PyObject** items, int count);  // key, value, key ...
PyObject* build_const_key_map(PyObject* keys, PyObject** values, int count);
PyObject* build_string(Interpreter& in, PyObject** items, int count);
int list_append(Interpreter& in, PyObject* list, PyObject* item);
int list_extend(Interpreter& in, PyObject* list, PyObject* items);
int set_add(Interpreter& in, PyObject* set, PyObject* item);
int set_update(Interpreter& in, PyObject* set, PyObject* items);
int map_add(Interpreter& in, PyObject* dict, PyObject* key, PyObject* value);
int dict_update(Interpreter& in, PyObject* dict, PyObject* items);
int dict_merge(Interpreter& in, PyObject* dict, PyObject* items, PyObject* function);
void set_function_attribute(PyObject* f, int which, PyObject* value);  // takes the value over
PyObject* make_function(Interpreter& in, _PyInterpreterFrame* frame, int flags, PyObject*** sp);  // pops its operands
// raise.cpp
PyObject* enter_with(Interpreter& in, PyObject* manager, Ref& exit);                        // what __enter__ gave
PyObject* load_special(Interpreter& in, PyObject* manager, const char* name);               // one of the two, bound
PyObject* exit_with(Interpreter& in, PyObject* exit, PyObject* self, PyObject* exception);  // `self` may be null

Ref local_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name);  // null without an error: not there
// 1: *out is an unbound method whose first argument is `o`. 0: *out is the attribute, or null with an error set.
int load_method(Interpreter& in, PyObject* o, PyObject* name, PyObject** out);
PyObject* convert_value(Interpreter& in, PyObject* v, int conversion);  // str(), repr() or ascii(): 1, 2, 3
PyObject* format_value(Interpreter& in, PyObject* v, int conversion, PyObject* spec);
bool unpack(Interpreter& in, PyObject* seq, int before, int after, PyObject*** sp);
// except*: what of `group` is of `type`, and what is left (or None). False with an error set.
bool split_group(Interpreter& in, PyObject* group, PyObject* type, Ref& match, Ref& rest);
PyObject* what_to_reraise(PyObject* original, PyObject* raised);  // after all except* clauses; null: error set
int exception_matches(Interpreter& in, PyObject* value, PyObject* type);
bool raise(Interpreter& in, PyObject* exception, PyObject* cause);  // true: a re-raise, keep the traceback as it is
Ref special_method(PyObject* o, const char* name, const char* protocol);
PyObject* import_name(Interpreter& in, _PyInterpreterFrame* frame, PyObject* name, PyObject* fromlist, PyObject* level);
PyObject* import_from(Interpreter& in, PyObject* module, PyObject* name);
PyObject* match_keys(Interpreter& in, PyObject* subject, PyObject* keys);
PyObject* match_class(Interpreter& in, PyObject* subject, PyObject* type, int positional, PyObject* keywords);
bool knows_intrinsic(int which);
PyObject* intrinsic(int which, PyObject* v);  // one that is known

// A function of this source, for good. Null if it could not be made.
PyObject* function_of_ours(const char* source, const char* name);
// What Interpreter::as_python_function makes is seen by nobody: its code, and what it was made around (else `f`
// itself).
bool is_code_of_ours(PyCodeObject* code);
PyObject* behind_python_function(PyObject* f);

}  // namespace flashover::frame

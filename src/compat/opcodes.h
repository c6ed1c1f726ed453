// The instructions of all versions, and what their arguments and operands mean in this one.
// One that this version lacks has a number that no code holds, so that code that knows all of them compiles for each.
#pragma once
#include <opcode.h>

#include <array>
#include <cstdint>

#include "compat/python_version.h"

#ifndef BEFORE_WITH
#define BEFORE_WITH 1000
#endif
#ifndef BINARY_SLICE
#define BINARY_SLICE 1001
#endif
#ifndef BINARY_SUBSCR
#define BINARY_SUBSCR 1002
#endif
#ifndef BUILD_CONST_KEY_MAP
#define BUILD_CONST_KEY_MAP 1003
#endif
#ifndef BUILD_INTERPOLATION
#define BUILD_INTERPOLATION 1004
#endif
#ifndef BUILD_TEMPLATE
#define BUILD_TEMPLATE 1005
#endif
#ifndef CALL_INTRINSIC_1
#define CALL_INTRINSIC_1 1006
#endif
#ifndef CALL_INTRINSIC_2
#define CALL_INTRINSIC_2 1007
#endif
#ifndef CALL_KW
#define CALL_KW 1008
#endif
#ifndef CLEANUP_THROW
#define CLEANUP_THROW 1009
#endif
#ifndef CONVERT_VALUE
#define CONVERT_VALUE 1010
#endif
#ifndef END_FOR
#define END_FOR 1011
#endif
#ifndef END_SEND
#define END_SEND 1012
#endif
#ifndef FORMAT_SIMPLE
#define FORMAT_SIMPLE 1013
#endif
#ifndef FORMAT_VALUE
#define FORMAT_VALUE 1014
#endif
#ifndef FORMAT_WITH_SPEC
#define FORMAT_WITH_SPEC 1015
#endif
#ifndef JUMP_IF_FALSE_OR_POP
#define JUMP_IF_FALSE_OR_POP 1016
#endif
#ifndef JUMP_IF_TRUE_OR_POP
#define JUMP_IF_TRUE_OR_POP 1017
#endif
#ifndef KW_NAMES
#define KW_NAMES 1018
#endif
#ifndef LIST_TO_TUPLE
#define LIST_TO_TUPLE 1019
#endif
#ifndef LOAD_ASSERTION_ERROR
#define LOAD_ASSERTION_ERROR 1020
#endif
#ifndef LOAD_CLASSDEREF
#define LOAD_CLASSDEREF 1021
#endif
#ifndef LOAD_CLOSURE
#define LOAD_CLOSURE 1022
#endif
#ifndef LOAD_COMMON_CONSTANT
#define LOAD_COMMON_CONSTANT 1023
#endif
#ifndef LOAD_FAST_AND_CLEAR
#define LOAD_FAST_AND_CLEAR 1024
#endif
#ifndef LOAD_FAST_BORROW
#define LOAD_FAST_BORROW 1025
#endif
#ifndef LOAD_FAST_BORROW_LOAD_FAST_BORROW
#define LOAD_FAST_BORROW_LOAD_FAST_BORROW 1026
#endif
#ifndef LOAD_FAST_CHECK
#define LOAD_FAST_CHECK 1027
#endif
#ifndef LOAD_FAST_LOAD_FAST
#define LOAD_FAST_LOAD_FAST 1028
#endif
#ifndef LOAD_FROM_DICT_OR_DEREF
#define LOAD_FROM_DICT_OR_DEREF 1029
#endif
#ifndef LOAD_FROM_DICT_OR_GLOBALS
#define LOAD_FROM_DICT_OR_GLOBALS 1030
#endif
#ifndef LOAD_LOCALS
#define LOAD_LOCALS 1031
#endif
#ifndef LOAD_METHOD
#define LOAD_METHOD 1032
#endif
#ifndef LOAD_SMALL_INT
#define LOAD_SMALL_INT 1033
#endif
#ifndef LOAD_SPECIAL
#define LOAD_SPECIAL 1034
#endif
#ifndef LOAD_SUPER_ATTR
#define LOAD_SUPER_ATTR 1035
#endif
#ifndef NOT_TAKEN
#define NOT_TAKEN 1036
#endif
#ifndef POP_ITER
#define POP_ITER 1037
#endif
#ifndef POP_JUMP_BACKWARD_IF_FALSE
#define POP_JUMP_BACKWARD_IF_FALSE 1038
#endif
#ifndef POP_JUMP_BACKWARD_IF_NONE
#define POP_JUMP_BACKWARD_IF_NONE 1039
#endif
#ifndef POP_JUMP_BACKWARD_IF_NOT_NONE
#define POP_JUMP_BACKWARD_IF_NOT_NONE 1040
#endif
#ifndef POP_JUMP_BACKWARD_IF_TRUE
#define POP_JUMP_BACKWARD_IF_TRUE 1041
#endif
#ifndef POP_JUMP_FORWARD_IF_FALSE
#define POP_JUMP_FORWARD_IF_FALSE 1042
#endif
#ifndef POP_JUMP_FORWARD_IF_NONE
#define POP_JUMP_FORWARD_IF_NONE 1043
#endif
#ifndef POP_JUMP_FORWARD_IF_NOT_NONE
#define POP_JUMP_FORWARD_IF_NOT_NONE 1044
#endif
#ifndef POP_JUMP_FORWARD_IF_TRUE
#define POP_JUMP_FORWARD_IF_TRUE 1045
#endif
#ifndef POP_JUMP_IF_FALSE
#define POP_JUMP_IF_FALSE 1046
#endif
#ifndef POP_JUMP_IF_NONE
#define POP_JUMP_IF_NONE 1047
#endif
#ifndef POP_JUMP_IF_NOT_NONE
#define POP_JUMP_IF_NOT_NONE 1048
#endif
#ifndef POP_JUMP_IF_TRUE
#define POP_JUMP_IF_TRUE 1049
#endif
#ifndef PRECALL
#define PRECALL 1050
#endif
#ifndef PREP_RERAISE_STAR
#define PREP_RERAISE_STAR 1051
#endif
#ifndef RETURN_CONST
#define RETURN_CONST 1052
#endif
#ifndef SET_FUNCTION_ATTRIBUTE
#define SET_FUNCTION_ATTRIBUTE 1053
#endif
#ifndef STORE_FAST_LOAD_FAST
#define STORE_FAST_LOAD_FAST 1054
#endif
#ifndef STORE_FAST_STORE_FAST
#define STORE_FAST_STORE_FAST 1055
#endif
#ifndef STORE_SLICE
#define STORE_SLICE 1056
#endif
#ifndef TO_BOOL
#define TO_BOOL 1057
#endif
#ifndef UNARY_POSITIVE
#define UNARY_POSITIVE 1058
#endif

namespace flashover::compat {

// How many inline cache code units follow each instruction (Lib/opcode.py's _inline_cache_entries).
constexpr std::array<uint8_t, 256> inline_caches() {
  std::array<uint8_t, 256> t{};
#if PY_VERSION_HEX < 0x030C0000
  t[BINARY_SUBSCR] = 4;
  t[STORE_SUBSCR] = 1;
  t[UNPACK_SEQUENCE] = 1;
  t[STORE_ATTR] = 4;
  t[LOAD_ATTR] = 4;
  t[COMPARE_OP] = 2;
  t[LOAD_GLOBAL] = 5;
  t[BINARY_OP] = 1;
  t[LOAD_METHOD] = 10;
  t[PRECALL] = 1;
  t[CALL] = 4;
#else
  t[STORE_SUBSCR] = 1;
  t[UNPACK_SEQUENCE] = 1;
  t[FOR_ITER] = 1;
  t[STORE_ATTR] = 4;
  t[LOAD_ATTR] = 9;
  t[COMPARE_OP] = 1;
  t[LOAD_GLOBAL] = 4;
  t[SEND] = 1;
  t[LOAD_SUPER_ATTR] = 1;
  t[CALL] = 3;
#endif
#if PY_VERSION_HEX >= 0x030E0000
  t[BINARY_OP] = 5;
  t[CALL_KW] = 3;
#elif PY_VERSION_HEX >= 0x030C0000
  t[BINARY_SUBSCR] = 1;
  t[BINARY_OP] = 1;
#endif
#if PY_VERSION_HEX >= 0x030D0000
  t[JUMP_BACKWARD] = 1;
  t[TO_BOOL] = 3;
  t[CONTAINS_OP] = 1;
  t[POP_JUMP_IF_TRUE] = 1;
  t[POP_JUMP_IF_FALSE] = 1;
  t[POP_JUMP_IF_NONE] = 1;
  t[POP_JUMP_IF_NOT_NONE] = 1;
#endif
  return t;
}
constexpr auto kInlineCaches = inline_caches();

// Which of the instructions below it is: 3.14 has several for one thing, which differ in who keeps the value alive, or
// in what tools are told.
constexpr int plain_instruction(int op, [[maybe_unused]] int arg) {
#if PY_VERSION_HEX >= 0x030E0000
  if (op == LOAD_FAST_BORROW) return LOAD_FAST;
  if (op == LOAD_FAST_BORROW_LOAD_FAST_BORROW) return LOAD_FAST_LOAD_FAST;
  if (op == NOT_TAKEN) return NOP;
  if (op == BINARY_OP && arg == NB_SUBSCR) return BINARY_SUBSCR;
#endif
  return op;
}

// Of a COMPARE_OP: which comparison (Py_LT ...), and whether a bool is made of what it gives (3.13).
constexpr int comparison_of(int arg) { return kPython313 ? arg >> 5 : kPython312 ? arg >> 4 : arg; }
constexpr bool compares_to_bool(int arg) { return kPython313 && (arg & 16) != 0; }

// Of a LOAD_ATTR: the name's number, and whether a call of what it gives follows (up to 3.11 LOAD_METHOD says so).
constexpr int attribute_name_of(int arg) { return kPython312 ? arg >> 1 : arg; }
constexpr bool loads_method(int arg) { return kPython312 && (arg & 1) != 0; }

// A call's callable and the object that a method is of lie on the stack as (callable, object or NULL) from 3.13 on; before
// as (NULL, callable) or (method, object).
constexpr bool kCallableFirst = kPython313;

// Superinstructions on locals (3.13): the two that their argument names.
constexpr int first_local_of(int arg) { return arg >> 4; }
constexpr int second_local_of(int arg) { return arg & 15; }

// Where a loop goes on, behind FOR_ITER's jump, when its iterator has ended: past the instructions that clean up after a
// generator's last value. The iterator has left the stack by then, or a POP_ITER takes it off (3.14).
constexpr int past_end_of_loop() { return kPython314 ? 1 : kPython313 ? 2 : kPython312 ? 1 : 0; }
constexpr bool kLoopsKeepIterator = kPython314;

// The result of SEND takes the iterator's place when that has ended (3.11), or stands beside it.
constexpr bool kSendDropsIterator = !kPython312;

// MAKE_FUNCTION takes the code alone, SET_FUNCTION_ATTRIBUTE the rest.
constexpr bool kFunctionsGetAttributesLater = kPython313;

// Of a CALL_FUNCTION_EX: whether the dict of keywords has a place on the stack (from 3.14 on always, NULL if there is
// none).
constexpr bool spreads_keywords(int arg) { return kPython314 || (arg & 1) != 0; }

// What leaves a context manager lies on the stack as its __exit__ alone, or from 3.14 on as a callable and what it is a
// method of (or NULL), like a call's.
constexpr bool kExitIsMethod = kPython314;

// Of a LOAD_SPECIAL (3.14).
constexpr const char* special_name_of(int arg) {
  constexpr const char* kNames[] = {"__enter__", "__exit__", "__aenter__", "__aexit__"};
  return kNames[arg & 3];
}

// Where a handler puts down which instruction raised, that is a tagged number from 3.14 on; before, an int.
constexpr bool kTagsInstructions = kPython314;

// The dict below DICT_MERGE's operands is of a call, whose callable stands so deep (DICT_MERGE's own operand is off).
constexpr int callable_of_merge(int arg) { return kPython313 ? 3 + arg : 2 + arg; }

constexpr bool delegates(int yield_arg) { return kPython313 && yield_arg != 0; }  // of a YIELD_VALUE

// The compiler counts a call's arguments as gone at its first half (3.11); they lie there until the second is done.
constexpr bool kTwoHalvesOfCalls = !kPython312;

// Of a tuple, list or dict with too many values for an UNPACK_SEQUENCE the error says how many there are.
constexpr bool kUnpackingCounts = kPython314;

inline bool is_call(int op) { return op == PRECALL || op == CALL || op == CALL_KW || op == CALL_FUNCTION_EX; }

}  // namespace flashover::compat

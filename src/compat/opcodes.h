// The instructions of all versions, and what their arguments and operands mean in this one.
// One that this version lacks has a number that no code holds, so that code that knows all of them compiles for each.
#pragma once
#include <opcode.h>

#include <array>
#include <cstdint>

#include "compat/python_version.h"

#ifndef BINARY_SLICE
#define BINARY_SLICE 1000
#endif
#ifndef CALL_INTRINSIC_1
#define CALL_INTRINSIC_1 1001
#endif
#ifndef CALL_INTRINSIC_2
#define CALL_INTRINSIC_2 1002
#endif
#ifndef CALL_KW
#define CALL_KW 1003
#endif
#ifndef CLEANUP_THROW
#define CLEANUP_THROW 1004
#endif
#ifndef CONVERT_VALUE
#define CONVERT_VALUE 1005
#endif
#ifndef END_FOR
#define END_FOR 1006
#endif
#ifndef END_SEND
#define END_SEND 1007
#endif
#ifndef FORMAT_SIMPLE
#define FORMAT_SIMPLE 1008
#endif
#ifndef FORMAT_VALUE
#define FORMAT_VALUE 1009
#endif
#ifndef FORMAT_WITH_SPEC
#define FORMAT_WITH_SPEC 1010
#endif
#ifndef JUMP_IF_FALSE_OR_POP
#define JUMP_IF_FALSE_OR_POP 1011
#endif
#ifndef JUMP_IF_TRUE_OR_POP
#define JUMP_IF_TRUE_OR_POP 1012
#endif
#ifndef KW_NAMES
#define KW_NAMES 1013
#endif
#ifndef LIST_TO_TUPLE
#define LIST_TO_TUPLE 1014
#endif
#ifndef LOAD_CLASSDEREF
#define LOAD_CLASSDEREF 1015
#endif
#ifndef LOAD_CLOSURE
#define LOAD_CLOSURE 1016
#endif
#ifndef LOAD_FAST_AND_CLEAR
#define LOAD_FAST_AND_CLEAR 1017
#endif
#ifndef LOAD_FAST_CHECK
#define LOAD_FAST_CHECK 1018
#endif
#ifndef LOAD_FAST_LOAD_FAST
#define LOAD_FAST_LOAD_FAST 1019
#endif
#ifndef LOAD_FROM_DICT_OR_DEREF
#define LOAD_FROM_DICT_OR_DEREF 1020
#endif
#ifndef LOAD_FROM_DICT_OR_GLOBALS
#define LOAD_FROM_DICT_OR_GLOBALS 1021
#endif
#ifndef LOAD_LOCALS
#define LOAD_LOCALS 1022
#endif
#ifndef LOAD_METHOD
#define LOAD_METHOD 1023
#endif
#ifndef LOAD_SUPER_ATTR
#define LOAD_SUPER_ATTR 1024
#endif
#ifndef POP_JUMP_BACKWARD_IF_FALSE
#define POP_JUMP_BACKWARD_IF_FALSE 1025
#endif
#ifndef POP_JUMP_BACKWARD_IF_NONE
#define POP_JUMP_BACKWARD_IF_NONE 1026
#endif
#ifndef POP_JUMP_BACKWARD_IF_NOT_NONE
#define POP_JUMP_BACKWARD_IF_NOT_NONE 1027
#endif
#ifndef POP_JUMP_BACKWARD_IF_TRUE
#define POP_JUMP_BACKWARD_IF_TRUE 1028
#endif
#ifndef POP_JUMP_FORWARD_IF_FALSE
#define POP_JUMP_FORWARD_IF_FALSE 1029
#endif
#ifndef POP_JUMP_FORWARD_IF_NONE
#define POP_JUMP_FORWARD_IF_NONE 1030
#endif
#ifndef POP_JUMP_FORWARD_IF_NOT_NONE
#define POP_JUMP_FORWARD_IF_NOT_NONE 1031
#endif
#ifndef POP_JUMP_FORWARD_IF_TRUE
#define POP_JUMP_FORWARD_IF_TRUE 1032
#endif
#ifndef POP_JUMP_IF_FALSE
#define POP_JUMP_IF_FALSE 1033
#endif
#ifndef POP_JUMP_IF_NONE
#define POP_JUMP_IF_NONE 1034
#endif
#ifndef POP_JUMP_IF_NOT_NONE
#define POP_JUMP_IF_NOT_NONE 1035
#endif
#ifndef POP_JUMP_IF_TRUE
#define POP_JUMP_IF_TRUE 1036
#endif
#ifndef PRECALL
#define PRECALL 1037
#endif
#ifndef PREP_RERAISE_STAR
#define PREP_RERAISE_STAR 1038
#endif
#ifndef RETURN_CONST
#define RETURN_CONST 1039
#endif
#ifndef SET_FUNCTION_ATTRIBUTE
#define SET_FUNCTION_ATTRIBUTE 1040
#endif
#ifndef STORE_FAST_LOAD_FAST
#define STORE_FAST_LOAD_FAST 1041
#endif
#ifndef STORE_FAST_STORE_FAST
#define STORE_FAST_STORE_FAST 1042
#endif
#ifndef STORE_SLICE
#define STORE_SLICE 1043
#endif
#ifndef TO_BOOL
#define TO_BOOL 1044
#endif
#ifndef UNARY_POSITIVE
#define UNARY_POSITIVE 1045
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
  t[BINARY_SUBSCR] = 1;
  t[STORE_SUBSCR] = 1;
  t[UNPACK_SEQUENCE] = 1;
  t[FOR_ITER] = 1;
  t[STORE_ATTR] = 4;
  t[LOAD_ATTR] = 9;
  t[COMPARE_OP] = 1;
  t[LOAD_GLOBAL] = 4;
  t[BINARY_OP] = 1;
  t[SEND] = 1;
  t[LOAD_SUPER_ATTR] = 1;
  t[CALL] = 3;
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
// generator's last value.
constexpr int past_end_of_loop() { return kPython313 ? 2 : kPython312 ? 1 : 0; }

// The result of SEND takes the iterator's place when that has ended (3.11), or stands beside it.
constexpr bool kSendDropsIterator = !kPython312;

// MAKE_FUNCTION takes the code alone, SET_FUNCTION_ATTRIBUTE the rest.
constexpr bool kFunctionsGetAttributesLater = kPython313;

// The dict below DICT_MERGE's operands is of a call, whose callable stands so deep (DICT_MERGE's own operand is off).
constexpr int callable_of_merge(int arg) { return kPython313 ? 3 + arg : 2 + arg; }

constexpr bool delegates(int yield_arg) { return kPython313 && yield_arg != 0; }  // of a YIELD_VALUE

// The compiler counts a call's arguments as gone at its first half (3.11); they lie there until the second is done.
constexpr bool kTwoHalvesOfCalls = !kPython312;

inline bool is_call(int op) { return op == PRECALL || op == CALL || op == CALL_KW || op == CALL_FUNCTION_EX; }

}  // namespace flashover::compat

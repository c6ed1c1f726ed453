// How many inline cache code units follow each instruction, per Python version (Lib/opcode.py's _inline_cache_entries).
#pragma once
#include <Python.h>
#include <opcode.h>

#include <array>
#include <cstdint>

namespace flashover::frame {

#if PY_VERSION_HEX < 0x030C0000
constexpr auto kInlineCaches = [] {
  std::array<uint8_t, 256> t{};
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
  return t;
}();
#elif PY_VERSION_HEX < 0x030D0000
constexpr auto kInlineCaches = [] {
  std::array<uint8_t, 256> t{};
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
  return t;
}();
#else
#error "no instruction table for this Python version yet"
#endif

}  // namespace flashover::frame

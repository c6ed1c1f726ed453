// How much of the processor this process may use. FLASHOVER_ISA=scalar|avx2|avx512 asks for less than there is, so that
// one machine can run what others would: avx512 means AVX-512 as its first processors had it, without the
// instructions for bf16 and without AMX. (Libraries that torch calls have switches of their own; tests/conftest.py
// sets them alongside.)
#pragma once
#include <cstdint>

namespace flashover {

enum class IsaLimit : uint8_t { kScalar, kAvx2, kAvx512, kNone };

// Throws UserError for an unknown level.
IsaLimit isa_limit();

}  // namespace flashover

// Loads and stores: whole vectors where memory is contiguous over the lanes, else gathers or one lane after the other.
#pragma once
#include "kernel/cpp/emission.h"

namespace flashover::kernel::cpp {

const char* memory_type(DType d);  // "unsigned short"; throws Declined for dtypes that are not accessed here

// The memory that a load or store accesses.
struct MemoryAccess {
  std::string pointer;
  DType dtype;
  std::string suffix;  // of the library's load_ and store_
};
MemoryAccess memory_of(const loops::Kernel& k, const loops::Instr& in);

void load(Emission& e, Scope& s, loops::Id i);
void store(Emission& e, Scope& s, loops::Id i);

}  // namespace flashover::kernel::cpp

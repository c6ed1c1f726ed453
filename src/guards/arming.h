// Segments of sources, compiled to compares of addresses and version tags (program.cpp tells why those suffice).
#pragma once
#include <cstdint>
#include <cstring>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guards/facts.h"
#include "guards/tensors.h"

namespace flashover::guards {

enum class GuardOp : uint8_t {
  kObject,   // type of object a is b, and the pointer at a + number (if not 0) is c
  kDict,     // dict a has tag number; index: into dicts_
  kType,     // type a has tag number; index: into types
  kPointer,  // *a is b; index: the source, whose link it is if the level is even (link_level); number: its words
  kItem,     // list a has b at index; number: the source
  kTensor,   // object of source `index` matches spec a
  kFact,     // fact `number` holds for source `index`
  kResolve,  // source `index` fetched again is a; or another object, unless number is 1
};

struct GuardInstr {
  GuardOp op;
  int32_t index = -1;
  void* a = nullptr;
  void* b = nullptr;
  void* c = nullptr;
  int64_t number = 0;
  int32_t level = 0;
};
// A word of memory and what it held. Everything that one look at memory tells is one of these: types, dict pointers,
// version tags, slots. A program of thousands of compares costs what memory it touches and its mispredicted branches:
// so they lie densely, in blocks that have one branch each.
struct Word {
  const char* where;
  uint64_t is;
};
constexpr size_t kBlock = 4;  // words; a block reads nothing whose being there another word of the same block shows
struct Words {
  std::vector<Word> words;  // whole blocks
  std::vector<int32_t> of;  // the instruction of each; -1: filling
  void fill() {
    static const uint64_t nothing = 0;
    for (; words.size() % kBlock; of.push_back(-1)) words.push_back({reinterpret_cast<const char*>(&nothing), 0});
  }
};
// Blocks, then code[begin, end) one by one, which reads what the blocks have shown to be there.
struct Phase {
  uint32_t all = 0, still = 0;  // how far in Segment::all and Segment::still
  uint32_t begin = 0, end = 0;
};
struct TensorOf {
  SourceId source;
  const TensorSpec* spec;
};

struct Segment {
  SourceId root = kNoSource;  // kNoSource: the fixed segment, whose roots are known by address
  int32_t parent = -1;
  std::vector<SourceId> sources;
  std::vector<GuardInstr> code;
  std::vector<Phase> phases;
  Words all, still;  // with and without what cannot have changed while no dict did
  std::vector<TensorCompare> tensors;
  std::vector<TensorOf> tensor_of;           // by tensor
  std::vector<std::vector<SourceId>> dicts;  // the sources that are the dict of a kDict instruction
  std::vector<std::vector<SourceId>> types;  // likewise; kNoSource: its tag stands for more than facts on those
  std::vector<SourceId> loose;               // checked one by one, after what they hang off
  bool armed = false;
  int32_t arms = 0, rests = 0;
};

inline uint64_t read(const char* where) {
  uint64_t word;
  std::memcpy(&word, where, sizeof word);
  return word;
}

struct SourcePosition {  // of a source: its segment, its compare among Segment::tensors, its last place in required_
  int32_t segment = 0, tensor = -1, required = -1;
  int32_t depth = 0;  // steps of its path
};

// What checks and compares are about.
struct ProgramState {
  explicit ProgramState(Observations observations) : table_(std::move(observations)) {}
  ~ProgramState() {
    for (PyObject* o : held_) Py_DECREF(o);
  }
  ProgramState(const ProgramState&) = delete;

  const Source& source(SourceId s) const { return table_.sources()[s]; }
  // An object may be read once it is known to be there: two levels a step of the path, first the link to an object (a
  // slot, an item), then what is read off the object itself. Seen along several paths it counts by the shortest, whose
  // every object counts less in its turn.
  int32_t link_level(SourceId id) const { return 2 * positions_[id].depth; }
  int32_t own_level(SourceId id) const { return 2 * positions_[id].depth + 1; }
  // Compares of what hangs off it, and of its own insides, hold its address: of another object they say nothing.
  bool by_address(SourceId id) const;

  FactTable table_;
  std::vector<PyObject*> current_;         // by source; borrowed
  std::vector<SourcePosition> positions_;  // by source
  std::vector<bool> loose_;                // by source: it, and what hangs off it, has no compares
  std::unordered_set<PyObject*> held_;     // owned
  bool watched_ = true;                    // every dict among the compares
  TensorLooks looks_;
};

// The segment has just passed the plain check, with the objects that `current_` has.
void arm(ProgramState& program, Segment& segment);

}  // namespace flashover::guards

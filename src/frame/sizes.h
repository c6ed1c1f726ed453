// What a capture is told of the sizes of its inputs, and what it tells of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/geometry.h"
#include "sym/environment.h"

namespace flashover::frame {

// Sizes of inputs that change from call to call, and strides that no size explains.
struct VaryingSizes {
  bool all = false;                                        // of every input
  bool few = true;                                         // those that are 0 or 1 now are traced as larger ones
  bool marked_only = false;                                // else `dims` and `dynamic_sources` count as well
  bool ints = false;                                       // of the arguments are symbols, too
  bool parameters = true;                                  // have such sizes, too
  std::unordered_map<std::string, std::set<size_t>> dims;  // parts of geometry (ops/geometry.h), by the input's path
  std::string dynamic_sources, static_sources;             // paths and patterns, commas between
};

// A size that was to be a symbol, and what became of it.
struct SizeSymbol {
  std::string path;  // of the tensor, or of the number
  size_t dim = 0;    // a part of its geometry
  bool number = false;
  std::string in_words() const { return number ? path : part_in_words(path, dim); }
  std::string name, stands_for;  // "s0"; in the program's words: itself, another size, an expression, or `value`
  sym::Expr canonical;           // the same as an expression
  bool fixed = false;            // it is one number
  sym::Fixing how = sym::Fixing::kCompared;
  int64_t value = 0;
  int64_t least = sym::kSizeSymbolRange.lo, most = sym::Range::kInf;  // that the version serves, other guards aside
  std::string where;  // the line that made it stand for something else; may be empty
  bool marked = false;
};
// What torch._dynamo.mark_dynamic and its kin said of a size, which is not so.
struct BrokenMark {
  std::string path;
  size_t dim = 0;
  std::string reason, where;
  bool ours = false;  // an operator of ours asks for what the program itself does not
};

}  // namespace flashover::frame

// Finds out which snippets of the library a text uses, and what these use in turn, and puts them in order.
#include "kernel/cpp/prelude.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel {
namespace {

using snippets::Snippet;
using snippets::Snippets;

// What stands first here stands first in a kernel.
constexpr Snippets (*kSubjects[])() = {snippets::values,    snippets::memory,  snippets::arithmetic,
                                       snippets::functions, snippets::libm,    snippets::division,
                                       snippets::transpose, snippets::threads, snippets::attention};

unsigned config_bit(Lanes l) {
  switch (l.isa) {
    case Isa::kScalar:
      return snippets::kS1;
    case Isa::kAvx2:
      return l.width == 8 ? snippets::kB8 : snippets::kB4;
    case Isa::kAvx512:
      return l.width == 16 ? snippets::kA16 : snippets::kA8;
    case Isa::kNeon:
      return l.width == 4 ? snippets::kN4 : snippets::kN2;
  }
  return 0;
}

bool is_word(char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

template <typename F>
void for_each_word(std::string_view text, F&& f) {
  for (size_t i = 0; i < text.size();) {
    if (!is_word(text[i])) {
      ++i;
      continue;
    }
    size_t begin = i;
    while (i < text.size() && is_word(text[i])) ++i;
    f(text.substr(begin, i - begin));
  }
}

// Folds a vector by halves with `op` over "a" and "b": log2(lanes) steps.
std::string fold_text(const char* scalar, const char* vector, const char* name, const char* op, int lanes) {
  std::string s = std::string("inline ") + scalar + " " + name + "(" + vector + " v) {\n";
  if (lanes == 1) return s + "  return v;\n}\n";
  std::string from = "v";
  for (int n = lanes / 2; n >= 1; n /= 2) {
    std::string low, high;
    for (int i = 0; i < n; ++i) {
      low += ", " + std::to_string(i);
      high += ", " + std::to_string(n + i);
    }
    std::string t = n == 1 ? std::string(scalar) : "T" + std::to_string(n);
    if (n > 1)
      s += "  typedef " + std::string(scalar) + " " + t + " __attribute__((vector_size(" + std::to_string(n) +
           " * sizeof(" + scalar + "))));\n";
    auto half = [&](const std::string& which, int first) {
      return n == 1 ? from + "[" + std::to_string(first) + "]"
                    : "__builtin_shufflevector(" + from + ", " + from + which + ")";
    };
    std::string to = "r" + std::to_string(n);
    s += "  " + t + " " + to + ";\n  { " + t + " a = " + half(low, 0) + ", b = " + half(high, n) + "; " + to + " = " +
         op + "; }\n";
    from = to;
  }
  return s + "  return " + from + ";\n}\n";
}

struct Library {
  struct Entry {
    std::vector<std::string> names;
    std::string text;
    std::vector<int> needs;  // entries
  };
  std::vector<Entry> entries;
  std::unordered_map<std::string, int> index;

  explicit Library(Lanes lanes) {
    const unsigned bit = config_bit(lanes);
    const int w = lanes.width, wd = lanes.wide_width();
    for (const auto& subject : kSubjects)
      for (const Snippet& s : subject())
        if (s.when & bit) add(s.names, s.text);
    struct Fold {
      const char *scalar, *vector, *name, *op;
      bool wide;
    };
    for (const Fold& f : {Fold{"float", "VF", "hsum", "a + b", false},
                          {"float", "VF", "hprod", "a * b", false},
                          {"float", "VF", "hmax", "(a > b) | (a != a) ? a : b", false},
                          {"float", "VF", "hmin", "(a < b) | (a != a) ? a : b", false},
                          {"int", "VI", "hsum_i", "a + b", false},
                          {"int", "VI", "hprod_i", "a * b", false},
                          {"int", "VI", "hmax_i", "a > b ? a : b", false},
                          {"int", "VI", "hmin_i", "a < b ? a : b", false},
                          {"int", "VI", "hor_i", "a | b", false},
                          {"int", "VI", "hand_i", "a & b", false},
                          {"double", "VD", "hsum_d", "a + b", true},
                          {"double", "VD", "hprod_d", "a * b", true},
                          {"double", "VD", "hmax_d", "(a > b) | (a != a) ? a : b", true},
                          {"double", "VD", "hmin_d", "(a < b) | (a != a) ? a : b", true},
                          {"long long", "VL", "hsum_l", "a + b", true},
                          {"long long", "VL", "hprod_l", "a * b", true},
                          {"long long", "VL", "hmax_l", "a > b ? a : b", true},
                          {"long long", "VL", "hmin_l", "a < b ? a : b", true},
                          {"long long", "VL", "hor_l", "a | b", true},
                          {"long long", "VL", "hand_l", "a & b", true}})
      add(f.name, fold_text(f.scalar, f.vector, f.name, f.op, f.wide ? wd : w));
    for (Entry& e : entries) {
      std::set<int> seen;
      for_each_word(e.text, [&](std::string_view word) {
        auto it = index.find(std::string(word));
        if (it != index.end() && &entries[it->second] != &e && seen.insert(it->second).second)
          e.needs.push_back(it->second);
      });
    }
  }

  void add(std::string_view names, std::string text) {
    Entry e;
    for_each_word(names, [&](std::string_view n) {
      e.names.emplace_back(n);
      bool fresh = index.emplace(std::string(n), static_cast<int>(entries.size())).second;
      FLASHOVER_CHECK(fresh) << "prelude snippet " << n << " is defined twice for one configuration";
    });
    e.text = std::move(text);
    entries.push_back(std::move(e));
  }
};

const Library& library(Lanes lanes) {
  // Built once per configuration; there are seven.
  static const Library s1({Isa::kScalar, 1}), b8({Isa::kAvx2, 8}), b4({Isa::kAvx2, 4}), a16({Isa::kAvx512, 16}),
      a8({Isa::kAvx512, 8}), n4({Isa::kNeon, 4}), n2({Isa::kNeon, 2});
  switch (config_bit(lanes)) {
    case snippets::kB8:
      return b8;
    case snippets::kB4:
      return b4;
    case snippets::kA16:
      return a16;
    case snippets::kA8:
      return a8;
    case snippets::kN4:
      return n4;
    case snippets::kN2:
      return n2;
    default:
      return s1;
  }
}

// Appends what `entry` needs, then the entry.
void append(const Library& lib, int entry, std::vector<char>& appended, std::string& out) {
  if (appended[entry]) return;
  appended[entry] = 1;
  for (int n : lib.entries[entry].needs) append(lib, n, appended, out);
  out += lib.entries[entry].text;
}

}  // namespace

std::string prelude(std::string_view code, Lanes lanes, std::string_view scope) {
  const Library& lib = library(lanes);
  std::vector<char> used(lib.entries.size(), 0);
  for_each_word(code, [&](std::string_view word) {
    std::string_view before = code.substr(0, static_cast<size_t>(word.data() - code.data()));
    bool qualified = before.ends_with("::");
    if (scope.empty() ? qualified : !(qualified && before.substr(0, before.size() - 2).ends_with(scope))) return;
    auto it = lib.index.find(std::string(word));
    if (it != lib.index.end()) used[it->second] = 1;
  });
  if (!scope.empty() && std::find(used.begin(), used.end(), 1) == used.end()) return "";
  std::string out =
      "constexpr int W = " + std::to_string(lanes.width) + ", WD = " + std::to_string(lanes.wide_width()) + ";\n";
  std::vector<char> appended(used.size(), 0);
  for (size_t i = 0; i < used.size(); ++i)  // in the library's order: equal needs give equal text
    if (used[i]) append(lib, static_cast<int>(i), appended, out);
  return out;
}

std::vector<std::string> prelude_names(Lanes lanes) {
  std::vector<std::string> out;
  for (const auto& e : library(lanes).entries) out.insert(out.end(), e.names.begin(), e.names.end());
  return out;
}

}  // namespace flashover::kernel

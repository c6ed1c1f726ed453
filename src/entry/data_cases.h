// Versions for the cases of sizes that follow from data.
//
//   In        what versions take for granted of such sizes (flashover.check_sizes), calls that are otherwise
//   Out       a version that takes the contrary where a call was found to be so
//   Promises  a call that no case serves left no trace and runs eager; at most kMaxCases versions run for one call
//   Declines  a call for which no other version can be made (null)
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "entry/entry.h"

namespace flashover::entry {

constexpr size_t kMaxCases = 3;

// What is known of one call by the versions that ran for it and were not for it.
class DataCase {
 public:
  // It needs `fact`, which is not so; empty: some size is another one than it was taken to equal. False: no other
  // version would do.
  bool note(const EntryPtr& ran, const std::string& fact);
  bool may_serve(const Entry& e) const;  // as far as is known
  bool is_usual(const Entry& e) const;   // it serves as many calls as the one that ran last
  // The version that was made for this call could not be compiled.
  bool is_given_up(const Entry& e) const;
  // What is not so; by_guess: or may be not so, for captures that cannot ask the call itself.
  const std::set<std::string>& refuted(bool by_guess) const { return by_guess ? suspected_ : refuted_; }
  // Why another one is made.
  Recompile why() const;

 private:
  std::set<std::string> refuted_, suspected_;
  std::vector<EntryPtr> ran_;
  std::vector<std::string> failed_;  // by entry of ran_
};

// What the version that serves calls now takes to be otherwise than the usual case, but for numbers of its one call.
std::set<std::string> case_of_late(const std::vector<EntryPtr>& entries);

// A call of `ran` was otherwise than that takes for granted. Where this comes too often, what may break at questions
// about such sizes is to break there: versions that answer them leave `entries`, and may_assume is false from then on.
void note_unexpected(const EntryPtr& ran, std::vector<EntryPtr>& entries, bool& may_assume);

// What a graph takes for granted; true: an equality.
std::vector<std::pair<std::string, bool>> facts_taken(const graph::Graph& g);

}  // namespace flashover::entry

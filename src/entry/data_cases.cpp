// Facts are compared by their words: the same question at the same line of the program has the same.
#include "entry/data_cases.h"

#include <algorithm>

#include "ops/names.h"
#include "sym/environment.h"

namespace flashover::entry {

bool DataCase::note(const EntryPtr& ran, const std::string& fact) {
  ran_.push_back(ran);
  failed_.push_back(fact.empty() ? "two sizes that follow from data are equal" : fact);
  bool known = false;
  for (const auto& [words, equality] : ran->takes) {
    if (fact.empty() ? !equality : words != fact) continue;
    known = true;
    (fact.empty() ? suspected_ : refuted_).insert(words);
  }
  if (fact.empty()) refuted_.insert("version " + std::to_string(ran->version) + " serves the call");
  suspected_.insert(refuted_.begin(), refuted_.end());
  return known && ran_.size() < kMaxCases;
}

bool DataCase::may_serve(const Entry& e) const {
  if (e.kind == Entry::Kind::kEager) return e.refuted.empty();
  return std::ranges::none_of(e.takes, [&](const auto& fact) { return refuted_.contains(fact.first); }) &&
         std::ranges::none_of(ran_, [&](const EntryPtr& r) { return r.get() == &e; });
}

bool DataCase::is_usual(const Entry& e) const {
  const auto served = [](const Entry& entry) { return entry.hits - static_cast<int64_t>(entry.unexpected); };
  return ran_.empty() || served(e) >= served(*ran_.back());
}

bool DataCase::is_given_up(const Entry& e) const {
  return e.kind == Entry::Kind::kEager && !e.refuted.empty() && std::ranges::includes(suspected_, e.refuted);
}

Recompile DataCase::why() const {
  Recompile out;
  out.called = calling_line();
  for (size_t i = ran_.size(); i-- > 0;)
    out.missed.push_back({ran_[i]->version, ran_[i]->hits, guards::Failure{failed_[i], "otherwise in this call", ""},
                          "each case of what follows from data is a version of its own"});
  return out;
}

std::set<std::string> case_of_late(const std::vector<EntryPtr>& entries) {
  const auto serves = [](const EntryPtr& e) { return e->kind == Entry::Kind::kCompiled; };
  const auto last = std::ranges::find_if(entries, serves);
  std::set<std::string> out;
  if (last == entries.end()) return out;
  for (const std::string& fact : (*last)->refuted.empty() ? (*last)->likely_refuted : (*last)->refuted)
    if (fact.find(" == ") == std::string::npos) out.insert(fact);
  return out;
}

void note_unexpected(const EntryPtr& ran, std::vector<EntryPtr>& entries, bool& may_assume) {
  constexpr uint64_t kFew = 2, kOneOf = 8;  // such a call is done twice; a break costs less than a fourth of a call
  ++ran->unexpected;
  if (!ran->assumes || ran->unexpected <= kFew + static_cast<uint64_t>(ran->hits) / kOneOf) return;
  may_assume = false;
  std::vector<EntryPtr> gone;  // (releasing them may run code of the program: last)
  for (EntryPtr& e : entries)
    if (e->assumes) gone.push_back(std::move(e));
  std::erase(entries, nullptr);
}

std::vector<std::pair<std::string, bool>> facts_taken(const graph::Graph& g) {
  static const ops::OpRow* const check = ops::find(op::check_sizes);
  std::vector<std::pair<std::string, bool>> out;
  for (const graph::Node& n : g.nodes) {
    if (n.op != check) continue;
    const auto relation = static_cast<sym::Relation>(std::get<sym::Expr>(n.args[2]).value());
    out.emplace_back(std::get<std::string>(n.args[3]), relation == sym::Relation::kEqual);
  }
  return out;
}

}  // namespace flashover::entry

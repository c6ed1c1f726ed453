// The plain reference: no version tags, no remembered addresses. The fast program must agree with it
// (tests/guards/test_guards.py).
#include "guards/facts.h"

namespace flashover::guards {

int32_t check_all(const FactTable& table, PyObject* const* args, std::vector<PyObject*>& current, Keep& keep) {
  size_t n = table.sources().size();
  current.assign(n, nullptr);
  for (size_t i = 0; i < n; i++) {
    SourceId id = static_cast<SourceId>(i), parent = table.sources()[i].parent;
    current[i] = table.resolve(id, parent == kNoSource ? nullptr : current[parent], args, keep);
    if (!current[i]) return -2 - id;
    for (int32_t fact : table.facts_of(id))
      if (!table.holds(fact, current[i])) return fact;
  }
  for (int32_t fact : table.between())
    if (!table.holds_between(fact, current.data())) return fact;
  for (size_t f = 0; f < table.facts().size(); f++)
    if (table.facts()[f].kind == FactKind::kSubclassIs &&
        table.failure(static_cast<int32_t>(f), nullptr, current.data()))
      return static_cast<int32_t>(f);
  return -1;
}

}  // namespace flashover::guards

// Locations with their checkpoint, as text and back.
#include "graph/checkpoint.h"

#include <gtest/gtest.h>

namespace flashover::graph {
namespace {

TEST(Checkpoint, LocationsReadBack) {
  for (const char* text : {"a.py:1", "a.py:1 in self.a [checkpoint 3]", "a.py:1 [checkpoint 0 save]",
                           "a.py:1 <gelu.7> [checkpoint 12 prefer save]"})
    EXPECT_EQ(str(parse_location(text)), text);
  EXPECT_EQ(parse_location("a.py:1 [checkpoint 3 save]"), (Location{"a.py:1", 3, Selection::kSave}));
  EXPECT_EQ(parse_location("a.py:1 [checkpoint x]").checkpoint, -1);
}

}  // namespace
}  // namespace flashover::graph

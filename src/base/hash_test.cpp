// The hash depends on the bytes alone, not on how they were handed over.
#include "base/hash.h"

#include <gtest/gtest.h>

namespace flashover {

TEST(Hash, ChunkingDoesNotMatter) {
  EXPECT_EQ(Hasher().bytes("abcdefghijkl", 12).finish(),
            Hasher().bytes("abc", 3).bytes("defghij", 7).bytes("kl", 2).finish());
}

TEST(Hash, LengthPrefixSeparatesTexts) {
  EXPECT_NE(Hasher().text("ab").text("c").finish().hex(), Hasher().text("a").text("bc").finish().hex());
}

TEST(Hash, HexHasThirtyTwoDigits) { EXPECT_EQ(Hasher().finish().hex().size(), 32u); }

}  // namespace flashover

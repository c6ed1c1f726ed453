// A changed bit, anywhere and in memory of any length, is another hash.
#include "base/content_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace flashover {

TEST(ContentHash, SeesEachBitAndTheLength) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{200}}) {
    std::string bytes(size, 'a');
    const uint64_t whole = content_hash(bytes.data(), size);
    EXPECT_NE(whole, content_hash(bytes.data(), size - 1));
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      const char flip = static_cast<char>(1 << bit % 8);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
      EXPECT_NE(whole, content_hash(bytes.data(), size)) << "bit " << bit << " of " << size << " bytes";
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
    }
  }
}

// Files have these numbers in them: they are the same whatever the processor has.
TEST(ContentHash, IsTheSameOnEachProcessor) {
  std::string bytes(1000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 256);
  EXPECT_EQ(content_hash(bytes.data(), 5), 0x119f1cefeace0c65u);
  EXPECT_EQ(content_hash(bytes.data(), 64), 0x77fff9672606d9e0u);
  EXPECT_EQ(content_hash(bytes.data(), 1000), 0xad8a7c973e4393eu);
}

}  // namespace flashover

// Replaces what is no UTF-8, so that text from anywhere can become a Python string.
#include "base/utf8.h"

namespace flashover {

std::string valid_utf8(std::string text) {
  const size_t n = text.size();
  auto byte = [&](size_t i) { return i < n ? static_cast<unsigned char>(text[i]) : 0u; };
  for (size_t i = 0; i < n;) {
    const unsigned lead = byte(i), next = byte(i + 1);
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    // No overlong forms, no surrogates, nothing beyond U+10FFFF.
    bool good = length != 0 && !(lead == 0xe0 && next < 0xa0) && !(lead == 0xed && next >= 0xa0) &&
                !(lead == 0xf0 && next < 0x90) && !(lead == 0xf4 && next >= 0x90);
    for (size_t k = 1; good && k < length; ++k) good = (byte(i + k) & 0xc0) == 0x80;
    if (!good) text[i] = '?';
    i += good ? length : 1;
  }
  return text;
}

}  // namespace flashover

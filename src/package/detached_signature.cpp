// libcrypto is loaded by name, so that the runtimes need it only where signatures are asked for.
#include "package/detached_signature.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"

namespace flashover::aot {
namespace {

constexpr std::string_view kSigned = "flashover package, ed25519 over sha512\n";
constexpr size_t kSignatureBytes = 64, kHashBytes = 64;

struct Crypto {
  void* (*EVP_MD_CTX_new)() = nullptr;
  void (*EVP_MD_CTX_free)(void*) = nullptr;
  const void* (*EVP_sha512)() = nullptr;
  int (*EVP_DigestInit_ex)(void*, const void*, void*) = nullptr;
  int (*EVP_DigestUpdate)(void*, const void*, size_t) = nullptr;
  int (*EVP_DigestFinal_ex)(void*, unsigned char*, unsigned*) = nullptr;
  void* (*EVP_PKEY_new_raw_public_key)(int, void*, const unsigned char*, size_t) = nullptr;
  void (*EVP_PKEY_free)(void*) = nullptr;
  int (*EVP_DigestVerifyInit)(void*, void**, const void*, void*, void*) = nullptr;
  int (*EVP_DigestVerify)(void*, const unsigned char*, size_t, const unsigned char*, size_t) = nullptr;
  bool complete = false;

  Crypto() {
    void* library = nullptr;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"})
      if ((library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!library) return;
    const auto take = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    complete = take(EVP_MD_CTX_new, "EVP_MD_CTX_new") && take(EVP_MD_CTX_free, "EVP_MD_CTX_free") &&
               take(EVP_sha512, "EVP_sha512") && take(EVP_DigestInit_ex, "EVP_DigestInit_ex") &&
               take(EVP_DigestUpdate, "EVP_DigestUpdate") && take(EVP_DigestFinal_ex, "EVP_DigestFinal_ex") &&
               take(EVP_PKEY_new_raw_public_key, "EVP_PKEY_new_raw_public_key") &&
               take(EVP_PKEY_free, "EVP_PKEY_free") && take(EVP_DigestVerifyInit, "EVP_DigestVerifyInit") &&
               take(EVP_DigestVerify, "EVP_DigestVerify");
  }
};

const Crypto& crypto() {
  static const Crypto found;
  if (!found.complete) throw UserError("signatures need libcrypto (OpenSSL 1.1.1 or later), which is not found here");
  return found;
}

[[noreturn]] void no_key(const std::string& why) { throw UserError("no public key in PEM: " + why); }
[[noreturn]] void failed() { throw UserError("libcrypto failed to check the signature"); }

std::vector<unsigned char> from_base64(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> out;
  uint32_t bits = 0;
  int have = 0;
  size_t padding = 0, digits = 0;
  for (const char c : text) {
    if (kSpace.find(c) != std::string_view::npos) continue;
    ++digits;
    if (c == '=') {
      ++padding;
      continue;
    }
    const size_t value = kDigits.find(c);
    if (value == std::string_view::npos || padding > 0) no_key("it is not in base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((have += 6) >= 8) out.push_back(static_cast<unsigned char>(bits >> (have -= 8)));
  }
  if (digits % 4 != 0 || padding > 2) no_key("it is not in base64");
  return out;
}

std::string whole_of(const std::string& path, size_t most) {
  const std::shared_ptr<const ByteSource> file = open_file(path);
  std::string bytes(std::min<uint64_t>(file->size(), most), '\0');
  file->read(0, bytes.data(), bytes.size());
  return bytes;
}

std::string message_of(const ByteSource& file) {
  constexpr size_t kAtOnce = size_t{1} << 20;
  const Crypto& c = crypto();
  const std::unique_ptr<void, void (*)(void*)> hash(c.EVP_MD_CTX_new(), c.EVP_MD_CTX_free);
  if (!hash || c.EVP_DigestInit_ex(hash.get(), c.EVP_sha512(), nullptr) != 1) failed();
  std::vector<char> part(kAtOnce);
  for (uint64_t at = 0; at < file.size();) {
    const size_t bytes = std::min<uint64_t>(kAtOnce, file.size() - at);
    file.read(at, part.data(), bytes);
    if (c.EVP_DigestUpdate(hash.get(), part.data(), bytes) != 1) failed();
    at += bytes;
  }
  unsigned char digest[kHashBytes];
  unsigned length = 0;
  if (c.EVP_DigestFinal_ex(hash.get(), digest, &length) != 1 || length != kHashBytes) failed();
  return std::string(kSigned).append(reinterpret_cast<const char*>(digest), kHashBytes);
}

}  // namespace

std::array<unsigned char, 32> ed25519_key(std::string_view pem) {
  constexpr std::string_view kBegin = "-----BEGIN PUBLIC KEY-----", kEnd = "-----END PUBLIC KEY-----";
  // What stands before the key where it is one of ed25519: (algorithm 1.3.101.112, so many bits).
  constexpr unsigned char kPrefix[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
  const size_t begin = pem.find(kBegin), end = pem.find(kEnd);
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin)
    no_key("it has no " + std::string(kBegin));
  const std::vector<unsigned char> bytes = from_base64(pem.substr(begin + kBegin.size(), end - begin - kBegin.size()));
  std::array<unsigned char, 32> key{};
  if (bytes.size() != sizeof kPrefix + key.size() || !std::equal(std::begin(kPrefix), std::end(kPrefix), bytes.begin()))
    throw UserError("the key is none of ed25519: openssl genpkey -algorithm ed25519 makes one");
  std::copy(bytes.begin() + sizeof kPrefix, bytes.end(), key.begin());
  return key;
}

void check_signature(const ByteSource& file, const std::string& signature_path, std::string_view public_key) {
  constexpr int kEd25519 = 1087;  // EVP_PKEY_ED25519
  const std::array<unsigned char, 32> key = ed25519_key(public_key);
  const Crypto& c = crypto();
  std::string given;
  try {
    given = whole_of(signature_path, kSignatureBytes + 1);
  } catch (const UserError& error) {
    throw UserError("the package is not signed: " + std::string(error.what()));
  }
  const std::string message = message_of(file);
  const auto bytes = [](const std::string& s) { return reinterpret_cast<const unsigned char*>(s.data()); };
  const std::unique_ptr<void, void (*)(void*)> owner(
      c.EVP_PKEY_new_raw_public_key(kEd25519, nullptr, key.data(), key.size()), c.EVP_PKEY_free);
  const std::unique_ptr<void, void (*)(void*)> context(c.EVP_MD_CTX_new(), c.EVP_MD_CTX_free);
  if (!owner || !context || c.EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, owner.get()) != 1)
    failed();
  if (given.size() != kSignatureBytes ||
      c.EVP_DigestVerify(context.get(), bytes(given), given.size(), bytes(message), message.size()) != 1)
    throw UserError("the package is not what its signer signed: wrong signature");
}

std::shared_ptr<const ByteSource> open_signed_file(const std::string& path, const std::string& key) {
  std::shared_ptr<const ByteSource> file = open_file(path);
  if (key.empty()) return file;
  constexpr size_t kMostKey = 1 << 16;
  const bool text = key.find("-----BEGIN") != std::string::npos;
  check_signature(*file, path + std::string(kSignatureSuffix), text ? key : whole_of(key, kMostKey));
  return file;
}

}  // namespace flashover::aot

// The signature of a package in a file beside it (PATH.sig): ed25519 over a hash of all its bytes.
//
//   In        the file's bytes, the signature's path, a public key in PEM
//   Out       nothing: it is what the key's owner signed
//   Promises  looks at the bytes as they are, before anybody reads a meaning into them
//   Declines  another signature, none, no key of ed25519 (UserError); also where the process finds no libcrypto (OpenSSL
//             from 1.1.1 on), which computes it and is loaded when first asked
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "package/container.h"

namespace flashover::aot {

constexpr std::string_view kSignatureSuffix = ".sig";

void check_signature(const ByteSource& file, const std::string& signature_path, std::string_view public_key);

// The key in a PEM text. Throws UserError.
std::array<unsigned char, 32> ed25519_key(std::string_view pem);

// The package's file, which `key` signed; an empty key asks for no signature. key: PEM, or the path of a file with it.
std::shared_ptr<const ByteSource> open_signed_file(const std::string& path, const std::string& key);

}  // namespace flashover::aot

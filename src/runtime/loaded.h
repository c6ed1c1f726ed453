// What the C ABI (flashover.h) asks of a loaded package; there are two builds of it, with torch and without (src/bare).
//
//   In        a package's file; tensors as the ABI describes them
//   Out       results that own their memory
//   Promises  safe from several threads at once
//   Declines  by exceptions, whose texts the ABI hands on
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "package/manifest.h"
#include "runtime/flashover.h"

namespace flashover::runtime_library {

class LoadedPackage {
 public:
  virtual ~LoadedPackage() = default;
  virtual const aot::Manifest& manifest() const = 0;
  virtual const plan::Plan& plan(size_t entry) const = 0;
  virtual void run(size_t entry, std::span<const flashover_tensor> arguments,
                   std::span<flashover_tensor> results) const = 0;
  virtual void run_dlpack(size_t entry, std::span<DLManagedTensor* const> arguments,
                          std::span<DLManagedTensor*> results) const = 0;
  virtual void exchange(const std::vector<std::pair<std::string, flashover_tensor>>& weights) = 0;
};

// Of this build:
// signed_by: a public key (PEM, or a file with it) whose owner must have signed the file; empty: anything.
// device: absent: whatever there is and the package has code for.
std::unique_ptr<LoadedPackage> load_package(const std::string& path, bool verify_weights, const std::string& signed_by,
                                            std::optional<Device> device);
flashover_tensor copy_to(const flashover_tensor& tensor, Device device);
void synchronize(Device device);
void set_threads(int threads);
void free_owner(void* owner);  // of a result

// Throws UserError for a description that no tensor has.
void check_description(const flashover_tensor& t);

}  // namespace flashover::runtime_library

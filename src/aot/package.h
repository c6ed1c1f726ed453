// A package in this process: its weights mapped, its plans loaded, its entries ready to be called from any thread.
//
//   In        a package's file; tensors
//   Out       result tensors; written arguments and weights written
//   Promises  no Python, nothing of the compiler; everything of the file is checked before any of its code is mapped
//             executable; a call is checked against what the program was made for before anything of it runs; weights
//             that are exchanged while calls run are all old or all new in each call
//   Declines  a file that is not whole, made for another machine or another torch (UserError); a call that does not fit
//             (UserError); what operators raise passes through
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "package/manifest.h"

namespace flashover::aot {

class LoadedEntry;

struct OpenOptions {
  // Look at every byte of the weights: of those that calls read when loading, of the others (from which prepared tensors
  // were made) before they are first used. Everything else is always checked.
  bool verify_weights = true;
  // A public key (PEM, or the path of a file with it): the file must be what its owner signed (detached_signature.h),
  // which is looked at first. Empty: anything.
  std::string signed_by{};
  // Where it shall run: only entries for such a device are taken. Absent: the first CUDA device of this process if there
  // is one and the package has code for CUDA, else the CPU.
  std::optional<Device> device{};
};

class Package {
 public:
  static std::shared_ptr<Package> load(const std::string& path, const OpenOptions& options = {});
  ~Package();
  Package(const Package&) = delete;

  const Manifest& manifest() const { return manifest_; }
  const plan::Plan& plan(size_t entry) const;
  // arguments: those that are tensors, in order. Results that are no tensors are undefined ones.
  std::vector<at::Tensor> run(size_t entry, std::span<const at::Tensor> arguments) const;
  // Weights by name -> their values, which are copied, for all calls that begin from now on.
  void exchange(const std::vector<std::pair<std::string, at::Tensor>>& weights);
  std::vector<at::Tensor> weights() const;                      // by Manifest::weights
  size_t chosen(size_t entry) const { return chosen_[entry]; }  // of PackagedEntry::plans
  // Tensors that calls find and need not compute.
  const std::vector<Prepared>& prepared(size_t entry) const {
    return manifest_.entries[entry].plans[chosen_[entry]].prepared;
  }

 private:
  Package() = default;
  using Weights = std::vector<at::Tensor>;
  std::shared_ptr<const Weights> current() const {
    const std::lock_guard lock(mutex_);
    return weights_;
  }
  void verify(const std::vector<bool>& which) const;
  void supply_prepared();
  Manifest manifest_;
  std::vector<size_t> chosen_;
  std::vector<Device> placements_;                       // by weight
  std::shared_ptr<char> weight_bytes_, prepared_bytes_;  // as mapped
  mutable std::mutex verifying_;
  mutable std::vector<bool> unverified_;  // by weight
  // Whether others than calls of the entries have got hold of weights.
  const std::shared_ptr<std::atomic<bool>> seen_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::unique_ptr<LoadedEntry>> entries_;
  mutable std::mutex mutex_;
  std::mutex exchanging_;
  std::shared_ptr<const Weights> weights_;
};

// weights: by Manifest::weights, whose names are set; the rest is filled in. plans: bytes (plan.h) by section name.
// with_prepared: what plans for this machine compute of weights alone is computed, and lies in the file too.
void write_package(const std::string& path, Manifest manifest, const std::vector<at::Tensor>& weights,
                   const std::vector<std::pair<std::string, std::string>>& plans, bool with_prepared = true);

}  // namespace flashover::aot

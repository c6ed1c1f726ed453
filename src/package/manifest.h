// What a package says of itself: its entries, what they take and give, its weights.
//
//   In        programs (plans with what stands for their inputs and results); or bytes that anybody may have written
//   Out       bytes; or a Manifest whose numbers fit each other and the plans
//   Promises  decode() gives what encode() was given, or throws UserError; check() throws UserError where an entry does
//             not fit its plan
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/types.h"
#include "plan/plan.h"
#include "sym/environment.h"

namespace flashover::aot {

// Parameters, buffers and other tensors that belong to the program. In the section "weights", in their strides. (The
// plan that is taken says on which device they are.)
struct Weight {
  std::string name;
  DType dtype = DType::kUndefined;
  std::vector<int64_t> sizes, strides;
  uint64_t offset = 0, bytes = 0;  // in the section; a multiple of kWeightAlignment
  uint64_t checksum = 0;           // content_hash of the bytes
};
constexpr uint64_t kWeightAlignment = 64;

// What stands for an input of a plan, or for a leaf of a result.
struct Binding {
  enum class Kind : uint8_t { kArgument, kWeight, kOutput, kValue };  // the last two: results only
  Kind kind = Kind::kArgument;
  int32_t index = -1;  // of PackagedEntry::arguments, Manifest::weights, Plan::outputs
  std::string value;   // kValue: JSON
};

// A leaf of the arguments.
struct Argument {
  std::string name;  // "x", "y['k']"
  bool tensor = true;
  std::string value;            // where it is none: JSON; a call must give this
  int64_t storage_offset = -1;  // >= 0: the program counts from the start of the storage
};

// A tensor that a plan computes of weights alone, as the machine computed it that wrote the package. In the section
// "prepared".
struct Prepared {
  int32_t tensor = -1;  // of the plan
  DType dtype = DType::kUndefined;
  std::vector<int64_t> sizes, strides;  // strides: none where oneDNN laid it out
  std::string layout;                   // oneDNN's description of that
  uint64_t offset = 0, bytes = 0, checksum = 0;
};

struct PackagedPlan {
  std::string section;
  std::vector<Prepared> prepared;
};

// A program for one kind of device. There may be two of one name, for the CPU and for CUDA: of these a loader takes one.
struct PackagedEntry {
  std::string name;
  DeviceType device = DeviceType::kCPU;  // that its plans run on
  std::vector<PackagedPlan> plans;       // the best first: one for each kind of machine
  std::vector<Binding> inputs;           // by input of the plan
  std::vector<Argument> arguments;
  std::vector<Binding> results;
  std::vector<sym::SizeGuard> guards;        // what holds of the size symbols in each call
  std::string arguments_spec, results_spec;  // how the leaves make up what Python takes and gives: pytrees as JSON
};

struct Manifest {
  std::string torch, flashover;  // versions that made it
  std::string machine;           // machine_of_prepared() there: what was prepared suits the same one
  std::vector<Weight> weights;
  std::vector<PackagedEntry> entries;
};

std::string device_name(Device d);  // "cpu", "cuda:0"
std::string encode(const Manifest& m);
Manifest decode(std::string_view bytes);
sym::SizeGuard parse_guard(const std::string& relation, const std::string& a, const std::string& b);  // "<=", texts
// By section: how many bytes it has.
void check(const Manifest& m, uint64_t weight_bytes, uint64_t prepared_bytes);
void check(const Manifest& m, const PackagedEntry& e, const PackagedPlan& section, const plan::Plan& p);
// By weight: the device of the inputs that it stands for, the CPU where it stands for none. Throws UserError where one
// would be on two devices. plans: by entry.
std::vector<Device> weight_devices(const Manifest& m, const std::vector<const plan::Plan*>& plans);
// "": the only one. Throws UserError that names those there are.
size_t find_entry(const Manifest& m, const std::string& name);
size_t find_weight(const Manifest& m, const std::string& name);  // throws UserError
// Whether all tensors that calls find of the frozen part are prepared.
bool is_complete(const std::vector<Prepared>& prepared, const plan::Plan& p);
// Marks the weights that calls of an entry read. prepared: that they find.
void mark_read(const PackagedEntry& e, const plan::Plan& p, const std::vector<Prepared>& prepared,
               std::vector<bool>& read);
std::vector<bool> written_inputs(const plan::Plan& p);  // by input: a step writes its memory

}  // namespace flashover::aot

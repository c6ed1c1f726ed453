// Version counters of inputs are read before a call and set after it (versions.h).
#include "entry/versions.h"

#include <utility>

#include "graph/written.h"
#include "run/writes.h"

namespace flashover::entry {
namespace {

class Counts {
 public:
  Counts(VersionSteps steps, std::vector<int32_t> written) : steps_(std::move(steps)), written_(std::move(written)) {}

  template <typename Call>
  void around(const at::Tensor* inputs, size_t count, Call&& call) const {
    std::vector<std::pair<at::Tensor, int64_t>> counted;
    for (size_t i = 0; i < count; ++i)
      if (inputs[i].defined() && !inputs[i].is_inference())
        counted.emplace_back(inputs[i], inputs[i]._version() + steps_of(i));
    std::vector<at::Tensor> written;
    for (int32_t i : written_) written.push_back(inputs[i]);
    try {
      call();
    } catch (...) {
      tell(written);
      throw;
    }
    for (const auto& [tensor, version] : counted) {
      c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();  // the same counter
      counter.set_version(version);
    }
    tell(written);
  }

 private:
  int32_t steps_of(size_t i) const {
    const int32_t own = i < steps_.size() ? steps_[i] : 0;
    return own >= 0 ? own : steps_[static_cast<size_t>(-1 - own)];
  }
  static void tell(const std::vector<at::Tensor>& written) {
    for (const at::Tensor& t : written) run::wrote(t.unsafeGetTensorImpl());
  }
  VersionSteps steps_;
  std::vector<int32_t> written_;
};

class Counting final : public Runner {
 public:
  Counting(std::unique_ptr<Runner> inner, Counts counts) : inner_(std::move(inner)), counts_(std::move(counts)) {
    executables = inner_->executables;
  }
  bool needs_gil() const override { return inner_->needs_gil(); }
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) override {
    counts_.around(inputs, count, [&] { inner_->run(inputs, count, outputs); });
  }

 private:
  std::unique_ptr<Runner> inner_;
  Counts counts_;
};

}  // namespace

std::vector<int32_t> written_inputs(const graph::Graph& traced) {
  std::vector<bool> written;
  for (const graph::Node& n : traced.nodes)
    graph::for_each_written(n, [&](ValueId v) {
      const auto storage = static_cast<size_t>(traced.values[v].storage);
      if (written.size() <= storage) written.resize(storage + 1);
      written[storage] = true;
    });
  std::vector<int32_t> out;
  for (size_t i = 0; i < traced.inputs.size(); ++i) {
    if (traced.inputs[i].kind == graph::InputKind::kTangent) continue;
    const auto storage = static_cast<size_t>(traced.values[traced.inputs[i].value].storage);
    if (storage < written.size() && written[storage]) out.push_back(static_cast<int32_t>(i));
  }
  return out;
}

Step counting_versions(Step inner, VersionSteps steps, std::vector<int32_t> written) {
  return [inner = std::move(inner), counts = Counts(std::move(steps), std::move(written))](
             std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) {
    const std::vector<at::Tensor> given = inputs;
    counts.around(given.data(), given.size(), [&] { inner(std::move(inputs), outputs); });
  };
}

std::unique_ptr<Runner> counting_versions(std::unique_ptr<Runner> inner, VersionSteps steps,
                                          std::vector<int32_t> written) {
  return std::make_unique<Counting>(std::move(inner), Counts(std::move(steps), std::move(written)));
}

void give_own_counters(const std::vector<graph::OwnCounter>& which, const at::Tensor* inputs,
                       std::vector<at::Tensor>& outputs) {
  for (const graph::OwnCounter& own : which) {
    at::Tensor& t = outputs[static_cast<size_t>(own.output)];
    if (!t.defined() || t.is_inference()) continue;
    if (own.input == -2) {  // detached: no more than that
      if (t.requires_grad() || t.is_view()) t = t.detach();
      continue;
    }
    t = t.variable_data();
    if (own.input >= 0) {
      t.unsafeGetTensorImpl()->set_version_counter(inputs[own.input].unsafeGetTensorImpl()->version_counter());
    } else {
      run::mark_escaped(t.unsafeGetTensorImpl(), run::Alias::kOwner);  // writes through it are seen by nothing else
    }
  }
}

}  // namespace flashover::entry

// What happens around each pass: time, verification, text for dumps and explain().
#include "compile/pass_runner.h"

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/decimal.h"
#include "base/diagnostics.h"
#include "base/text.h"

namespace flashover::compile {

PassRunner::PassRunner(const Options& options, Report& report) : report_(report), verify_(options.flag("verify")) {
  if (const auto it = options.values.find("disable_passes"); it != options.values.end() && !it->second.empty())
    disabled_ = "," + it->second + ",";
  if (const char* folder = std::getenv("FLASHOVER_DUMP"); folder && *folder) {
    dump_ = folder;
    number_ = report.dump_number >= 0 ? report.dump_number : next_dump_number();
    ::mkdir(folder, 0700);  // an existing folder is fine; an unusable one is reported by text()
  }
}

int next_dump_number() {
  static std::atomic<int> compilations{0};
  return compilations++;
}

double PassRunner::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PassRunner::run(const graph::Pass& pass, graph::Graph& g, const graph::PassContext& context) {
  check_interrupt();
  if (disabled(pass.name)) return;
  const double start = now();
  const bool exact = g.facts.exact;
  const size_t locations = g.facts.locations.size();
  g = pass.run(std::move(g), context);
  if (g.facts.exact < exact || g.facts.locations.size() < locations)
    throw InternalError(std::string("pass ") + pass.name + " made a graph without the facts of the one it was given");
  finish(pass.name, start);
  after_graph(pass.name, pass.output, g);
}

bool PassRunner::disabled(const std::string& name) const {
  return disabled_.find("," + name + ",") != std::string::npos;
}

void PassRunner::finish(const char* name, double start) { report_.stages.push_back({name, now() - start}); }

void PassRunner::after_graph(const char* name, graph::Form form, const graph::Graph& g) {
  if (wants_text()) text(name, graph::print(g));
  if (!verify_) return;
  try {
    graph::verify(g, form);
  } catch (const InternalError& e) {
    throw InternalError(std::string("after pass ") + name + ": " + e.what());
  }
}

void PassRunner::text(const std::string& name, std::string text) {
  if (!dump_.empty()) {
    const std::string file = "/" + padded(number_, 3) + "_" + padded(step_++, 2) + "_";
    if (std::string failure = write_text_file(dump_ + file + name + ".txt", text); !failure.empty())
      say("cannot write into FLASHOVER_DUMP=" + dump_ + ": " + failure);
  }
  if (report_.want_texts) report_.texts.emplace_back(name, std::move(text));
}

}  // namespace flashover::compile

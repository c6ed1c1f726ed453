// Every stage and pass goes through here: named, timed, switched off by name, dumped, verified.
#pragma once
#include <string>
#include <utility>

#include "base/interrupt.h"
#include "compile/compile.h"
#include "graph/passes.h"

namespace flashover::compile {

class PassRunner {
 public:
  // Dumps go to FLASHOVER_DUMP (a folder; created, 0700) as NNN_MM_stage.txt, NNN counting compilations of this
  // process.
  PassRunner(const Options& options, Report& report);

  // graph = pass(graph), unless the option `disable_passes` names it.
  void run(const graph::Pass& pass, graph::Graph& g, const graph::PassContext& context);
  // A stage with another result than a graph.
  template <typename F>
  auto stage(const char* name, F&& f) {
    check_interrupt();
    const double start = now();
    auto result = f();
    finish(name, start);
    return result;
  }
  // A graph that a stage made.
  void show(const char* name, graph::Form form, const graph::Graph& g) { after_graph(name, form, g); }
  bool wants_text() const { return report_.want_texts || !dump_.empty(); }
  void text(const std::string& name, std::string text);

 private:
  static double now();
  bool disabled(const std::string& name) const;
  void finish(const char* name, double start);
  void after_graph(const char* name, graph::Form form, const graph::Graph& g);

  Report& report_;
  bool verify_;
  std::string disabled_;  // ",a,b,"
  std::string dump_;
  int number_ = 0, step_ = 0;
};

}  // namespace flashover::compile

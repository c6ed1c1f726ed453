// Every stage and pass goes through here: named, timed, switched off by name, dumped, verified.
#pragma once
#include <string>
#include <utility>

#include "base/interrupt.h"
#include "compile/compile.h"

namespace flashover::compile {

class PassRunner {
 public:
  // Dumps go to FLASHOVER_DUMP (a folder; created, 0700) as NNN_MM_stage.txt, NNN counting compilations of this
  // process.
  PassRunner(const Options& options, Report& report);

  // graph = pass(graph), unless the option `disable` names it.
  template <typename Pass, typename... Args>
  void run(const char* name, graph::Form form, graph::Graph& g, Pass&& pass, Args&&... args) {
    check_interrupt();
    if (disabled(name)) return;
    const double start = now();
    const bool exact = g.facts.exact;
    const size_t locations = g.facts.locations.size();
    g = pass(std::move(g), std::forward<Args>(args)...);
    if (g.facts.exact < exact || g.facts.locations.size() < locations) lost_facts(name);
    finish(name, start);
    after_graph(name, form, g);
  }
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
  [[noreturn]] static void lost_facts(const char* name);
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

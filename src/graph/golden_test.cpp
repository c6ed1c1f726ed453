// The text tests of src/graph. `machine:` says what the machine has beside Providers' defaults (target/machine.h).
#include "base/golden_for_test.h"

#include "graph/analysis/devices.h"
#include "graph/passes.h"
#include "target/machine.h"

namespace flashover::graph {
namespace {

std::string run_passes(const golden::Case& c) {
  const target::Providers providers = target::parse_machine(c.machine);
  Graph g = parse(c.input);
  for (const std::string& name : c.names) {
    // Whatever is said of a whole graph a pass hands on.
    Graph marked = g;
    marked.facts.exact = true;
    const PassContext context{providers, device_of(g)};
    EXPECT_TRUE(run_pass(name, std::move(marked), context).facts.exact) << name;
    g = run_pass(name, std::move(g), context);
  }
  return print(g);
}

// What a trace would have said of the operators that the cases write with.
void declare_writers() {
  ops::find("aten.strange_.default", {.mutates = 1});
  ops::find("aten.twin_.default", {.mutates = 1, .functional = "prim.add"});
}

TEST(Golden, PassesGiveTheWrittenResults) {
  declare_writers();
  golden::check_folder("graph", run_passes);
}

}  // namespace
}  // namespace flashover::graph

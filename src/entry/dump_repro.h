// FLASHOVER_DUMP: a captured graph as a program that runs it alone, compiled and not (python/flashover/_dump.py).
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/options.h"
#include "graph/graph.h"

namespace flashover::entry {

// number: of the graph's files. examples: its inputs but for tangents, which are made up. GIL held; failures are said
// and otherwise ignored.
void dump_repro(int number, const std::string& name, const graph::Graph& g, const std::vector<at::Tensor>& examples,
                const OptionValues& options);

}  // namespace flashover::entry

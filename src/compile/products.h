// Products on a GPU with the kernels before and behind them in one kernel. In mode="max-autotune" where that measures
// faster than the library's product and those kernels beside it; what won is remembered in the disk cache. In every
// mode where it surely is.
#pragma once
#include <string>
#include <vector>

#include "compile/cache.h"
#include "compile/compile.h"
#include "loops/product.h"

namespace flashover::compile {

// Replaces steps of `plan` (see planner::Options::fuse_products) and returns the products behind them, in order
// of their kernel numbers. `notes`: a line for each kind of product that was looked at.
std::vector<loops::Product> choose_products(plan::Plan& plan, const std::vector<loops::Kernel>& kernels,
                                            const CompileTarget& environment, Cache* cache, ChoicesFile* choices,
                                            std::string& notes);

// The same, unmeasured: products of a few rows with a matrix that a kernel unpacks from fewer bytes for this product
// alone, as weights of eight bits are. Apart, the matrix would be written to memory and read again in each call.
std::vector<loops::Product> fuse_unpacked(plan::Plan& plan, const std::vector<loops::Kernel>& kernels, int processors);

// All of them, cut like this, unmeasured: for tests. way: of those that find_products() has for each; -1: the last.
std::vector<loops::Product> fuse_all_products(plan::Plan& plan, const std::vector<loops::Kernel>& kernels,
                                              const loops::ProductTile& tile, int way = -1);

// A plan of some of a plan's steps: what they do not make themselves are its inputs, what they make its outputs.
// `kernels` and `binaries` are for the steps' numbers.
plan::Plan sub_plan_of(const plan::Plan& whole, std::vector<plan::Step> steps, std::vector<plan::Kernel> kernels,
                       std::vector<plan::Binary> binaries);

}  // namespace flashover::compile

// torch's autograd nodes: who owns them, how a long chain of them goes, and where a Function's Python object is.
// From torch 2.13 on nodes are owned by intrusive_ptr; before, by shared_ptr.
#pragma once
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_function.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "compat/torch_version.h"

namespace flashover::compat {

#if FLASHOVER_TORCH_AT_LEAST(2, 13)

template <typename N>
using NodePtr = c10::intrusive_ptr<N>;

// The last reference to go lets torch drop what the node leads to one by one.
template <typename N, typename... Arguments>
NodePtr<N> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
}

inline PyObject* function_object(const torch::autograd::PyNode& node) { return node.pyobj(); }

#else

template <typename N>
using NodePtr = std::shared_ptr<N>;

// Drops what a node leads to, down to what others still need.
inline void take_unshared(torch::autograd::Node& node, std::vector<NodePtr<torch::autograd::Node> >& taken) {
  node.release_variables();
  for (torch::autograd::Edge& e : node.next_edges()) {
    try {
      if (e.function.use_count() == 1) taken.push_back(std::move(e.function));
    } catch (const std::bad_alloc&) {  // then it goes by recursion
    }
    e.function.reset();
  }
}

// As torch's deleteNode: the nodes behind it go one by one, not by recursion, for a chain may be long. Nodes are
// dropped by destructors and where exceptions fly, so this one does not throw where it has no memory.
inline void delete_node(torch::autograd::Node* node) noexcept {
  std::vector<NodePtr<torch::autograd::Node> > taken;
  take_unshared(*node, taken);
  delete node;
  while (!taken.empty()) {
    const NodePtr<torch::autograd::Node> next = std::move(taken.back());
    taken.pop_back();
    take_unshared(*next, taken);
  }
}

template <typename N, typename... Arguments>
NodePtr<N> make_node(Arguments&&... arguments) {
  return NodePtr<N>(new N(std::forward<Arguments>(arguments)...), delete_node);
}

inline PyObject* function_object(const torch::autograd::PyNode& node) { return node.obj; }

#endif

}  // namespace flashover::compat

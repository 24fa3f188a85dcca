#include "mini_graph.h"

namespace guanaco {

MiniGraph::~MiniGraph() {
  if (context_ != nullptr) api_.compute.free(context_);
  if (backend_ != nullptr) api_.compute.backend_free(backend_);
}

bool MiniGraph::usable() {
  if (tried_) return graph_ != nullptr;
  tried_ = true;
  if (!api_.compute.complete) return false;
  backend_ = api_.compute.cpu_init();
  if (backend_ == nullptr) return false;
  context_ = api_.compute.init({api_.compute.graph_overhead(kMaxNodes, false) + 4096, nullptr, true});
  if (context_ == nullptr) return false;
  graph_ = api_.compute.new_graph(context_, kMaxNodes, false);
  return graph_ != nullptr;
}

bool MiniGraph::run(const std::vector<Tensor*>& nodes, int n_threads) {
  if (!usable() || nodes.size() > kMaxNodes) return false;
  if (n_threads != n_threads_) {
    api_.compute.set_n_threads(backend_, n_threads);
    n_threads_ = n_threads;
  }
  api_.compute.graph_clear(graph_);
  for (Tensor* node : nodes) api_.compute.graph_add_node(graph_, node);
  return api_.compute.graph_compute(backend_, graph_) == kStatusSuccess;
}

}  // namespace guanaco

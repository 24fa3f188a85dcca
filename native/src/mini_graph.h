// Runs a few of the engine's own operations outside its graphs, on a processor back end of our own.
//
// Owns: that back end and one empty graph to fill. The same kernels give the same bits. Leaves which operations to the
// caller. Not usable with an engine that does not export what it takes; everything that needs it is then left out.
// To be run by the thread that runs the engine's graphs: with OpenMP it then uses the engine's own threads.
#pragma once

#include <vector>

#include "engine_api.h"

namespace guanaco {

class MiniGraph {
 public:
  explicit MiniGraph(const EngineApi& api) : api_(api) {}
  ~MiniGraph();
  MiniGraph(const MiniGraph&) = delete;
  MiniGraph& operator=(const MiniGraph&) = delete;

  // Made at first use; false when the engine lacks a function or refuses.
  bool usable();
  // How many threads are worth using out of the engine's `all`: all or one. Any other number would make OpenMP end
  // threads and start them anew at every change; without OpenMP each run would start its own.
  int threads(int all) const { return api_.compute.shares_threads ? all : 1; }
  // Computes `nodes` in this order with so many threads. At most kMaxNodes.
  bool run(const std::vector<Tensor*>& nodes, int n_threads);

  static constexpr size_t kMaxNodes = 128;

 private:
  const EngineApi& api_;
  void* backend_ = nullptr;
  Context* context_ = nullptr;
  Graph* graph_ = nullptr;
  int n_threads_ = 0;
  bool tried_ = false;
};

}  // namespace guanaco

// One layer's router, cut out of the engine's graph so that it can be asked about another layer's state.
//
// Owns: clones of the nodes between the layer's hidden state (before its norm) and its selection. The engine's own
// kernels evaluate them, so the selection rule - norm, softmax or sigmoid, selection bias, expert groups - is the
// architecture's own, whatever it is. Leaves the memory for what they compute to the caller: it is needed during a run
// only. Refuses a router that reads anything but that state and weights in host memory.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine_api.h"
#include "mini_graph.h"

namespace guanaco {

using NodePositions = std::unordered_map<const Tensor*, int>;

class RouterCone {
 public:
  // Null when the router is not understood.
  static std::unique_ptr<RouterCone> build(const EngineApi& api, const NodePositions& positions, Tensor* ids);

  // True while the graph's nodes are those that were cloned.
  bool still_valid(const EngineApi& api, Graph* graph) const;
  // The graph's own hidden state of this layer.
  const Tensor* state() const { return state_; }
  // Selects by this router on `state`, a tensor of the shape of state(). False when it cannot. `scratch` grows to what
  // a run needs and may be shared by all routers.
  bool run(const EngineApi& api, MiniGraph* mini, const Tensor* state, int n_threads, std::vector<char>* scratch);
  // The selection of the last run: [selected per token, tokens] int32, in `scratch`.
  const Tensor* ids() const { return ids_; }
  uint64_t weight_bytes() const { return weight_bytes_; }

 private:
  enum class Bytes { kOwn, kView, kWeight };  // in the scratch memory, in another clone's, or the model's
  struct Clone {
    int position = 0;
    const Tensor* original = nullptr;
    Tensor* copy = nullptr;
    Tensor* src[kMaxSrc] = {};  // the original's
    const Tensor* view_src = nullptr;
    Bytes bytes = Bytes::kOwn;
    size_t place = 0;
  };
  class Builder;
  void place_in(char* base);

  Tensor* state_ = nullptr;
  int state_position_ = 0;
  Tensor* input_ = nullptr;  // the clone that stands for state_, at the beginning of the scratch memory
  Tensor* ids_ = nullptr;
  uint64_t weight_bytes_ = 0;
  size_t scratch_bytes_ = 0;
  const char* placed_in_ = nullptr;
  std::vector<Clone> clones_;  // in the graph's order
  std::vector<Tensor*> nodes_;
  std::vector<std::unique_ptr<char[]>> storage_;
};

}  // namespace guanaco

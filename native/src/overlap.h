// Computes an expert product outside the engine's graph while some of its experts are still being read: those that are
// there first, the others as they arrive.
//
// Owns: clones and rows for that. Each product is run at its own place in the graph, by the engine's own kernel, one
// row at a time as the engine does it for one token, so the bits are the same. Leaves reading to the store.
#pragma once

#include <memory>
#include <vector>

#include "graph_plan.h"
#include "mini_graph.h"
#include "stats.h"
#include "store.h"

namespace guanaco {

class Overlap {
 public:
  Overlap(const LoadPlan& plan, const EngineApi& api, MiniGraph* mini, Stats* stats);

  // Whether this selection's products can be run here: one token, rows as understood, in host memory, and the engine's
  // own threads to run them.
  bool can_run(const Binding& binding);
  // Computes the whole product `use`; `shadow` are its weights over the slots. False, with a reason, when a read failed
  // for good or the engine did.
  bool run(Binding* binding, PartUse* use, Tensor* shadow, Store* store, std::string* error);

 private:
  bool is_understood(const PartUse& use, int64_t n_experts) const;
  bool compute(const Binding& binding, const PartUse& use, Tensor* shadow);
  Tensor* clone(std::unique_ptr<char[]>* storage, const Tensor* original) const;

  const LoadPlan& plan_;
  const EngineApi& api_;
  Stats* const stats_;
  MiniGraph* const mini_;
  std::unique_ptr<char[]> product_, input_, ids_;
  std::vector<size_t> ready_, left_;  // places in the selection
  std::vector<int32_t> ready_ids_;
  std::vector<char> rows_out_, rows_in_;
};

}  // namespace guanaco

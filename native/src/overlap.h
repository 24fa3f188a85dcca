// Computes an expert product outside the engine's graph while some of its experts are still being read: those that are
// there first, the others as they arrive.
//
// Owns: clones and rows for that. Each product is run at its own place in the graph, by the engine's own kernel. That one
// computes an expert's rows by themselves, but not always each row: the rows of an expert stay together and in order, so
// that the bits are the same. Leaves reading to the store.
#pragma once

#include <memory>
#include <vector>

#include "arrivals.h"
#include "graph_plan.h"
#include "mini_graph.h"
#include "stats.h"
#include "store.h"

namespace guanaco {

class Overlap {
 public:
  Overlap(const LoadPlan& plan, const EngineApi& api, MiniGraph* mini, Stats* stats);

  // Whether this selection's products can be run here: rows as understood, in host memory, and the engine's own threads
  // to run them.
  bool can_run(const Binding& binding);
  // Computes the whole product `use`; `shadow` are its weights over the slots, all of them when its experts pass through in
  // waves. False when the graph was given up, or, with a reason, when a read failed
  // for good or the engine did.
  bool run(Binding* binding, PartUse* use, Tensor* shadow, Store* store, std::string* error);

  // Rows that are computed at once, more only when one expert has more: the memory they take is planned.
  static constexpr size_t kMostRows = 128;

 private:
  bool is_understood(const PartUse& use, const Tensor* ids) const;
  void sort_places(const Binding& binding);
  size_t gather_rows(const Binding& binding, size_t next);
  int32_t wave_id(const Binding& binding, size_t expert) const;
  // The product's rows at the gathered places.
  bool compute(const Binding& binding, const PartUse& use, Tensor* shadow);
  Tensor* clone(std::unique_ptr<char[]>* storage, const Tensor* original) const;

  const LoadPlan& plan_;
  const EngineApi& api_;
  Stats* const stats_;
  MiniGraph* const mini_;
  std::unique_ptr<char[]> product_, input_, ids_;
  Arrivals arrivals_;
  std::vector<size_t> ready_;             // of the lease's experts
  std::vector<uint32_t> places_;          // in the selection, row by row, sorted by expert
  std::vector<uint32_t> begin_;           // [expert] in places_, and the end
  std::vector<uint32_t> gathered_;        // places of one computation
  std::vector<int32_t> ready_ids_;
  std::vector<char> rows_out_, rows_in_;
};

}  // namespace guanaco

// Guesses the selection of the next MoE layer and has the store read it early.
//
// Owns: the guess and its bookkeeping. Three sources: the next layer's own router on this layer's state (gate), a
// learned matrix from this layer's experts to the next one's (transition), or the predictions that come with a
// replayed trace. Leaves reading and eviction to the store and whether it pays to the judge. A wrong guess costs time,
// never a token.
#pragma once

#include <vector>

#include "graph_plan.h"
#include "mini_graph.h"
#include "pilot_judge.h"
#include "replay.h"
#include "stats.h"
#include "store.h"
#include "transition.h"

namespace guanaco {

class Pilot {
 public:
  Pilot(const LoadPlan& plan, const EngineApi& api, MiniGraph* mini, Stats* stats, const Replay& replay);

  bool is_on() const { return plan_.pilot != PilotMode::kOff; }
  // Another graph begins: what was guessed in the last one was for a layer that did not come.
  void begin_graph();
  // The selection of a layer as it turned out, before the store is told.
  void turned_out(const GraphPlan& graph_plan, const Binding& binding, const std::vector<int32_t>& experts);
  // The reads of this selection are started: guess the next one. `replayed`: where its rows are in a replayed trace.
  void look_ahead(GraphPlan* graph_plan, const Binding& binding, const ReplayRows& replayed, Store* store);

 private:
  struct Guess {
    bool made = false;
    uint32_t group = 0;
    std::vector<int32_t> experts;  // best first
    std::vector<char> judged;      // parallel: it was not resident, so that it can turn out right or wrong
  };

  bool learns() const { return plan_.pilot == PilotMode::kTransition || plan_.pilot == PilotMode::kAuto; }
  const Binding* next_of(const GraphPlan& graph_plan, const Binding& binding) const;
  bool prepare(GraphPlan* graph_plan, const Binding& binding, const Binding& next) const;
  void cut_routers(GraphPlan* graph_plan) const;
  bool run(RouterCone* router, const Tensor* state);
  bool guess_by_router(GraphPlan* graph_plan, const Binding& binding, const Binding& next);
  bool guess_by_replay(const Binding& next, const ReplayRows& replayed);
  bool guess_by_transition(const Binding& binding, const Binding& next);
  void add_by_rank(const Tensor* ids);
  void add(int32_t expert);
  void check_own_router(GraphPlan* graph_plan, const Binding& binding);
  void choose_reads(const Binding& next, Store* store);

  const LoadPlan& plan_;
  const EngineApi& api_;
  MiniGraph* const mini_;
  Stats* const stats_;
  const Replay& replay_;
  PilotJudge judge_;
  Transition transition_;
  const std::vector<uint32_t> trace_layers_;  // [group] layer of a replayed trace
  std::vector<char> scratch_;                 // of the routers' runs
  Guess guess_;
  bool turned_out_ = false;         // what the layer being served was guessed to select is known
  std::vector<int32_t> selected_;   // of the layer served last
  uint32_t selected_group_ = 0;
  bool has_selected_ = false;
  bool router_failed_ = true;       // at the last layer: transitions are learned where they may be needed
  std::vector<int32_t> reads_;
};

}  // namespace guanaco

// The seam: runs one graph of the engine with its expert products bound to slots.
//
// Owns: the order of events inside a graph (ask, compute, serve, bind, put back). Leaves residency to the store.
// Refuses to go on after a read failed: the graph then reports failure and the engine fails the requests in it.
#pragma once

#include <memory>
#include <vector>

#include "drafted_rows.h"
#include "graph_plan.h"
#include "heat.h"
#include "overlap.h"
#include "pagecache.h"
#include "pilot.h"
#include "recorder.h"
#include "replay.h"

namespace guanaco {

struct UserCallback {
  EvalCallback function = nullptr;
  void* user_data = nullptr;
};

class Seam {
 public:
  Seam(const LoadPlan& plan, const EngineApi& api, const Mappings& mappings, Stats* stats, Replay* replay);

  void use_store(Store* store) { store_ = store; }
  void use_pagecache(PageCacheStore* pagecache) { pagecache_ = pagecache; }
  void use_drafts(DraftedRows* drafts) { drafts_ = drafts; }

  // Runs `graph`, by the engine's own function, and returns its status.
  int compute(Scheduler* scheduler, Graph* graph, const UserCallback& user);
  // Of the last graph: rows of its widest selection.
  int64_t n_tokens() const { return n_tokens_; }
  // Of the last step's draft so many tokens were right.
  void drafts_accepted(size_t n_right);

 private:
  struct Restore;
  static bool trampoline(Tensor* tensor, bool ask, void* self);
  bool on_ask(Tensor* tensor);
  bool on_computed(Tensor* tensor);
  // Makes a selection's experts resident, or leaves it on the file mapping, which stays right.
  void serve(Binding* binding);
  bool acquire_in_waves(Binding* binding);
  // Tells whoever looks on how a selection was served.
  void note_served(const Binding& binding, size_t n_transient, const Cache& cache, const Served& served);
  // Waits for a part; failing is final for the graph.
  bool wait_for(Binding* binding, uint32_t part);
  bool read_ids(const Tensor* ids, std::vector<int32_t>* rows) const;
  bool is_batch(const Binding& binding) const { return plan_.is_batch(binding.ids->ne[1]); }
  BatchRows batch_rows(const Binding& binding) const;
  // Rows [first, last) of a selection: those whose experts are in use. The others' are passing through.
  struct Lasting {
    size_t first = 0, last = 0;
  };
  Lasting lasting_rows(const Binding& binding) const;
  size_t distinct(const Binding& binding, const std::vector<int32_t>& rows, std::vector<int32_t>* experts);
  void write_slot_ids(Binding* binding, const std::vector<int32_t>& rows);
  bool bind(Binding* binding, PartUse* use);
  void run_taken(Binding* binding, PartUse* use);
  void mark_bound(uint32_t group, uint32_t part);
  void release_before(int node_index);
  void blank(Tensor* tensor);
  bool has_lease_before(int node_index) const;
  void put_back();
  void unbind(PartUse* use);
  bool fail(const std::string& message);
  GraphPlan& plan_for(Graph* graph);

  const LoadPlan& plan_;
  const EngineApi& api_;
  const Mappings& mappings_;
  Stats* const stats_;
  Replay* const replay_;
  Store* store_ = nullptr;
  PageCacheStore* pagecache_ = nullptr;
  DraftedRows* drafts_ = nullptr;
  PartIndex index_;
  MiniGraph mini_;
  Pilot pilot_;
  Overlap overlap_;
  Recorder recorder_;
  HeatMap heat_;
  std::vector<std::unique_ptr<GraphPlan>> plans_;  // most recent first
  const std::vector<uint32_t> trace_layers_;       // [group] layer of a replayed trace
  std::vector<uint32_t> bound_;                    // [group] bit per part
  std::vector<uint32_t> stamp_;                    // [expert] last selection that named it
  uint32_t epoch_ = 0;
  uint32_t tail_tokens_ = 1;

  // Of the graph that is running.
  GraphPlan* current_ = nullptr;
  UserCallback user_;
  bool user_asked_ = false;
  int64_t n_tokens_ = 0;  // of the widest selection: the last layer may leave rows out
  size_t n_counted_ = 0;  // of those, from the first on: the others are drafts that are mostly wrong
  size_t cursor_ = 0, matched_begin_ = 0;
  bool failed_ = false;
  std::vector<std::pair<Tensor*, int32_t>> blanked_;  // nodes skipped after a failure, and their operations
  std::vector<int32_t> rows_, experts_;
  std::vector<float> scores_;  // of the router, parallel to rows_; only while recording
};

}  // namespace guanaco

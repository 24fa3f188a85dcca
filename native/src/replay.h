// Routing from a recorded trace: overwrites a layer's selection before anybody reads it.
//
// For benchmarks on synthetic models only (the parent refuses others). Owns: the trace and the position in it. It
// runs for streamed and plain engines alike, so both do the same work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine_api.h"
#include "plan.h"
#include "stats.h"

namespace guanaco {

constexpr uint32_t kNoTraceLayer = UINT32_MAX;

// [group] the layer of a trace that it follows: a trace counts MoE layers, and records one selection in each. A
// second set of experts in a layer follows none. Groups that a plan leaves out belong to layers behind all others.
std::vector<uint32_t> trace_layers(const std::vector<ExpertGroup>& groups);

// Where the rows of a selection are in the trace.
struct ReplayRows {
  uint64_t first = 0, stride = 1, length = 0;  // length: of the trace, that is begun anew at its end; 0: it is not
  bool on = false;
  uint64_t at(int64_t row) const {
    const uint64_t token = first + static_cast<uint64_t>(row) * stride;
    return length == 0 ? token : token % length;
  }
};

class Replay {
 public:
  bool open(const std::string& path, std::string* error);
  bool is_open() const { return !ids_.empty(); }
  // Whether every layer has all the experts that the trace may name.
  bool fits(const std::vector<ExpertGroup>& groups, std::string* error) const;

  // Writes the trace's ids of MoE layer number `ordinal` into `ids` ([top_k, n_rows] int32, on the host).
  // `n_tokens`: tokens of the whole batch; the rows are its last ones.
  // With `replay_strands` the tokens of a batch that has no more than so many are of as many clients: each follows a
  // stretch of the trace of its own, and all are one token further afterwards.
  void overwrite(const EngineApi& api, Stats* stats, uint32_t ordinal, int64_t n_tokens, Tensor* ids);
  void advance(Stats* stats, int64_t n_tokens);
  // Where the last `n_rows` rows of a batch of `n_tokens` are.
  ReplayRows rows(const StatsBlock& stats, int64_t n_tokens, int64_t n_rows) const;
  // What was predicted for a layer of a token before it ran, by rank; -1: nothing. A trace may have no predictions.
  int32_t predicted(uint64_t token, uint32_t ordinal, uint32_t rank) const;

 private:
  uint32_t n_layer_ = 0, n_expert_ = 0, top_k_ = 0, n_tokens_ = 0;
  uint32_t n_ranks_ = 0;  // predictions a layer
  std::vector<int16_t> ids_, predictions_;
};

}  // namespace guanaco

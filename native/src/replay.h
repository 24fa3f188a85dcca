// Routing from a recorded trace: overwrites a layer's selection before anybody reads it.
//
// For benchmarks on synthetic models only (the parent refuses others). Owns: the trace and the position in it. It
// runs for streamed and plain engines alike, so both do the same work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine_api.h"
#include "stats.h"

namespace guanaco {

class Replay {
 public:
  bool open(const std::string& path, std::string* error);
  bool is_open() const { return !ids_.empty(); }
  uint32_t n_layer() const { return n_layer_; }

  // Writes the trace's ids of MoE layer number `ordinal` into `ids` ([top_k, n_rows] int32, on the host).
  // `n_tokens`: tokens of the whole batch; the rows are its last ones.
  void overwrite(const EngineApi& api, Stats* stats, uint32_t ordinal, int64_t n_tokens, Tensor* ids);
  void advance(Stats* stats, int64_t n_tokens);

 private:
  uint32_t n_layer_ = 0, n_expert_ = 0, top_k_ = 0, n_tokens_ = 0;
  std::vector<int16_t> ids_;
};

}  // namespace guanaco

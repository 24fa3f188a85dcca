// Reads the experts that are likely to be used into empty slots before they are asked for.
//
// Owns: which ones, and how many at a time. Leaves the likelihood to the plan (a prior made from an imatrix or from
// earlier use), reading to the store, and when to begin and to end to the runtime. Takes empty slots only, and reads no
// more than two tokens use: with the probe's own, what a start may read at most.
#pragma once

#include <cstddef>
#include <vector>

#include "cache.h"
#include "plan.h"
#include "store.h"

namespace guanaco {

// The likeliest first; among equals in the order of the layers.
std::vector<ExpertId> likeliest_experts(const LoadPlan& plan);

class WarmStart {
 public:
  WarmStart(const LoadPlan& plan, Stats* stats);

  bool has_any() const { return !experts_.empty(); }
  // Takes in what has arrived and starts more reads, a few at a time; never blocks. False when there is nothing left.
  bool step(Store* store);

 private:
  const std::vector<ExpertId> experts_;
  Stats* const stats_;
  size_t next_ = 0;
};

}  // namespace guanaco

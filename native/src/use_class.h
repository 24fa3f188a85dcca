// How much each expert is used, whatever the policy: for the counters only, nothing is decided by it.
#pragma once

#include <cstdint>
#include <vector>

#include "policy.h"

namespace guanaco {

class UseClass {
 public:
  explicit UseClass(const PolicyShape& shape);

  void selected(const Selection& selection);
  // Share of the group's recent selections that named the expert, the latest counting most.
  double rate(uint32_t group, int32_t expert) const { return rates_[group][static_cast<size_t>(expert)]; }

 private:
  std::vector<std::vector<double>> rates_;  // [group][expert]
};

}  // namespace guanaco

// Two decayed use rates of every expert: one that follows the last few tokens, one that follows the topic.
//
// Updated at each selection of a group for all its experts, and only then: a layer that has not been served in this
// token still has the rates of the token before. Of a prompt batch every row counts as a token.
#pragma once

#include <cstdint>
#include <vector>

#include "policy.h"

namespace guanaco {

class UseRates {
 public:
  explicit UseRates(const PolicyShape& shape);

  // Starting values of the group's slow rates.
  void prior(uint32_t group, const double* use);
  void selected(const Selection& selection);
  // Of the group's experts, in order.
  const double* fast(uint32_t group) const { return fast_.data() + first_key_[group]; }
  const double* slow(uint32_t group) const { return slow_.data() + first_key_[group]; }

 private:
  void used(uint32_t group, const int32_t* experts, size_t n_used);

  std::vector<uint32_t> first_key_;  // [group], and the number of keys at the end
  std::vector<double> fast_, slow_;  // [key]
};

}  // namespace guanaco

// How many tokens each expert is expected to stay unused: the way to its layer in the ring, plus 1 / (use a token).
//
// Owns the estimate of use from two rates, and a copy of it by slot, so that ranking a class is one pass over
// contiguous memory. An expert's use may be estimated higher by whoever ranks, never lower: the copy is a bound.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy.h"
#include "residents.h"
#include "use_rates.h"

namespace guanaco {

class ExpectedWait {
 public:
  // use = fast_weight * fast + slow_weight * slow + a little, at most `most`.
  ExpectedWait(const PolicyShape& shape, double fast_weight, double slow_weight, double most);

  // After Residents::used(), Residents::placed(), Residents::emptied().
  void selected(const Selection& selection, const Residents& residents);
  void placed(uint32_t size_class, uint32_t slot, const Residents& residents);
  void prior(uint32_t group, const double* use, const Residents& residents);
  void emptied(uint32_t size_class, uint32_t slot) { slots_[size_class][slot].key = kNoKey; }

  struct SlotWait {
    double tokens = 0.0;  // without the way in the ring
    uint32_t group = 0;
    uint32_t key = kNoKey;  // kNoKey: nothing in it
  };
  const std::vector<SlotWait>& slots(uint32_t size_class) const { return slots_[size_class]; }
  // Whether `ring` plus the wait, with `more` use than the rates say, is below `value` beyond any rounding.
  bool is_below(uint32_t key, double more, double ring, double value) const {
    return std::min((use_[key] + more) + kLittle, most_) * (value - ring) > 1.0 + kRounding;
  }
  // With `more` use than the rates say.
  double tokens(uint32_t key, double more) const { return 1.0 / std::min((use_[key] + more) + kLittle, most_); }

 private:
  void refresh(uint32_t group, const Residents& residents);

  static constexpr double kLittle = 1e-5;
  static constexpr double kRounding = 1e-9;

  UseRates rates_;
  const double fast_weight_, slow_weight_, most_;
  std::vector<double> use_;                   // [key], without the little
  std::vector<double> tokens_;                // [key], without more
  std::vector<std::vector<SlotWait>> slots_;  // [class][slot]
};

}  // namespace guanaco

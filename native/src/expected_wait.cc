#include "expected_wait.h"

namespace guanaco {

ExpectedWait::ExpectedWait(const PolicyShape& shape, double fast_weight, double slow_weight, double most)
    : rates_(shape), fast_weight_(fast_weight), slow_weight_(slow_weight), most_(most) {
  size_t n_keys = 0;
  for (const uint32_t n_expert : shape.n_expert) n_keys += n_expert;
  use_.assign(n_keys, 0.0);
  tokens_.assign(n_keys, 1.0 / std::min(kLittle, most));
  for (const uint32_t n_slots : shape.n_slots) slots_.emplace_back(n_slots);
}

void ExpectedWait::selected(const Selection& selection, const Residents& residents) {
  rates_.selected(selection);
  refresh(selection.group, residents);
}

void ExpectedWait::prior(uint32_t group, const double* use, const Residents& residents) {
  rates_.prior(group, use);
  refresh(group, residents);
}

void ExpectedWait::refresh(uint32_t group, const Residents& residents) {
  const uint32_t n = residents.n_expert(group), first = residents.first_key(group);
  const double* const fast = rates_.fast(group);
  const double* const slow = rates_.slow(group);
  const double fast_weight = fast_weight_, slow_weight = slow_weight_, most = most_;  // not read anew at each store
  double* const use = use_.data() + first;
  double* const tokens_now = tokens_.data() + first;
  for (uint32_t e = 0; e < n; ++e) {
    use[e] = fast_weight * fast[e] + slow_weight * slow[e];
    tokens_now[e] = 1.0 / std::min((use[e] + 0.0) + kLittle, most);
  }
  std::vector<SlotWait>& slots = slots_[residents.size_class(group)];
  for (uint32_t e = 0; e < n; ++e) {
    const int32_t slot = residents.slot_of(first + e);
    if (slot >= 0) slots[static_cast<size_t>(slot)].tokens = tokens_now[e];
  }
}

void ExpectedWait::placed(uint32_t size_class, uint32_t slot, const Residents& residents) {
  const uint32_t key = residents.keys(size_class)[slot];
  slots_[size_class][slot] = {tokens_[key], residents.group_of(key), key};
}

}  // namespace guanaco

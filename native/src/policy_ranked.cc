#include "policy_ranked.h"

#include <algorithm>

namespace guanaco {

namespace {

constexpr size_t kGuesses = 4;  // victims asked for between two selections, ranked at once

}  // namespace

void VictimList::offer(double value, uint64_t last_use, uint32_t slot) {
  const auto goes_before = [&](const Victim& other) {
    return value > other.value || (value == other.value && last_use < other.last_use);
  };
  if (n_ == room_ && !goes_before(victims_[n_ - 1])) return;
  size_t at = n_ < room_ ? n_++ : n_ - 1;
  for (; at > 0 && goes_before(victims_[at - 1]); --at) victims_[at] = victims_[at - 1];
  victims_[at] = {value, last_use, slot};
}

int32_t VictimList::best(const uint32_t* pins) const {
  for (size_t i = 0; i < n_; ++i) {
    if (pins[victims_[i].slot] == 0) return static_cast<int32_t>(victims_[i].slot);
  }
  return -1;
}

RankedPolicy::RankedPolicy(const PolicyShape& shape)
    : residents_(shape), n_groups_(static_cast<uint32_t>(shape.n_expert.size())) {
  for (uint32_t ahead = 0; ahead < n_groups_; ++ahead) {
    ring_.push_back(static_cast<double>(ahead) / static_cast<double>(n_groups_));
  }
  distance_ = ring_;
}

void RankedPolicy::selected(const Selection& selection) {
  const bool token_starts = !any_selected_ || selection.group <= group_;
  any_selected_ = true;
  group_ = selection.group;
  serving_ = true;
  is_ranked_ = false;
  // The next layer is nearest, this one furthest.
  std::copy_backward(ring_.begin(), ring_.end() - group_ - 1, distance_.end());
  std::copy(ring_.end() - group_ - 1, ring_.end(), distance_.begin());
  n_missing_ = 0;
  for (size_t i = 0; i < selection.n; ++i) {
    if (residents_.slot_of(residents_.key(selection.group, selection.experts[i])) < 0) ++n_missing_;
  }
  residents_.used(selection);
  learn(selection, token_starts);
}

void RankedPolicy::placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) {
  residents_.placed(group, expert, slot, transient);
  on_placed(residents_.size_class(group), slot);
}

void RankedPolicy::emptied(uint32_t size_class, uint32_t slot) {
  is_ranked_ = false;
  residents_.emptied(size_class, slot);
  on_emptied(size_class, slot);
}

int32_t RankedPolicy::victim(uint32_t size_class, const uint32_t* pins) {
  if (is_ranked_ && ranked_class_ == size_class) {
    const int32_t slot = list_.best(pins);
    if (slot >= 0) return slot;
  }
  list_.clear(serving_ ? std::max<size_t>(n_missing_, 1) : kGuesses);
  rank(size_class, pins, &list_);
  is_ranked_ = true;
  ranked_class_ = size_class;
  return list_.best(pins);
}

void RankedPolicy::served(uint32_t /*group*/) { serving_ = is_ranked_ = false; }

}  // namespace guanaco

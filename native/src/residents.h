// What every policy keeps: which expert each slot holds, and when each expert was last used.
//
// Experts are numbered through all groups (keys). Refuses nothing: the Cache owns residency, this mirrors it.
#pragma once

#include <cstdint>
#include <vector>

#include "policy.h"

namespace guanaco {

constexpr uint32_t kNoKey = UINT32_MAX;

class Residents {
 public:
  explicit Residents(const PolicyShape& shape);

  // Uses are ordered as the selection lists them, hits and misses alike.
  void used(const Selection& selection);
  void placed(uint32_t group, int32_t expert, uint32_t slot, bool transient);
  void emptied(uint32_t size_class, uint32_t slot);

  uint32_t first_key(uint32_t group) const { return first_key_[group]; }
  uint32_t key(uint32_t group, int32_t expert) const { return first_key_[group] + static_cast<uint32_t>(expert); }
  uint32_t n_keys() const { return first_key_.back(); }
  uint32_t n_groups() const { return static_cast<uint32_t>(size_class_.size()); }
  uint32_t n_expert(uint32_t group) const { return first_key_[group + 1] - first_key_[group]; }
  uint32_t group_of(uint32_t key) const { return group_of_[key]; }
  uint32_t size_class(uint32_t group) const { return size_class_[group]; }

  // -1: in no slot.
  int32_t slot_of(uint32_t key) const { return slot_of_[key]; }
  // What the slots of a class hold; kNoKey: nothing.
  const std::vector<uint32_t>& keys(uint32_t size_class) const { return keys_[size_class]; }
  // Greater: used later. 0: never.
  uint64_t last_use(uint32_t key) const { return last_use_[key]; }

 private:
  std::vector<uint32_t> size_class_;  // [group]
  std::vector<uint32_t> first_key_;   // [group], and the number of keys at the end
  std::vector<uint32_t> group_of_;    // [key]
  std::vector<int32_t> slot_of_;      // [key]
  std::vector<uint64_t> last_use_;    // [key]
  std::vector<std::vector<uint32_t>> keys_;  // [class][slot]
  uint64_t clock_ = 0;
  uint64_t selection_began_ = 0;  // the clock when the latest selection came
};

}  // namespace guanaco

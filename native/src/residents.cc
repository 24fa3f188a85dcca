#include "residents.h"

namespace guanaco {

Residents::Residents(const PolicyShape& shape) : size_class_(shape.size_class) {
  uint32_t n_keys = 0;
  for (const uint32_t n_expert : shape.n_expert) {
    first_key_.push_back(n_keys);
    group_of_.insert(group_of_.end(), n_expert, static_cast<uint32_t>(first_key_.size() - 1));
    n_keys += n_expert;
  }
  first_key_.push_back(n_keys);
  slot_of_.assign(n_keys, -1);
  last_use_.assign(n_keys, 0);
  for (const uint32_t n_slots : shape.n_slots) keys_.emplace_back(n_slots, kNoKey);
}

void Residents::used(const Selection& selection) {
  selection_began_ = clock_;
  for (size_t i = selection.n_transient; i < selection.n; ++i) {
    last_use_[key(selection.group, selection.experts[i])] = ++clock_;
  }
}

void Residents::placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) {
  emptied(size_class_[group], slot);
  const uint32_t at = key(group, expert);
  slot_of_[at] = static_cast<int32_t>(slot);
  keys_[size_class_[group]][slot] = at;
  // Read ahead of its selection: as good as just used, or it would be the next victim.
  if (!transient && last_use_[at] <= selection_began_) last_use_[at] = ++clock_;
}

void Residents::emptied(uint32_t size_class, uint32_t slot) {
  uint32_t& held = keys_[size_class][slot];
  if (held != kNoKey) slot_of_[held] = -1;
  held = kNoKey;
}

}  // namespace guanaco

// Selections that do not fit the slots: the part of the store that lets experts pass through a few of them.
#include <algorithm>

#include "store.h"

namespace guanaco {

bool Store::acquire_in_waves(uint32_t group, const std::vector<uint32_t>& parts, Lease* lease) {
  if (cache_->n_free(cache_->size_class(group)) == 0) return false;
  Waves& waves = lease->waves;
  cache_->serve_in_waves({group, lease->experts.data(), lease->experts.size(), 0, {}}, &served_, &waves.taken);
  lease->group = group;
  lease->slots = served_.slots;
  lease->loading.clear();
  lease->active = true;
  waves.on = true;
  waves.ready = waves.taken;
  waves.parts = parts;
  waves.missed = served_.missed;
  waves.slots.assign(parts.size() * waves.missed.size(), -1);
  waves.next = 0;
  for (const uint32_t slot : waves.taken) fill(group, slot, false);
  feed_waves(lease);
  add((*stats_)->waves, 1);
  publish_counts(*cache_, stats_);
  served_ns_ = now_ns();
  return true;
}

// Reads on into every slot that is free, up to the last product's last expert.
void Store::feed_waves(Lease* lease) {
  Waves& waves = lease->waves;
  std::vector<Fill>& fills = class_of(lease->group).fills;
  while (waves.next < waves.slots.size() && !waves.ready.empty()) {
    const uint32_t slot = waves.ready.back();
    waves.ready.pop_back();
    const uint32_t part = waves.parts[waves.next / waves.missed.size()];
    const int32_t expert = lease->experts[waves.missed[waves.next % waves.missed.size()]];
    waves.slots[waves.next++] = static_cast<int32_t>(slot);
    fills[slot] = Fill{1u << part, false, false};
    reads_.demand(pinned_read(lease->group, expert, slot, part));
  }
  start();
}

void Store::used_in_waves(Lease* lease, size_t product, size_t i) {
  Waves& waves = lease->waves;
  int32_t& slot = waves.slots[product * waves.missed.size() + i];
  waves.ready.push_back(static_cast<uint32_t>(slot));
  slot = -1;
  feed_waves(lease);
}

void Store::end_waves(Lease* lease) {
  const uint32_t size_class = cache_->size_class(lease->group);
  std::vector<Fill>& fills = class_of(lease->group).fills;
  size_t next_missed = 0;
  for (size_t i = 0; i < lease->experts.size(); ++i) {
    if (next_missed < lease->waves.missed.size() && lease->waves.missed[next_missed] == i) {
      ++next_missed;
    } else {
      cache_->unpin(size_class, lease->slots[i]);
    }
  }
  for (const uint32_t slot : lease->waves.taken) {
    cache_->unpin(size_class, slot);
    fills[slot].failed = true;  // nobody's: where a read still holds the slot, it is dropped once that has ended
    drop(lease->group, slot);
  }
  lease->waves.on = false;
}

}  // namespace guanaco

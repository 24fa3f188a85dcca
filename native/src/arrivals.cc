#include "arrivals.h"

#include <algorithm>
#include <iterator>

namespace guanaco {

void Arrivals::begin(Store* store, Lease* lease, size_t product, uint32_t part) {
  store_ = store;
  lease_ = lease;
  product_ = product;
  part_ = part;
  left_.resize(lease->experts.size());
  for (size_t i = 0; i < left_.size(); ++i) left_[i] = i;
  missed_.clear();
  if (!lease->waves.on) return;
  missed_.assign(lease->experts.size(), -1);
  for (size_t i = 0; i < lease->waves.missed.size(); ++i) missed_[lease->waves.missed[i]] = static_cast<int32_t>(i);
}

bool Arrivals::is_there(size_t expert) const {
  const int32_t i = missed(expert);
  if (i < 0) return store_->has_part(lease_->group, lease_->slots[expert], part_);
  const Waves& waves = lease_->waves;
  const int32_t slot = waves.slots[product_ * waves.missed.size() + static_cast<size_t>(i)];
  return slot >= 0 && store_->has_part(lease_->group, static_cast<uint32_t>(slot), part_);
}

bool Arrivals::take(std::vector<size_t>* experts, std::string* error) {
  const auto is_ready = [this](size_t expert) { return is_there(expert); };
  experts->clear();
  while (true) {
    std::copy_if(left_.begin(), left_.end(), std::back_inserter(*experts), is_ready);
    if (!experts->empty()) break;
    if (store_->wait_for_more(lease_)) continue;
    *error = store_->take_error();
    return false;
  }
  left_.erase(std::remove_if(left_.begin(), left_.end(), is_ready), left_.end());
  return true;
}

uint32_t Arrivals::slot(size_t expert) const {
  const int32_t i = missed(expert);
  if (i < 0) return lease_->slots[expert];
  const Waves& waves = lease_->waves;
  return static_cast<uint32_t>(waves.slots[product_ * waves.missed.size() + static_cast<size_t>(i)]);
}

void Arrivals::used(size_t expert) {
  if (missed(expert) >= 0) store_->used_in_waves(lease_, product_, static_cast<size_t>(missed(expert)));
}

}  // namespace guanaco

// The seam's reading of selections: rows of ids, which of them last, and drafted rows that turned out right.
#include <algorithm>
#include <cstring>

#include "seam.h"

namespace guanaco {

bool Seam::read_ids(const Tensor* ids, std::vector<int32_t>* rows) const {
  const size_t n = static_cast<size_t>(ids->ne[0]), n_rows = static_cast<size_t>(ids->ne[1]);
  rows->resize(n * n_rows);
  if (rows->empty()) return true;
  const char* data = static_cast<const char*>(ids->data);
  std::vector<char> copy;
  if (!api_.is_on_host(ids)) {
    copy.resize((n_rows - 1) * ids->nb[1] + (n - 1) * ids->nb[0] + sizeof(int32_t));
    api_.tensor_get(ids, copy.data(), 0, copy.size());
    data = copy.data();
  }
  if (data == nullptr) return false;
  for (size_t row = 0; row < n_rows; ++row) {
    for (size_t k = 0; k < n; ++k) {
      std::memcpy(&(*rows)[row * n + k], data + row * ids->nb[1] + k * ids->nb[0], sizeof(int32_t));
    }
  }
  return true;
}

Seam::Lasting Seam::lasting_rows(const Binding& binding) const {
  const size_t n_rows = static_cast<size_t>(binding.ids->ne[1]);
  if (is_batch(binding)) return {n_rows - std::min<size_t>(n_rows, tail_tokens_), n_rows};
  // A layer that leaves rows out does not say which.
  return {0, binding.ids->ne[1] == n_tokens_ ? std::min(n_counted_, n_rows) : n_rows};
}

// The distinct experts of a selection, those of lasting rows last; returns how many come before them.
size_t Seam::distinct(const Binding& binding, const std::vector<int32_t>& rows, std::vector<int32_t>* experts) {
  experts->clear();
  const size_t n = static_cast<size_t>(binding.ids->ne[0]);
  const Lasting lasting = lasting_rows(binding);
  ++epoch_;
  const auto walk = [&](size_t first_row, size_t last_row) {
    for (size_t i = first_row * n; i < last_row * n; ++i) {
      const size_t expert = static_cast<size_t>(rows[i]);
      if (stamp_[expert] != epoch_) experts->push_back(rows[i]);
      stamp_[expert] = epoch_;
    }
  };
  // These first, so that their experts are not taken for the others', then turn the list round.
  walk(lasting.first, lasting.last);
  const size_t n_lasting = experts->size();
  walk(0, lasting.first);
  walk(lasting.last, static_cast<size_t>(binding.ids->ne[1]));
  std::rotate(experts->begin(), experts->begin() + static_cast<long>(n_lasting), experts->end());
  return experts->size() - n_lasting;
}

BatchRows Seam::batch_rows(const Binding& binding) const {
  const size_t n_used = static_cast<size_t>(binding.ids->ne[0]);
  return is_batch(binding) ? BatchRows{rows_.data(), rows_.size() / n_used, n_used} : BatchRows{};
}

void Seam::drafts_accepted(size_t n_right) {
  if (drafts_ == nullptr) return;
  drafts_->accepted(n_right, [&](uint32_t group, const int32_t* experts, size_t n) {
    if (pagecache_ != nullptr) pagecache_->learn(group, experts, n);
    if (store_ == nullptr) return;
    store_->learn(group, experts, n);
    heat_.served(store_->cache(), {group, experts, n, 0, {}});
  });
}

}  // namespace guanaco

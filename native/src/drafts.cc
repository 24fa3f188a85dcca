#include "drafts.h"

#include <algorithm>
#include <chrono>

namespace guanaco {

void Drafts::decodes(int32_t sequence, bool* is_drafting) {
  if (std::find(sequences_.begin(), sequences_.end(), sequence) != sequences_.end()) return;
  sequences_.push_back(sequence);
  marks_.push_back(is_drafting);
}

bool Drafts::begin_step() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  const bool drafts = judge_.begin(static_cast<uint64_t>(now_ns), sequences_.size());
  rows_.begin_step(sequences_.size());
  if (!drafts) {
    for (bool* mark : marks_) *mark = false;
  }
  sequences_.clear();
  marks_.clear();
  add((*stats_)->draft_steps, 1);
  add((*stats_)->draft_rests, drafts ? 0 : 1);
  return drafts;
}

void Drafts::accepted(size_t n_tokens) {
  judge_.accepted(n_tokens);
  add((*stats_)->draft_accepted, n_tokens);
}

}  // namespace guanaco

#include "draft_judge.h"

#include <algorithm>

namespace guanaco {

namespace {

constexpr double kMemory = 0.97;     // per step
constexpr double kLongestNs = 60e9;  // nobody decoded meanwhile
constexpr uint64_t kLook = 8, kFirstLook = 16;        // steps that tell how fast a way is
constexpr uint64_t kFirstStay = 64, kLongestStay = 1024;  // steps before the other way is looked at again

}  // namespace

void DraftJudge::Way::add(double n_tokens, double elapsed_ns) {
  tokens = kMemory * tokens + n_tokens;
  ns = kMemory * ns + elapsed_ns;
}

bool DraftJudge::begin(uint64_t now_ns, size_t n_sequences) {
  Case& of = cases_[std::clamp<size_t>(n_sequences, 1, kCases) - 1];
  const double elapsed_ns = now_ns > begun_ns_ ? static_cast<double>(now_ns - begun_ns_) : 0;
  if (begun_ns_ != 0 && n_sequences == n_sequences_ && elapsed_ns > 0 && elapsed_ns < kLongestNs) {
    (drafts_ ? of.with : of.without).add(static_cast<double>(n_sequences + n_accepted_), elapsed_ns);
  }
  begun_ns_ = now_ns;
  n_sequences_ = n_sequences;
  n_accepted_ = 0;
  if (of.left == 0) next_stretch(&of);
  --of.left;
  drafts_ = always_ || of.drafts;
  return drafts_;
}

// First each way is looked at. Then the faster one goes on, and the longer it has been the faster one, the seldomer the
// other is looked at again.
void DraftJudge::next_stretch(Case* of) const {
  if (!of->with.is_known() || !of->without.is_known()) {
    of->drafts = !of->with.is_known();
    of->left = of->drafts ? kFirstLook : kLook;
    return;
  }
  const bool is_better = of->with.tokens_per_ns() > of->without.tokens_per_ns();
  if (of->is_look) {
    of->stay = of->drafts == is_better ? kFirstStay : std::clamp(2 * of->stay, kFirstStay, kLongestStay);
    of->drafts = is_better;
    of->left = of->stay;
  } else {
    of->drafts = !is_better;
    of->left = kLook;
  }
  of->is_look = !of->is_look;
}

}  // namespace guanaco

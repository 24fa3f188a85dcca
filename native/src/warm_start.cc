#include "warm_start.h"

#include <algorithm>

namespace guanaco {

namespace {

constexpr uint64_t kMostPendingBytes = 8u << 20;  // a request that comes waits for these at most
constexpr uint64_t kMostTokens = 2;

}  // namespace

std::vector<ExpertId> likeliest_experts(const LoadPlan& plan) {
  struct Candidate {
    double use;
    ExpertId id;
  };
  std::vector<Candidate> candidates;
  uint64_t left_bytes = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const ExpertGroup& group = plan.groups[g];
    if (group.expected) left_bytes += kMostTokens * group.top_k * group.expert_bytes();
    // No likelier than the average of its layer: not worth a read.
    const double average = static_cast<double>(group.top_k) / group.n_expert;
    for (size_t e = 0; e < group.prior.size() && group.expected; ++e) {
      if (group.prior[e] <= average) continue;
      candidates.push_back({group.prior[e], {static_cast<int32_t>(g), static_cast<int32_t>(e)}});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.use > b.use; });
  std::vector<ExpertId> experts;
  for (const Candidate& candidate : candidates) {
    const uint64_t nbytes = plan.groups[static_cast<size_t>(candidate.id.group)].expert_bytes();
    if (nbytes > left_bytes) break;
    left_bytes -= nbytes;
    experts.push_back(candidate.id);
  }
  return experts;
}

WarmStart::WarmStart(const LoadPlan& plan, Stats* stats) : experts_(likeliest_experts(plan)), stats_(stats) {}

bool WarmStart::step(Store* store) {
  store->poll();
  while (next_ < experts_.size() && store->pending_bytes() < kMostPendingBytes) {
    const ExpertId& id = experts_[next_++];
    if (store->preload(static_cast<uint32_t>(id.group), id.expert)) add((*stats_)->preloaded, 1);
  }
  store->start();
  return next_ < experts_.size() || store->pending_bytes() > 0;
}

}  // namespace guanaco

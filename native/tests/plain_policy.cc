#include "plain_policy.h"

#include <algorithm>
#include <cmath>
#include <tuple>

using guanaco::Selection;

PlainPolicy::PlainPolicy(std::string name, guanaco::PolicyShape shape)
    : name_(std::move(name)), shape_(std::move(shape)), budgets_(shape_.n_expert.size(), 0),
      n_pinned_(shape_.n_expert.size(), 0) {}

void PlainPolicy::selected(const Selection& selection) {
  selection_began_ = clock_;
  const std::vector<int32_t> used(selection.experts + selection.n_transient, selection.experts + selection.n);
  if (token_ < 0 || selection.group <= group_) {
    ++token_;
    history_.emplace_back(shape_.n_expert.size());
    std::map<int64_t, double> carried;
    for (int64_t u = std::max<int64_t>(0, token_ - 255); u < token_; ++u) {
      const auto before = likeness_.find(u - 1);
      const double likeness = before == likeness_.end() ? 0.0 : 0.6 * before->second;
      carried[u] = likeness < 1e-30 ? 0.0 : likeness;
    }
    likeness_ = carried;
  }
  group_ = selection.group;
  for (int32_t e = 0; e < static_cast<int32_t>(shape_.n_expert[group_]); ++e) {
    const bool is_used = std::find(used.begin(), used.end(), e) != used.end();
    const Expert expert{group_, e};
    fast_[expert] = 0.5 * fast_[expert];
    slow_[expert] = 0.97 * slow_[expert];
    if (!used.empty()) heat_[expert] = 0.95 * heat_[expert];
    if (!is_used) continue;
    fast_[expert] += 0.5;
    slow_[expert] += 0.03;
    heat_[expert] += 0.05;
  }
  for (const int32_t e : used) {
    stamps_[{group_, e}] = ++clock_;
    ++counts_[{group_, e}];
  }
  resemble(used, selection.n_transient);
  if (!used.empty()) warm_up(group_, used);
}

void PlainPolicy::resemble(const std::vector<int32_t>& used, size_t n_transient) {
  if (shape_.top_k[group_] == 0 && n_transient == 0) shape_.top_k[group_] = static_cast<uint32_t>(used.size());
  const size_t k = shape_.top_k[group_] != 0 ? shape_.top_k[group_] : used.size();
  for (auto& [u, likeness] : likeness_) {
    const std::vector<int32_t>& then = history_[static_cast<size_t>(u)][group_];
    const auto shared = std::count_if(used.begin(), used.end(), [&](int32_t e) {
      return std::find(then.begin(), then.end(), e) != then.end();
    });
    likeness = 0.9 * likeness + (shared == 0 ? 0.0 : static_cast<double>(shared) / static_cast<double>(k));
    if (likeness < 1e-30) likeness = 0.0;
  }
  history_.back()[group_] = used;
}

void PlainPolicy::warm_up(uint32_t group, const std::vector<int32_t>& used) {
  if (n_calls_ < 200) {
    if (++n_calls_ == 200) end_warm_up();
    return;
  }
  for (const int32_t e : used) {
    if (pinned_[{group, e}] || n_pinned_[group] == budgets_[group]) continue;
    pinned_[{group, e}] = true;
    ++n_pinned_[group];
  }
}

void PlainPolicy::end_warm_up() {
  std::vector<std::vector<Expert>> seen(shape_.n_expert.size());
  for (const auto& [expert, count] : counts_) {
    if (count > 0) seen[expert.first].push_back(expert);
  }
  for (uint32_t size_class = 0; size_class < shape_.n_slots.size(); ++size_class) {
    uint64_t total = 0;
    for (uint32_t g = 0; g < seen.size(); ++g) total += shape_.size_class[g] == size_class ? seen[g].size() : 0;
    uint64_t left = total == 0 ? 0 : shape_.n_slots[size_class];
    std::vector<std::pair<int64_t, uint32_t>> by_remainder;  // (-remainder, group)
    for (uint32_t g = 0; g < seen.size() && total > 0; ++g) {
      if (shape_.size_class[g] != size_class) continue;
      budgets_[g] = shape_.n_slots[size_class] * seen[g].size() / total;
      by_remainder.emplace_back(-static_cast<int64_t>(shape_.n_slots[size_class] * seen[g].size() % total), g);
      left -= budgets_[g];
    }
    std::sort(by_remainder.begin(), by_remainder.end());
    for (uint64_t i = 0; i < left; ++i) ++budgets_[by_remainder[i].second];
  }
  for (uint32_t g = 0; g < seen.size(); ++g) {
    budgets_[g] = std::min<uint64_t>(budgets_[g], shape_.n_expert[g]);
    std::sort(seen[g].begin(), seen[g].end(), [&](const Expert& a, const Expert& b) {
      return std::pair(heat_[a], stamps_[a]) > std::pair(heat_[b], stamps_[b]);
    });
    n_pinned_[g] = std::min<uint64_t>(budgets_[g], seen[g].size());
    for (uint64_t i = 0; i < n_pinned_[g]; ++i) pinned_[seen[g][i]] = true;
  }
}

void PlainPolicy::placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) {
  slots_[{shape_.size_class[group], slot}] = {group, expert};
  uint64_t& stamp = stamps_[{group, expert}];
  if (!transient && stamp <= selection_began_) stamp = ++clock_;  // read ahead of its selection
}

void PlainPolicy::emptied(uint32_t size_class, uint32_t slot) { slots_.erase({size_class, slot}); }

int32_t PlainPolicy::victim(uint32_t size_class, const uint32_t* pins) {
  const Weights weights = weigh();
  int32_t best = -1;
  std::tuple<bool, double, int64_t> most;
  for (const auto& [where, expert] : slots_) {
    if (where.first != size_class || pins[where.second] != 0) continue;
    const std::tuple now{!leaves_last(expert), value(expert, weights), -static_cast<int64_t>(stamps_[expert])};
    if (best >= 0 && now <= most) continue;
    most = now;
    best = static_cast<int32_t>(where.second);
  }
  return best;
}

bool PlainPolicy::leaves_last(const Expert& expert) const {
  return name_ == "herd" && pinned_.count(expert) != 0 && pinned_.at(expert);
}

double PlainPolicy::worth(uint32_t group, int32_t expert) const {
  return -value({group, expert}, weigh()) + (leaves_last({group, expert}) ? 1.0 : 0.0);
}

double PlainPolicy::value(const Expert& expert, const Weights& weights) const {
  const auto get = [&](const auto& values) {
    const auto at = values.find(expert);
    return at == values.end() ? 0.0 : static_cast<double>(at->second);
  };
  if (name_ == "lru") return -get(stamps_);
  if (name_ == "lfu") return -get(counts_);
  if (name_ == "herd") return -get(heat_);
  double use = 0.25 * get(fast_) + (name_ == "cycle" ? 0.75 : 0.45) * get(slow_);
  if (name_ == "recall") use = std::min((use + votes(expert, weights)) + 1e-5, 0.98);
  if (name_ == "cycle") use = use + 1e-5;
  return ring_distance(expert.first) + 1.0 / use;
}

double PlainPolicy::ring_distance(uint32_t group) const {
  const auto n = static_cast<uint32_t>(shape_.n_expert.size());
  return static_cast<double>((group + n - group_ - 1) % n) / static_cast<double>(n);
}

PlainPolicy::Weights PlainPolicy::weigh() const {
  if (likeness_.empty()) return {};
  std::vector<std::pair<double, int64_t>> kept;
  for (const auto& [u, likeness] : likeness_) kept.emplace_back(-likeness, -u);
  std::sort(kept.begin(), kept.end());
  if (kept.size() > 16) kept.resize(16);
  std::map<int64_t, double> alpha;
  for (const auto& [likeness, u] : kept) alpha[-u] = std::exp(1.3 * (-likeness + kept[0].first));
  double total = 0.0;
  for (const auto& [u, share] : alpha) total += share;
  std::map<int64_t, double> weights;
  double weight = 0.0, sum = 0.0;
  for (const auto& [u, likeness] : likeness_) {
    const auto share = alpha.find(u);
    weight = (share == alpha.end() ? 0.0 : share->second / total) + 0.4 * weight;
    weights[u] = weight;
    sum += weight;
  }
  for (auto& [u, share] : weights) share = share / sum;
  return weights;
}

double PlainPolicy::votes(const Expert& expert, const Weights& weights) const {
  const int64_t later = expert.first > group_ ? 0 : 1;
  double result = 0.0;
  for (const auto& [u, weight] : weights) {
    const std::vector<int32_t>& used = history_[static_cast<size_t>(u + later)][expert.first];
    if (std::find(used.begin(), used.end(), expert.second) != used.end()) result += weight;
  }
  return result;
}

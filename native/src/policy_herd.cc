// The pinning of the original description: watch 200 router calls, then pin the experts used most, for good.
//
// How it is read here. The heat of an expert is a moving average, 0.95, of whether its layer's calls used it. During
// the first 200 calls (a call is one layer's selection) nothing is pinned; after them every layer gets a budget of
// pins. The budgets of a size class add up to its slots (max_experts times the number of layers) and are in
// proportion to how many different experts each layer used while it was watched; fractions go to the largest
// remainders. Each layer pins its hottest experts at once and those it uses later while the budget lasts. A pin
// belongs to the expert, not to the slot, and is never taken back. Victims: first the coldest resident expert without
// a pin; when there is none, the coldest with one. The running graph's experts are never victims.
#include <algorithm>
#include <numeric>

#include "policy_ranked.h"

namespace guanaco {

namespace {

constexpr double kKeep = 0.95, kGain = 0.05;
constexpr double kNothing = 1e-30;  // below it 0: denormal numbers are slow
constexpr uint64_t kWarmUpCalls = 200;

class Herd final : public RankedPolicy {
 public:
  explicit Herd(const PolicyShape& shape)
      : RankedPolicy(shape), n_slots_(shape.n_slots), heat_(residents().n_keys(), 0.0),
        used_(residents().n_keys(), false), pinned_(residents().n_keys(), false), n_pinned_(shape.n_expert.size(), 0),
        budgets_(shape.n_expert.size(), 0) {}

  // The first heat; what is pinned for good is still among what was used.
  void prior(uint32_t group, const double* use) override {
    std::copy(use, use + residents().n_expert(group), heat_.begin() + residents().first_key(group));
  }

  double worth(uint32_t group, int32_t expert) const override {
    const uint32_t key = residents().key(group, expert);
    return heat_[key] + (pinned_[key] ? 1.0 : 0.0);
  }

  bool has_pins() const override { return true; }
  bool is_pinned(uint32_t group, int32_t expert) const override { return pinned_[residents().key(group, expert)]; }

  PolicyReport report() const override {
    PolicyReport report;
    report.warmed = n_calls_ >= kWarmUpCalls;
    for (const uint32_t n : n_pinned_) report.pinned += n;
    const auto [least, most] = std::minmax_element(budgets_.begin(), budgets_.end());
    if (least != budgets_.end()) report.least_budget = *least;
    if (most != budgets_.end()) report.most_budget = *most;
    return report;
  }

 private:
  void learn(const Selection& selection, bool /*token_starts*/) override {
    if (selection.n == selection.n_transient) return;
    const uint32_t group = selection.group;
    double* heat = heat_.data() + residents().first_key(group);
    for (uint32_t e = 0; e < residents().n_expert(group); ++e) {
      heat[e] *= kKeep;
      heat[e] = heat[e] < kNothing ? 0.0 : heat[e];
    }
    for (size_t i = selection.n_transient; i < selection.n; ++i) {
      heat[static_cast<size_t>(selection.experts[i])] += kGain;
      used_[residents().key(group, selection.experts[i])] = true;
    }
    if (n_calls_ < kWarmUpCalls) {
      if (++n_calls_ == kWarmUpCalls) end_warm_up();
      return;
    }
    for (size_t i = selection.n_transient; i < selection.n; ++i) {
      pin(group, residents().key(group, selection.experts[i]));
    }
  }

  void pin(uint32_t group, uint32_t key) {
    if (pinned_[key] || n_pinned_[group] >= budgets_[group]) return;
    pinned_[key] = true;
    ++n_pinned_[group];
  }

  std::vector<uint32_t> seen(uint32_t group) const {
    std::vector<uint32_t> keys;
    const uint32_t first = residents().first_key(group);
    for (uint32_t key = first; key < first + residents().n_expert(group); ++key) {
      if (used_[key]) keys.push_back(key);
    }
    return keys;
  }

  void end_warm_up() {
    for (uint32_t size_class = 0; size_class < n_slots_.size(); ++size_class) share(size_class);
    for (uint32_t group = 0; group < residents().n_groups(); ++group) {
      std::vector<uint32_t> keys = seen(group);
      std::sort(keys.begin(), keys.end(), [&](uint32_t a, uint32_t b) {
        return heat_[a] > heat_[b] || (heat_[a] == heat_[b] && residents().last_use(a) > residents().last_use(b));
      });
      for (const uint32_t key : keys) pin(group, key);
    }
  }

  // Largest remainders: whole shares first, then one more for the layers that lost the largest fraction.
  void share(uint32_t size_class) {
    std::vector<uint32_t> groups;
    std::vector<uint64_t> demand(budgets_.size(), 0), remainder(budgets_.size(), 0);
    uint64_t total = 0, given = 0;
    for (uint32_t group = 0; group < budgets_.size(); ++group) {
      if (residents().size_class(group) != size_class) continue;
      groups.push_back(group);
      total += demand[group] = seen(group).size();
    }
    if (total == 0) return;
    for (const uint32_t group : groups) {
      const uint64_t share = n_slots_[size_class] * demand[group];
      budgets_[group] = static_cast<uint32_t>(share / total);
      remainder[group] = share % total;
      given += share / total;
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [&](uint32_t a, uint32_t b) { return remainder[a] > remainder[b]; });
    for (size_t i = 0; given + i < n_slots_[size_class]; ++i) ++budgets_[groups[i]];
    for (const uint32_t group : groups) budgets_[group] = std::min(budgets_[group], residents().n_expert(group));
  }

  void rank(uint32_t size_class, const uint32_t* pins, VictimList* list) override {
    offer_slots(size_class, pins, false, list);
    if (list->is_empty()) offer_slots(size_class, pins, true, list);
  }

  void offer_slots(uint32_t size_class, const uint32_t* pins, bool pinned, VictimList* list) const {
    const std::vector<uint32_t>& keys = residents().keys(size_class);
    for (uint32_t slot = 0; slot < keys.size(); ++slot) {
      const uint32_t key = keys[slot];
      if (pins[slot] != 0 || key == kNoKey || pinned_[key] != pinned) continue;
      if (list->wants(-heat_[key])) list->offer(-heat_[key], residents().last_use(key), slot);
    }
  }

  const std::vector<uint32_t> n_slots_;  // [class]
  std::vector<double> heat_;             // [key]
  std::vector<bool> used_;               // [key]
  std::vector<bool> pinned_;             // [key]
  std::vector<uint32_t> n_pinned_;       // [group]
  std::vector<uint32_t> budgets_;        // [group]
  uint64_t n_calls_ = 0;                 // counted to the end of the warm-up
};

}  // namespace

std::unique_ptr<Policy> make_herd(const PolicyShape& shape) { return std::make_unique<Herd>(shape); }

}  // namespace guanaco

// Least frequently used: counts outlive eviction, ties go to the least recently used. Follows a change of topic slowly.
#include "policy_ranked.h"

namespace guanaco {

namespace {

class Lfu final : public RankedPolicy {
 public:
  explicit Lfu(const PolicyShape& shape) : RankedPolicy(shape), counts_(residents().n_keys(), 0) {}

  double worth(uint32_t group, int32_t expert) const override {
    return static_cast<double>(counts_[residents().key(group, expert)]);
  }

 private:
  void learn(const Selection& selection, bool /*token_starts*/) override {
    for (size_t i = selection.n_transient; i < selection.n; ++i) {
      ++counts_[residents().key(selection.group, selection.experts[i])];
    }
  }

  void rank(uint32_t size_class, const uint32_t* pins, VictimList* list) override {
    const std::vector<uint32_t>& keys = residents().keys(size_class);
    for (uint32_t slot = 0; slot < keys.size(); ++slot) {
      if (pins[slot] != 0 || keys[slot] == kNoKey) continue;
      const double value = -static_cast<double>(counts_[keys[slot]]);
      if (list->wants(value)) list->offer(value, residents().last_use(keys[slot]), slot);
    }
  }

  std::vector<uint64_t> counts_;  // [key]
};

}  // namespace

std::unique_ptr<Policy> make_lfu(const PolicyShape& shape) { return std::make_unique<Lfu>(shape); }

}  // namespace guanaco

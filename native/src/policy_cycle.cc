// Two use rates and the ring of layers: the expert whose next use is expected last leaves.
//
// A decoder walks its layers in a ring. An expert that is used with probability p a token is expected after the way
// to its layer, in rings, plus 1/p rings more.
#include <limits>

#include "expected_wait.h"
#include "policy_ranked.h"

namespace guanaco {

namespace {

constexpr double kFastWeight = 0.25, kSlowWeight = 0.75;

class Cycle final : public RankedPolicy {
 public:
  explicit Cycle(const PolicyShape& shape)
      : RankedPolicy(shape), wait_(shape, kFastWeight, kSlowWeight, std::numeric_limits<double>::infinity()) {}

  void prior(uint32_t group, const double* use) override { wait_.prior(group, use, residents()); }

  double worth(uint32_t group, int32_t expert) const override {
    return -(ring_distance(group) + wait_.tokens(residents().key(group, expert), 0.0));
  }

 private:
  void learn(const Selection& selection, bool /*token_starts*/) override { wait_.selected(selection, residents()); }
  void on_placed(uint32_t size_class, uint32_t slot) override { wait_.placed(size_class, slot, residents()); }
  void on_emptied(uint32_t size_class, uint32_t slot) override { wait_.emptied(size_class, slot); }

  void rank(uint32_t size_class, const uint32_t* pins, VictimList* list) override {
    const std::vector<ExpectedWait::SlotWait>& slots = wait_.slots(size_class);
    for (uint32_t slot = 0; slot < slots.size(); ++slot) {
      const double value = ring_distance(slots[slot].group) + slots[slot].tokens;
      if (!list->wants(value) || pins[slot] != 0 || slots[slot].key == kNoKey) continue;
      list->offer(value, residents().last_use(slots[slot].key), slot);
    }
  }

  ExpectedWait wait_;
};

}  // namespace

std::unique_ptr<Policy> make_cycle(const PolicyShape& shape) { return std::make_unique<Cycle>(shape); }

}  // namespace guanaco

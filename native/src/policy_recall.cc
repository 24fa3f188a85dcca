// As cycle, but past tokens that were routed alike vote on what comes next. The default.
//
// What tokens like the current one used next is likely to be used next again. Votes only add to the use that the
// rates give, so they are counted for the slots alone that could still be among the victims without them.
#include "attention.h"
#include "expected_wait.h"
#include "policy_ranked.h"

namespace guanaco {

namespace {

constexpr double kFastWeight = 0.25, kSlowWeight = 0.45, kMost = 0.98;

class Recall final : public RankedPolicy {
 public:
  explicit Recall(const PolicyShape& shape)
      : RankedPolicy(shape), wait_(shape, kFastWeight, kSlowWeight, kMost), attention_(shape) {}

  void prior(uint32_t group, const double* use) override { wait_.prior(group, use, residents()); }

  double worth(uint32_t group, int32_t expert) const override {
    const uint32_t key = residents().key(group, expert);
    return -(ring_distance(group) + wait_.tokens(key, attention_.votes(group, key)));
  }

 private:
  void learn(const Selection& selection, bool token_starts) override {
    wait_.selected(selection, residents());
    attention_.selected(selection, token_starts);
  }
  void on_placed(uint32_t size_class, uint32_t slot) override { wait_.placed(size_class, slot, residents()); }
  void on_emptied(uint32_t size_class, uint32_t slot) override { wait_.emptied(size_class, slot); }

  void rank(uint32_t size_class, const uint32_t* pins, VictimList* list) override {
    const std::vector<ExpectedWait::SlotWait>& slots = wait_.slots(size_class);
    for (uint32_t index = 0; index < slots.size(); ++index) {
      const ExpectedWait::SlotWait& slot = slots[index];
      const double ring = ring_distance(slot.group);
      if (!list->wants(ring + slot.tokens) || pins[index] != 0 || slot.key == kNoKey) continue;
      // Dividing and counting every vote only for the few that are not out already.
      const double main_votes = attention_.main_votes(slot.group, slot.key);
      if (list->is_full() && wait_.is_below(slot.key, main_votes, ring, list->least())) continue;
      const double value = ring + wait_.tokens(slot.key, attention_.votes(slot.group, slot.key));
      if (list->wants(value)) list->offer(value, residents().last_use(slot.key), index);
    }
  }

  ExpectedWait wait_;
  Attention attention_;
};

}  // namespace

std::unique_ptr<Policy> make_recall(const PolicyShape& shape) { return std::make_unique<Recall>(shape); }

}  // namespace guanaco

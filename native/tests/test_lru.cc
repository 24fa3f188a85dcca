// The least-recently-used policy against orders worked out by hand.
#include "check.h"
#include "policy.h"

namespace {

// Takes victims one after the other, as if each were then in use.
std::vector<int32_t> victims(guanaco::Policy* policy, std::vector<uint32_t> pins, size_t n) {
  std::vector<int32_t> result;
  for (size_t i = 0; i < n; ++i) {
    result.push_back(policy->victim(pins.data()));
    if (result.back() >= 0) ++pins[static_cast<size_t>(result.back())];
  }
  return result;
}

using Slots = std::vector<int32_t>;

}  // namespace

TEST(lru_order_of_placing) {
  const auto lru = guanaco::make_lru(4);
  for (const uint32_t slot : {2u, 0u, 3u, 1u}) lru->placed(slot, false);
  CHECK_EQ(victims(lru.get(), {0, 0, 0, 0}, 5), (Slots{2, 0, 3, 1, -1}));
}

TEST(lru_use_makes_recent) {
  const auto lru = guanaco::make_lru(4);
  for (uint32_t slot = 0; slot < 4; ++slot) lru->placed(slot, false);
  lru->used(0);
  lru->used(2);
  lru->used(0);
  CHECK_EQ(victims(lru.get(), {0, 0, 0, 0}, 4), (Slots{1, 3, 2, 0}));
}

TEST(lru_pinned_slots_are_passed_over) {
  const auto lru = guanaco::make_lru(4);
  for (uint32_t slot = 0; slot < 4; ++slot) lru->placed(slot, false);
  CHECK_EQ(victims(lru.get(), {1, 0, 3, 0}, 3), (Slots{1, 3, -1}));
  CHECK_EQ(victims(lru.get(), {1, 1, 1, 1}, 1), (Slots{-1}));
}

TEST(lru_victim_changes_nothing) {
  const auto lru = guanaco::make_lru(3);
  for (uint32_t slot = 0; slot < 3; ++slot) lru->placed(slot, false);
  const std::vector<uint32_t> pins(3, 0);
  CHECK_EQ(lru->victim(pins.data()), 0);
  CHECK_EQ(lru->victim(pins.data()), 0);
}

TEST(lru_transient_goes_first) {
  const auto lru = guanaco::make_lru(5);
  for (uint32_t slot = 0; slot < 3; ++slot) lru->placed(slot, false);
  lru->placed(3, true);
  lru->placed(4, true);
  CHECK_EQ(victims(lru.get(), {0, 0, 0, 0, 0}, 5), (Slots{4, 3, 0, 1, 2}));
  lru->used(4);  // decoding wanted it after all
  CHECK_EQ(victims(lru.get(), {0, 0, 0, 0, 0}, 5), (Slots{3, 0, 1, 2, 4}));
}

TEST(lru_one_slot) {
  const auto lru = guanaco::make_lru(1);
  lru->placed(0, true);
  lru->used(0);
  CHECK_EQ(victims(lru.get(), {0}, 2), (Slots{0, -1}));
}

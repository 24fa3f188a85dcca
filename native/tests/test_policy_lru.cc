// The least-recently-used policy against orders worked out by hand.
#include "policy_rig.h"

namespace {

guanaco::PolicyShape one_group(uint32_t n_slots) { return {{16}, {0}, {n_slots}, {0}}; }

}  // namespace

TEST(lru_order_of_placing) {
  PolicyRig rig("lru", one_group(4));
  rig.use(0, {5, 6, 7, 8}, {2, 0, 3, 1});
  CHECK_EQ(rig.victims(5), (Slots{2, 0, 3, 1, -1}));
}

TEST(lru_use_makes_recent) {
  PolicyRig rig("lru", one_group(4));
  rig.use(0, {0, 1, 2, 3}, {0, 1, 2, 3});
  rig.use(0, {0, 2}, {});
  rig.use(0, {0}, {});
  CHECK_EQ(rig.victims(4), (Slots{1, 3, 2, 0}));
}

// Recency goes by the order of the selection, not by when a miss found its slot.
TEST(lru_hits_listed_after_a_miss_are_more_recent) {
  PolicyRig rig("lru", one_group(5));
  rig.use(0, {0, 1, 2}, {0, 1, 2});
  rig.use(0, {1, 8, 0, 9}, {-1, 3, -1, 4});
  CHECK_EQ(rig.victims(5), (Slots{2, 1, 3, 0, 4}));
}

TEST(lru_pinned_slots_are_passed_over) {
  PolicyRig rig("lru", one_group(4));
  rig.use(0, {0, 1, 2, 3}, {0, 1, 2, 3});
  rig.pins[0] = {1, 0, 3, 0};
  CHECK_EQ(rig.victims(3), (Slots{1, 3, -1}));
  rig.pins[0] = {1, 1, 1, 1};
  CHECK_EQ(rig.victims(1), (Slots{-1}));
}

TEST(lru_victim_changes_nothing) {
  PolicyRig rig("lru", one_group(3));
  rig.use(0, {0, 1, 2}, {0, 1, 2});
  CHECK_EQ(rig.victims(1), (Slots{0}));
  CHECK_EQ(rig.victims(1), (Slots{0}));
}

TEST(lru_a_prompt_is_no_use) {
  PolicyRig rig("lru", one_group(5));
  rig.use(0, {0, 1, 2}, {0, 1, 2});
  rig.use(0, {0, 8, 9, 1}, {-1, 3, 4, -1}, 3);  // 1 belongs to its tail
  CHECK_EQ(rig.victims(5), (Slots{4, 3, 0, 2, 1}));
  rig.use(0, {9}, {});  // decoding wanted it after all
  CHECK_EQ(rig.victims(5), (Slots{3, 0, 2, 1, 4}));
}

TEST(lru_emptied_slots_are_no_victims) {
  PolicyRig rig("lru", one_group(3));
  rig.use(0, {0, 1, 2}, {0, 1, 2});
  rig.policy->emptied(0, 1);
  CHECK_EQ(rig.victims(3), (Slots{0, 2, -1}));
  rig.use(0, {1}, {1});
  CHECK_EQ(rig.victims(3), (Slots{0, 2, 1}));
}

TEST(lru_groups_share_a_class) {
  PolicyRig rig("lru", {{4, 4, 8}, {0, 0, 1}, {3, 2}, {0, 0, 0}});
  rig.use(0, {1}, {0});
  rig.use(1, {1, 2}, {1, 2});
  rig.use(2, {6, 7}, {1, 0});
  rig.use(0, {1}, {});
  CHECK_EQ(rig.victims(4, 0), (Slots{1, 2, 0, -1}));
  CHECK_EQ(rig.victims(3, 1), (Slots{1, 0, -1}));
}

TEST(lru_read_ahead_counts_as_recent) {
  PolicyRig rig("lru", one_group(3));
  rig.use(0, {0, 1}, {0, 1});
  rig.policy->placed(0, 9, 2, false);  // nobody selected it yet
  CHECK_EQ(rig.victims(3), (Slots{0, 1, 2}));
  CHECK(rig.policy->worth(0, 9) > rig.policy->worth(0, 1));
  CHECK(rig.policy->worth(0, 1) > rig.policy->worth(0, 0));
}

TEST(lru_one_slot) {
  PolicyRig rig("lru", one_group(1));
  rig.use(0, {3}, {0}, 1);
  rig.use(0, {3}, {});
  CHECK_EQ(rig.victims(2), (Slots{0, -1}));
}

// The least-frequently-used policy against orders worked out by hand.
#include "policy_rig.h"

namespace {

guanaco::PolicyShape one_group(uint32_t n_slots) { return {{16}, {0}, {n_slots}, {0}}; }

}  // namespace

TEST(lfu_least_used_first) {
  PolicyRig rig("lfu", one_group(3));
  rig.use(0, {0, 1, 2}, {0, 1, 2});
  rig.use(0, {0, 1}, {});
  rig.use(0, {0}, {});
  CHECK_EQ(rig.victims(4), (Slots{2, 1, 0, -1}));
  CHECK_EQ(rig.policy->worth(0, 0), 3.0);
  CHECK_EQ(rig.policy->worth(0, 9), 0.0);
}

TEST(lfu_ties_go_to_the_least_recent) {
  PolicyRig rig("lfu", one_group(3));
  rig.use(0, {0, 1, 2}, {0, 1, 2});
  rig.use(0, {2, 0, 1}, {});
  CHECK_EQ(rig.victims(3), (Slots{2, 0, 1}));
}

TEST(lfu_counts_outlive_eviction) {
  PolicyRig rig("lfu", one_group(2));
  for (int i = 0; i < 3; ++i) rig.use(0, {0}, i == 0 ? Slots{0} : Slots{});
  for (int i = 0; i < 2; ++i) rig.use(0, {1}, i == 0 ? Slots{1} : Slots{});
  rig.use(0, {2}, {0});  // in the place of 0
  CHECK_EQ(rig.victims(2), (Slots{0, 1}));
  rig.use(0, {0}, {0});  // back, for the fourth use
  CHECK_EQ(rig.victims(2), (Slots{1, 0}));
}

TEST(lfu_a_prompt_is_no_use) {
  PolicyRig rig("lfu", one_group(2));
  rig.use(0, {0, 1}, {0, 1});
  rig.use(0, {0, 1}, {}, 1);  // only 1 counts
  CHECK_EQ(rig.victims(2), (Slots{0, 1}));
}

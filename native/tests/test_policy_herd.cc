// Pinning: what is pinned, when, and what leaves first.
#include "policy_rig.h"

namespace {

guanaco::PolicyShape one_group(uint32_t n_slots) { return {{8}, {0}, {n_slots}, {2}}; }

void repeat(PolicyRig* rig, uint32_t group, const std::vector<int32_t>& experts, int n) {
  for (int i = 0; i < n; ++i) rig->use(group, experts, {});
}

}  // namespace

TEST(herd_warms_up_for_200_calls) {
  PolicyRig rig("herd", one_group(3));
  rig.use(0, {0, 1}, {0, 1});
  repeat(&rig, 0, {0, 1}, 149);
  rig.use(0, {2, 3}, {2, -1});
  repeat(&rig, 0, {2, 3}, 48);
  CHECK(rig.policy->has_pins());
  CHECK(!rig.policy->report().warmed);
  CHECK_EQ(rig.policy->report().pinned, 0);
  CHECK_EQ(rig.victims(3), (Slots{0, 1, 2}));  // the coldest, among equals the least recent
  rig.use(0, {0, 2}, {});                      // call 200: watched too, and the last
  CHECK(rig.policy->report().warmed);
}

TEST(herd_pins_the_hottest) {
  PolicyRig rig("herd", one_group(3));
  rig.use(0, {0, 1}, {-1, 0});
  repeat(&rig, 0, {0, 1}, 149);
  rig.use(0, {2, 3}, {1, 2});
  repeat(&rig, 0, {2, 3}, 48);
  rig.use(0, {0, 2}, {});
  CHECK(rig.policy->report().warmed);
  CHECK_EQ(rig.policy->report().pinned, 3);
  for (const int32_t expert : {0, 2, 3}) CHECK(rig.policy->is_pinned(0, expert));
  CHECK(!rig.policy->is_pinned(0, 1));
  // The one without a pin, then the coldest with one.
  CHECK_EQ(rig.victims(4), (Slots{0, 2, 1, -1}));
  // A pin is for good, and belongs to the expert.
  repeat(&rig, 0, {1, 4}, 100);
  CHECK(!rig.policy->is_pinned(0, 1));
  CHECK_EQ(rig.victims(4), (Slots{0, 2, 1, -1}));
  rig.use(0, {5}, {1});
  CHECK(rig.policy->is_pinned(0, 2));
  CHECK_EQ(rig.victims(1), (Slots{1}));
  rig.use(0, {2}, {1});
  CHECK_EQ(rig.victims(3), (Slots{0, 2, 1}));
}

TEST(herd_pins_later_while_the_budget_lasts) {
  PolicyRig rig("herd", one_group(5));
  repeat(&rig, 0, {0, 1}, 200);
  CHECK_EQ(rig.policy->report().pinned, 2);
  CHECK_EQ(rig.policy->report().most_budget, 5);
  rig.use(0, {7, 6, 5, 4}, {0, 1, 2, 3});
  CHECK_EQ(rig.policy->report().pinned, 5);
  CHECK(rig.policy->is_pinned(0, 7) && rig.policy->is_pinned(0, 6) && rig.policy->is_pinned(0, 5));
  CHECK(!rig.policy->is_pinned(0, 4));
}

TEST(herd_budgets_go_by_demand) {
  PolicyRig rig("herd", {{8, 8}, {0, 0}, {5}, {2, 2}});
  for (int i = 0; i < 100; ++i) {
    rig.use(0, {i % 3, 3 + i % 3}, {});  // 6 different experts
    rig.use(1, {0, 1}, {});              // 2
  }
  // 3.75 and 1.25 of the 5 slots: whole parts, and the one left to the larger fraction.
  CHECK_EQ(rig.policy->report().most_budget, 4);
  CHECK_EQ(rig.policy->report().least_budget, 1);
  CHECK_EQ(rig.policy->report().pinned, 5);
  CHECK(rig.policy->is_pinned(1, 1) && !rig.policy->is_pinned(1, 0));  // equally hot: the later one
}

TEST(herd_budget_is_no_more_than_the_experts) {
  PolicyRig rig("herd", {{4, 8}, {0, 0}, {12}, {2, 2}});
  for (int i = 0; i < 100; ++i) {
    rig.use(0, {i % 2, 2 + i % 2}, {});
    rig.use(1, {i % 2}, {});
  }
  CHECK_EQ(rig.policy->report().most_budget, 4);
  CHECK_EQ(rig.policy->report().least_budget, 4);
  CHECK_EQ(rig.policy->report().pinned, 6);
}

TEST(herd_prompts_are_not_watched) {
  PolicyRig rig("herd", one_group(3));
  for (int i = 0; i < 300; ++i) rig.use(0, {0, 1}, {}, 2);
  CHECK(!rig.policy->report().warmed);
  CHECK_EQ(rig.policy->worth(0, 0), 0.0);
}

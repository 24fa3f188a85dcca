// The two rates and the ring of layers against values worked out by hand.
#include <cmath>

#include "policy_rig.h"

namespace {

// Two layers of four experts, two tokens: each layer used expert 0, then expert 1.
void two_tokens(PolicyRig* rig) {
  rig->use(0, {0}, {0});
  rig->use(1, {0}, {2});
  rig->use(0, {1}, {1});
  rig->use(1, {1}, {3});
}

const guanaco::PolicyShape kShape{{4, 4}, {0, 0}, {4}, {1, 1}};

bool near(double a, double b) { return std::abs(a - b) < 1e-3; }

}  // namespace

TEST(cycle_values) {
  PolicyRig rig("cycle", kShape);
  two_tokens(&rig);
  // Used in the last token: 0.25 x 0.5 + 0.75 x 0.03; in the one before: 0.25 x 0.25 + 0.75 x 0.0291.
  CHECK(near(rig.policy->worth(0, 0), -1 / (0.0625 + 0.021825 + 1e-5)));
  CHECK(near(rig.policy->worth(0, 1), -1 / (0.125 + 0.0225 + 1e-5)));
  // The layer just served comes last: one layer of two later.
  CHECK(near(rig.policy->worth(1, 0), -(0.5 + 1 / (0.0625 + 0.021825 + 1e-5))));
  CHECK(near(rig.policy->worth(1, 3), -(0.5 + 1 / 1e-5)));
  CHECK_EQ(rig.victims(5), (Slots{2, 0, 3, 1, -1}));
}

TEST(cycle_looks_ahead_from_the_layer_served) {
  PolicyRig rig("cycle", kShape);
  two_tokens(&rig);
  rig.use(0, {2}, {});  // ages the first layer only, and the second comes next
  CHECK_EQ(rig.victims(4), (Slots{0, 1, 2, 3}));
  CHECK(near(rig.policy->worth(1, 1), -1 / (0.125 + 0.0225 + 1e-5)));
}

TEST(cycle_ties_go_to_the_least_recent) {
  PolicyRig rig("cycle", {{4}, {0}, {3}, {3}});
  rig.use(0, {2, 0, 1}, {2, 0, 1});
  CHECK_EQ(rig.victims(3), (Slots{2, 0, 1}));
}

// A value that was last touched very long ago is neither slow nor wrong.
TEST(cycle_after_very_long) {
  PolicyRig rig("cycle", {{4}, {0}, {2}, {1}});
  rig.use(0, {0}, {0});
  rig.use(0, {1}, {1});
  for (int i = 0; i < 40000; ++i) rig.use(0, {1}, {});
  CHECK(near(rig.policy->worth(0, 0), -1e5));
  CHECK(near(rig.policy->worth(0, 1), -1 / (0.25 + 0.75 + 1e-5)));
  CHECK_EQ(rig.victims(2), (Slots{0, 1}));
}

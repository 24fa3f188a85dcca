// What a cache knows before the first selection: in the plan, in the policies, through the simulator's interface.
#include <cmath>

#include "bed.h"
#include "cache.h"
#include "guanaco/guanaco.h"
#include "policy_rig.h"

using guanaco::Cache;
using guanaco::LoadPlan;
using guanaco::Served;

namespace {

bool near(double a, double b) { return std::abs(a - b) < 1e-3; }

const guanaco::PolicyShape kShape{{4}, {0}, {3}, {1}};
const double kUse[] = {0.1, 0.6, 0.0, 0.3};

// A plan of two layers, of four experts and of two; `lines` are added.
std::string plan_with(const std::string& lines) {
  Bed bed;
  bed.file(1u << 20, false);
  bed.size_class(3, {4096});
  bed.group(0, 0, 4, {{0, 4096}});
  bed.group(1, 0, 2, {{65536, 4096}});
  return bed.text() + lines;
}

bool parses(const std::string& lines, LoadPlan* plan) {
  std::string error;
  return guanaco::parse_plan(plan_with(lines), plan, &error);
}

}  // namespace

TEST(prior_in_a_plan) {
  LoadPlan plan;
  REQUIRE(parses("prior 1 0.25 1e-05\nrecord /x/a recording\nheat /x/heat\n", &plan));
  CHECK_EQ(plan.groups[0].prior.size(), 0);
  CHECK(plan.groups[1].prior == (std::vector<double>{0.25, 1e-5}));
  CHECK_EQ(plan.record_path, std::string("/x/a recording"));
  CHECK_EQ(plan.heat_path, std::string("/x/heat"));
  const char* const bad[] = {
      "prior", "prior 1", "prior 1 0.5", "prior 1 0.5 0.5 0.5", "prior 2 0.5 0.5", "prior 1 0.5 1.5",
      "prior 1 0.5 -0.1", "prior 1 0.5 nan", "prior 1 0.5 x", "prior -1 0.5 0.5", "record", "heat"};
  for (const char* line : bad) {
    LoadPlan other;
    CHECK(!parses(std::string(line) + "\n", &other));
  }
}

TEST(prior_ranks_what_was_never_used) {
  for (const char* name : {"cycle", "recall", "herd"}) {
    PolicyRig rig(name, kShape);
    rig.policy->prior(0, kUse);
    rig.policy->placed(0, 1, 0, false);
    rig.policy->placed(0, 3, 1, false);
    rig.policy->placed(0, 0, 2, false);
    CHECK_EQ(rig.victims(3), (Slots{2, 1, 0}));
    CHECK(rig.policy->worth(0, 1) > rig.policy->worth(0, 3));
    CHECK(rig.policy->worth(0, 3) > rig.policy->worth(0, 2));
  }
}

TEST(prior_counts_as_long_ago_and_fades) {
  PolicyRig rig("cycle", kShape);
  rig.policy->prior(0, kUse);
  CHECK(near(rig.policy->worth(0, 1), -1 / (0.75 * 0.6 + 1e-5)));
  rig.use(0, {2}, {});
  CHECK(near(rig.policy->worth(0, 1), -1 / (0.75 * 0.6 * 0.97 + 1e-5)));
  for (int i = 0; i < 400; ++i) rig.use(0, {2}, {});
  CHECK(rig.policy->worth(0, 1) < rig.policy->worth(0, 2) * 100);
}

TEST(prior_is_nothing_to_lru_and_lfu) {
  for (const char* name : {"lru", "lfu"}) {
    PolicyRig with(name, kShape), without(name, kShape);
    with.policy->prior(0, kUse);
    for (PolicyRig* rig : {&with, &without}) rig->use(0, {2, 1, 0}, {0, 1, 2});
    CHECK_EQ(with.victims(3), without.victims(3));
  }
}

TEST(prior_pins_nothing_that_was_not_used) {
  PolicyRig rig("herd", {{4}, {0}, {2}, {1}});
  rig.policy->prior(0, kUse);
  for (int i = 0; i < 250; ++i) rig.use(0, {2}, {});
  CHECK(rig.policy->is_pinned(0, 2));
  CHECK(!rig.policy->is_pinned(0, 1));
  CHECK_EQ(rig.policy->report().pinned, 1);
}

TEST(prior_comes_with_the_plan) {
  LoadPlan plan;
  REQUIRE(parses("policy cycle\nprior 0 0.1 0.6 0 0.3\n", &plan));
  const std::unique_ptr<Cache> cache = guanaco::make_cache(plan);
  CHECK(near(cache->policy().worth(0, 1), -1 / (0.75 * 0.6 + 1e-5)));
  CHECK(near(cache->policy().worth(1, 1), -(0.5 + 1 / 1e-5)));
}

TEST(prior_experts_take_empty_slots_only) {
  LoadPlan plan;
  REQUIRE(parses("", &plan));
  const std::unique_ptr<Cache> cache = guanaco::make_cache(plan);
  CHECK_EQ(cache->place_empty(0, 2), 0);
  CHECK_EQ(cache->place_empty(0, 2), -1);  // has one
  CHECK_EQ(cache->place_empty(1, 0), 1);
  const std::vector<int32_t> experts = {2, 3};
  Served served;
  cache->serve({0, experts.data(), 2, 0}, &served);
  CHECK_EQ(served.slots, (std::vector<uint32_t>{0, 2}));
  CHECK_EQ(cache->counts().hits, 1);
  CHECK_EQ(cache->place_empty(0, 0), -1);  // full
  CHECK_EQ(cache->counts().evictions, 0);
  CHECK(cache->use_rate(0, 2) > 0 && cache->use_rate(1, 0) == 0);
}

TEST(prior_through_the_simulator) {
  const uint32_t n_expert[] = {4}, size_class[] = {0}, top_k[] = {1}, n_slots[] = {2};
  char error[200] = "";
  guanaco_sim* sim = guanaco_sim_create("cycle", 1, n_expert, size_class, top_k, 1, n_slots, error, sizeof error);
  REQUIRE(sim != nullptr);
  CHECK_EQ(guanaco_sim_prior(sim, 1, kUse, 4), -2);
  CHECK_EQ(guanaco_sim_prior(sim, 0, kUse, 3), -2);
  const double bad[] = {0, 0, 2, 0};
  CHECK_EQ(guanaco_sim_prior(sim, 0, bad, 4), -2);
  CHECK_EQ(guanaco_sim_prior(sim, 0, kUse, 4), 0);
  const auto serve = [&](int32_t expert) {
    uint32_t victim = 99, n = 0;
    guanaco_sim_serve(sim, 0, &expert, 1, 0, nullptr, 0, 0, &victim, &n);
    return n == 0 ? -1 : static_cast<int>(victim & 0xffffu);
  };
  CHECK_EQ(serve(1), -1);
  CHECK_EQ(serve(2), -1);
  CHECK_EQ(serve(3), 2);  // used later than 1, which is likelier still
  guanaco_sim_destroy(sim);
}

// The simulator's C interface: what it refuses, and that both ways to drive it come to the same.
#include <algorithm>
#include <random>

#include "check.h"
#include "guanaco/guanaco.h"

namespace {

using Numbers = std::vector<uint32_t>;
using Experts = std::vector<int32_t>;

struct Sim {
  Sim(const char* policy, const Numbers& n_expert, const Numbers& size_class, const Numbers& top_k,
      const Numbers& n_slots) {
    char reason[200] = "";
    handle = guanaco_sim_create(policy, static_cast<uint32_t>(n_expert.size()), n_expert.data(), size_class.data(),
                                top_k.data(), static_cast<uint32_t>(n_slots.size()), n_slots.data(), reason,
                                sizeof reason);
    error = reason;
  }
  ~Sim() { guanaco_sim_destroy(handle); }
  Sim(const Sim&) = delete;
  Sim& operator=(const Sim&) = delete;

  // `rows`: two ids each.
  int serve(uint32_t group, const Experts& experts, uint32_t n_transient = 0, const Experts& rows = {}) {
    Numbers room(experts.size());
    uint32_t n = 0;
    const int n_missed = guanaco_sim_serve(handle, group, experts.data(), static_cast<uint32_t>(experts.size()),
                                           n_transient, rows.data(), static_cast<uint32_t>(rows.size()) / 2, 2,
                                           room.data(), &n);
    victims.assign(room.begin(), room.begin() + n);
    return n_missed;
  }

  int pass(uint32_t group, const Experts& experts) {
    Numbers room(experts.size());
    uint32_t n = 0;
    const int n_missed =
        guanaco_sim_pass(handle, group, experts.data(), static_cast<uint32_t>(experts.size()), room.data(), &n);
    victims.assign(room.begin(), room.begin() + n);
    return n_missed;
  }

  guanaco_sim* handle = nullptr;
  std::string error;
  Numbers victims;
};

std::string refused(const Numbers& n_expert, const Numbers& size_class, const Numbers& top_k,
                    const Numbers& n_slots) {
  const Sim sim("lru", n_expert, size_class, top_k, n_slots);
  CHECK(sim.handle == nullptr);
  return sim.error;
}

}  // namespace

TEST(simulate_refuses_what_makes_no_sense) {
  CHECK_CONTAINS(refused({}, {}, {}, {1}), "no groups");
  CHECK_CONTAINS(refused({0}, {0}, {0}, {1}), "group 0 has 0 experts");
  CHECK_CONTAINS(refused({4, 65537}, {0, 0}, {1, 1}, {1}), "group 1 has 65537 experts");
  CHECK_CONTAINS(refused({4, 4}, {0, 1}, {1, 1}, {1}), "group 1 has size class 1 of 1");
  CHECK_CONTAINS(refused({4}, {0}, {5}, {1}), "fewer experts");
  CHECK_CONTAINS(refused({4}, {0}, {1}, {0}), "0 slots");
  CHECK_CONTAINS(refused({4}, {0}, {1}, {4294967295u}), "4294967295 slots");
  const Sim sim("belady", {4}, {0}, {1}, {1});
  CHECK(sim.handle == nullptr);
  CHECK_CONTAINS(sim.error, "belady");
  CHECK(guanaco_sim_create("fifo", 0, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0) == nullptr);
}

TEST(simulate_victims_in_order) {
  Sim sim("lru", {16, 16}, {0, 0}, {2, 2}, {3});
  REQUIRE(sim.handle != nullptr);
  CHECK_EQ(sim.serve(0, {1, 2}), 2);
  CHECK_EQ(sim.serve(1, {1}), 1);
  CHECK(sim.victims.empty());
  CHECK_EQ(sim.serve(1, {15, 1, 4}), 2);
  CHECK_EQ(sim.victims, (Numbers{1, 2}));
  CHECK_EQ(sim.serve(0, {1}), 1);
  CHECK_EQ(sim.victims, (Numbers{1u << 16 | 15}));
}

TEST(simulate_prompts) {
  Sim sim("lru", {16}, {0}, {2}, {4});
  sim.serve(0, {0, 1});
  sim.serve(0, {5, 6}, 2);
  CHECK_EQ(sim.serve(0, {7, 8}), 2);
  CHECK_EQ(sim.victims, (Numbers{6, 5}));
}

TEST(simulate_refuses_selections) {
  Sim sim("lru", {16, 4}, {0, 0}, {2, 2}, {3});
  CHECK_EQ(sim.serve(0, {0, 1, 2, 3}), -1);
  CHECK_EQ(sim.serve(2, {0}), -2);
  CHECK_EQ(sim.serve(0, {16}), -2);
  CHECK_EQ(sim.serve(1, {4}), -2);
  CHECK_EQ(sim.serve(0, {-1}), -2);
  CHECK_EQ(sim.serve(0, {3, 5, 3}), -2);
  CHECK_EQ(sim.serve(0, {3, 5}, 3), -2);
  CHECK_EQ(sim.serve(0, {}), 0);
  // Nothing of that has left a trace.
  CHECK_EQ(sim.serve(0, {3, 5, 7}), 3);
  CHECK_EQ(sim.serve(0, {3}), 0);
}

TEST(simulate_a_trace_at_once) {
  std::mt19937 random(3);
  for (const char* policy : {"lru", "lfu", "cycle", "recall", "herd"}) {
    // The second layer uses one expert less.
    Sim whole(policy, {12, 12, 12}, {0, 0, 1}, {3, 2, 3}, {12, 5});
    Sim single(policy, {12, 12, 12}, {0, 0, 1}, {3, 2, 3}, {12, 5});
    REQUIRE(whole.handle != nullptr && single.handle != nullptr);
    std::vector<int16_t> ids;
    uint64_t accesses = 0, misses = 0, evictions = 0;
    for (int token = 0; token < 200; ++token) {
      for (uint32_t group = 0; group < 3; ++group) {
        const size_t k = group == 1 ? 2 : 3;
        Experts experts;
        while (experts.size() < k) {
          const int32_t expert = static_cast<int32_t>(std::min(random() % 12, random() % 12));
          if (std::find(experts.begin(), experts.end(), expert) == experts.end()) experts.push_back(expert);
        }
        for (size_t i = 0; i < 3; ++i) ids.push_back(i < k ? static_cast<int16_t>(experts[i]) : int16_t{-1});
        accesses += k;
        misses += static_cast<uint64_t>(single.serve(group, experts));
        evictions += single.victims.size();
      }
    }
    uint64_t counters[4] = {};
    CHECK_EQ(guanaco_sim_replay(whole.handle, ids.data(), 200, counters), 0);
    CHECK_EQ(counters[0], accesses - misses);
    CHECK_EQ(counters[1], misses);
    CHECK_EQ(counters[2], evictions);
    CHECK(counters[3] > 0 && evictions > 100);
    uint64_t hot[2], reread[2];
    guanaco_sim_evictions(whole.handle, &hot[0], &reread[0]);
    guanaco_sim_evictions(single.handle, &hot[1], &reread[1]);
    CHECK_EQ(hot[0], hot[1]);
    CHECK_EQ(reread[0], reread[1]);
    CHECK(reread[0] > 0 && reread[0] <= evictions && hot[0] <= evictions);
    // A second replay goes on from there, and counts itself only.
    uint64_t again[4] = {};
    CHECK_EQ(guanaco_sim_replay(whole.handle, ids.data(), 10, again), 0);
    CHECK_EQ(again[0] + again[1], 10 * 8);
  }
}

TEST(simulate_trace_that_cannot_be_served) {
  uint64_t counters[4] = {};
  const int16_t ids[] = {0, 1, 2, 3};
  Sim small("lru", {8}, {0}, {2}, {1});
  CHECK_EQ(guanaco_sim_replay(small.handle, ids, 2, counters), -1);
  CHECK_EQ(counters[0] + counters[1], 0);
  Sim no_k("lru", {8}, {0}, {0}, {4});
  CHECK_EQ(guanaco_sim_replay(no_k.handle, ids, 2, counters), -2);
  Sim few("lru", {3}, {0}, {2}, {3});
  CHECK_EQ(guanaco_sim_replay(few.handle, ids, 2, counters), -2);
  CHECK_EQ(counters[1], 2);  // the first token was served
}

TEST(simulate_learns_from_a_prompts_rows) {
  // All experts of the prompt pass; what its rows named most often stays when one has to go.
  Sim with("cycle", {8}, {0}, {2}, {4});
  Sim without("cycle", {8}, {0}, {2}, {4});
  const Experts rows = {0, 1, 0, 1, 0, 1, 2, 3};
  CHECK_EQ(with.serve(0, {0, 1, 2, 3}, 0, rows), 4);
  CHECK_EQ(without.serve(0, {0, 1, 2, 3}, 0), 4);
  CHECK_EQ(with.serve(0, {2, 3}), 0);
  CHECK_EQ(with.serve(0, {4}), 1);
  CHECK_EQ(with.victims, (Numbers{0}));  // used less lately than 2 and 3, and as often as 1, which came after it
  CHECK_EQ(with.serve(0, {0, 8}, 0), -2);
  CHECK_EQ(with.serve(0, {0}, 0, {0, 8}), -2);
  CHECK_EQ(with.serve(0, {0}, 0, {-1, 0}), -2);
  CHECK_EQ(without.serve(0, {5}), 1);
}

// What does not fit passes through half of the slots, which are empty afterwards.
TEST(simulate_selections_in_waves) {
  Sim sim("lru", {16}, {0}, {2}, {4});
  CHECK_EQ(sim.serve(0, {1, 2, 3, 4}), 4);
  CHECK_EQ(sim.serve(0, {1, 2, 5, 6, 7}), -1);
  CHECK_EQ(sim.pass(0, {1, 4, 5, 6, 7}), 4);  // 1 and 2 had to go
  CHECK_EQ(sim.victims, (Numbers{1, 2}));
  CHECK_EQ(sim.serve(0, {8, 9}), 2);
  CHECK(sim.victims.empty());
  CHECK_EQ(sim.serve(0, {3, 4}), 0);
  CHECK_EQ(sim.pass(1, {1}), -2);
  CHECK_EQ(sim.pass(0, {1, 1}), -2);
  CHECK_EQ(sim.pass(0, {16}), -2);
}

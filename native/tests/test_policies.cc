// What every policy owes its caller, and that each is its definition, victim for victim.
#include <algorithm>
#include <random>

#include "cache.h"
#include "plain_policy.h"
#include "policy_rig.h"

using guanaco::PolicyShape;

namespace {

const char* const kNames[] = {"lru", "lfu", "cycle", "recall", "herd"};

// Routing with favourites that change now and then: some experts of every layer are used again and again.
class Router {
 public:
  Router(uint32_t seed, const PolicyShape& shape) : random_(seed), shape_(shape) { choose_favourites(); }

  std::vector<int32_t> select(uint32_t group, size_t n) {
    if (below(400) == 0) choose_favourites();
    std::vector<int32_t> experts;
    while (experts.size() < n) {
      const int32_t expert = below(3) != 0 ? favourites_[group][below(favourites_[group].size())]
                                           : static_cast<int32_t>(below(shape_.n_expert[group]));
      if (std::find(experts.begin(), experts.end(), expert) == experts.end()) experts.push_back(expert);
    }
    return experts;
  }
  size_t below(size_t n) { return static_cast<size_t>(random_()) % n; }

 private:
  void choose_favourites() {
    favourites_.clear();
    for (const uint32_t n_expert : shape_.n_expert) {
      favourites_.emplace_back();
      for (uint32_t i = 0; i < n_expert / 3 + 2; ++i) favourites_.back().push_back(static_cast<int32_t>(below(n_expert)));
    }
  }
  std::mt19937 random_;
  const PolicyShape& shape_;
  std::vector<std::vector<int32_t>> favourites_;
};

// A policy and its definition side by side: they have to agree on every victim.
class Twin final : public guanaco::Policy {
 public:
  Twin(const std::string& name, const PolicyShape& shape)
      : shape_(shape), real_(guanaco::make_policy(name, shape, &error_)), plain_(name, shape), name_(name) {}

  void selected(const guanaco::Selection& selection) override {
    real_->selected(selection);
    plain_.selected(selection);
  }
  void placed(uint32_t group, int32_t expert, uint32_t slot, bool transient) override {
    real_->placed(group, expert, slot, transient);
    plain_.placed(group, expert, slot, transient);
  }
  void emptied(uint32_t size_class, uint32_t slot) override {
    real_->emptied(size_class, slot);
    plain_.emptied(size_class, slot);
  }
  void served(uint32_t group) override { real_->served(group); }
  int32_t victim(uint32_t size_class, const uint32_t* pins) override {
    const int32_t slot = real_->victim(size_class, pins);
    const int32_t expected = plain_.victim(size_class, pins);
    if (slot != expected) check::report(__FILE__, __LINE__, name_ + ": victim " + std::to_string(slot) + " for " +
                                        std::to_string(expected) + ", number " + std::to_string(n_victims));
    CHECK(slot >= 0 && pins[slot] == 0);
    ++n_victims;
    return expected;
  }
  double worth(uint32_t group, int32_t expert) const override {
    const double value = real_->worth(group, expert);
    CHECK_EQ(value, plain_.worth(group, expert));
    return value;
  }

  uint64_t n_victims = 0;

 private:
  std::string error_;
  const PolicyShape shape_;
  std::unique_ptr<guanaco::Policy> real_;
  PlainPolicy plain_;
  const std::string name_;
};

// Guesses take slots between two selections, and keep them up to the second.
void guess(Router* router, guanaco::Cache* cache, uint32_t group, std::vector<std::pair<uint32_t, uint32_t>>* guessed) {
  guanaco::Served served;
  for (const int32_t expert : router->select(group, 3)) {
    const int32_t slot = cache->place_guess(group, expert, &served);
    if (slot < 0) continue;
    guessed->emplace_back(cache->size_class(group), static_cast<uint32_t>(slot));
    cache->pin(guessed->back().first, guessed->back().second);
  }
}

// Tokens, prompts, leases held across layers and failed reads, until `n_tokens` tokens have been routed.
void walk(const std::string& name, const PolicyShape& shape, uint32_t seed, int n_tokens, bool steady,
          bool guesses = false) {
  Router router(seed, shape);
  auto twin_policy = std::make_unique<Twin>(name, shape);
  Twin& twin = *twin_policy;
  guanaco::Cache cache(shape, std::move(twin_policy));
  guanaco::Served served;
  std::vector<std::pair<uint32_t, uint32_t>> held, guessed;  // class, slot
  for (int token = 0; token < n_tokens; ++token) {
    const bool is_prompt = !steady && router.below(20) == 0;
    for (uint32_t group = 0; group < shape.n_expert.size(); ++group) {
      if (!steady && router.below(30) == 0) continue;  // a layer that was not run
      const size_t k = std::max(1u, shape.top_k[group]);
      const size_t n = is_prompt ? k + router.below(4) : steady ? k : 1 + router.below(k);
      const std::vector<int32_t> experts = router.select(group, n);
      for (const auto& [size_class, slot] : guessed) cache.unpin(size_class, slot);
      guessed.clear();
      if (!cache.fits(group, experts)) {
        for (const auto& [size_class, slot] : held) cache.unpin(size_class, slot);
        held.clear();
      }
      REQUIRE(cache.fits(group, experts));
      const size_t n_transient = is_prompt ? router.below(n + 1) : 0;
      cache.serve({group, experts.data(), n, n_transient}, &served);
      const uint32_t size_class = cache.size_class(group);
      for (const uint32_t slot : served.slots) {
        if (!steady && router.below(8) == 0) {
          held.emplace_back(size_class, slot);
          continue;
        }
        cache.unpin(size_class, slot);
        if (!steady && router.below(40) == 0 && !cache.is_pinned(size_class, slot)) cache.abandon(size_class, slot);
      }
      if (router.below(64) == 0) twin.worth(group, experts[0]);
      if (guesses) guess(&router, &cache, (group + 1) % static_cast<uint32_t>(shape.n_expert.size()), &guessed);
    }
  }
  CHECK(twin.n_victims > 100);
}

}  // namespace

TEST(policies_by_name) {
  for (const char* name : kNames) {
    CHECK(guanaco::is_policy(name));
    PolicyRig rig(name, {{4}, {0}, {2}, {0}});
    CHECK_EQ(rig.victims(1), (Slots{-1}));  // nothing is in a slot yet
  }
  CHECK(!guanaco::is_policy("fifo"));
  std::string error;
  CHECK(guanaco::make_policy("fifo", {{4}, {0}, {2}, {0}}, &error) == nullptr);
  CHECK_CONTAINS(error, "policy 'fifo' is not known to this library; it knows lru, lfu, cycle, recall, herd");
}

TEST(policies_respect_pins_and_emptied_slots) {
  for (const char* name : kNames) {
    PolicyRig rig(name, {{16}, {0}, {5}, {2}});
    rig.use(0, {0, 1}, {0, 1});
    rig.use(0, {2, 3}, {2, 3});
    rig.use(0, {4}, {4});
    rig.pins[0] = {1, 0, 2, 0, 0};
    std::vector<int32_t> victims = rig.victims(4);
    CHECK_EQ(victims.back(), -1);
    std::sort(victims.begin(), victims.end());
    CHECK_EQ(victims, (Slots{-1, 1, 3, 4}));
    rig.policy->emptied(0, 3);
    victims = rig.victims(3);
    CHECK_EQ(victims.back(), -1);
    // Within a selection too, where the order is kept between misses.
    rig.select(0, {9});
    CHECK_EQ(rig.victims(3), victims);
    CHECK_EQ(rig.victims(3), victims);
    rig.policy->emptied(0, static_cast<uint32_t>(victims[0]));
    CHECK_EQ(rig.victims(2), (Slots{victims[1], -1}));
  }
}

TEST(policies_keep_classes_apart) {
  for (const char* name : kNames) {
    PolicyRig rig(name, {{8, 8}, {1, 0}, {3, 2}, {1, 1}});
    rig.use(0, {5}, {1});  // of class 1
    rig.use(1, {5}, {2});  // of class 0
    rig.use(0, {6}, {0});
    CHECK_EQ(rig.victims(2, 0), (Slots{2, -1}));
    std::vector<int32_t> victims = rig.victims(3, 1);
    std::sort(victims.begin(), victims.end());
    CHECK_EQ(victims, (Slots{-1, 0, 1}));
    // Asked for one class, then for the other, within one selection.
    rig.select(0, {7});
    CHECK_EQ(rig.victims(1, 0), (Slots{2}));
    CHECK_EQ(rig.victims(3, 1).back(), -1);
    CHECK_EQ(rig.victims(1, 0), (Slots{2}));
  }
}

TEST(policies_find_more_victims_than_they_rank_at_once) {
  for (const char* name : kNames) {
    PolicyRig rig(name, {{64}, {0}, {50}, {8}});
    for (int32_t e = 0; e < 50; ++e) rig.use(0, {e}, {e});
    std::vector<int32_t> experts;
    for (int32_t e = 50; e < 64; ++e) experts.push_back(e);
    rig.select(0, experts);
    std::vector<int32_t> victims = rig.victims(51);
    CHECK_EQ(victims.back(), -1);
    std::sort(victims.begin(), victims.end());
    for (int32_t i = 0; i < 50; ++i) CHECK_EQ(victims[static_cast<size_t>(i) + 1], i);
  }
}

TEST(policies_are_their_definitions_on_steady_decoding) {
  for (const char* name : kNames) {
    walk(name, {{12, 12, 12}, {0, 0, 0}, {14}, {3, 3, 3}}, 1, 330, true);
    walk(name, {{40, 40}, {0, 0}, {45}, {6, 6}}, 2, 300, true);
  }
}

TEST(policies_are_their_definitions_whatever_comes) {
  for (const char* name : kNames) {
    for (uint32_t seed = 10; seed < 13; ++seed) {
      walk(name, {{10, 20, 10, 20}, {0, 1, 0, 1}, {12, 18}, {2, 3, 2, 3}}, seed, 250, false);
      walk(name, {{16, 8, 16}, {0, 0, 0}, {13}, {0, 2, 0}}, seed, 200, false);
    }
  }
}

TEST(policies_are_their_definitions_between_selections) {
  for (const char* name : kNames) {
    walk(name, {{12, 12, 12}, {0, 0, 0}, {14}, {3, 3, 3}}, 21, 200, true, true);
    walk(name, {{10, 20, 10, 20}, {0, 1, 0, 1}, {12, 18}, {2, 3, 2, 3}}, 22, 150, false, true);
  }
}

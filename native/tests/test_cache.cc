// Residency without reads: who gets which slot, what is counted.
#include "cache.h"
#include "check.h"

using guanaco::Cache;
using guanaco::PolicyShape;
using guanaco::Served;

namespace {

using Experts = std::vector<int32_t>;
using Slots = std::vector<uint32_t>;

struct CacheRig {
  explicit CacheRig(PolicyShape shape, const std::string& name = "lru")
      : cache(shape, guanaco::make_policy(name, shape, &error)) {}

  // Serves a selection and holds on to it.
  const Served& hold(uint32_t group, const Experts& experts, size_t n_transient = 0) {
    REQUIRE(cache.fits(group, experts));
    cache.serve({group, experts.data(), experts.size(), n_transient}, &served);
    return served;
  }
  void release(uint32_t group, const Slots& slots) {
    for (const uint32_t slot : slots) cache.unpin(cache.size_class(group), slot);
  }
  const Served& serve(uint32_t group, const Experts& experts, size_t n_transient = 0) {
    hold(group, experts, n_transient);
    release(group, served.slots);
    return served;
  }
  Experts residents(uint32_t group, int32_t n_expert) const {
    Experts result;
    for (int32_t e = 0; e < n_expert; ++e) {
      if (cache.slot_of(group, e) >= 0) result.push_back(e);
    }
    return result;
  }

  std::string error;
  Cache cache;
  Served served;
};

PolicyShape one_group(uint32_t n_slots) { return {{16}, {0}, {n_slots}, {0}}; }

Experts evicted(const Served& served) {
  Experts result;
  for (const guanaco::ExpertId& id : served.evicted) result.push_back(id.expert);
  return result;
}

}  // namespace

TEST(cache_lowest_slots_first) {
  CacheRig rig(one_group(4));
  CHECK_EQ(rig.serve(0, {9, 3}).slots, (Slots{0, 1}));
  CHECK_EQ(rig.served.missed, (std::vector<size_t>{0, 1}));
  CHECK_EQ(rig.serve(0, {3, 5, 9}).slots, (Slots{1, 2, 0}));
  CHECK_EQ(rig.served.missed, (std::vector<size_t>{1}));
  CHECK(rig.served.evicted.empty());
}

TEST(cache_counts) {
  CacheRig rig(one_group(3));
  rig.serve(0, {1, 2});
  rig.serve(0, {2, 3});
  CHECK_EQ(evicted(rig.serve(0, {4, 5})), (Experts{1, 2}));
  CHECK_EQ(rig.cache.counts().accesses, 6);
  CHECK_EQ(rig.cache.counts().hits, 1);
  CHECK_EQ(rig.cache.counts().misses, 5);
  CHECK_EQ(rig.cache.counts().evictions, 2);
}

TEST(cache_no_miss_takes_the_slot_of_a_hit) {
  CacheRig rig(one_group(3));
  rig.serve(0, {0, 1, 2});
  CHECK_EQ(evicted(rig.serve(0, {7, 0})), (Experts{1}));  // 0 is the oldest, but selected
  CHECK_EQ(rig.residents(0, 16), (Experts{0, 2, 7}));
}

TEST(cache_fits_beside_what_is_pinned) {
  CacheRig rig(one_group(4));
  const Slots first = rig.hold(0, {0, 1}).slots;
  CHECK(rig.cache.fits(0, {0, 1, 2, 3}));
  CHECK(!rig.cache.fits(0, {2, 3, 4}));
  rig.serve(0, {2, 3});
  CHECK(!rig.cache.fits(0, {2, 4, 5}));  // 2 is resident, and would need its own slot
  CHECK(rig.cache.fits(0, {2, 4}));
  rig.release(0, first);
  CHECK(rig.cache.fits(0, {2, 4, 5, 6}));
  CHECK(!rig.cache.fits(0, {2, 4, 5, 6, 7}));
}

TEST(cache_a_pin_counts_every_holder) {
  CacheRig rig(one_group(2));
  const Slots held = rig.hold(0, {0}).slots;
  rig.cache.pin(0, held[0]);
  rig.release(0, held);
  CHECK(rig.cache.is_pinned(0, held[0]));
  rig.serve(0, {1});
  CHECK_EQ(evicted(rig.serve(0, {2})), (Experts{1}));
  rig.cache.unpin(0, held[0]);
  CHECK(!rig.cache.is_pinned(0, held[0]));
  CHECK_EQ(evicted(rig.serve(0, {3})), (Experts{0}));
}

// Slots of a prompt go first, the last placed before the others, whatever the policy would say.
TEST(cache_transient_first) {
  for (const char* policy : {"lru"}) {
    CacheRig rig(one_group(5), policy);
    rig.serve(0, {0, 1});
    rig.serve(0, {4, 5, 6}, 3);
    CHECK_EQ(evicted(rig.serve(0, {7})), (Experts{6}));
    rig.serve(0, {4});  // decoding goes on with one of them
    CHECK_EQ(evicted(rig.serve(0, {8})), (Experts{5}));
    const Served& last = rig.serve(0, {9});
    REQUIRE(last.evicted.size() == 1);
    CHECK(last.evicted[0].expert != 4 && last.evicted[0].expert != 8);
  }
}

TEST(cache_transient_in_use_is_passed_over) {
  CacheRig rig(one_group(4));
  rig.serve(0, {0});
  rig.serve(0, {4, 5}, 2);
  const Slots held = rig.hold(0, {5}, 1).slots;
  CHECK_EQ(evicted(rig.serve(0, {6, 7})), (Experts{4}));
  rig.release(0, held);
  CHECK_EQ(evicted(rig.serve(0, {8})), (Experts{5}));  // still the prompt's
}

TEST(cache_place_guess) {
  CacheRig rig(one_group(3));
  Served served;
  CHECK_EQ(rig.cache.place_guess(0, 7, &served), 0);  // an empty slot
  CHECK(served.evicted.empty());
  CHECK_EQ(rig.cache.place_guess(0, 7, &served), -1);  // it has one
  CHECK_EQ(rig.cache.counts().accesses, 0);            // nobody asked for it yet
  rig.serve(0, {7});
  CHECK_EQ(rig.cache.counts().hits, 1);
  rig.serve(0, {4, 5}, 2);
  CHECK_EQ(rig.cache.place_guess(0, 8, &served), 2);  // a prompt's goes first
  CHECK_EQ(evicted(served), (Experts{5}));
  CHECK_EQ(rig.cache.counts().evictions, 1);
  CHECK_EQ(rig.cache.slot_of(0, 8), 2);
  // It is no prompt's: the one left goes next.
  CHECK_EQ(evicted(rig.serve(0, {9})), (Experts{4}));
}

TEST(cache_place_guess_gives_up_nothing_hot_or_pinned) {
  for (const char* policy : {"lru", "lfu", "cycle", "recall"}) {
    CacheRig rig(one_group(4), policy);
    Served served;
    rig.serve(0, {10, 11, 12, 13});
    for (int i = 0; i < 20; ++i) rig.serve(0, {0, 1});
    rig.serve(0, {2, 3});
    rig.serve(0, {4});  // the median is known once something was evicted
    for (int i = 0; i < 10; ++i) rig.serve(0, {0, 1});
    const uint64_t hot = rig.cache.counts().evict_hot;
    std::vector<uint32_t> held;
    for (int32_t expert = 5; expert < 9; ++expert) {
      const int32_t slot = rig.cache.place_guess(0, expert, &served);
      if (slot < 0) break;
      rig.cache.pin(0, static_cast<uint32_t>(slot));
      held.push_back(static_cast<uint32_t>(slot));
    }
    CHECK(!held.empty() && held.size() <= 2);
    CHECK(rig.cache.slot_of(0, 0) >= 0 && rig.cache.slot_of(0, 1) >= 0);
    CHECK_EQ(rig.cache.counts().evict_hot, hot);
    rig.release(0, held);
  }
  CacheRig rig(one_group(2));
  Served served;
  const Slots held = rig.hold(0, {1, 2}).slots;
  CHECK_EQ(rig.cache.place_guess(0, 3, &served), -1);
  rig.release(0, held);
}

TEST(cache_abandon) {
  CacheRig rig(one_group(3));
  rig.serve(0, {0, 1, 2});
  CHECK(rig.cache.abandon(0, 1));
  CHECK_EQ(rig.residents(0, 16), (Experts{0, 2}));
  CHECK_EQ(rig.serve(0, {7}).slots, (Slots{1}));
  CHECK(rig.served.evicted.empty());
  // Held: read anew into another slot, and empty only when let go.
  const Slots held = rig.hold(0, {7}).slots;
  CHECK(!rig.cache.abandon(0, held[0]));
  CHECK(!rig.cache.abandon(0, held[0]));
  CHECK_EQ(rig.cache.slot_of(0, 7), -1);
  CHECK_EQ(evicted(rig.serve(0, {7})), (Experts{0}));
  CHECK_EQ(rig.cache.slot_of(0, 7), 0);
  rig.release(0, held);
  CHECK(rig.cache.abandon(0, held[0]));
  CHECK_EQ(rig.cache.slot_of(0, 7), 0);
  CHECK_EQ(rig.serve(0, {8}).slots, held);
}

TEST(cache_abandon_of_a_prompt_slot) {
  CacheRig rig(one_group(2));
  rig.serve(0, {0, 1}, 2);
  CHECK(rig.cache.abandon(0, 1));
  rig.serve(0, {2});
  CHECK_EQ(evicted(rig.serve(0, {3})), (Experts{0}));
  CHECK_EQ(evicted(rig.serve(0, {4})), (Experts{2}));
}

TEST(cache_reread_within_a_turnover) {
  CacheRig rig(one_group(3));
  rig.serve(0, {0, 1, 2});
  rig.serve(0, {3});  // for 0
  rig.serve(0, {0});  // back at once, for 1
  CHECK_EQ(rig.cache.counts().evict_reread, 1);
  rig.serve(0, {4, 5});
  rig.serve(0, {1});  // 3 placements later
  CHECK_EQ(rig.cache.counts().evict_reread, 2);
  rig.serve(0, {7, 8, 9});
  rig.serve(0, {10});
  rig.serve(0, {4});  // one too late
  CHECK_EQ(rig.cache.counts().evict_reread, 2);
}

TEST(cache_hot_is_above_the_median_of_use) {
  CacheRig rig(one_group(4));
  for (int i = 0; i < 8; ++i) rig.serve(0, {0, 1});
  rig.serve(0, {2, 3});
  CHECK_EQ(rig.cache.hot_slots(), 2);
  rig.serve(0, {2, 3});
  rig.serve(0, {4, 5});  // lru takes the two that were used most
  CHECK_EQ(rig.cache.counts().evictions, 2);
  CHECK_EQ(rig.cache.counts().evict_hot, 2);
}

TEST(cache_nothing_selected) {
  CacheRig rig(one_group(2));
  rig.serve(0, {});
  CHECK_EQ(rig.cache.counts().accesses, 0);
  CHECK(rig.served.slots.empty());
}

TEST(cache_of_a_plan) {
  guanaco::LoadPlan plan;
  plan.classes.resize(2);
  plan.classes[0].slots = 5;
  plan.classes[1].slots = 7;
  plan.groups.resize(2);
  plan.groups[0].n_expert = 8;
  plan.groups[0].top_k = 2;
  plan.groups[1].n_expert = 16;
  plan.groups[1].size_class = 1;
  const PolicyShape shape = guanaco::policy_shape(plan);
  CHECK_EQ(shape.n_expert, (std::vector<uint32_t>{8, 16}));
  CHECK_EQ(shape.size_class, (std::vector<uint32_t>{0, 1}));
  CHECK_EQ(shape.n_slots, (std::vector<uint32_t>{5, 7}));
  CHECK_EQ(shape.top_k, (std::vector<uint32_t>{2, 0}));
  CHECK_EQ(guanaco::make_cache(plan)->size_class(1), 1);
}

// Experts read before they are asked for: never in the way of what is asked for, never seen before they are whole.
#include "guess_rig.h"

TEST(store_guess_is_a_hit) {
  GuessRig rig(4);
  rig.read_guess(1, {5, 3});
  CHECK(rig.resident(1, 5) && rig.resident(1, 3));
  CHECK_EQ(rig.stats->pilot_slices.load(), 4);
  const size_t n_reads = rig.backend->started.size();
  rig.serve(1, {3, 5});
  CHECK_EQ(rig.backend->started.size(), n_reads);
  CHECK_EQ(rig.stats->hits.load(), 2);
  CHECK_EQ(rig.stats->pilot_useful.load(), 2);
  CHECK_EQ(rig.stats->pilot_wasted.load(), 0);
  rig.serve(1, {3, 5});
  CHECK_EQ(rig.stats->pilot_useful.load(), 2);  // once
}

TEST(store_guesses_wait_for_demand) {
  GuessRig rig(6);
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1}));
  rig.store->guess(1, kOrder, {5}, kAny);
  const std::vector<uint64_t> demanded = {offset_of(0, 0, 1), offset_of(0, 0, 1) + kPage, offset_of(0, 1, 1),
                                          offset_of(0, 1, 1) + kPage};
  CHECK_EQ(rig.pending(), demanded);
  CHECK(!rig.resident(1, 5));  // it has no slot yet either
  for (int i = 0; i < 3; ++i) rig.backend->finish(0);
  rig.store->poll();
  CHECK_EQ(rig.pending(), (std::vector<uint64_t>{demanded[3]}));
  rig.backend->finish(0);
  CHECK(rig.wait_all(&lease));
  CHECK_EQ(rig.pending(), (std::vector<uint64_t>{offset_of(1, 0, 5), offset_of(1, 0, 5) + kPage, offset_of(1, 1, 5),
                                                 offset_of(1, 1, 5) + kPage}));
  rig.check_bytes(lease);
  rig.store->release(&lease);
}

TEST(store_few_bytes_of_guesses_are_with_the_drive) {
  for (const uint64_t most_bytes : {uint64_t{1}, uint64_t{3 * kPage}, uint64_t{6 * kPage}}) {
    GuessRig rig(6);
    rig.store->guess(1, kOrder, {5, 9, 2}, most_bytes);
    const size_t most_reads = std::max<size_t>(1, most_bytes / kPage);
    size_t n_rounds = 0;
    for (; !rig.backend->pending.empty(); ++n_rounds) {
      CHECK(rig.backend->pending.size() <= most_reads);
      REQUIRE(n_rounds < 100);
      rig.backend->finish(0);
      rig.store->poll();
    }
    CHECK_EQ(n_rounds, 12);
    rig.serve(1, {2, 5, 9});
    CHECK_EQ(rig.stats->hits.load(), 3);
    // Demand that comes while the drive has some waits for no more than these.
    rig.store->guess(0, kOrder, {1, 2, 3}, most_bytes);
    Lease lease;
    REQUIRE(rig.acquire(&lease, 0, {7}));
    CHECK(rig.backend->pending.size() <= most_reads + 4);
    rig.store->release(&lease);
  }
}

TEST(store_guesses_that_were_not_begun_are_forgotten) {
  GuessRig rig(4);
  rig.serve_at_once(0, {1, 2, 3, 4});
  rig.store->guess(1, kOrder, {5, 6, 7}, 1);  // one at a time
  rig.backend->finish(0);
  const uint64_t evictions = rig.stats->evictions.load();
  const uint64_t bytes = rig.stats->bytes_read.load();
  Lease lease;
  REQUIRE(rig.acquire(&lease, 1, {6, 9}));  // 6 was guessed, but not begun: an ordinary miss
  CHECK(!rig.resident(1, 5) && !rig.resident(1, 7));
  CHECK(rig.resident(1, 6));
  rig.backend->automatic = true;
  REQUIRE(rig.wait_all(&lease));
  rig.check_bytes(lease);
  CHECK_EQ(rig.stats->pilot_useful.load(), 0);
  CHECK_EQ(rig.stats->misses.load(), 6);
  CHECK_EQ(rig.stats->bytes_read.load(), bytes + 2 * 4 * kPage);
  CHECK_EQ(rig.stats->evictions.load(), evictions + 2);  // 5 had taken one, which is empty again
  rig.store->release(&lease);
}

TEST(store_new_guesses_replace_old_ones) {
  GuessRig rig(6);
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1}));
  rig.store->guess(1, kOrder, {5, 6}, kAny);
  rig.store->guess(1, kOrder, {8}, kAny);
  rig.backend->automatic = true;
  REQUIRE(rig.wait_all(&lease));
  rig.store->release(&lease);
  while (!rig.backend->pending.empty()) {
    rig.backend->finish_all();
    rig.store->poll();
  }
  CHECK_EQ(rig.residents(1), (Experts{8}));
}

// What is left of a right guess is read first, part by part with the rest of the demand.
TEST(store_right_guess_in_flight_becomes_demand) {
  GuessRig rig(6);
  rig.store->guess(1, kOrder, {5, 6}, 3 * kPage);  // the first part and half of the second are with the drive
  rig.backend->finish(0);
  CHECK_EQ(rig.pending(), (std::vector<uint64_t>{offset_of(1, 0, 5) + kPage, offset_of(1, 1, 5)}));
  Lease lease;
  REQUIRE(rig.acquire(&lease, 1, {9, 5}));
  CHECK(!rig.store->arrived(lease, 0) && !rig.store->arrived(lease, 1));
  CHECK_EQ(rig.pending(), (std::vector<uint64_t>{offset_of(1, 0, 5) + kPage, offset_of(1, 1, 5), offset_of(1, 0, 9),
                                                 offset_of(1, 0, 9) + kPage, offset_of(1, 1, 5) + kPage,
                                                 offset_of(1, 1, 9), offset_of(1, 1, 9) + kPage}));
  CHECK_EQ(rig.stats->hits.load(), 1);
  CHECK_EQ(rig.stats->pilot_useful.load(), 1);
  for (int i = 0; i < 4; ++i) {
    CHECK(!rig.store->arrived(lease, 0) || i == 4);
    rig.backend->finish(0);
    rig.store->poll();
  }
  CHECK(rig.store->arrived(lease, 0));  // 9's first part was the last of them
  CHECK(!rig.store->arrived(lease, 1));
  rig.backend->automatic = true;
  CHECK(rig.wait_all(&lease));
  rig.check_bytes(lease);
  rig.store->release(&lease);
  rig.serve(1, {5, 9});
  CHECK_EQ(rig.backend->started.size(), 8);  // each page once
}

TEST(store_wrong_guess_is_read_no_further) {
  GuessRig rig(3);
  rig.serve_at_once(0, {1, 2, 3});
  rig.store->guess(1, kOrder, {5}, 2 * kPage);
  REQUIRE(rig.resident(1, 5));
  Lease lease;
  REQUIRE(rig.acquire(&lease, 1, {7}));
  CHECK(!rig.resident(1, 5));
  CHECK_EQ(rig.stats->pilot_wasted.load(), 1);
  CHECK_EQ(rig.stats->pilot_wasted_bytes.load(), 2 * kPage);
  // The drive may still write into its slot: another one is taken. Then it is empty.
  REQUIRE(rig.backend->pending.size() == 2 + 4);
  rig.backend->automatic = true;
  REQUIRE(rig.wait_all(&lease));
  rig.check_bytes(lease);
  rig.store->release(&lease);
  rig.store->poll();
  const uint64_t evictions = rig.stats->evictions.load();
  rig.serve(1, {8});
  CHECK_EQ(rig.stats->evictions.load(), evictions);
  CHECK_EQ(rig.stats->bytes_read.load(), (12 + 2 + 4 + 4) * kPage);
  CHECK_EQ(rig.stats->pilot_useful.load(), 0);
}

TEST(store_wrong_guess_that_is_whole_stays_until_its_slot_is_needed) {
  GuessRig rig(3);
  rig.serve_at_once(0, {1});
  rig.read_guess(1, {5});
  rig.serve_at_once(1, {7});
  CHECK(rig.resident(1, 5));
  CHECK_EQ(rig.stats->pilot_wasted.load(), 0);
  rig.serve_at_once(1, {8, 9, 10});
  CHECK(!rig.resident(1, 5));
  CHECK_EQ(rig.stats->pilot_wasted.load(), 1);
  CHECK_EQ(rig.stats->pilot_wasted_bytes.load(), 4 * kPage);
  CHECK_EQ(rig.stats->pilot_useful.load(), 0);
}

// Rated by its use, a guessed expert is the first to go: guesses would push each other out.
TEST(store_guesses_keep_their_slots_until_the_selection) {
  for (const char* policy : {"lru", "lfu", "cycle", "recall", "herd"}) {
    GuessRig rig(5, policy);
    for (int i = 0; i < 3; ++i) rig.serve_at_once(0, {1, 2});
    rig.serve_at_once(0, {3, 4, 5});
    rig.serve_at_once(0, {1, 2});
    rig.read_guess(1, {10, 11, 12, 13});
    const size_t n_guessed = rig.residents(1).size();
    CHECK(n_guessed >= 1 && n_guessed <= 4);
    CHECK_EQ(rig.stats->pilot_slices.load(), 2 * n_guessed);
    // One slot is used more than most: it is not given up.
    CHECK(rig.resident(0, 1) || rig.resident(0, 2));
    rig.serve_at_once(1, rig.residents(1));
    CHECK_EQ(rig.stats->pilot_useful.load(), n_guessed);
    rig.serve_at_once(1, {0, 1, 2, 3, 4});  // and none is held any more
  }
}

TEST(store_finishes_all_reads_when_asked_to) {
  GuessRig rig(6);
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1}));
  rig.store->guess(1, kOrder, {5, 9}, kAny);
  rig.store->release(&lease);
  rig.backend->automatic = true;
  rig.store->finish_reads();
  CHECK_EQ(rig.backend->in_flight(), 0);
  CHECK_EQ(rig.store->pending_bytes(), 0);
  rig.serve(0, {1});
  CHECK_EQ(rig.stats->hits.load(), 1);
}

TEST(store_guess_beside_a_full_lease) {
  GuessRig rig(2);
  Lease lease;
  rig.backend->automatic = true;
  REQUIRE(rig.acquire(&lease, 0, {1, 2}));
  REQUIRE(rig.wait_all(&lease));
  rig.store->guess(1, kOrder, {5}, kAny);
  CHECK(!rig.resident(1, 5));
  rig.check_bytes(lease);
  rig.store->release(&lease);
  rig.serve(1, {5, 6});
}

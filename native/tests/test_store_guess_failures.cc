// Guesses whose reads fail, that find no room, or that are still on their way when the store ends.
#include <cstdio>

#include "guess_rig.h"

TEST(store_failed_guess_is_nobodys_failure) {
  GuessRig rig(4);
  rig.backend->errors[{0, offset_of(1, 0, 5)}] = -1;
  rig.store->guess(1, kOrder, {5, 6}, kAny);
  while (!rig.backend->pending.empty()) {
    rig.backend->finish_all();
    rig.store->poll();
  }
  CHECK(!rig.resident(1, 5));
  CHECK(rig.resident(1, 6));
  CHECK_EQ(rig.stats->read_errors.load(), 0);
  CHECK_EQ(rig.stats->read_retries.load(), 0);
  CHECK_EQ(rig.store->take_error(), std::string());
  rig.serve_at_once(1, {6, 7});
  CHECK_EQ(rig.stats->pilot_wasted.load(), 1);
  // Demanded, it is read anew, and tried as often as everything else.
  rig.backend->errors[{0, offset_of(1, 0, 5)}] = 2;
  rig.serve_at_once(1, {5, 8, 9});
  CHECK_EQ(rig.stats->read_retries.load(), 2);
  rig.serve_at_once(1, {0, 1, 2, 3});  // no slot is lost
}

TEST(store_failing_guess_that_is_demanded) {
  for (const int n_errors : {1, 2, 3}) {
    GuessRig rig(3);
    rig.backend->errors[{0, offset_of(1, 0, 5)}] = n_errors;
    rig.store->guess(1, kOrder, {5}, 2 * kPage);
    rig.backend->finish(0);  // has failed, and nobody knows
    rig.backend->automatic = true;
    Lease lease;
    const bool known = n_errors == 2;
    if (known) rig.store->poll();
    REQUIRE(rig.acquire(&lease, 1, {5}));
    CHECK_EQ(rig.wait_all(&lease), n_errors < 3);
    if (n_errors < 3) rig.check_bytes(lease);
    rig.store->release(&lease);
    rig.serve(1, {5, 6, 7});
  }
}

TEST(store_failing_guess_holds_its_slot_until_the_drive_is_done) {
  GuessRig rig(2);
  rig.backend->errors[{0, offset_of(1, 0, 5)}] = -1;
  rig.store->guess(1, kOrder, {5}, kAny);
  rig.backend->finish(0);
  rig.backend->finish(0);
  rig.store->poll();  // its first part is given up, the second is with the drive
  CHECK(!rig.resident(1, 5));
  REQUIRE(rig.backend->pending.size() == 2);
  Lease lease;
  rig.backend->automatic = true;  // both slots: the store has to wait (the back end throws on an overlap)
  REQUIRE(rig.acquire(&lease, 0, {3, 4}));
  REQUIRE(rig.wait_all(&lease));
  rig.check_bytes(lease);
  rig.store->release(&lease);
}

TEST(store_refused_lease_leaves_right_guesses_on_their_way) {
  GuessRig rig(3);
  Lease held, refused;
  rig.backend->automatic = true;
  REQUIRE(rig.acquire(&held, 0, {1, 2}));
  REQUIRE(rig.wait_all(&held));
  rig.backend->automatic = false;
  rig.store->guess(1, kOrder, {5}, kPage);
  rig.backend->automatic = true;
  CHECK(!rig.acquire(&refused, 1, {5, 6}));
  rig.store->release(&held);
  rig.serve(1, {5});
  rig.serve(0, {7, 8, 9});
}

TEST(store_guesses_leave_staging_to_demand) {
  StoreRig rig;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(8, {5000, 5000});
  rig.bed.group(0, 0, 16, {{64, 5000}, {0x20000, 5000}});
  rig.bed.group(1, 0, 16, {{0x40000, 5000}, {0x60000, 5000}});
  rig.bed.plan.staging_bytes = 4 * 3 * kPage;  // four buffers
  rig.start();
  rig.store->guess(1, kOrder, {5, 6, 7}, kAny);
  CHECK_EQ(rig.backend->pending.size(), 2);
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1}));
  CHECK_EQ(rig.backend->pending.size(), 4);  // at once
  rig.backend->automatic = true;
  REQUIRE(rig.wait_all(&lease));
  rig.check_bytes(lease);
  rig.store->release(&lease);
  rig.serve(1, {5, 6, 7});
  rig.serve(0, {1, 2, 3, 4, 5, 6, 7, 8});
}

TEST(store_one_staging_buffer_and_guesses) {
  StoreRig rig;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(6, {5000, 5000});
  rig.bed.group(0, 0, 16, {{64, 5000}, {0x20000, 5000}});
  rig.bed.group(1, 0, 16, {{0x40000, 5000}, {0x60000, 5000}});
  rig.bed.plan.staging_bytes = 1;
  rig.start();
  for (int32_t round = 0; round < 8; ++round) {
    rig.store->guess(1, kOrder, {round, round + 1}, kAny);
    if (round % 2 == 0) rig.backend->finish_all();
    rig.serve(1, {round, round + 3});
    rig.store->guess(0, kOrder, {round + 2}, kAny);
    rig.serve(0, {round, round + 1});
  }
}

TEST(store_injected_failures_spare_guesses) {
  GuessRig rig(4);
  rig.bed.plan.testing = true;
  rig.stats->fail_reads = 1;
  rig.stats->fail_slices = 1;
  rig.read_guess(1, {5});
  CHECK(rig.resident(1, 5));
  CHECK_EQ(rig.stats->fail_reads.load(), 1);
  rig.backend->automatic = true;
  Lease lease;
  REQUIRE(rig.acquire(&lease, 1, {5, 6}));
  CHECK(!rig.wait_all(&lease));
  rig.store->release(&lease);
}

TEST(store_measures_the_drive_while_it_is_busy) {
  GuessRig rig(8);
  uint64_t nbytes = 0, elapsed_ns = 0;
  rig.backend->automatic = true;
  rig.backend->on_wait = [] {
    const timespec nap = {0, 200000};
    nanosleep(&nap, nullptr);
  };
  for (int32_t e = 0; e < 16; ++e) rig.serve(0, {e});
  CHECK(!rig.store->take_drive_rate(&nbytes, &elapsed_ns));  // too little to tell
  for (int32_t i = 0; i < 64; ++i) rig.serve(i % 2 == 0 ? 1 : 0, {i % 16});
  REQUIRE(rig.store->take_drive_rate(&nbytes, &elapsed_ns));
  CHECK(nbytes >= 1u << 20);
  CHECK(elapsed_ns > 64 * 200000);
  CHECK(!rig.store->take_drive_rate(&nbytes, &elapsed_ns));
  rig.serve(0, {1});
  rig.serve(0, {1});
  const timespec nap = {0, 3000000};
  nanosleep(&nap, nullptr);
  rig.serve(0, {1});
  CHECK(rig.store->idle_ns() >= 3000000);
}

TEST(store_destroyed_with_guesses) {
  GuessRig rig(4);
  rig.store->guess(1, kOrder, {5, 6, 7}, 2 * kPage);
  rig.backend->automatic = true;
  rig.store.reset();
  CHECK_EQ(rig.backend->in_flight(), 0);
}

TEST(store_random_walk_with_guesses) {
  const char* const kPolicies[] = {"lru", "lfu", "cycle", "recall", "herd"};
  RandomWalk walk(13);
  uint64_t n_useful = 0, n_wasted = 0;
  for (size_t round = 0; round < 10; ++round) {
    StoreRig rig;
    rig.bed.plan.policy = kPolicies[round % 5];
    walk.start(&rig, 6);
    for (int step = 0; step < 1500; ++step) {
      walk.disturb(&rig, 6, 5, 8);
      if (walk.below(4) == 0) rig.store->poll();
      if (walk.below(3) == 0) {
        const Experts experts = walk.some_experts(3);
        rig.store->guess(static_cast<uint32_t>(walk.below(3)), kOrder, experts, kPage * (1 + walk.below(6)));
      }
      walk.take_or_release(&rig);
    }
    walk.end(&rig);
    rig.backend->finish_all();
    rig.store->poll();
    CHECK_EQ(rig.store->pending_bytes(), 0);
    n_useful += rig.stats->pilot_useful;
    n_wasted += rig.stats->pilot_wasted;
  }
  std::printf("  %llu leases whole, %llu failed; %llu guesses useful, %llu wasted\n",
              static_cast<unsigned long long>(walk.n_good), static_cast<unsigned long long>(walk.n_failed),
              static_cast<unsigned long long>(n_useful), static_cast<unsigned long long>(n_wasted));
  CHECK(walk.n_good > 1000 && walk.n_failed > 100 && n_useful > 100 && n_wasted > 500);
}

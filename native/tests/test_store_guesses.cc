// Experts read before they are asked for: never in the way of what is asked for, never seen before they are whole.
#include <cstdio>
#include <random>

#include "store_rig.h"

using guanaco::kPage;
using guanaco::Lease;

namespace {

constexpr uint64_t kSecondPart = 0x80000, kNextLayer = 0x100000;
constexpr uint64_t kAny = 1u << 30;
const std::vector<uint32_t> kOrder = {0, 1};

uint64_t offset_of(uint32_t group, uint32_t part, uint64_t expert) {
  return group * kNextLayer + part * kSecondPart + expert * 2 * kPage;
}

// Two layers of 16 experts in one pool, two parts of two pages, read a page at a time.
struct GuessRig : StoreRig {
  explicit GuessRig(uint32_t slots, const std::string& policy = "lru") {
    bed.file(2u << 20, false);
    bed.plan.policy = policy;
    bed.plan.read_chunk_bytes = kPage;
    bed.size_class(slots, {2 * kPage, 2 * kPage});
    for (uint32_t group = 0; group < 2; ++group) {
      bed.group(group, 0, 16, {{offset_of(group, 0, 0), 2 * kPage}, {offset_of(group, 1, 0), 2 * kPage}});
    }
    start();
    backend->automatic = false;
  }
  ~GuessRig() { backend->automatic = true; }
  std::vector<uint64_t> pending() const {
    std::vector<uint64_t> offsets;
    for (const guanaco::Read& read : backend->pending) offsets.push_back(read.offset);
    return offsets;
  }
  // One guess that is read whole.
  void read_guess(uint32_t group, const Experts& experts) {
    store->guess(group, kOrder, experts, kAny);
    while (!backend->pending.empty()) {
      backend->finish_all();
      store->poll();
    }
  }
  void serve_at_once(uint32_t group, const Experts& experts) {
    backend->automatic = true;
    serve(group, experts);
    backend->automatic = false;
  }
};

}  // namespace

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

// As the store's random walk, with guesses right and wrong between the leases.
TEST(store_random_walk_with_guesses) {
  std::mt19937 random(13);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  uint64_t n_good = 0, n_failed = 0, n_useful = 0, n_wasted = 0;
  const char* const kPolicies[] = {"lru", "lfu", "cycle", "recall", "herd"};
  for (size_t walk = 0; walk < 10; ++walk) {
    StoreRig rig;
    rig.bed.file(1u << 20, false);
    rig.bed.plan.policy = kPolicies[walk % 5];
    rig.bed.plan.read_chunk_bytes = kPage * (1 + below(3));
    rig.bed.plan.staging_bytes = below(2) * (1u << 16);
    rig.bed.size_class(6, {2 * kPage, 5000});
    rig.bed.size_class(3, {300, kPage});
    rig.bed.group(0, 0, 8, {{96, 2 * kPage}, {0x40000, 5000}});
    rig.bed.group(1, 0, 8, {{0x50000, 2 * kPage}, {0x70000, 5000}});
    rig.bed.group(2, 1, 8, {{0x90001, 300}, {0xa0020, kPage}});
    rig.start();
    const auto some_experts = [&](size_t one_in) {
      Experts experts;
      for (int32_t e = 0; e < 8; ++e) {
        if (below(one_in) == 0) experts.push_back(e);
      }
      return experts;
    };
    std::vector<Lease> leases;
    for (int step = 0; step < 1500; ++step) {
      if (below(6) == 0 && !rig.backend->pending.empty()) {
        const guanaco::Read& read = rig.backend->pending[below(rig.backend->pending.size())];
        rig.backend->errors[{0, read.offset}] = 1 + static_cast<int>(below(5));
      }
      if (below(8) == 0) rig.backend->errors.clear();
      while (!rig.backend->pending.empty() && below(3) != 0) rig.backend->finish(below(rig.backend->pending.size()));
      if (below(4) == 0) rig.store->poll();
      if (below(3) == 0) {
        rig.store->guess(static_cast<uint32_t>(below(3)), kOrder, some_experts(3), kPage * (1 + below(6)));
      }
      if (leases.size() < 2 && below(2) == 0) {
        leases.emplace_back();
        const Experts experts = some_experts(4);
        const size_t n_transient = below(experts.size() + 1);
        if (!rig.acquire(&leases.back(), static_cast<uint32_t>(below(3)), experts, n_transient)) leases.pop_back();
        continue;
      }
      if (leases.empty()) continue;
      const size_t which = below(leases.size());
      if (below(3) != 0) {
        if (rig.wait_all(&leases[which])) {
          rig.check_bytes(leases[which]);
          ++n_good;
        } else {
          ++n_failed;
        }
      }
      rig.store->release(&leases[which]);
      leases.erase(leases.begin() + static_cast<long>(which));
    }
    for (Lease& lease : leases) rig.store->release(&lease);
    rig.backend->errors.clear();
    rig.serve(0, {0, 1, 2, 3, 4, 5});
    rig.serve(2, {5, 6, 7});
    rig.backend->finish_all();
    rig.store->poll();
    CHECK_EQ(rig.store->pending_bytes(), 0);
    n_useful += rig.stats->pilot_useful;
    n_wasted += rig.stats->pilot_wasted;
  }
  std::printf("  %llu leases whole, %llu failed; %llu guesses useful, %llu wasted\n",
              static_cast<unsigned long long>(n_good), static_cast<unsigned long long>(n_failed),
              static_cast<unsigned long long>(n_useful), static_cast<unsigned long long>(n_wasted));
  CHECK(n_good > 1000 && n_failed > 100 && n_useful > 100 && n_wasted > 500);
}

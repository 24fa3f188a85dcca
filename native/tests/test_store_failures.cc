// The store when reads fail: retries, what is given up, and that memory is never handed out too early.
#include <cstdio>
#include <random>

#include "store_rig.h"

using guanaco::kPage;
using guanaco::Lease;

namespace {

constexpr uint64_t kSecondPart = 0x80000;

void one_layer(StoreRig* rig, uint32_t slots) {
  rig->bed.file(1u << 20, false);
  rig->bed.size_class(slots, {2 * kPage, 2 * kPage});
  rig->bed.group(0, 0, 16, {{0, 2 * kPage}, {kSecondPart, 2 * kPage}});
  rig->start();
}

}  // namespace

TEST(store_retries) {
  StoreRig rig;
  one_layer(&rig, 2);
  rig.backend->errors[{0, 3 * 2 * kPage}] = 2;  // expert 3, first part: twice
  rig.serve(0, {3});
  CHECK_EQ(rig.stats->read_retries.load(), 2);
  CHECK_EQ(rig.stats->read_errors.load(), 0);
  CHECK_EQ(rig.store->take_error(), std::string());
}

TEST(store_retries_one_chunk_of_an_unaligned_part) {
  StoreRig rig;
  rig.bed.plan.read_chunk_bytes = kPage;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(2, {3 * kPage + 100});
  rig.bed.group(0, 0, 8, {{100, 3 * kPage + 100}});
  rig.start();
  rig.backend->errors[{0, kPage}] = 1;
  rig.serve(0, {0, 1});
  CHECK_EQ(rig.stats->read_retries.load(), 1);
}

TEST(store_gives_up) {
  StoreRig rig;
  one_layer(&rig, 2);
  rig.backend->errors[{0, 5 * 2 * kPage}] = 3;
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {4, 5}));
  CHECK(!rig.store->wait(&lease, 0));
  CHECK(!rig.store->arrived(lease, 0));
  CHECK_EQ(rig.stats->read_retries.load(), 2);
  CHECK_EQ(rig.stats->read_errors.load(), 1);
  const std::string error = rig.store->take_error();
  CHECK_CONTAINS(error, "expert 5 of blk.0.ffn_gate_exps.weight");
  CHECK_CONTAINS(error, rig.bed.plan.files[0].path.c_str());
  CHECK_CONTAINS(error, "Input/output error");
  CHECK(!rig.resident(0, 5));
  CHECK(rig.resident(0, 4));
  rig.store->release(&lease);
  rig.serve(0, {5, 4});  // the drive has recovered
  rig.serve(0, {6, 7});
}

TEST(store_file_ends_early) {
  StoreRig rig;
  rig.bed.file(20 * kPage, false);
  rig.bed.size_class(2, {2 * kPage});
  rig.bed.group(0, 0, 16, {{0, 2 * kPage}});
  rig.start();
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {9, 15}));
  CHECK(!rig.store->wait(&lease, 0));
  CHECK_CONTAINS(rig.store->take_error(), "the file ends early");
  rig.store->release(&lease);
  rig.serve(0, {9});
}

TEST(store_failed_slot_is_held_until_its_reads_ended) {
  StoreRig rig;
  one_layer(&rig, 2);
  rig.backend->automatic = false;
  rig.backend->errors[{0, 2 * kPage}] = -1;
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1}));
  const uint32_t failed_slot = lease.slots[0];
  for (int round = 0; round < 3; ++round) {  // the first part only; the second stays with the drive
    rig.backend->finish(round == 0 ? 0 : 1);
    Lease none;
    REQUIRE(rig.acquire(&none, 0, {}));
    rig.store->release(&none);
  }
  CHECK(!rig.store->wait(&lease, 0));
  rig.store->release(&lease);
  CHECK(!rig.resident(0, 1));
  REQUIRE(rig.backend->pending.size() == 1 && rig.backend->pending[0].offset == kSecondPart + 2 * kPage);
  // Both slots are wanted: the store has to wait for that read first (the back end throws on an overlap).
  rig.backend->automatic = true;
  REQUIRE(rig.acquire(&lease, 0, {2, 3}));
  CHECK(lease.slots[0] == failed_slot || lease.slots[1] == failed_slot);
  REQUIRE(rig.wait_all(&lease));
  rig.check_bytes(lease);
  rig.store->release(&lease);
}

TEST(store_failed_slot_is_held_by_another_lease) {
  StoreRig rig;
  one_layer(&rig, 2);
  rig.backend->automatic = false;
  rig.backend->errors[{0, kSecondPart + 2 * kPage}] = 3;
  Lease a, b;
  REQUIRE(rig.acquire(&a, 0, {1}));
  REQUIRE(rig.acquire(&b, 0, {1}));
  rig.backend->automatic = true;
  CHECK(rig.store->wait(&a, 0));
  CHECK(!rig.store->wait(&a, 1));
  CHECK(!rig.store->wait(&b, 1));
  rig.store->release(&a);
  Lease both;
  CHECK(!rig.acquire(&both, 0, {2, 3}));  // b still points at the slot
  rig.serve(0, {1});                      // read anew, into the other one
  rig.store->release(&b);
  rig.serve(0, {2, 3});
}

TEST(store_every_read_fails) {
  StoreRig rig;
  one_layer(&rig, 3);
  for (uint64_t expert = 0; expert < 16; ++expert) {
    rig.backend->errors[{0, expert * 2 * kPage}] = -1;
    rig.backend->errors[{0, kSecondPart + expert * 2 * kPage}] = -1;
  }
  for (int32_t round = 0; round < 5; ++round) {
    Lease lease;
    REQUIRE(rig.acquire(&lease, 0, {round, round + 5, round + 10}));
    CHECK(!rig.wait_all(&lease));
    rig.store->release(&lease);
  }
  while (rig.backend->in_flight() > 0) {  // what nobody waited for
    rig.backend->finish_all();
    Lease none;
    REQUIRE(rig.acquire(&none, 0, {}));
    rig.store->release(&none);
  }
  CHECK(rig.residents(0).empty());
  rig.backend->errors.clear();
  rig.serve(0, {0, 1, 2});
}

TEST(store_injected_failures_need_the_test_plan) {
  for (const bool testing : {false, true}) {
    StoreRig rig;
    rig.bed.plan.testing = testing;
    one_layer(&rig, 2);
    rig.stats->fail_reads = 5;  // the two parts fail in turn, the first for the third time
    Lease lease;
    REQUIRE(rig.acquire(&lease, 0, {1}));
    CHECK_EQ(rig.store->wait(&lease, 0), !testing);
    rig.store->release(&lease);
    CHECK_EQ(rig.stats->fail_reads.load(), testing ? 0 : 5);
  }
}

TEST(store_destroyed_while_reading) {
  StoreRig rig;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(2, {5000});
  rig.bed.group(0, 0, 8, {{64, 5000}});
  rig.start();
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1, 2}));
  rig.store.reset();
  CHECK_EQ(rig.backend->in_flight(), 0);
}

// Leases come and go, reads end in any order and some fail: what a lease may read is always the right bytes.
TEST(store_random_walk) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  uint64_t n_good = 0, n_failed = 0;
  for (int walk = 0; walk < 8; ++walk) {
    StoreRig rig;
    rig.bed.file(1u << 20, false);
    rig.bed.plan.read_chunk_bytes = kPage * (1 + below(3));
    rig.bed.plan.staging_bytes = below(2) * (1u << 16);
    rig.bed.size_class(5, {2 * kPage, 5000});
    rig.bed.size_class(3, {300, kPage});
    rig.bed.group(0, 0, 8, {{96, 2 * kPage}, {0x40000, 5000}});
    rig.bed.group(1, 0, 8, {{0x50000, 2 * kPage}, {0x70000, 5000}});
    rig.bed.group(2, 1, 8, {{0x90001, 300}, {0xa0020, kPage}});
    rig.start();
    std::vector<Lease> leases;
    for (int step = 0; step < 1500; ++step) {
      if (below(4) == 0 && !rig.backend->pending.empty()) {
        const guanaco::Read& read = rig.backend->pending[below(rig.backend->pending.size())];
        rig.backend->errors[{0, read.offset}] = 1 + static_cast<int>(below(6));
      }
      if (below(16) == 0) rig.backend->errors.clear();
      while (!rig.backend->pending.empty() && below(3) != 0) rig.backend->finish(below(rig.backend->pending.size()));
      if (leases.size() < 2 && below(2) == 0) {
        Experts experts;
        for (int32_t e = 0; e < 8; ++e) {
          if (below(4) == 0) experts.push_back(e);
        }
        leases.emplace_back();
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
    rig.serve(0, {0, 1, 2, 3, 4});
    rig.serve(2, {5, 6, 7});
  }
  std::printf("  %llu leases whole, %llu failed\n", static_cast<unsigned long long>(n_good),
              static_cast<unsigned long long>(n_failed));
  CHECK(n_good > 1000 && n_failed > 100);
}

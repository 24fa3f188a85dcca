// The store when reads fail: retries, what is given up, and that memory is never handed out too early.
#include <cstdio>

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

TEST(store_random_walk) {
  RandomWalk walk(7);
  for (int round = 0; round < 8; ++round) {
    StoreRig rig;
    walk.start(&rig, 5);
    for (int step = 0; step < 1500; ++step) {
      walk.disturb(&rig, 4, 6, 16);
      walk.take_or_release(&rig);
    }
    walk.end(&rig);
  }
  std::printf("  %llu leases whole, %llu failed, %llu in waves\n", static_cast<unsigned long long>(walk.n_good),
              static_cast<unsigned long long>(walk.n_failed), static_cast<unsigned long long>(walk.n_waves));
  CHECK(walk.n_good > 1000 && walk.n_failed > 100 && walk.n_waves > 100);
}

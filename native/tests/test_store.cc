// The store when every read succeeds: residency, counts, order of reads, bytes.
#include "store_rig.h"

using guanaco::kPage;
using guanaco::Lease;

namespace {

// One layer of 16 experts, two parts of 8 KiB; the first begins inside a page, as most tensors do.
void one_layer(StoreRig* rig, uint32_t slots) {
  rig->bed.file(1u << 20, false);
  rig->bed.size_class(slots, {2 * kPage, 2 * kPage});
  rig->bed.group(0, 0, 16, {{4064, 2 * kPage}, {0x80000, 2 * kPage}});
  rig->start();
}

}  // namespace

TEST(store_counts) {
  StoreRig rig;
  one_layer(&rig, 3);
  CHECK_EQ(rig.stats->slots.load(), 3);
  rig.serve(0, {4, 7});
  rig.serve(0, {7, 9});
  CHECK_EQ(rig.stats->accesses.load(), 4);
  CHECK_EQ(rig.stats->hits.load(), 1);
  CHECK_EQ(rig.stats->misses.load(), 3);
  CHECK_EQ(rig.stats->evictions.load(), 0);
  CHECK_EQ(rig.stats->prefetch_calls.load(), 2);
  rig.serve(0, {1});  // 4 was used least recently
  CHECK_EQ(rig.residents(0), (Experts{1, 7, 9}));
  CHECK_EQ(rig.stats->evictions.load(), 1);
  rig.serve(0, {7, 9, 1});
  CHECK_EQ(rig.stats->hits.load(), 4);
  CHECK_EQ(rig.stats->misses.load(), 4);
  CHECK_EQ(rig.stats->read_errors.load() + rig.stats->read_retries.load(), 0);
  // Each expert: 3 pages of the part that straddles one more, 2 of the other.
  CHECK_EQ(rig.stats->bytes_read.load(), 4 * 5 * kPage);
}

TEST(store_bytes_of_every_expert) {
  StoreRig rig;
  one_layer(&rig, 4);
  for (int32_t expert = 0; expert < 16; expert += 4) rig.serve(0, {expert, expert + 1, expert + 2, expert + 3});
  CHECK_EQ(rig.stats->evictions.load(), 12);
}

TEST(store_chunks) {
  StoreRig rig;
  rig.bed.plan.read_chunk_bytes = kPage;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(2, {5 * kPage});
  rig.bed.group(0, 0, 8, {{kPage + 32, 5 * kPage}});
  rig.start();
  rig.serve(0, {3});
  CHECK_EQ(rig.backend->started.size(), 6);
  for (const guanaco::Read& read : rig.backend->started) CHECK_EQ(read.nbytes, kPage);
  // The last page is asked for only as far as the slice goes.
  CHECK_EQ(rig.backend->started.back().required, 32);
}

TEST(store_reads_at_the_end_of_the_file) {
  StoreRig rig;
  rig.bed.file(8 * kPage + 32, false);
  rig.bed.size_class(2, {2 * kPage});
  rig.bed.group(0, 0, 4, {{32, 2 * kPage}});
  rig.start();
  rig.serve(0, {3});
  CHECK_EQ(rig.stats->bytes_read.load(), 2 * kPage + 32);
}

TEST(store_part_order) {
  StoreRig rig;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(4, {kPage, kPage, kPage});
  rig.bed.group(0, 0, 8, {{0, kPage}, {0x10000, kPage}, {0x20000, kPage}});
  rig.start();
  Lease lease;
  lease.experts = {5, 2};
  REQUIRE(rig.store->acquire(0, {2, 0}, 0, &lease));
  std::vector<uint64_t> offsets;
  for (const guanaco::Read& read : rig.backend->started) offsets.push_back(read.offset);
  // As asked, one part of all experts before the next; the part not asked for comes last.
  CHECK_EQ(offsets, (std::vector<uint64_t>{0x20000 + 5 * kPage, 0x20000 + 2 * kPage, 5 * kPage, 2 * kPage,
                                           0x10000 + 5 * kPage, 0x10000 + 2 * kPage}));
  CHECK_EQ(rig.backend->submissions, 1);
  REQUIRE(rig.wait_all(&lease));
  rig.check_bytes(lease);
  rig.store->release(&lease);
}

// Two products of one expert may be selected by different tensors: the second finds the expert resident.
TEST(store_part_that_only_a_later_lease_uses) {
  StoreRig rig;
  one_layer(&rig, 2);
  Lease first, second;
  first.experts = second.experts = {6};
  REQUIRE(rig.store->acquire(0, {0}, 0, &first));
  REQUIRE(rig.store->wait(&first, 0));
  REQUIRE(rig.store->acquire(0, {1}, 0, &second));
  CHECK(rig.store->wait(&second, 1));
  rig.check_bytes(second);
  rig.store->release(&first);
  rig.store->release(&second);
}

TEST(store_waits_for_one_part_only) {
  StoreRig rig;
  one_layer(&rig, 2);
  rig.backend->automatic = false;
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1, 2}));
  CHECK(!rig.store->arrived(lease, 0));
  rig.backend->finish(0);
  rig.backend->finish(0);
  CHECK(rig.store->wait(&lease, 0));
  CHECK(rig.store->arrived(lease, 0));
  CHECK(!rig.store->arrived(lease, 1));
  CHECK_EQ(rig.backend->pending.size(), 2);
  rig.backend->finish(1);  // out of order
  rig.backend->finish(0);
  CHECK(rig.store->wait(&lease, 1));
  rig.check_bytes(lease);
  CHECK(rig.stats->wait_ns.load() > 0);
  rig.store->release(&lease);
}

TEST(store_unaligned_slices) {
  StoreRig rig;
  // Whole files of odd sizes: every expert begins elsewhere in its page.
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(3, {5000, kPage + 32, 17});
  rig.bed.group(0, 0, 12, {{64, 5000}, {0x20000, kPage + 32}, {0x40ff8, 17}});
  rig.bed.plan.staging_bytes = 1u << 20;
  rig.start();
  for (int32_t expert = 0; expert < 12; expert += 3) rig.serve(0, {expert, expert + 1, expert + 2});
  CHECK_EQ(rig.store->part_base(0, 1) - rig.store->part_base(0, 0), 3 * static_cast<long>(kPage));
}

TEST(store_few_staging_buffers) {
  StoreRig rig;
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(4, {5000, kPage});
  rig.bed.group(0, 0, 12, {{64, 5000}, {0x40000, kPage}});
  rig.bed.plan.staging_bytes = 1;  // less than two: two there are
  rig.start();
  rig.backend->automatic = false;
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {0, 3, 7, 11}));
  size_t n_rounds = 0;
  while (!rig.store->arrived(lease, 0) || !rig.store->arrived(lease, 1)) {
    size_t n_staged = 0;
    for (const guanaco::Read& read : rig.backend->pending) n_staged += read.offset < 0x40000 ? 1 : 0;
    CHECK(n_staged <= 2);
    REQUIRE(!rig.backend->pending.empty() && ++n_rounds < 100);
    rig.backend->finish(rig.backend->pending.size() - 1);
    guanaco::Lease none;
    REQUIRE(rig.acquire(&none, 0, {}));  // takes what has arrived, and starts what waited
    rig.store->release(&none);
  }
  rig.check_bytes(lease);
  rig.store->release(&lease);
}

TEST(store_expert_that_is_still_loading) {
  StoreRig rig;
  one_layer(&rig, 3);
  rig.backend->automatic = false;
  Lease first, second;
  REQUIRE(rig.acquire(&first, 0, {1}));
  const size_t n_reads = rig.backend->started.size();
  REQUIRE(rig.acquire(&second, 0, {1}));
  CHECK_EQ(rig.backend->started.size(), n_reads);
  CHECK_EQ(first.slots, second.slots);
  CHECK(!rig.store->arrived(second, 0));
  rig.backend->finish_all();
  CHECK(rig.wait_all(&second));
  CHECK(rig.wait_all(&first));
  rig.check_bytes(second);
  CHECK_EQ(rig.stats->hits.load(), 1);
  rig.store->release(&first);
  rig.store->release(&second);
}

TEST(store_released_before_it_arrived) {
  StoreRig rig;
  one_layer(&rig, 2);
  rig.backend->automatic = false;
  Lease lease;
  REQUIRE(rig.acquire(&lease, 0, {1}));
  rig.store->release(&lease);
  REQUIRE(rig.acquire(&lease, 0, {2}));  // the other slot: reads hold the first
  CHECK_EQ(rig.stats->evictions.load(), 0);
  rig.store->release(&lease);
  rig.backend->finish_all();
  rig.serve(0, {1, 2});
  CHECK_EQ(rig.stats->misses.load(), 2);
}

TEST(store_lease_larger_than_the_slots) {
  StoreRig rig;
  one_layer(&rig, 3);
  rig.serve(0, {8});
  const size_t n_reads = rig.backend->started.size();
  Lease lease;
  CHECK(!rig.acquire(&lease, 0, {1, 2, 3, 4}));
  CHECK(!rig.acquire(&lease, 0, {8, 2, 3, 4}));
  CHECK(!lease.active);
  CHECK_EQ(rig.backend->started.size(), n_reads);
  CHECK_EQ(rig.stats->accesses.load(), 1);
  CHECK_EQ(rig.residents(0), (Experts{8}));
  rig.serve(0, {1, 2, 3});  // nothing is pinned
  rig.serve(0, {8, 2, 3});
}

TEST(store_two_leases_at_once) {
  StoreRig rig;
  one_layer(&rig, 5);
  Lease a, b, c;
  REQUIRE(rig.acquire(&a, 0, {0, 1}));
  REQUIRE(rig.acquire(&b, 0, {1, 2, 3}));
  REQUIRE(rig.wait_all(&a) && rig.wait_all(&b));
  CHECK(!rig.acquire(&c, 0, {4, 5}));  // one slot is left
  CHECK(rig.acquire(&c, 0, {3, 4}));
  REQUIRE(rig.wait_all(&c));
  rig.check_bytes(a);
  rig.check_bytes(b);
  rig.check_bytes(c);
  rig.store->release(&a);
  rig.store->release(&c);
  Lease d;
  REQUIRE(rig.acquire(&d, 0, {6, 7}));  // in the place of 0 and 4; the others belong to b
  rig.check_bytes(b);
  CHECK(rig.wait_all(&d));
  CHECK_EQ(rig.residents(0), (Experts{1, 2, 3, 6, 7}));
  rig.store->release(&b);
  rig.store->release(&b);  // a second time is nothing
  rig.store->release(&d);
  rig.serve(0, {8, 9, 10, 11, 12});
}

TEST(store_two_size_classes) {
  StoreRig rig;
  rig.bed.file(1u << 20, false);
  rig.bed.file(1u << 20, false);
  rig.bed.size_class(2, {kPage, kPage});
  rig.bed.size_class(1, {3 * kPage, 100});
  rig.bed.group(0, 0, 8, {{0, kPage}, {0x20000, kPage}});
  rig.bed.group(1, 1, 8, {{32, 3 * kPage, 1}, {0x40001, 100, 1}});
  rig.bed.group(2, 0, 8, {{0x40000, kPage}, {0x60000, kPage, 1}});
  rig.start();
  CHECK_EQ(rig.stats->slots.load(), 3);
  rig.serve(0, {5});
  rig.serve(2, {5});
  for (int32_t expert = 0; expert < 8; ++expert) rig.serve(1, {expert});
  CHECK(rig.resident(0, 5) && rig.resident(2, 5));  // another class never takes their slots
  CHECK_EQ(rig.stats->evictions.load(), 7);
  rig.serve(2, {6});  // one pool for the groups of a class
  CHECK(!rig.resident(0, 5));
  Lease lease;
  CHECK(!rig.acquire(&lease, 1, {0, 1}));
}

TEST(store_prompt_does_not_displace_decoding) {
  StoreRig rig;
  one_layer(&rig, 6);
  rig.serve(0, {0, 1});                       // decoding
  rig.serve(0, {4, 5, 6, 2}, 3);              // a prompt; 2 belongs to its tail
  rig.serve(0, {8, 9, 10}, 3);                // the next piece of it takes the slots of the first
  CHECK_EQ(rig.residents(0), (Experts{0, 1, 2, 8, 9, 10}));
  rig.serve(0, {8});                          // decoding goes on with one of them
  rig.serve(0, {11, 12}, 2);
  CHECK_EQ(rig.residents(0), (Experts{0, 1, 2, 8, 11, 12}));
}

TEST(store_cannot_map) {
  Bed bed;
  bed.file(1u << 20, false);
  bed.size_class(1, {kPage});
  bed.plan.classes[0].stride_bytes = uint64_t{1} << 49;
  bed.open_fake();
  ScriptedBackend backend(bed);
  guanaco::Stats stats("");
  guanaco::Store store(bed.plan, bed.files, &backend, &stats);
  std::string error;
  CHECK(!store.allocate(&error));
  CHECK_CONTAINS(error, "cannot map the expert arena of 562949953421312 bytes");
}

TEST(store_with_any_policy) {
  for (const char* policy : {"lru", "lfu", "cycle", "recall", "herd"}) {
    StoreRig rig;
    rig.bed.plan.policy = policy;
    one_layer(&rig, 4);
    for (int32_t i = 0; i < 300; ++i) rig.serve(0, {i % 7, 7 + i % 5});
    CHECK_EQ(rig.stats->misses.load(), rig.stats->evictions.load() + 4);
    CHECK(rig.stats->evict_reread.load() <= rig.stats->evictions.load());
    const bool has_pins = std::string(policy) == "herd";
    CHECK_EQ(rig.stats->pinned.load(), has_pins ? 4 : 0);
    CHECK_EQ(rig.stats->most_pin_budget.load(), has_pins ? 4 : 0);
    CHECK_EQ(rig.stats->least_pin_budget.load(), has_pins ? 4 : 0);
    CHECK(rig.stats->hot_slots.load() <= 4);
  }
}

TEST(store_counts_evictions_of_what_is_used_and_reread) {
  StoreRig rig;
  one_layer(&rig, 3);
  for (int32_t i = 0; i < 10; ++i) rig.serve(0, {0});
  rig.serve(0, {1, 2});
  rig.serve(0, {3});  // for 0, used most
  CHECK_EQ(rig.stats->evict_hot.load(), 1);
  CHECK_EQ(rig.stats->evict_reread.load(), 0);
  rig.serve(0, {0});
  CHECK_EQ(rig.stats->evict_reread.load(), 1);
}

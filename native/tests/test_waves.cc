// Selections that do not fit the slots: their experts pass through, each read once a product, and the numbers are the same.
#include "overlap_rig.h"
#include "store_rig.h"

#include <set>

using guanaco::kPage;
using guanaco::Lease;

namespace {

// Nine experts.
const Rows kWanted = {{9, 2}, {4, 7}, {2, 9}, {7, 4}, {2, 4}, {0, 1}, {15, 3}, {3, 12}, {1, 2}, {7, 12}};

struct WaveRig : EngineRig {
  explicit WaveRig(uint32_t slots = 4) : EngineRig(1, slots) {
    bed.plan.staging_bytes = 1u << 16;
    bed.plan.testing = true;
    bed.plan.batch_tokens = 4;
    start();
    runs();
  }
  size_t n_reads_of(int32_t expert) const {
    size_t n = 0;
    for (const auto& part : bed.plan.groups[0].parts) {
      const uint64_t begin = part.offset + static_cast<uint64_t>(expert) * part.slice_bytes;
      for (const guanaco::Read& read : backend->started) n += read.offset == guanaco::page_floor(begin) ? 1 : 0;
    }
    return n;
  }
};

void one_layer(StoreRig* rig, uint32_t slots) {
  rig->bed.file(1u << 20, false);
  rig->bed.size_class(slots, {2 * kPage, 5000});
  rig->bed.group(0, 0, 16, {{0, 2 * kPage}, {0x80000, 5000}});
  rig->bed.plan.staging_bytes = 1u << 16;
  rig->start();
}

}  // namespace

TEST(waves_compute_what_does_not_fit) {
  WaveRig rig;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, kWanted);
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output(kWanted));
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  CHECK_EQ(rig.stats->waves.load(), 1);
  CHECK_EQ(rig.stats->misses.load(), 9);
  CHECK(rig.scheduler.products.empty());  // all ours
  for (const int32_t expert : {0, 1, 2, 3, 4, 7, 9, 12, 15}) CHECK_EQ(rig.n_reads_of(expert), 3);
  CHECK_EQ(rig.n_reads_of(5), 0);
  runs();
}

TEST(waves_use_what_is_resident_and_leave_half_of_the_slots_alone) {
  WaveRig rig(6);
  TestGraph before;
  ComputingLayer warm(&rig, &before, 0, {{5, 6}, {8, 2}, {4, 7}});
  CHECK_EQ(rig.run(&before), 0);
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, kWanted);
  rig.backend->started.clear();
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output(kWanted));
  CHECK_EQ(rig.stats->evictions.load(), 3);
  CHECK_EQ(rig.stats->hits.load(), 3);  // 2, 4 and 7 were used last
  for (const int32_t expert : {2, 4, 7}) {
    CHECK_EQ(rig.n_reads_of(expert), 0);
    CHECK(rig.store->slot_of(0, expert) >= 0);
  }
  runs();
}

TEST(waves_in_any_order_of_arrival) {
  const std::vector<float> expected = expected_output(kWanted);
  for (unsigned seed = 0; seed < 20; ++seed) {
    WaveRig rig(2 + seed % 5);
    TestGraph graph;
    ComputingLayer computing(&rig, &graph, 0, kWanted);
    std::mt19937 random(seed);
    rig.backend->automatic = false;
    rig.backend->on_wait = [&] {
      for (size_t n = 1 + random() % 2; n > 0 && !rig.backend->pending.empty(); --n) {
        rig.backend->finish(random() % rig.backend->pending.size());
      }
    };
    CHECK_EQ(rig.run(&graph), 0);
    CHECK_EQ(computing.output(), expected);
    CHECK_EQ(rig.stats->unmanaged.load(), 0);
    rig.backend->automatic = true;
  }
  runs();
}

TEST(waves_then_decoding) {
  WaveRig rig;
  TestGraph graph, next;
  ComputingLayer computing(&rig, &graph, 0, kWanted);
  ComputingLayer token(&rig, &next, 0, {{9, 2, 4, 7}});
  for (int round = 0; round < 3; ++round) {
    CHECK_EQ(rig.run(&graph), 0);
    CHECK_EQ(computing.output(), expected_output(kWanted));
    CHECK_EQ(rig.run(&next), 0);
    CHECK_EQ(token.output(), expected_output({{9, 2, 4, 7}}));
  }
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  CHECK_EQ(rig.stats->waves.load(), 3);
  runs();
}

// The control of the exactness gates works here too.
TEST(waves_with_a_wrong_slot_are_noticed) {
  for (const uint64_t mutation : {1u, 2u}) {
    WaveRig rig;
    TestGraph graph;
    ComputingLayer computing(&rig, &graph, 0, kWanted);
    rig.stats->mutation = mutation;
    CHECK_EQ(rig.run(&graph), 0);
    CHECK(computing.output() != expected_output(kWanted));
  }
  runs();
}

TEST(waves_fail_with_a_reason) {
  for (const uint64_t part : {0u, 1u, 2u}) {
    WaveRig rig;
    TestGraph graph, next;
    ComputingLayer computing(&rig, &graph, 0, kWanted);
    ComputingLayer token(&rig, &next, 0, {{9, 2, 4, 7}});
    const auto& info = rig.bed.plan.groups[0].parts[part];
    rig.backend->errors[{0, guanaco::page_floor(info.offset + 12 * info.slice_bytes)}] = -1;
    CHECK_EQ(rig.run(&graph), guanaco::kStatusFailed);
    CHECK_CONTAINS(std::string(rig.stats->error, rig.stats->error_length), "expert 12 of blk.0.ffn_");
    rig.backend->errors.clear();
    CHECK_EQ(rig.run(&next), 0);  // every slot can be had again
    CHECK_EQ(token.output(), expected_output({{9, 2, 4, 7}}));
    CHECK_EQ(rig.run(&graph), 0);
    CHECK_EQ(computing.output(), expected_output(kWanted));
  }
  runs();
}

TEST(waves_need_products_that_the_library_can_run) {
  WaveRig rig;
  rig.api.compute.complete = false;
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, kWanted);
  CHECK_EQ(rig.run(&graph), 0);
  rig.check_products(graph);  // from the file's mapping
  CHECK_EQ(rig.stats->unmanaged.load(), 3);
  CHECK_EQ(rig.stats->waves.load(), 0);
}

// Two products over the same part: it is read for each.
TEST(waves_of_a_part_that_is_used_twice) {
  StoreRig rig;
  one_layer(&rig, 3);
  Lease lease;
  REQUIRE(rig.acquire_in_waves(&lease, 0, {1, 2, 3, 4, 5}, {1, 0, 1}));
  CHECK_EQ(lease.waves.taken.size(), 1);
  CHECK(rig.use_in_waves(&lease));
  CHECK_EQ(rig.backend->started.size(), 15);
  rig.store->release(&lease);
  rig.serve(0, {1, 2, 3});
}

// What is still being read when the graph fails is nobody's, and its slot is free once the drive is done with it.
TEST(waves_given_up_with_reads_in_flight) {
  StoreRig rig;
  one_layer(&rig, 4);
  rig.serve(0, {6, 7, 8, 9});
  rig.backend->automatic = false;
  Lease lease;
  REQUIRE(rig.acquire_in_waves(&lease, 0, {1, 2, 3, 4, 9}, {0, 1}));
  CHECK_EQ(rig.backend->pending.size(), 2);
  rig.store->release(&lease);
  CHECK(rig.resident(0, 9));
  Lease next;
  REQUIRE(rig.acquire(&next, 0, {8, 9}));  // beside them
  CHECK(rig.wait_all(&next));
  rig.store->release(&next);
  rig.backend->automatic = true;
  rig.serve(0, {1, 2, 3, 4});  // waits until the drive has given the others up
  CHECK_EQ(rig.store->pending_bytes(), 0);
}

TEST(waves_where_every_slot_is_held) {
  StoreRig rig;
  one_layer(&rig, 2);
  Lease holding;
  REQUIRE(rig.acquire(&holding, 0, {1, 2}));
  Lease lease;
  lease.experts = {3, 4, 5};
  CHECK(!rig.store->acquire_in_waves(0, {0, 1}, &lease));
  CHECK(!lease.active);
  rig.store->release(&holding);
}

// Graphs whose results nobody waits for any more.
#include "overlap_rig.h"

using guanaco::kStatusFailed;

namespace {

const Rows kBatch = {{1, 2}, {3, 4}, {2, 3}};

}  // namespace

TEST(give_up_ends_the_running_graph_only) {
  EngineRig rig(2, 6);
  rig.bed.plan.batch_tokens = 2;
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, kBatch);
  MoeLayer& second = rig.add_layer(&graph, 1, kBatch);
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(rig.stats->running.load(), 0);
  bool gives_up = true;
  graph.on_compute(first.products[0], [&] {
    if (gives_up) rig.stats->give_up = rig.stats->running.load();
  });
  CHECK_EQ(rig.run(&graph), kStatusFailed);
  CHECK_EQ(rig.stats->give_up.load(), 2);
  CHECK_EQ(rig.stats->running.load(), 0);
  CHECK_EQ(rig.stats->error_length.load(), 0);  // nothing went wrong
  CHECK(rig.scheduler.products.count(first.products[0]) == 1);
  CHECK(rig.scheduler.products.count(first.products[1]) == 0);
  CHECK(rig.scheduler.products.count(second.products[0]) == 0);
  gives_up = false;
  CHECK_EQ(rig.run(&graph), 0);
  rig.check_products(graph);
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
}

TEST(give_up_of_a_graph_that_is_over) {
  EngineRig rig(1, 6);
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  CHECK_EQ(rig.run(&graph), 0);
  rig.stats->give_up = 1;
  CHECK_EQ(rig.run(&graph), 0);
}

TEST(give_up_between_the_experts_of_a_product) {
  EngineRig rig(1, 4);
  rig.bed.plan.staging_bytes = 1u << 16;
  rig.bed.plan.batch_tokens = 2;
  rig.start();
  runs();
  const Rows wanted = {{9, 2}, {4, 7}, {2, 9}, {0, 1}};
  TestGraph graph;
  ComputingLayer computing(&rig, &graph, 0, wanted);
  rig.backend->on_wait = [&] { rig.stats->give_up = rig.stats->running.load(); };
  CHECK_EQ(rig.run(&graph), kStatusFailed);
  CHECK_EQ(rig.stats->error_length.load(), 0);
  CHECK_EQ(runs().size(), 0);
  rig.backend->on_wait = nullptr;
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(computing.output(), expected_output(wanted));
  runs();
}

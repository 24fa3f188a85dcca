// What must not go on, and what must go on all the same: changed files, thrown exceptions, loads that fail or come again.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <stdexcept>

#include "runtime_rig.h"

using guanaco::kStatusFailed;
using guanaco::LoadState;
using guanaco::Runtime;
using guanaco::Stats;

// What was read of it may be anything, and stays in the slots.
TEST(runtime_fails_every_graph_once_the_file_has_changed) {
  LoadedLayer loaded;
  auto& [rig, process, scheduler, graph, layer] = loaded;
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
  struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
  REQUIRE(utimensat(AT_FDCWD, rig.bed.plan.files[0].path.c_str(), now, 0) == 0);
  CHECK_EQ(process.compute(&scheduler, &graph), 0);  // all of it was there before
  graph.select(layer, {{5, 6}});
  for (int round = 0; round < 3; ++round) {  // the later ones read nothing
    CHECK_EQ(process.compute(&scheduler, &graph), kStatusFailed);
    CHECK_CONTAINS(process.error(), "written to while it is loaded");
  }
}

TEST(runtime_survives_a_callback_that_throws) {
  LoadedLayer loaded;
  auto& [rig, process, scheduler, graph, layer] = loaded;
  const std::vector<guanaco::Tensor*> products = layer->products;
  process.runtime->remember_callback(&scheduler, {[](guanaco::Tensor* tensor, bool ask, void* last) -> bool {
                                                    if (!ask) throw std::runtime_error("no more");
                                                    return tensor == last;
                                                  },
                                                  products.back()});
  CHECK_EQ(process.compute(&scheduler, &graph), kStatusFailed);
  CHECK_CONTAINS(process.error(), "no more");
  for (size_t i = 0; i < products.size(); ++i) {
    CHECK_EQ(products[i]->op, fake::kMulMatId);
    CHECK(products[i]->src[0] == rig.weights(0, layer->parts[i]));
    CHECK(products[i]->src[2] == layer->ids);
  }
  process.runtime->remember_callback(&scheduler, {});
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
  rig.check_products(graph, scheduler);
}

TEST(runtime_that_could_not_be_prepared_is_not_tried_again) {
  EngineRig rig(1, 4);
  Bed& bed = rig.bed;
  bed.plan.stats_path = bed.dir.write("stats", std::string(sizeof(guanaco::StatsBlock), '\0'));
  const std::string path = bed.plan.files[0].path, hidden = path + ".hidden";
  Stats stats(bed.plan.stats_path);
  const std::unique_ptr<Runtime> runtime(Runtime::start(bed.dir.write("plan", bed.text()).c_str()));
  REQUIRE(rename(path.c_str(), hidden.c_str()) == 0);
  CHECK(!runtime->mapped(0, nullptr, 0));
  REQUIRE(rename(hidden.c_str(), path.c_str()) == 0);
  CHECK(!runtime->mapped(0, nullptr, 0));
  CHECK_EQ(stats->state.load(), static_cast<uint64_t>(LoadState::kFailed));
  CHECK_EQ(stats->slots.load(), 0);
}

// Loading anew while guesses of the last model are under way.
TEST(runtime_maps_a_second_time_after_graphs_have_run) {
  EngineRig rig(2, 5);
  rig.bed.plan.io = guanaco::IoMode::kThreads;
  rig.bed.plan.pilot = guanaco::PilotMode::kTransition;
  Process process(&rig);
  for (int32_t round = 0; round < 8; ++round) {
    REQUIRE(process.load());
    guanaco::Scheduler scheduler;
    TestGraph graph;
    MoeLayer& first = rig.add_layer(&graph, 0, {{round, 15 - round}});
    rig.add_layer(&graph, 1, {{3, 4}});
    for (int32_t token = 0; token < 3; ++token) {
      graph.select(&first, {{round + token, 15 - round}});
      CHECK_EQ(process.compute(&scheduler, &graph), 0);
      rig.check_products(graph, scheduler);
    }
    process.runtime->unmapped(process.base, process.nbytes());
    guanaco::raw_munmap(process.base, process.nbytes());
    process.base = nullptr;
  }
}

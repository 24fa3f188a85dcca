// One process's runtime from its plan file to the last graph, with the fake engine and real reads.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "memory_map.h"
#include "runtime_rig.h"

using guanaco::kStatusFailed;
using guanaco::LoadState;
using guanaco::Runtime;
using guanaco::Stats;

TEST(runtime_streams_in_every_mode) {
  for (const auto mode : {guanaco::IoMode::kAuto, guanaco::IoMode::kThreads, guanaco::IoMode::kBuffered,
                          guanaco::IoMode::kPageCache}) {
    EngineRig rig(2, 5);
    rig.bed.plan.io = mode;
    rig.bed.plan.batch_tokens = 4;
    Process process(&rig);
    CHECK_EQ(process.state(), LoadState::kIdle);
    REQUIRE(process.load());
    CHECK_EQ(process.state(), LoadState::kReady);
    CHECK((*process.stats)->io_mode.load() != 0);
    CHECK_EQ((*process.stats)->dense_bytes_total.load(), 4000);
    CHECK((*process.stats)->dense_bytes_read.load() >= 4000);
    CHECK_EQ(inode_of(process.base, guanaco::kPage), 0);
    guanaco::Scheduler scheduler;
    TestGraph graph;
    rig.add_layer(&graph, 0, {{1, 14}});
    rig.add_layer(&graph, 1, {{3, 4}});
    for (int round = 0; round < 4; ++round) {
      CHECK_EQ(process.compute(&scheduler, &graph), 0);
      rig.check_products(graph, scheduler);
    }
    CHECK_EQ((*process.stats)->groups_bound.load(), 2);
    CHECK_EQ((*process.stats)->unmanaged.load(), 0);
    CHECK_EQ((*process.stats)->misses.load(), 4);
    CHECK_EQ((*process.stats)->slots.load(), 5);
    CHECK((*process.stats)->arena_bytes.load() > 0);
  }
}

TEST(runtime_without_a_usable_plan_ends_the_process) {
  TempDir dir;
  const std::string plan = dir.write("plan", "guanaco-plan 9\n");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Runtime::start(plan.c_str());
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 78);
}

TEST(runtime_refuses_a_file_that_changed) {
  EngineRig rig(1, 4);
  ++rig.bed.plan.files[0].mtime_ns;
  Bed& bed = rig.bed;
  bed.plan.stats_path = bed.dir.write("stats", std::string(sizeof(guanaco::StatsBlock), '\0'));
  Stats stats(bed.plan.stats_path);
  const std::unique_ptr<Runtime> runtime(Runtime::start(bed.dir.write("plan", bed.text()).c_str()));
  CHECK(!runtime->mapped(0, nullptr, 0));
  CHECK_EQ(stats->state.load(), static_cast<uint64_t>(LoadState::kFailed));
  CHECK_CONTAINS(std::string(stats->error, stats->error_length), "changed or replaced");
}

TEST(runtime_refuses_another_engine) {
  EngineRig rig(1, 4);
  rig.bed.plan.engine = "engine 1";
  Process process(&rig);
  REQUIRE(process.load());
  guanaco::Scheduler scheduler;
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  fake_engine_fault(fake::Fault::kStride);
  CHECK_EQ(process.compute(&scheduler, &graph), kStatusFailed);
  fake_engine_fault(fake::Fault::kNone);
  CHECK_EQ(process.state(), LoadState::kFailed);
  CHECK_CONTAINS(process.error(), "engine 1");
  CHECK(scheduler.computed.empty());
  CHECK_EQ(process.compute(&scheduler, &graph), kStatusFailed);  // not looked at again
  CHECK(process.runtime->engine_setter(in_the_engine(), nullptr) == nullptr);
}

TEST(runtime_chains_each_schedulers_callback) {
  EngineRig rig(1, 4);
  Process process(&rig);
  REQUIRE(process.load());
  guanaco::Scheduler one, two, none;
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  int n_one = 0, n_two = 0;
  const auto count = [](guanaco::Tensor*, bool, void* data) {
    ++*static_cast<int*>(data);
    return false;
  };
  process.runtime->remember_callback(&one, {count, &n_one});
  process.runtime->remember_callback(&two, {count, &n_two});
  CHECK_EQ(process.compute(&one, &graph), 0);
  CHECK_EQ(n_one, graph.graph.nodes.size());
  CHECK_EQ(n_two, 0);
  CHECK_EQ(process.compute(&none, &graph), 0);
  CHECK_EQ(n_one + n_two, graph.graph.nodes.size());
  process.runtime->remember_callback(&one, {});
  CHECK_EQ(process.compute(&one, &graph), 0);
  CHECK_EQ(n_one, graph.graph.nodes.size());
  CHECK(one.callback == nullptr && two.callback == nullptr);
}

TEST(runtime_that_only_replays) {
  EngineRig rig(1, 4);
  rig.bed.plan.manage = false;
  Process process(&rig);
  CHECK(!process.runtime->manages());
  process.map();
  process.runtime->noted(process.runtime->planned_file(process.fd()), process.base, process.nbytes());
  rig.make_weights(process.base);
  guanaco::Scheduler scheduler;
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{1, 2}});
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
  rig.check_products(graph, scheduler);
  CHECK(scheduler.products[layer.products[0]].weights == process.base + rig.bed.plan.groups[0].parts[0].offset);
  CHECK_EQ((*process.stats)->accesses.load() + (*process.stats)->unmanaged.load(), 0);
}

// Two contexts decode at once, a third thread maps and unmaps: one lock keeps them apart.
TEST(runtime_from_several_threads) {
  EngineRig rig(2, 4);
  rig.bed.plan.io = guanaco::IoMode::kThreads;
  rig.bed.plan.io_threads = 3;
  Process process(&rig);
  REQUIRE(process.load());
  constexpr int kRounds = 60;
  struct Context {
    guanaco::Scheduler scheduler;
    TestGraph graph;
  } contexts[2];
  for (int32_t i = 0; i < 2; ++i) {
    rig.add_layer(&contexts[i].graph, 0, {{i, 15 - i}});
    rig.add_layer(&contexts[i].graph, 1, {{i + 5, 8}});
  }
  std::atomic<int> n_failed{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (Context& context : contexts) {
    threads.emplace_back([&] {
      for (int32_t round = 0; round < kRounds; ++round) {
        context.graph.select(&context.graph.layers[0], {{round % 16, (round + 3) % 16}});
        if (process.compute(&context.scheduler, &context.graph) != 0) ++n_failed;
        process.runtime->remember_callback(&context.scheduler, {});
      }
    });
  }
  threads.emplace_back([&] {
    while (!stop) {
      void* other = guanaco::raw_mmap(nullptr, process.nbytes(), PROT_READ, MAP_SHARED, process.fd(), 0);
      if (other == MAP_FAILED || !process.runtime->mapped(0, static_cast<char*>(other), process.nbytes()) ||
          !process.runtime->covers(other)) {
        ++n_failed;
        return;
      }
      process.runtime->unmapped(other, process.nbytes());
      guanaco::raw_munmap(other, process.nbytes());
    }
  });
  threads[0].join();
  threads[1].join();
  stop = true;
  threads[2].join();
  CHECK_EQ(n_failed.load(), 0);
  for (Context& context : contexts) rig.check_products(context.graph, context.scheduler);
  CHECK_EQ((*process.stats)->graphs.load(), 2 * kRounds);
  CHECK_EQ((*process.stats)->unmanaged.load(), 0);
}

namespace {

bool within_seconds(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

// Two layers of which experts 3 to 6 are likely.
void expect_use(EngineRig* rig) {
  rig->bed.plan.io = guanaco::IoMode::kThreads;
  for (auto& group : rig->bed.plan.groups) {
    group.top_k = 2;
    group.prior.assign(16, 0.0);
    for (size_t expert = 3; expert < 7; ++expert) group.prior[expert] = 0.5;
  }
}

}  // namespace

TEST(runtime_reads_likely_experts_once_it_is_told) {
  EngineRig rig(2, 12);
  expect_use(&rig);
  Process process(&rig);
  REQUIRE(process.load());
  guanaco::StatsBlock& stats = **process.stats;
  guanaco::Scheduler scheduler;
  TestGraph graph;
  rig.add_layer(&graph, 0, {{0, 1}});
  rig.add_layer(&graph, 1, {{0, 3}});
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_EQ(stats.preloaded.load() + stats.preload_ended.load(), 0);
  stats.warm_start = 1;
  CHECK(within_seconds([&] { return stats.preload_ended != 0; }));
  CHECK_EQ(stats.preloaded.load(), 7);  // 3 of layer 1 is there
  const uint64_t read = stats.bytes_read, misses = stats.misses;
  graph.select(&graph.layers[0], {{3, 4}});
  graph.select(&graph.layers[1], {{5, 6}});
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
  rig.check_products(graph, scheduler);
  CHECK_EQ(stats.bytes_read.load(), read);
  CHECK_EQ(stats.misses.load(), misses);
}

TEST(runtime_leaves_the_drive_to_the_first_request) {
  EngineRig rig(2, 12);
  expect_use(&rig);
  Process process(&rig);
  REQUIRE(process.load());
  guanaco::StatsBlock& stats = **process.stats;
  guanaco::Scheduler scheduler;
  TestGraph graph;
  rig.add_layer(&graph, 0, {{0, 1}});
  rig.add_layer(&graph, 1, {{0, 3}});
  stats.warm_start = 1;
  for (int32_t round = 0; round < 200; ++round) {
    graph.select(&graph.layers[0], {{round % 16, (round + 3) % 16}});
    graph.select(&graph.layers[1], {{round % 7, 8 + round % 5}});
    CHECK_EQ(process.compute(&scheduler, &graph), 0);
    rig.check_products(graph, scheduler);
  }
  CHECK(within_seconds([&] { return stats.preload_ended != 0; }));
  CHECK(stats.preloaded <= 8);
  CHECK_EQ(stats.hits.load() + stats.misses.load(), stats.accesses.load());
}

TEST(runtime_may_end_before_it_is_told) {
  EngineRig rig(1, 12);
  expect_use(&rig);
  Process process(&rig);
  REQUIRE(process.load());
  guanaco::Scheduler scheduler;
  TestGraph graph;
  rig.add_layer(&graph, 0, {{0, 1}});
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
}

// What was read without a miss of the running graph is checked too.
TEST(runtime_notices_a_changed_file_behind_likely_experts) {
  EngineRig rig(2, 12);
  expect_use(&rig);
  Process process(&rig);
  REQUIRE(process.load());
  guanaco::StatsBlock& stats = **process.stats;
  guanaco::Scheduler scheduler;
  TestGraph graph;
  rig.add_layer(&graph, 0, {{3, 4}});
  rig.add_layer(&graph, 1, {{3, 4}});
  CHECK_EQ(process.compute(&scheduler, &graph), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // another time of change
  rig.bed.dir.write_pattern("model-0.gguf", 0, process.nbytes());
  stats.warm_start = 1;
  CHECK(within_seconds([&] { return stats.preload_ended != 0; }));
  CHECK_EQ(stats.preloaded.load(), 4);
  graph.select(&graph.layers[0], {{5, 6}});
  graph.select(&graph.layers[1], {{5, 6}});
  CHECK_EQ(process.compute(&scheduler, &graph), kStatusFailed);
  CHECK_CONTAINS(process.error(), "model-0.gguf");
}

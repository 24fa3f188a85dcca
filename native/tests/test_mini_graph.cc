// Computing outside the engine's graphs, and what to do without it.
#include "fake_engine.h"
#include "mini_graph.h"
#include "router_bed.h"

using guanaco::EngineApi;
using guanaco::MiniGraph;
using guanaco::Tensor;

namespace {

EngineApi loaded() {
  EngineApi api;
  std::string error;
  REQUIRE(api.load(reinterpret_cast<const void*>(&fake_engine_decode), nullptr, "", &error));
  std::vector<fake::OwnRun> before;
  fake_engine_take_runs(&before);
  return api;
}

std::vector<fake::OwnRun> runs() {
  std::vector<fake::OwnRun> result;
  fake_engine_take_runs(&result);
  return result;
}

}  // namespace

TEST(mini_graph_runs_nodes_in_order) {
  const EngineApi api = loaded();
  RouterBed bed;
  Tensor* sum = bed.node(fake::kAdd, 2, 1, {bed.leaf(2, 1, {1, 2}), bed.leaf(2, 1, {10, 20})});
  Tensor* product = bed.node(fake::kMul, 2, 1, {sum, bed.leaf(2, 1, {3, 3})});
  {
    MiniGraph mini(api);
    CHECK_EQ(fake_engine_backends(), 0);  // not before it is needed
    REQUIRE(mini.usable());
    CHECK_EQ(fake_engine_backends(), 1);
    CHECK(mini.run({sum, product}, 3));
    CHECK(mini.run({product}, 3));  // the graph is emptied
    CHECK(mini.run({}, 1));
  }
  CHECK_EQ(fake_engine_backends(), 0);
  const float* values = static_cast<const float*>(product->data);
  CHECK_EQ(values[0], 33.0f);
  CHECK_EQ(values[1], 66.0f);
  const std::vector<fake::OwnRun> seen = runs();
  REQUIRE(seen.size() == 3);
  CHECK_EQ(seen[0].ops, (std::vector<int32_t>{fake::kAdd, fake::kMul}));
  CHECK_EQ(seen[1].ops, (std::vector<int32_t>{fake::kMul}));
  CHECK_EQ(seen[0].n_threads, 3);
  CHECK_EQ(seen[2].n_threads, 1);
}

TEST(mini_graph_uses_all_threads_of_the_engine_or_one) {
  EngineApi api = loaded();
  MiniGraph mini(api);
  CHECK_EQ(mini.threads(8), 1);  // its own would be started for each run
  api.compute.shares_threads = true;
  CHECK_EQ(mini.threads(8), 8);
}

TEST(mini_graph_of_an_engine_that_refuses) {
  const EngineApi api = loaded();
  fake_engine_fault(fake::Fault::kNoBackend);
  MiniGraph mini(api);
  CHECK(!mini.usable());
  fake_engine_fault(fake::Fault::kNone);
  CHECK(!mini.usable());  // not tried again and again
  CHECK(!mini.run({}, 1));
  MiniGraph other(api);
  RouterBed bed;
  Tensor* sum = bed.node(fake::kAdd, 1, 1, {bed.leaf(1, 1), bed.leaf(1, 1)});
  fake_engine_fault(fake::Fault::kCompute);
  CHECK(!other.run({sum}, 1));
  fake_engine_fault(fake::Fault::kNone);
  CHECK(other.run({sum}, 1));
  CHECK(other.run(std::vector<Tensor*>(MiniGraph::kMaxNodes, sum), 1));
  CHECK(!other.run(std::vector<Tensor*>(MiniGraph::kMaxNodes + 1, sum), 1));
}

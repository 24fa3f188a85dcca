// Finding expert products in a graph, apart from running it.
#include "engine_rig.h"

using guanaco::EventKind;
using guanaco::GraphPlan;
using guanaco::PartIndex;

namespace {

GraphPlan plan_of(EngineRig* rig, TestGraph* graph) {
  GraphPlan plan;
  guanaco::build_graph_plan(rig->bed.plan, rig->api, rig->mappings, PartIndex(rig->bed.plan), &graph->graph, &plan);
  return plan;
}

}  // namespace

TEST(part_index_edges) {
  Bed bed;
  bed.file(1u << 20, false);
  bed.file(1u << 20, false);
  bed.size_class(1, {1000, 1000});
  bed.group(0, 0, 4, {{5000, 1000, 1}, {1000, 1000, 0}});
  bed.group(1, 0, 4, {{9000, 1000, 1}, {20000, 1000, 1}});
  const PartIndex index(bed.plan);
  uint32_t group = 9, part = 9;
  const auto find = [&](uint32_t file, uint64_t offset) { return index.find(file, offset, &group, &part); };
  CHECK(!find(0, 999));
  CHECK(find(0, 1000) && group == 0 && part == 1);
  CHECK(find(0, 4999) && group == 0 && part == 1);
  CHECK(!find(0, 5000));
  CHECK(!find(0, 9000));
  CHECK(!find(1, 4999));
  CHECK(find(1, 5000) && group == 0 && part == 0);
  CHECK(find(1, 8999) && group == 0 && part == 0);
  CHECK(find(1, 9000) && group == 1 && part == 0);
  CHECK(!find(1, 13000));
  CHECK(find(1, 23999) && group == 1 && part == 1);
  CHECK(!find(1, ~uint64_t{0}));
  CHECK(!find(2, 5000));
  CHECK(!PartIndex(guanaco::LoadPlan{}).find(0, 0, &group, &part));
}

TEST(graph_plan_counts_copies_made_to_compute_elsewhere) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{1, 2}});
  const auto unmanaged_with = [&](const std::string& name) {
    guanaco::Tensor copy = *rig.weights(0, 0);
    copy.data = nullptr;
    std::snprintf(copy.name, sizeof copy.name, "%s", name.c_str());
    guanaco::Tensor* own = layer.products[0]->src[0];
    layer.products[0]->src[0] = &copy;
    const uint64_t n = plan_of(&rig, &graph).unmanaged;
    layer.products[0]->src[0] = own;
    return n;
  };
  const std::string planned = rig.bed.plan.groups[0].parts[0].tensor_name;
  REQUIRE(!planned.empty());
  CHECK_EQ(unmanaged_with("CUDA0#" + planned + "#0"), 1);
  CHECK_EQ(unmanaged_with("CUDA0#" + planned + ".lora_a#0"), 0);
  CHECK_EQ(unmanaged_with(planned), 0);  // it lives on the card
  CHECK_EQ(unmanaged_with("#"), 0);
}

TEST(graph_plan_of_a_layer) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{1, 2}});
  const GraphPlan plan = plan_of(&rig, &graph);
  // router 0, sort 1, view 2, gate 3, up 4, activation 5, down 6, sum 7
  REQUIRE(plan.bindings.size() == 1 && plan.products.size() == 3);
  CHECK_EQ(plan.unmanaged, 0);
  CHECK(plan.bindings[0].ids == layer.ids);
  CHECK_EQ(plan.bindings[0].ids_index, 2);
  CHECK_EQ(plan.bindings[0].part_order, (std::vector<uint32_t>{0, 1, 2}));
  std::vector<std::pair<EventKind, int>> events;
  for (const auto& event : plan.events) {
    events.emplace_back(event.kind, event.node_index);
    CHECK(event.node == graph.graph.nodes[static_cast<size_t>(event.node_index)]);
  }
  CHECK(events == (std::vector<std::pair<EventKind, int>>{{EventKind::kIds, 2},
                                                          {EventKind::kUse, 3},
                                                          {EventKind::kWait, 3},
                                                          {EventKind::kUse, 4},
                                                          {EventKind::kWait, 5},
                                                          {EventKind::kUse, 6}}));
}

TEST(graph_plan_finds_ids_without_names) {
  EngineRig rig(2, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{1, 2}});
  // Both layers by one selection: two bindings, one producer.
  MoeLayer& second = graph.layers.emplace_back();
  second.group = 1;
  second.ids = first.ids;
  rig.add_products(&graph, &second, {2, 0});
  const GraphPlan plan = plan_of(&rig, &graph);
  REQUIRE(plan.bindings.size() == 2);
  CHECK_EQ(plan.bindings[1].ids_index, plan.bindings[0].ids_index);
  CHECK_EQ(plan.bindings[1].part_order, (std::vector<uint32_t>{2, 0}));
  second.wanted = first.wanted;
  CHECK_EQ(rig.run(&graph), 0);
  rig.check_products(graph);
}

TEST(graph_plan_validity) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph, other;
  rig.add_layer(&graph, 0, {{1, 2}});
  rig.add_layer(&other, 0, {{1, 2}});
  const GraphPlan plan = plan_of(&rig, &graph);
  CHECK(guanaco::still_valid(rig.api, plan, &graph.graph));
  CHECK(!guanaco::still_valid(rig.api, plan, &other.graph));
  auto& nodes = graph.graph.nodes;
  const auto is_valid_with = [&](auto change) {
    const std::vector<guanaco::Tensor*> before = nodes;
    std::vector<guanaco::Tensor> contents;
    for (const auto* node : nodes) contents.push_back(*node);
    change();
    const bool valid = guanaco::still_valid(rig.api, plan, &graph.graph);
    nodes = before;
    for (size_t i = 0; i < nodes.size(); ++i) *nodes[i] = contents[i];
    return valid;
  };
  CHECK(is_valid_with([] {}));
  CHECK(is_valid_with([&] { nodes[5]->op = fake::kGetRows; }));  // not about experts
  CHECK(!is_valid_with([&] { nodes.pop_back(); }));
  CHECK(!is_valid_with([&] { std::swap(nodes[3], nodes[4]); }));
  CHECK(!is_valid_with([&] { nodes[5] = graph.leaf(); }));  // a node the plan waits at
  CHECK(!is_valid_with([&] { nodes[5]->op = fake::kMulMatId; }));
  CHECK(!is_valid_with([&] { nodes[4]->op = fake::kAdd; }));
  CHECK(!is_valid_with([&] { nodes[4]->src[0] = rig.weights(0, 2); }));
  CHECK(!is_valid_with([&] { nodes[4]->src[2] = graph.leaf(); }));
  CHECK(!is_valid_with([&] { nodes[2]->ne[3] = 2; }));
}

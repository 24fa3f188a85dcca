// The seam when something is not as it should be: read failures, selections and nodes it cannot serve.
#include "engine_rig.h"

using guanaco::kStatusFailed;
using guanaco::Tensor;

namespace {

uint64_t first_page_of(const EngineRig& rig, uint32_t group, uint32_t part, uint64_t expert) {
  const auto& info = rig.bed.plan.groups[group].parts[part];
  return guanaco::page_floor(info.offset + expert * info.slice_bytes);
}

std::string error_text(guanaco::Stats* stats) { return std::string((*stats)->error, (*stats)->error_length); }

void check_served(EngineRig* rig, TestGraph* graph) {
  CHECK_EQ(rig->run(graph), 0);
  rig->check_products(*graph);
}

}  // namespace

TEST(seam_read_failure_fails_the_graph) {
  for (const uint32_t part : {0u, 1u, 2u}) {
    EngineRig rig(3, 4);
    rig.start();
    TestGraph graph;
    rig.add_layer(&graph, 0, {{1, 2}});
    MoeLayer& bad = rig.add_layer(&graph, 1, {{3, 4}});
    rig.add_layer(&graph, 2, {{5, 6}});
    rig.backend->errors[{0, first_page_of(rig, 1, part, 4)}] = -1;
    CHECK_EQ(rig.run(&graph), kStatusFailed);
    CHECK_CONTAINS(error_text(&rig.stats), "expert 4 of blk.1.ffn_");
    CHECK_EQ(rig.stats->read_errors.load(), 1);
    // No product after the failure was computed, and none before it on anything but whole slots.
    CHECK(rig.scheduler.products.count(bad.products[part]) == 0);
    for (const auto& [node, result] : rig.scheduler.products) {
      for (const std::string& slice : result.slices) CHECK(slice != "?");
    }
    CHECK_EQ(rig.run(&graph), kStatusFailed);  // read again, failed again
    rig.backend->errors.clear();
    check_served(&rig, &graph);
    for (const MoeLayer& layer : graph.layers) {
      for (const Tensor* product : layer.products) CHECK(rig.bound(product));
    }
    CHECK_EQ(rig.stats->unmanaged.load(), 0);
  }
}

// A refusal ends only the split it is in. What follows must not compute on selections that were never written.
TEST(seam_read_failure_skips_later_splits) {
  EngineRig rig(2, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{1, 2}});
  graph.graph.split_begins.push_back(graph.graph.nodes.size());
  graph.node(fake::kAdd);
  graph.graph.split_begins.push_back(graph.graph.nodes.size());
  MoeLayer& second = graph.input_ids(1, {{5, 6}});
  rig.add_products(&graph, &second, {0, 1, 2});
  bool ran = false;
  graph.on_compute(graph.graph.nodes[graph.graph.split_begins[1]], [&] { ran = true; });
  rig.backend->errors[{0, first_page_of(rig, 0, 0, 2)}] = -1;
  rig.user.function = [](Tensor*, bool, void*) { return true; };
  CHECK_EQ(rig.run(&graph), kStatusFailed);
  CHECK(rig.scheduler.products.empty());
  CHECK(!ran);
  CHECK_EQ(rig.stats->misses.load(), 2);
  rig.backend->errors.clear();
  check_served(&rig, &graph);
  CHECK(ran);
  CHECK(rig.bound(first.products[0]) && rig.bound(second.products[2]));
}

TEST(seam_read_failure_of_ids_known_before) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = graph.input_ids(0, {{5, 6}});
  rig.add_products(&graph, &layer, {0, 1, 2});
  rig.backend->errors[{0, first_page_of(rig, 0, 0, 5)}] = -1;
  CHECK_EQ(rig.run(&graph), kStatusFailed);
  CHECK(rig.scheduler.products.empty());
  rig.backend->errors.clear();
  check_served(&rig, &graph);
}

TEST(seam_injected_failures) {
  EngineRig rig(1, 4);
  rig.bed.plan.testing = true;
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  rig.stats->fail_reads = 1000;
  CHECK_EQ(rig.run(&graph), kStatusFailed);
  CHECK_CONTAINS(error_text(&rig.stats), "Input/output error");
  rig.stats->fail_reads = 0;
  check_served(&rig, &graph);
}

TEST(seam_hostile_ids) {
  for (const int32_t hostile : {-1, 16, 1 << 30, -(1 << 30)}) {
    EngineRig rig(2, 6);
    rig.start();
    TestGraph graph;
    MoeLayer& first = rig.add_layer(&graph, 0, {{1, hostile}});
    MoeLayer& second = rig.add_layer(&graph, 1, {{3, 4}});
    CHECK_EQ(rig.run(&graph), 0);
    CHECK_EQ(rig.stats->unmanaged.load(), 3);
    // As without the seam: the products read the file's mapping, by the router's own ids.
    for (const Tensor* product : first.products) {
      CHECK(!rig.bound(product));
      CHECK_EQ(rig.scheduler.products[product].slices.at(1), std::string("?"));
    }
    for (const Tensor* product : second.products) CHECK(rig.bound(product));
    CHECK_EQ(rig.stats->accesses.load(), 2);
    graph.select(&first, {{1, 15}});
    check_served(&rig, &graph);
    CHECK(rig.bound(first.products[0]));
    CHECK_EQ(rig.stats->unmanaged.load(), 3);
  }
}

TEST(seam_more_experts_than_slots) {
  EngineRig rig(2, 3);
  rig.start();
  TestGraph graph;
  MoeLayer& first = rig.add_layer(&graph, 0, {{1, 2, 3, 4}});
  MoeLayer& second = rig.add_layer(&graph, 1, {{3, 4, 5, 4}});
  check_served(&rig, &graph);
  CHECK(!rig.bound(first.products[0]));
  CHECK(rig.bound(second.products[0]));
  CHECK_EQ(rig.stats->unmanaged.load(), 3);
}

TEST(seam_nodes_it_does_not_understand) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = graph.router(0, {{1, 2}}, 16);
  const auto altered = [&](auto change) {
    fake::FullTensor* tensor = &graph.tensors.emplace_back();
    static_cast<Tensor&>(*tensor) = *rig.weights(0, 0);
    change(tensor);
    return graph.product(tensor, layer.ids);
  };
  std::vector<Tensor*> products;
  products.push_back(altered([](Tensor* t) { t->ne[2] = 8; }));  // some of the experts only
  products.push_back(altered([](Tensor* t) { t->nb[2] /= 2; }));
  products.push_back(altered([](Tensor* t) { t->data = static_cast<char*>(t->data) + t->nb[2]; }));
  Tensor* grouped = graph.leaf();
  *grouped = *layer.ids;
  grouped->ne[2] = 2;
  products.push_back(graph.product(rig.weights(0, 1), grouped));
  Tensor* floats = graph.leaf();
  *floats = *layer.ids;
  floats->type = guanaco::kTypeF32;
  products.push_back(graph.product(rig.weights(0, 1), floats));
  graph.node(fake::kGetRows, {rig.weights(0, 2), layer.ids});  // somebody else reads experts
  rig.add_products(&graph, &layer, {2});
  CHECK_EQ(rig.run(&graph), 0);
  CHECK_EQ(rig.stats->unmanaged.load(), 6);
  for (const Tensor* product : products) CHECK(!rig.bound(product));
  CHECK(rig.bound(layer.products[0]));
}

TEST(seam_adapters_are_left_alone) {
  EngineRig rig(1, 4);
  rig.start();
  TestGraph graph;
  std::string adapter_bytes(16 * 64, 'a');
  fake::Buffer host;
  Tensor* adapter = graph.leaf();
  adapter->buffer = &host;
  adapter->data = adapter_bytes.data();
  adapter->ne[0] = adapter->nb[1] = adapter->nb[2] = 64;
  adapter->ne[2] = 16;
  MoeLayer& layer = graph.router(0, {{9, 2}}, 16);
  layer.products.push_back(graph.product(rig.weights(0, 0), layer.ids));
  Tensor* low = graph.product(adapter, layer.ids);
  layer.products.push_back(graph.product(rig.weights(0, 1), layer.ids));
  layer.parts = {0, 1};
  Tensor* on_card = graph.product(graph.leaf(), layer.ids);  // weights without an address here
  on_card->src[0]->ne[0] = 0;
  check_served(&rig, &graph);
  CHECK(rig.scheduler.products[low].weights == adapter_bytes.data());
  CHECK(rig.scheduler.products[low].ids == layer.ids->data);
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  CHECK(rig.bound(layer.products[0]) && rig.bound(layer.products[1]));
}

// The engine builds its next graph in the memory of the last one: the same addresses may mean something else.
TEST(seam_graph_rebuilt_at_the_same_address) {
  EngineRig rig(3, 8);
  rig.start();
  TestGraph graph;
  rig.add_layer(&graph, 0, {{1, 2}});
  rig.add_layer(&graph, 1, {{3, 4}});
  check_served(&rig, &graph);
  graph.clear();  // as many nodes, the layers exchanged
  rig.add_layer(&graph, 1, {{5, 6}});
  rig.add_layer(&graph, 0, {{7, 8}});
  check_served(&rig, &graph);
  graph.clear();  // fewer nodes
  rig.add_layer(&graph, 2, {{5, 6}, {9, 1}});
  check_served(&rig, &graph);
  CHECK_EQ(rig.stats->groups_bound.load(), 3);
  graph.clear();  // no experts at all
  graph.node(fake::kAdd);
  check_served(&rig, &graph);
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
}

// Even the very same nodes may have other sources.
TEST(seam_same_nodes_with_other_sources) {
  EngineRig rig(2, 8);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{1, 2}});
  Tensor* other = graph.leaf();  // an adapter's, at first
  std::string adapter_bytes(16, 'a');
  other->data = adapter_bytes.data();
  Tensor* extra = graph.product(other, layer.ids);
  check_served(&rig, &graph);
  // The product moves to another layer's weights.
  for (uint32_t part = 0; part < 3; ++part) layer.products[part]->src[0] = rig.weights(1, part);
  layer.group = 1;
  check_served(&rig, &graph);
  CHECK(rig.bound(layer.products[0]));
  // The adapter's place is taken by a product over experts.
  extra->src[0] = rig.weights(1, 0);
  layer.products.push_back(extra);
  layer.parts.push_back(0);
  check_served(&rig, &graph);
  CHECK(rig.bound(extra));
  // The selection moves to another tensor, and then grows a dimension the seam does not know.
  MoeLayer& second = graph.input_ids(1, {{11, 12}});
  for (Tensor* product : layer.products) product->src[2] = second.ids;
  layer.wanted = second.wanted;
  check_served(&rig, &graph);
  CHECK(rig.bound(extra));
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
  second.ids->ne[2] = 2;
  check_served(&rig, &graph);
  CHECK(!rig.bound(extra));
  CHECK_EQ(rig.stats->unmanaged.load(), 4);
}

TEST(seam_many_graphs) {
  EngineRig rig(1, 4);
  rig.start();
  std::deque<TestGraph> graphs(12);  // more than are remembered
  for (size_t i = 0; i < graphs.size(); ++i) rig.add_layer(&graphs[i], 0, {{static_cast<int32_t>(i), 3}});
  for (int round = 0; round < 3; ++round) {
    for (TestGraph& graph : graphs) check_served(&rig, &graph);
  }
  CHECK_EQ(rig.stats->unmanaged.load(), 0);
}

// What a prompt reads goes first when decoding needs room; the experts of its last tokens stay.
TEST(seam_large_batch_keeps_its_tail) {
  EngineRig rig(1, 16, 32);
  rig.bed.plan.batch_tokens = 2;
  rig.start();
  TestGraph prompt;
  Rows rows;
  for (int32_t row = 0; row < 6; ++row) rows.push_back({row, row + 6});  // the last row names 5 and 11
  rig.add_layer(&prompt, 0, rows);
  check_served(&rig, &prompt);
  CHECK_EQ(rig.stats->misses.load(), 12);
  TestGraph decode;
  MoeLayer& layer = rig.add_layer(&decode, 0, {{20, 21}});
  for (int32_t expert = 20; expert < 32; expert += 2) {  // fills the free slots, then takes the prompt's
    decode.select(&layer, {{expert, expert + 1}});
    check_served(&rig, &decode);
  }
  for (int32_t expert = 0; expert < 12; ++expert) {
    const bool from_tail = expert == 5 || expert == 11;
    CHECK_EQ(rig.store->slot_of(0, expert) >= 0, from_tail || rig.store->slot_of(0, expert) >= 0);
    if (from_tail) CHECK(rig.store->slot_of(0, expert) >= 0);
  }
  CHECK_EQ(rig.stats->evictions.load(), 8);
}

TEST(seam_small_batch_is_all_tail) {
  EngineRig rig(1, 4, 32);
  rig.start();
  TestGraph graph;
  MoeLayer& layer = rig.add_layer(&graph, 0, {{0, 1}, {2, 3}});
  check_served(&rig, &graph);
  TestGraph decode;
  rig.add_layer(&decode, 0, {{0, 1}});
  check_served(&rig, &decode);
  graph.select(&layer, {{8, 9}, {0, 1}});
  check_served(&rig, &graph);
  CHECK(rig.store->slot_of(0, 2) < 0 && rig.store->slot_of(0, 3) < 0);
  CHECK_EQ(rig.stats->hits.load(), 4);
}

// The controls that the gates use to show that they would notice wrong bytes.
TEST(seam_mutations_give_wrong_bytes) {
  for (const uint64_t mutation : {0u, 1u, 2u}) {
    for (const bool testing : {false, true}) {
      EngineRig rig(1, 6);
      rig.bed.plan.testing = testing;
      rig.start();
      TestGraph graph;
      MoeLayer& layer = rig.add_layer(&graph, 0, {{3, 7, 5}});
      TestGraph single;
      MoeLayer& lone = rig.add_layer(&single, 0, {{11}});
      rig.stats->mutation = mutation;
      CHECK_EQ(rig.run(&graph), 0);
      const bool wrong = testing && mutation != 0;
      const auto& slices = rig.scheduler.products[layer.products[0]].slices;
      CHECK_EQ(slices.at(0) != rig.bed.slice(0, 0, 3), wrong);
      CHECK_EQ(slices.at(1) != rig.bed.slice(0, 0, 7), wrong);
      CHECK(slices.at(0) != "?" && slices.at(1) != "?");
      CHECK_EQ(rig.run(&single), 0);
      for (uint32_t part = 0; part < 3; ++part) {
        const auto& seen = rig.scheduler.products[lone.products[part]].slices;
        CHECK_EQ(seen.at(0) != rig.bed.slice(0, part, 11), wrong);
      }
      rig.stats->mutation = 0;
      check_served(&rig, &graph);
      check_served(&rig, &single);
    }
  }
}
